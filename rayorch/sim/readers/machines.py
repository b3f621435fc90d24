"""Machines from what `rayorch nodes -o json` prints, so that the nodes of a live cluster can be simulated."""

from __future__ import annotations

from pathlib import Path

from rayorch.core.errors import SpecError
from rayorch.core.resources import Resources
from rayorch.core.types import Device, NodeId, NodeSpec
from rayorch.sim.readers.rows import json_of

EXPECTED = "an array of nodes with id and total, as `rayorch nodes -o json` prints it"


def read(path: str | Path) -> tuple[NodeSpec, ...]:
    """The nodes that are there, empty, sorted by id: totals, labels, topology and the models of their devices.

    Lost nodes are left out. SpecError with the field of what is wrong.
    """
    data = json_of(path, EXPECTED)
    if not isinstance(data, list) or not data:
        raise SpecError(str(path), f"expected {EXPECTED}")
    found = [_node(entry, f"[{n}]") for n, entry in enumerate(data)]
    kept = [node for node in found if node is not None]
    if len({node.id for node in kept}) != len(kept):
        raise SpecError(str(path), "names a node twice")
    return tuple(sorted(kept, key=lambda node: node.id))


def _node(entry: object, at: str) -> NodeSpec | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or not isinstance(entry.get("total"), dict):
        raise SpecError(at, f"must be a node; expected {EXPECTED}")
    if entry.get("health") == "lost":
        return None
    devices = entry.get("devices") or []
    if not isinstance(devices, list) or not all(isinstance(one, dict) for one in devices):
        raise SpecError(f"{at}.devices", "must be an array of objects")
    return NodeSpec(
        NodeId(entry["id"]),
        str(entry.get("name") or entry["id"]),
        Resources.of(entry["total"], f"{at}.total"),
        devices=tuple(Device(n, str(one.get("model") or "")) for n, one in enumerate(devices)),
        labels=_pairs(entry.get("labels"), f"{at}.labels"),
        topology=_pairs(entry.get("topology"), f"{at}.topology"),
    )


def _pairs(given: object, at: str) -> tuple[tuple[str, str], ...]:
    if given is None:
        return ()
    if not isinstance(given, dict):
        raise SpecError(at, "must be an object")
    return tuple((str(name), str(value)) for name, value in given.items())
