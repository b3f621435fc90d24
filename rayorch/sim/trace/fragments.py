"""What is free and of no use: fragmentation over time, kept up to date node by node as seats come and go.

The measure of `core/fragmentation.py` with the classes of the whole trace: of what is free on a node, what one member
of a job drawn from the trace could not use there. A start or an end costs as much as its members, whatever the
cluster's size; what a node in some state is worth is looked up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from rayorch.core.fragmentation import Fragmentation, typical
from rayorch.core.placement import TaskClass, class_of
from rayorch.core.types import CPU, UNIT, Member, NodeHealth, NodeId, NodeSpec, WorkloadId
from rayorch.sim.trace.model import Ask, TraceJob

Taken = tuple[NodeId, int, tuple[tuple[int, int], ...]]
"""A seat: its node, CPUs, and (position of a device, units) of each device."""


class _Node:
    """What is free on one node. `units`: its F_n, as `Fragmentation.of` has it."""

    __slots__ = ("cpu", "free", "model", "open", "places", "sick", "units")

    def __init__(self, spec: NodeSpec) -> None:
        self.free = [UNIT] * (len(spec.devices) or spec.total.gpu_units // UNIT)
        self.places = {index: index for index in range(len(self.free))}  # of a node that does not name its devices
        self.cpu = spec.total.units(CPU)
        self.units = 0
        self.see(spec)

    def see(self, spec: NodeSpec) -> None:
        """What the inventory says of it now."""
        if len(spec.devices) == len(self.free):
            indices = sorted(device.index for device in spec.devices)
            self.places = {index: place for place, index in enumerate(indices)}
        self.model = spec.model
        self.open = spec.health is NodeHealth.OK
        self.sick = frozenset(self.places[d.index] for d in spec.devices if d.sick and d.index in self.places)

    def seat(self, member: Member) -> tuple[tuple[int, int], ...]:
        """On which devices a member sits: those that it was given, else as Ray binds them."""
        units = member.bundle.gpu_units
        if not units:
            return ()
        places = [self.places[index] for index in member.devices if index in self.places]
        if not places:
            each = min(units, UNIT)
            able = [place for place, free in enumerate(self.free) if free >= each and place not in self.sick]
            places = sorted(able, key=lambda place: (self.free[place], place))[: max(1, units // UNIT)]
        return tuple((place, min(units // len(places), UNIT)) for place in places)

    def usable(self) -> tuple[int, ...]:
        """Free units of each device that takes something new."""
        if not self.sick:
            return tuple(self.free)
        return tuple(0 if place in self.sick else free for place, free in enumerate(self.free))


class Fragments:
    """See the module. `gpus`: free GPUs that one member of a job drawn from the trace can't use, now."""

    def __init__(self, nodes: Iterable[NodeSpec], jobs: Sequence[TraceJob]) -> None:
        self._measure = Fragmentation(classes_of(jobs))
        self._nodes = {node.id: _Node(node) for node in nodes}
        self._held: dict[WorkloadId, tuple[Taken, ...]] = {}
        self._sum = 0
        for id in self._nodes:
            self._count(id)

    @property
    def gpus(self) -> float:
        """See the class."""
        return self._sum / (UNIT * self._measure.total) if self._measure.total else 0.0

    def hold(self, id: WorkloadId, members: tuple[Member, ...]) -> None:
        """It has these seats and no others; none: it is over. O(members)."""
        before = self._held.pop(id, ())
        touched: dict[NodeId, None] = {}
        for at, cpu, seats in before:
            self._take(at, -cpu, [(place, -units) for place, units in seats])
            touched[at] = None
        taken: list[Taken] = []
        for member in members:
            node = self._nodes.get(member.node)
            if node is not None:
                seat = (member.node, member.bundle.units(CPU), node.seat(member))
                self._take(*seat)
                taken.append(seat)
                touched[member.node] = None
        if taken:
            self._held[id] = tuple(taken)
        for at in touched:
            self._count(at)

    def see(self, nodes: Iterable[NodeSpec]) -> None:
        """These nodes are other ones now: new, gone, sick, well again."""
        for spec in nodes:
            known = self._nodes.get(spec.id)
            if known is None:
                self._nodes[spec.id] = _Node(spec)
            else:
                known.see(spec)
            self._count(spec.id)

    def only(self, nodes: Collection[NodeId]) -> None:
        """All others have been taken away."""
        for id in [id for id in self._nodes if id not in nodes]:
            self._sum -= self._nodes.pop(id).units

    def _take(self, id: NodeId, cpu: int, seats: Iterable[tuple[int, int]]) -> None:
        node = self._nodes[id]
        node.cpu -= cpu
        for place, units in seats:
            node.free[place] -= units

    def _count(self, id: NodeId) -> None:
        node = self._nodes[id]
        units = self._measure.of(node.model, node.cpu, node.usable()) if node.open else 0
        self._sum += units - node.units
        node.units = units


def classes_of(jobs: Sequence[TraceJob]) -> tuple[TaskClass, ...]:
    """One member of each typical job, by how many jobs ask for it. Work without GPUs can use none, and counts not."""
    asks: dict[int, tuple[Ask, int]] = {}
    for job in jobs:
        ask, count = asks.get(id(job.ask), (job.ask, 0))
        asks[id(job.ask)] = (ask, count + 1)
    weights: dict[TaskClass, int] = {}
    for ask, count in asks.values():
        if ask.each.gpu_units:
            task = class_of(ask.each, ask.models)
            weights[task] = weights.get(task, 0) + count
    return typical(replace(task, weight=weight) for task, weight in weights.items())
