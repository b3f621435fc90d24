"""Files of documents that an option of the command line names; errors bear the option's name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rayorch.config import ClusterDocument, Document, QueueDocument, load_documents
from rayorch.core.errors import SpecError
from rayorch.core.types import QueueSpec


def documents_in(path: Path, field: str) -> tuple[Document, ...]:
    """All documents of a file. SpecError where it can't be read."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SpecError(field, f"can't read {path}: {error.strerror}") from error
    return load_documents(text, str(path))


def cluster_in(documents: Sequence[Document], path: Path, field: str) -> ClusterDocument:
    """The one Cluster document of a file; SpecError where there is none, or several."""
    clusters = [document for document in documents if isinstance(document, ClusterDocument)]
    if len(clusters) != 1:
        raise SpecError(field, f"{path} must hold one Cluster document, it holds {len(clusters)}")
    return clusters[0]


def queues_in(documents: Sequence[Document]) -> tuple[QueueSpec, ...]:
    """The queues of a file."""
    return tuple(document.to_core() for document in documents if isinstance(document, QueueDocument))
