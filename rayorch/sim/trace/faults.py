"""Which nodes are there, and how fast they are, by the failure model: what the inventory sees and what work feels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rayorch.core.types import UNIT, Device, NodeHealth, NodeId, NodeSpec, State, WorkloadId
from rayorch.sim.models.failures import GPU, FailureModel, Fault, FaultKind
from rayorch.sim.trace.cluster import TraceCluster
from rayorch.sim.trace.events import NOBODY, Moment, Moments
from rayorch.sim.trace.jobs import RunningJob

ENDLESS_S = 1e9
"""Faults are drawn up to here where nobody says when a run ends."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a fault, or its end, has changed. `paced`: whose work goes on at another rate; `broken`: whose has ended.

    `leave_by_s`: when the nodes will be taken away, where that was announced.
    """

    nodes: tuple[NodeId, ...]
    capacity: int
    paced: tuple[WorkloadId, ...] = ()
    broken: tuple[WorkloadId, ...] = ()
    leave_by_s: float | None = None


class Faults:
    """Draws the faults one after the other and applies them.

    A node that is gone twice at a time (its rack, and itself) is back when the last reason is over.
    """

    def __init__(
        self, cluster: TraceCluster, model: FailureModel, seed: int, moments: Moments, until_s: float | None
    ) -> None:
        self._cluster = cluster
        self._moments = moments
        self._specs = dict(cluster.inventory.nodes)
        if cluster.supplies is not None:
            self._specs |= {node.id: node for node in cluster.supplies.potential}
        if any(law.per == GPU or law.kind is FaultKind.DEVICE for law in model.laws):
            self._specs = {id: _with_devices(node) for id, node in self._specs.items()}
            cluster.change_nodes((), tuple(self._specs.values()))
        horizon_s = ENDLESS_S if until_s is None else until_s
        self._coming = model.draw(tuple(self._specs.values()), seed, horizon_s) if model.laws else iter(())
        self._faults: dict[int, Fault] = {}
        self._open: dict[int, Fault] = {}
        self._away: dict[NodeId, int] = {}
        self._slow: dict[NodeId, dict[int, Fault]] = {}
        self._count = 0
        self._broken: set[WorkloadId] = set()
        self._draw()

    @property
    def _capacity(self) -> int:
        """Of what is up now, in stored units of GPUs; O(nodes), at each fault."""
        return self._cluster.gpu_units

    @property
    def awaited(self) -> bool:
        """Whether nodes, or GPUs, that are gone will come back."""
        return bool(self._away) or any(fault.device is not None for fault in self._open.values())

    def found(self, node: NodeSpec) -> NodeSpec | None:
        """A node that joins, with what has befallen its slot; None: the slot is away, and it comes with its repair."""
        return None if self._away.get(node.id) else self._specs.get(node.id, node)

    def _draw(self) -> None:
        """The next fault; its end follows when it has begun."""
        fault = next(self._coming, None)
        if fault is None:
            return
        self._count += 1
        self._faults[self._count] = fault
        if fault.announced_s < fault.at_s:
            self._moments.put(fault.announced_s, Moment.NOTICE, NOBODY, self._count)
        self._moments.put(fault.at_s, Moment.FAULT, NOBODY, self._count)

    def rate(self, nodes: tuple[NodeId, ...]) -> float:
        """How much work is done in a second on these nodes: the slowest sets the pace; a link counts between nodes."""
        if not self._slow:
            return 1.0
        worst = 1.0
        for node in nodes:
            for fault in self._slow.get(node, {}).values():
                if fault.kind is not FaultKind.LINK or len(nodes) > 1:
                    worst = max(worst, fault.slowdown)
        return 1.0 / worst

    def happen(self, kind: Moment, number: int, now_s: float) -> Change:
        """A fault is announced, begins or is over."""
        if kind is Moment.NOTICE:
            self._draw()  # they come in the order in which they are known, so that none is known too late
            return self._announce(self._faults[number])
        if kind is Moment.REPAIR:
            return self._repair(number, self._open.pop(number))
        fault = self._faults.pop(number)
        self._open[number] = fault
        self._moments.put(fault.until_s, Moment.REPAIR, NOBODY, number)
        change = self._begin(number, fault)
        if fault.announced_s >= fault.at_s:
            self._draw()
        return change

    def abandoned(self, jobs: Mapping[WorkloadId, RunningJob]) -> list[RunningJob]:
        """Attempts that are broken and that the plan lets go on: they crash."""
        if not self._broken:
            return []
        left, self._broken = sorted(self._broken), set()
        found = [jobs[id] for id in left if id in jobs]
        return [job for job in found if job.broken and self._cluster.state_of(job.id) is State.RUNNING]

    def _announce(self, fault: Fault) -> Change:
        nodes = self._cluster.inventory.nodes
        come = [
            replace(nodes[id], health=NodeHealth.DRAINING, reason="to be taken back", drain_deadline_s=fault.at_s)
            for id in fault.nodes
            if id in nodes and nodes[id].health is NodeHealth.OK
        ]
        self._cluster.change_nodes((), come)
        return Change(fault.nodes, self._capacity, leave_by_s=fault.at_s)

    def _begin(self, number: int, fault: Fault) -> Change:
        if fault.device is not None:
            return self._lose_device(fault)
        if not fault.ends_work:
            for id in fault.nodes:
                self._slow.setdefault(id, {})[number] = fault
            return Change(fault.nodes, self._capacity, paced=self._on(fault.nodes))
        broken = self._on(fault.nodes, across=fault.kind is FaultKind.LINK)
        if fault.kind is not FaultKind.LINK:
            gone = [id for id in fault.nodes if not self._away.get(id)]
            for id in fault.nodes:
                self._away[id] = self._away.get(id, 0) + 1
            self._cluster.change_nodes(gone, ())
        self._broken.update(broken)
        return Change(fault.nodes, self._capacity, broken=broken)

    def _repair(self, number: int, fault: Fault) -> Change:
        if fault.device is not None:
            return self._set_device(fault, lost=False)
        if not fault.ends_work:
            for id in fault.nodes:
                slow = self._slow[id]
                del slow[number]
                if not slow:
                    del self._slow[id]
            return Change(fault.nodes, self._capacity, paced=self._on(fault.nodes))
        if fault.kind is FaultKind.LINK:
            return Change(fault.nodes, self._capacity)
        back = []
        for id in fault.nodes:
            self._away[id] -= 1
            if not self._away[id]:
                del self._away[id]
                back.append(self._specs[id])
        self._cluster.change_nodes((), back)
        return Change(fault.nodes, self._capacity)

    def _lose_device(self, fault: Fault) -> Change:
        (node,) = fault.nodes
        hit = [
            id
            for id, attempt in self._cluster.live_on(node)
            if any(
                member.node == node and fault.device in member.devices
                for member in self._cluster.books.allocations[id, attempt].members
            )
        ]
        self._broken.update(hit)
        change = self._set_device(fault, lost=True)
        return replace(change, broken=tuple(hit))

    def _set_device(self, fault: Fault, lost: bool) -> Change:
        (id,) = fault.nodes
        why = "its driver does not reach it any more" if lost else ""
        node = self._specs[id]
        devices = tuple(
            replace(device, lost=lost, sick=why) if device.index == fault.device else device for device in node.devices
        )
        self._specs[id] = replace(node, devices=devices)
        if not self._away.get(id):
            self._cluster.change_nodes((), (self._specs[id],))
        return Change(fault.nodes, self._capacity)

    def _on(self, nodes: Iterable[NodeId], across: bool = False) -> tuple[WorkloadId, ...]:
        """Who has seats there. `across`: only those that have others elsewhere."""
        held = self._cluster.books.allocations
        keys = {key for node in nodes for key in self._cluster.live_on(node)}
        return tuple(sorted(key[0] for key in keys if not across or len({m.node for m in held[key].members}) > 1))


def _with_devices(node: NodeSpec) -> NodeSpec:
    """The node with its GPUs listed, so that one of them can fail."""
    if node.devices or not node.total.gpu_units:
        return node
    return replace(node, devices=tuple(Device(n, node.model) for n in range(node.total.gpu_units // UNIT)))
