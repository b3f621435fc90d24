"""Nodes that should be alike and are not: of one group, or of one GPU model where nodes have no groups.

A gang runs at the pace of its worst member, and a part of a GPU that fits here does not fit there. What differs is
said of the few against the many; nothing is taken out of service for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rayorch.core.sharing import MIB
from rayorch.core.types import UNIT, NodeId, NodeSpec

GIB_IN_MIB = 1024


@dataclass(frozen=True, slots=True)
class Kind:
    """What nodes of one kind have in common. Memory in GiB, because drivers differ in the last MiB.

    `links`: how many others each GPU reaches by NVLink. What was not read yet is empty, and differs from nothing.
    """

    gpus: int
    memory_gib: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    sharing: str = ""

    @staticmethod
    def of(node: NodeSpec) -> Kind:
        """The node's kind as far as it is known."""
        sizes = [round(d.memory_bytes / MIB / GIB_IN_MIB) for d in node.devices if d.memory_bytes]
        read = any(device.pci for device in node.devices)
        links = [len(d.nvlink) for d in node.devices if not d.mig_profile and not d.lost] if read else []
        gpus = node.ray_total.gpu_units // UNIT
        return Kind(gpus, tuple(sorted(sizes)), tuple(sorted(set(links))), node.sharing)


def drift(nodes: Iterable[NodeSpec]) -> dict[NodeId, str]:
    """The nodes that differ from most of their kind, with what is different; O(nodes).

    Of equally frequent values the first in order is taken for the right one.
    """
    alike: dict[tuple[str, str], dict[NodeId, Kind]] = {}
    for node in nodes:
        if node.ray_total.gpu_units and (node.group or node.model):
            alike.setdefault((node.group, node.model), {})[node.id] = Kind.of(node)
    found: dict[NodeId, list[str]] = {}
    for (group, model), kinds in sorted(alike.items()):
        whose = f"other nodes of group {group}" if group else f"other nodes with {model}"
        for text, values in _features(kinds).items():
            for id, words in _odd(values, text, whose).items():
                found.setdefault(id, []).append(words)
    return {id: "; ".join(texts) for id, texts in found.items()}


def _features(kinds: Mapping[NodeId, Kind]) -> dict[str, dict[NodeId, str]]:
    """Feature → node → its value in words; without the nodes of which it is not known."""
    return {
        "GPUs": {id: str(kind.gpus) for id, kind in kinds.items()},
        "GPU memory": {id: _sizes(kind.memory_gib) for id, kind in kinds.items() if kind.memory_gib},
        "NVLink neighbours of a GPU": {id: _either(kind.links) for id, kind in kinds.items() if kind.links},
        "sharing of GPUs": {id: kind.sharing or "none" for id, kind in kinds.items()},
    }


def _odd(values: Mapping[NodeId, str], text: str, whose: str) -> dict[NodeId, str]:
    often = Counter(values.values())
    if len(often) < 2:
        return {}
    usual = min(often, key=lambda value: (-often[value], value))
    return {node: f"{text}: {value}, {whose} have {usual}" for node, value in sorted(values.items()) if value != usual}


def _sizes(gib: tuple[int, ...]) -> str:
    return ", ".join(f"{gib.count(size)} x {size} GiB" for size in sorted(set(gib)))


def _either(numbers: tuple[int, ...]) -> str:
    return " or ".join(str(n) for n in numbers)
