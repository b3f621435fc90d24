"""Cells: quota in units of topology. A queue owns so many whole nodes, or whole domains of a level, of one kind.

Pure arithmetic over domains; who runs where is `planning/cells.py`. After HiveD (OSDI'20, cell_allocation.go): cells of
a kind are interchangeable, one is bound to a physical domain only when work of its queue starts there, and what is not
bound must at any time be there for all that are owed. HiveD keeps that by splitting the smallest free cell in a tree
of equal parts; here a *witness* is kept, a domain for every cell that is owed, so that what else lies in the cluster
need not be regular.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from rayorch.core.ids import NodeId, QueueId
from rayorch.core.topology import Domain, Topology
from rayorch.core.types import UNIT, NodeSpec

OUTSIDE = ""
"""The level of an attempt that does not lie in cells of its queue."""


@dataclass(frozen=True, slots=True, order=True)
class CellKind:
    """Cells that are as good as each other: whole domains of a level, of nodes with GPUs of one model (empty: none).

    `gpus`: how many each has, 0: as many as most of them.
    """

    level: str
    model: str
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class CellsView:
    """How a queue's cells of one kind are: `bound` hold its work, `owed` don't, `lacking` of these can't be had.

    What can't be had now: all nodes of the kind are lost, out of service, or hold what can't be stopped. `there`: how
    many domains of the kind the cluster has at all, None where that was not counted.
    """

    queue: QueueId
    level: str
    model: str
    count: int
    bound: int
    owed: int
    lacking: int
    gpus_each: int = 0
    there: int | None = None


def the_model(model: str, topology: Topology, nodes: Mapping[NodeId, NodeSpec]) -> str | None:
    """The model that cells are of which name `model`; None: it names none and there are several."""
    if model:
        return model
    models = {topology.models.get(id, "") for id in nodes}
    return models.pop() if len(models) == 1 else None


def domains_of(kind: CellKind, topology: Topology, nodes: Mapping[NodeId, NodeSpec]) -> tuple[Domain, ...]:
    """The domains that are cells of the kind: all nodes of the model, and as many and as large ones as most have.

    What is of another shape gives no cell, so that all of a kind are alike.
    """
    found: list[tuple[tuple[tuple[int, int], ...], Domain]] = []
    for domain in topology.at(kind.level):
        if all(topology.models.get(node, "") == kind.model for node in domain.nodes):
            sizes = [nodes[node].total for node in domain.nodes]
            if kind.gpus and sum(size.gpu_units for size in sizes) != kind.gpus * UNIT:
                continue
            found.append((tuple(sorted((size.gpu_units, size.units("CPU")) for size in sizes)), domain))
    shapes = Counter(shape for shape, _ in found)
    usual = max(shapes, key=lambda shape: (shapes[shape], shape), default=())
    return tuple(domain for shape, domain in found if shape == usual)


Rank = Callable[[Domain], tuple[object, ...]]
"""Which of several domains stand for cells that are owed; the smallest first."""


def touched(domains: Iterable[Domain], nodes: Collection[NodeId]) -> tuple[Domain, ...]:
    """Those of the domains that one of the nodes is in."""
    there = set(nodes)
    return tuple(domain for domain in domains if not there.isdisjoint(domain.nodes))
