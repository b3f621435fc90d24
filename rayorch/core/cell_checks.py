"""What the queue owner checks of a start in cells, by an account of its own of whose cells lie where.

It knows queues and seats, and nothing of the topology: which nodes a domain has, the start itself says
(`Start.cell_domains`), and that is kept with the attempt. So the owner can tell whether the queue has a cell left for
it, whether its minimum lies in the cells that it names, and whether any node of these is another queue's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rayorch.core.decisions import Start
from rayorch.core.errors import StalePlanError
from rayorch.core.events import Started
from rayorch.core.planning.claims import minimum_of
from rayorch.core.topology import NODE_LEVEL
from rayorch.core.types import (
    CellNodes,
    Member,
    NodeId,
    QueueId,
    QueueSpec,
    State,
    Workload,
    WorkloadId,
    WorkloadSpec,
)


def owner_of_cells(queue: QueueId, specs: Mapping[QueueId, QueueSpec]) -> QueueSpec | None:
    """The nearest queue of a path that has cells."""
    id: QueueId | None = queue
    while id is not None:
        spec = specs.get(id)
        if spec is None or spec.cells:
            return spec
        id = spec.parent
    return None


@dataclass(frozen=True, slots=True)
class Binding:
    """The cells of a level that one attempt lies in, and the nodes of these."""

    queue: QueueId
    level: str
    domains: tuple[CellNodes, ...]

    @staticmethod
    def of(spec: WorkloadSpec, level: str, members: tuple[Member, ...], domains: tuple[CellNodes, ...]) -> Binding:
        """Of an attempt with these seats. A cell of one node need not be named: it is where the minimum lies."""
        if level == NODE_LEVEL:
            domains = tuple((str(node), (node,)) for node in sorted(minimum_on(spec, members)))
        return Binding(spec.queue, level, domains)

    @property
    def nodes(self) -> Iterator[NodeId]:
        """All nodes of the cells."""
        return (node for _, nodes in self.domains for node in nodes)


class CellIndex:
    """Which cells are bound, kept from change to change: a check costs what the start has and its queue's cells.

    `bound`: attempts in each domain, by queue and level. `on`: attempts by node, and by queue and level.
    """

    def __init__(self) -> None:
        self.bound: dict[tuple[QueueId, str], Counter[str]] = {}
        self.on: dict[NodeId, Counter[tuple[QueueId, str]]] = {}

    def put(self, old: Workload | None, new: Workload) -> None:
        """A workload is new, or has changed."""
        before = _binding(old) if old is not None and old.cell else None
        after = _binding(new) if new.cell else None
        if before == after:
            return
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)

    def _count(self, binding: Binding, by: int) -> None:
        key = (binding.queue, binding.level)
        for name, nodes in binding.domains:
            _add(self.bound, key, name, by)
            for node in nodes:
                _add(self.on, node, key, by)

    def check(
        self,
        start: Start,
        placement: tuple[Member, ...],
        workloads: Mapping[WorkloadId, Workload],
        specs: Mapping[QueueId, QueueSpec],
        beside: Iterable[Started] = (),
    ) -> None:
        """StalePlanError unless its queue has cells of the level, and as many as are bound with this start, and all of
        its minimum lies in them, and none of them is another's. `beside`: of its partners in the same commit.
        """
        workload, level = workloads[start.workload], start.cell
        binding = Binding.of(workload.spec, level, placement, start.cell_domains)
        owner = owner_of_cells(workload.spec.queue, specs)
        count = count_of(owner, level)
        if owner is None or not count:
            raise StalePlanError(f"{workload.id} is to start in cells of level {level}, and its queue has none")
        wanted = {name for name, _ in binding.domains}
        bound = set[str]()
        for other in beside:
            if other.cell == level:
                spec = workloads[other.workload].spec
                bound.update(name for name, _ in Binding.of(spec, level, other.members, other.cell_domains).domains)
        for queue, at in self.bound:
            if at == level and owner_of_cells(queue, specs) == owner:
                bound.update(self.bound[queue, at])
        if wanted - bound and len(wanted | bound) > count:  # where more are bound than there are by now, it may join
            what = "nodes" if level == NODE_LEVEL else f"domains of level {level}"
            raise StalePlanError(
                f"{workload.id} would bind {len(wanted | bound)} {what}, and queue {owner.id} has {count} cells"
            )
        self._check_nodes(workload, binding, placement, owner, specs)

    def _check_nodes(
        self,
        workload: Workload,
        binding: Binding,
        placement: tuple[Member, ...],
        owner: QueueSpec,
        specs: Mapping[QueueId, QueueSpec],
    ) -> None:
        ours = set(binding.nodes)
        if outside := minimum_on(workload.spec, placement) - ours:
            raise StalePlanError(
                f"{workload.id} is to start in cells of queue {owner.id}, and {min(outside)} is in none"
            )
        for node in sorted(ours):
            for queue, level in sorted(self.on.get(node, ())):
                other = owner_of_cells(queue, specs)
                if (other == owner and level == binding.level) or other is None or not count_of(other, level):
                    continue  # what runs on in cells that its queue no longer has is looked at like all other work
                raise StalePlanError(f"{workload.id} would bind {node}, which lies in a cell of queue {other.id}")


def count_of(owner: QueueSpec | None, level: str) -> int:
    """How many cells of a level a queue has, of all kinds."""
    return sum(cell.count for cell in owner.cells if cell.level == level) if owner is not None else 0


def minimum_on(spec: WorkloadSpec, members: tuple[Member, ...]) -> set[NodeId]:
    """Where the minimum lies; what is more than that may go at any time."""
    return {member.node for member in minimum_of(spec, members)}


def _binding(workload: Workload) -> Binding | None:
    if workload.state is not State.RUNNING:
        return None
    return Binding.of(workload.spec, workload.cell, workload.placement, workload.cell_domains)


K = TypeVar("K")
V = TypeVar("V")


def _add(counts: dict[K, Counter[V]], key: K, value: V, by: int) -> None:
    found = counts.setdefault(key, Counter())
    found[value] += by
    if not found[value]:
        del found[value]
    if not found:
        del counts[key]
