"""Any document: which kind it is, and a file of several."""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.config.calendar_documents import CronDocument, ReservationDocument
from rayorch.config.cluster import ClusterDocument
from rayorch.config.documents import API_VERSION, QueueDocument, ServeAppDocument, WorkloadDocument
from rayorch.config.fields import validate
from rayorch.config.text import load_yaml
from rayorch.core.errors import SpecError

Document = ClusterDocument | QueueDocument | WorkloadDocument | ServeAppDocument | ReservationDocument | CronDocument

_KINDS: Mapping[str, type[Document]] = {
    "Cluster": ClusterDocument,
    "Queue": QueueDocument,
    "Workload": WorkloadDocument,
    "ServeApp": ServeAppDocument,
    "Reservation": ReservationDocument,
    "Cron": CronDocument,
}


def parse_document(value: object, prefix: str = "") -> Document:
    """One document from plain values; SpecError with the field's path, which starts with `prefix`."""
    at = f"{prefix}." if prefix else ""
    if not isinstance(value, dict):
        raise SpecError(prefix, "must be a mapping with apiVersion, kind, metadata and spec")
    if value.get("apiVersion") != API_VERSION:
        raise SpecError(f"{at}apiVersion", f"must be {API_VERSION}, got {value.get('apiVersion')!r}")
    model = _KINDS.get(value["kind"]) if isinstance(value.get("kind"), str) else None
    if model is None:
        raise SpecError(f"{at}kind", f"must be one of {', '.join(_KINDS)}, got {value.get('kind')!r}")
    return validate(model, value, prefix)


def load_documents(text: str | bytes, source: str = "") -> tuple[Document, ...]:
    """All documents of a YAML text, every one of them checked; SpecError also when two have one kind and name."""
    values = load_yaml(text, source)
    documents: list[Document] = []
    seen: set[tuple[str, str]] = set()
    for n, value in enumerate(values):
        prefix = f"documents[{n}]" if len(values) > 1 else ""
        document = parse_document(value, prefix)
        try:
            document.to_core()
        except SpecError as error:
            raise SpecError(f"{prefix}.{error.field}" if prefix else error.field, error.message) from error
        key = (document.kind, document.metadata.name)
        if key in seen:
            raise SpecError(f"documents[{n}].metadata.name", f"{key[0]} {key[1]} is given twice")
        seen.add(key)
        documents.append(document)
    return tuple(documents)
