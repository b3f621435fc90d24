"""Dated copies of what the owners know, brought up to date by what they say has changed, and joined into a snapshot.

What did not change stays the same object, from the owners' answers to the planner's memory. Of every change it is noted
whose attempts have become news, for the reconciliation (`lookout.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from rayorch.core.allocations import AllocationChanges
from rayorch.core.arrays import entry_ids
from rayorch.core.asked import AskedClass
from rayorch.core.budgets import BudgetUse
from rayorch.core.capacity import Capacity
from rayorch.core.events import NodeCordoned
from rayorch.core.history import History
from rayorch.core.in_order import InOrder
from rayorch.core.inventory import InventoryChanges
from rayorch.core.queues import QueueChanges
from rayorch.core.runners import RunnerKey
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import (
    Allocation,
    ArraySpec,
    NodeHealth,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Workload,
    WorkloadId,
)

K = TypeVar("K")
V = TypeVar("V")


class Copies:
    """See the module. `workloads`: those that have not ended.

    With each owner's news its version is taken: what fails afterwards never brings the same news again.
    """

    def __init__(self) -> None:
        self._versions = Versions(0, -1, -1)
        self._renewals = 0
        self.queue_specs: dict[QueueId, QueueSpec] = {}
        self.workloads: dict[WorkloadId, Workload] = {}
        self.nodes: dict[NodeId, NodeSpec] = {}
        self.allocations: dict[RunnerKey, Allocation] = {}
        self.capacity = Capacity()
        self.history = History()
        self._asked: tuple[AskedClass, ...] = ()
        self._budgets: tuple[BudgetUse, ...] = ()
        self._countables = Resources()
        self._reservations: tuple[ReservationSpec, ...] = ()
        self._cordons: dict[NodeId, NodeCordoned] = {}
        self._forgotten: list[WorkloadId] = []
        self._arrays: dict[WorkloadId, ArraySpec] = {}
        self._lost: set[NodeId] = set()
        self._queue_row: tuple[QueueSpec, ...] = ()
        self._workload_row = InOrder(self.workloads)
        self._node_row = InOrder(self.nodes)
        self._allocation_row = InOrder(self.allocations)
        self._news: set[RunnerKey] = set()
        self._node_news: set[NodeId] = set()

    @property
    def versions(self) -> Versions:
        """Up to where the owners' news have been taken."""
        return self._versions

    @property
    def renewals(self) -> int:
        """Up to which sign of life."""
        return self._renewals

    @property
    def cordons(self) -> Mapping[NodeId, NodeCordoned]:
        """The cordons in force."""
        return self._cordons

    def take_forgotten(self) -> tuple[WorkloadId, ...]:
        """The workloads that were forgotten since the last call, as far as we were told."""
        taken, self._forgotten = tuple(self._forgotten), []
        return taken

    def take_news(self) -> tuple[set[RunnerKey], set[NodeId]]:
        """(attempts, nodes) that are new, changed or gone since the last call."""
        news, self._news = self._news, set()
        nodes, self._node_news = self._node_news, set()
        return news, nodes

    def deserted(self) -> tuple[NodeId, ...]:
        """The lost nodes on which nobody holds anything any more."""
        gone = set(self._lost)
        if gone:
            gone -= {m.node for allocation in self.allocations.values() for m in allocation.members}
        return tuple(sorted(gone))

    # ------------------------------------------------------------ what changed

    def take_queues(self, changed: QueueChanges) -> None:
        """The queue owner's news."""
        if changed.queues is not None:
            self.queue_specs = {spec.id: spec for spec in changed.queues}
            self._queue_row = tuple(self.queue_specs[id] for id in sorted(self.queue_specs))
        self._cordons = {cordon.node: cordon for cordon in changed.cordons}
        self._reservations = changed.reservations
        for id in changed.forgotten:
            self._forgotten += (id, *entry_ids(id, self._arrays.pop(id, None)))
        self.history = self.history.changed(changed.history)
        self._asked = changed.asked if changed.asked is not None else self._asked
        self._budgets, self._countables = changed.budgets, changed.countables
        for workload in changed.workloads:
            if workload.spec.array is not None:
                self._arrays[workload.id] = workload.spec.array
        there = {w.id: w for w in changed.workloads if not w.state.terminal}
        gone = [w.id for w in changed.workloads if w.state.terminal]
        before = merge(self.workloads, changed.full, there, (*gone, *changed.forgotten, *changed.folded))
        self._workload_row.touch(before.keys() | there.keys())
        self._news.update((id, w.attempt) for id, w in (*before.items(), *there.items()))
        self._versions = replace(self._versions, queues=changed.version)
        self._renewals = changed.renewals

    def take_nodes(self, changed: InventoryChanges) -> None:
        """The inventory's news."""
        there = {node.id: node for node in changed.nodes}
        before = merge(self.nodes, changed.full, there, changed.removed)
        ids = before.keys() | there.keys()
        self._node_row.touch(ids)
        self._node_news |= ids
        self._lost -= ids
        self._lost.update(id for id, node in there.items() if node.health is NodeHealth.LOST)
        self._versions = replace(self._versions, inventory=changed.version)

    def take_books(self, changed: AllocationChanges) -> None:
        """The allocator's news."""
        there = {(a.workload, a.attempt): a for a in changed.allocations}
        before = merge(self.allocations, changed.full, there, changed.removed)
        keys = before.keys() | there.keys()
        self._allocation_row.touch(keys)
        self._news |= keys
        self._versions = replace(self._versions, allocations=changed.version)

    # ------------------------------------------------------------ all together

    def joined(self, now_s: float, synced: bool) -> Snapshot:
        """What is known, as of `now_s`."""
        return Snapshot(
            versions=self._versions,
            now_s=now_s,
            queues=self._queue_row,
            workloads=self._workload_row.row,
            nodes=self._node_row.row,
            allocations=self._allocation_row.row,
            synced=synced,
            capacity=self.capacity,
            history=self.history,
            asked=self._asked,
            countables=self._countables,
            reservations=self._reservations,
            budgets=self._budgets,
        )


def merge(copy: dict[K, V], full: bool, changed: Mapping[K, V], removed: Iterable[K]) -> dict[K, V]:
    """Bring a dated copy up to date. Answers with what was under the keys that were changed or removed."""
    if full:
        before = dict(copy)
        copy.clear()
        copy.update(changed)
        return before
    before = {}
    for key in removed:
        if key in copy:
            before[key] = copy.pop(key)
    for key, value in changed.items():
        old = copy.get(key)
        if old is not None:
            before[key] = old
        copy[key] = value
    return before
