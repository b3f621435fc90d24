"""Manifests as plain values: their names and labels, and how they become text and come back from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import yaml

from rayorch.config.text import load_yaml
from rayorch.core.errors import SpecError
from rayorch.core.payload import Json

Manifest = dict[str, Json]

PART_OF = "app.kubernetes.io/part-of"
COMPONENT = "app.kubernetes.io/component"


def manifest(kind: str, name: str, namespace: str, component: str, body: Mapping[str, Json]) -> Manifest:
    """One object with the metadata that all of ours have; `kind` is "apiVersion Kind"."""
    version, _, word = kind.rpartition(" ")
    metadata: Json = {"name": name, "namespace": namespace, "labels": {PART_OF: "rayorch", COMPONENT: component}}
    return {"apiVersion": version, "kind": word, "metadata": metadata, **body}


def without_empty(values: Mapping[str, Json]) -> dict[str, Json]:
    """The same without None and without empty lists and mappings, which only make manifests longer."""
    return {key: value for key, value in values.items() if value is not None and value != {} and value != []}


def environment(name: str, value: str) -> Json:
    """A variable of a container."""
    return {"name": name, "value": value}


def secret_variable(name: str, secret: str, key: str) -> Json:
    """A variable of a container that comes from a Secret."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def name_of(document: Manifest) -> str:
    """Its metadata.name, empty where it has none."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


# ---------------------------------------------------------------- text


class _Dumper(yaml.SafeDumper):
    """Lists indented below their key, text of several lines as a block."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """PyYAML would not indent lists."""
        del indentless
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        """An alias is for programs; people read manifests."""
        del data
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(documents: Sequence[Manifest], heading: str = "") -> str:
    """A stream for `kubectl apply -f -`, the same text for the same values; `heading` goes before it as a comment."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in heading.splitlines())
    bodies = [yaml.dump(d, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=200) for d in documents]
    return comment + "---\n".join(bodies)


def to_json(documents: Sequence[Manifest]) -> str:
    """The same as one List, which kubectl takes as well."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)}, indent=2) + "\n"


def load_manifests(text: str | bytes, source: str = "") -> tuple[Manifest, ...]:
    """The objects of a YAML stream, Lists opened; SpecError for what is no object."""
    found: list[Manifest] = []
    for number, document in enumerate(load_yaml(text, source)):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise SpecError(f"documents[{number}]", f"{source or 'the text'} holds something that is no object")
        items = document.get("items")
        parts = items if document.get("kind") == "List" and isinstance(items, list) else [document]
        for part in parts:
            if not isinstance(part, dict) or not isinstance(part.get("kind"), str) or not part.get("apiVersion"):
                raise SpecError(f"documents[{number}]", "has no apiVersion and kind")
            found.append(part)
    return tuple(found)
