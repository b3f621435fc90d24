"""KubeRay's own resource definitions as checks: what the API server would fill in, drop and refuse."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

VERSION = "v1"


class Definition:
    """One kind's schema of version v1."""

    def __init__(self, path: Path) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 - a safe loader, the fast one
        (version,) = (v for v in raw["spec"]["versions"] if v["name"] == VERSION)
        self.raw = raw
        self.kind: str = raw["spec"]["names"]["kind"]
        self.plural: str = raw["spec"]["names"]["plural"]
        self.schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
        self._validator = Draft202012Validator(_plain(self.schema))

    def completed(self, thing: dict[str, Any]) -> dict[str, Any]:
        """With the defaults filled in and unknown fields dropped; metadata is the server's own business."""
        return {**_completed(thing, self.schema), "metadata": thing.get("metadata", {})}

    def errors(self, thing: dict[str, Any]) -> Iterator[str]:
        """What the server would refuse, with the path of each field."""
        for error in self._validator.iter_errors(thing):
            yield f"{'.'.join(str(part) for part in error.absolute_path)}: {error.message[:200]}"

    def unknown(self, thing: dict[str, Any]) -> list[str]:
        """Fields that the schema does not have: strict validation refuses them."""
        return sorted(_unknown(thing, self.schema, ""))


@cache
def definitions(folder: Path) -> dict[str, Definition]:
    """By plural name: every definition in a folder."""
    found = [Definition(path) for path in sorted(folder.glob("ray.io_*.yaml"))]
    return {definition.plural: definition for definition in found}


def _plain(schema: Any) -> Any:
    """Kubernetes' extensions in the words of JSON Schema; of the formats only int32 counts."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _plain(value) for key, value in schema.items() if not key.startswith("x-") and key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        # The pattern holds for text only, as JSON Schema has it; "type" is not given beside it.
        kept["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if schema.get("format") == "int32":
        kept = {"minimum": -(2**31), "maximum": 2**31 - 1, **kept}
    if schema.get("nullable") and isinstance(kept.get("type"), str):
        kept["type"] = [kept["type"], "null"]
    return kept


def _completed(thing: Any, schema: dict[str, Any]) -> Any:
    if isinstance(thing, list):
        return [_completed(item, schema.get("items", {})) for item in thing]
    if not isinstance(thing, dict):
        return thing
    properties: dict[str, Any] | None = schema.get("properties")
    if properties is None:
        inner = schema.get("additionalProperties")
        if isinstance(inner, dict):
            kept = {key: value for key, value in thing.items() if value is not None or _may_be_null(inner)}
            return {key: _completed(value, inner) for key, value in kept.items()}
        return thing
    keep_unknown = schema.get("x-kubernetes-preserve-unknown-fields", False)
    found = {
        key: _completed(value, properties[key]) if key in properties else value
        for key, value in thing.items()
        if (key in properties or keep_unknown) and not (value is None and not _may_be_null(properties.get(key, {})))
    }
    for key, inner in properties.items():
        if key not in found and "default" in inner:
            found[key] = inner["default"]
    return found


def _may_be_null(schema: dict[str, Any]) -> bool:
    """Elsewhere null is dropped, as if the field were not there."""
    return bool(schema.get("nullable") or schema.get("x-kubernetes-preserve-unknown-fields"))


def _unknown(thing: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if isinstance(thing, list):
        for index, item in enumerate(thing):
            yield from _unknown(item, schema.get("items", {}), f"{path}[{index}]")
    elif isinstance(thing, dict) and (properties := schema.get("properties")) is not None:
        for key, value in thing.items():
            if key not in properties:
                if not schema.get("x-kubernetes-preserve-unknown-fields") and path + key not in ("metadata",):
                    yield f"{path}.{key}".lstrip(".")
            elif not (path == "" and key == "metadata"):
                yield from _unknown(value, properties[key], f"{path}.{key}".lstrip("."))
