"""Manifests against KubeRay's CustomResourceDefinitions, as the API server would read them with strict fields.

The server's CEL rules are not evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import yaml

from rayorch.config.kuberay.checks import Finding, Level
from rayorch.config.kuberay.documents import Manifest, name_of
from rayorch.core.errors import SpecError
from rayorch.core.payload import Json

MAX_FINDINGS = 50


def check_schemas(documents: Sequence[Manifest], folder: Path) -> list[Finding]:
    """What the CRDs in that folder refuse: wrong types, missing fields and fields that they don't have."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # comes with Ray

    schemas = load_schemas(folder)
    found: list[Finding] = []
    for document in documents:
        schema = schemas.get((str(document["apiVersion"]), str(document["kind"])))
        if schema is None:
            continue
        where = f"{document['kind']} {name_of(document)}"
        for error in Draft202012Validator(schema).iter_errors(document):
            found.append(Finding(Level.ERROR, where, ".".join(map(str, error.absolute_path)), error.message[:300]))
        found += [Finding(Level.ERROR, where, path, "is not a field") for path in unknown_fields(document, schema, "")]
    return found[:MAX_FINDINGS]


def load_schemas(folder: Path) -> dict[tuple[str, str], Mapping[str, Json]]:
    """The schema of each (apiVersion, kind) that a folder's CRDs define; SpecError where there are none."""
    found: dict[tuple[str, str], Mapping[str, Json]] = {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(folder.glob("*.yaml")):
        definition = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506 - a safe loader, in C
        if not isinstance(definition, dict) or definition.get("kind") != "CustomResourceDefinition":
            continue
        spec = definition["spec"]
        for version in spec["versions"]:
            key = (f"{spec['group']}/{version['name']}", str(spec["names"]["kind"]))
            found[key] = version["schema"]["openAPIV3Schema"]
    if not found:
        raise SpecError("crds", f"{folder} holds no CustomResourceDefinition")
    return found


def unknown_fields(value: Json, schema: Mapping[str, Json], path: str) -> Iterator[str]:
    """Paths of fields that the schema does not have: a server prunes them without a word."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, list):
        items = schema.get("items")
        for number, item in enumerate(value):
            yield from unknown_fields(item, items, f"{path}[{number}]") if isinstance(items, dict) else ()
        return
    known, others = schema.get("properties"), schema.get("additionalProperties")
    if not isinstance(value, dict) or (known is None and others is None and not path):
        return
    for key, inner in value.items():
        where = f"{path}.{key}" if path else key
        if not path and key == "metadata":  # every object's own, which a CRD does not describe
            continue
        if isinstance(known, dict) and key in known:
            yield from unknown_fields(inner, cast(Mapping[str, Json], known[key]), where)
        elif isinstance(others, dict):
            yield from unknown_fields(inner, others, where)
        elif others is not True and (known is not None or schema.get("type") == "object") and not _opaque(schema):
            yield where


def _opaque(schema: Mapping[str, Json]) -> bool:
    """An object of which the schema says nothing."""
    return "properties" not in schema and "additionalProperties" not in schema
