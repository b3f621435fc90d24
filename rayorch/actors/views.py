"""What the controller shows of its last turn. Reads only; decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rayorch.core.arrays import waiting_count
from rayorch.core.budgets import BudgetUse, burn, next_period_s, settled, spent_at_s
from rayorch.core.cells import CellsView
from rayorch.core.cluster import Outcome
from rayorch.core.decisions import Plan, Wait, WaitReason
from rayorch.core.ordering import OrderView, order_words
from rayorch.core.policy import Profile
from rayorch.core.quota import Quota
from rayorch.core.sharing import device_shares
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    Allocation,
    Budget,
    Member,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    State,
    Workload,
    WorkloadId,
    total,
)
from rayorch.core.usage_weights import used_below
from rayorch.core.views import BudgetRow, DeviceHolder, ExplainView, NodeRow, Overview, QueueRow, WorkloadRow

JUST_ACCEPTED = (Wait(WaitReason.PLANNING, "accepted a moment ago, not yet looked at", unblocks="the next turn"),)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of the loop saw and did. `ended_s` is a time since the epoch, `took_s` a length."""

    number: int
    snapshot: Snapshot
    plan: Plan
    outcomes: tuple[Outcome, ...]
    ended_s: float
    took_s: float


def explain_view(workload_id: WorkloadId, turn: Turn, profile: Profile) -> ExplainView | None:
    """Why a workload is where it is; None when the turn did not see it."""
    workload = next((w for w in turn.snapshot.workloads if w.id == workload_id), None)
    if workload is None:
        return None
    row = _workload_row(workload, turn, _current_allocations(turn.snapshot))
    queues = {queue.spec.id: queue for queue in queue_rows(turn.snapshot, turn.plan.cells)}
    waits = workload.state is State.PENDING
    order = order_words(profile.order, workload, OrderView.of(turn.snapshot, profile.ordering)) if waits else ""
    return ExplainView(
        workload=workload,
        position=row.position,
        waits=row.waits,
        estimate_s=row.estimate_s,
        held=row.held,
        cycle=turn.number,
        evaluated_s=turn.ended_s,
        queue=queues.get(workload.spec.queue),
        order=order,
    )


def overview(instance: str, turn: Turn | None, warning: str) -> Overview:
    """Everything on one page."""
    warnings = (warning,) if warning else ()
    if turn is None:
        return Overview(time.time(), instance, 0, 0.0, 0.0, Versions(), synced=False, warnings=warnings)
    snapshot = turn.snapshot
    held = _current_allocations(snapshot)
    return Overview(
        now_s=time.time(),
        instance=instance,
        cycle=turn.number,
        last_cycle_s=turn.ended_s,
        cycle_took_s=turn.took_s,
        versions=snapshot.versions,
        queues=queue_rows(snapshot, turn.plan.cells),
        nodes=node_rows(snapshot),
        workloads=tuple(_workload_row(workload, turn, held) for workload in snapshot.workloads),
        synced=snapshot.synced,
        warnings=warnings,
        capacity=snapshot.capacity,
        reservations=turn.plan.reservations,
    )


def queue_rows(snapshot: Snapshot, cells: Iterable[CellsView] = ()) -> tuple[QueueRow, ...]:
    """Every queue with what its subtree holds, waits for and lends, and how its cells are."""
    cells_of: dict[QueueId, list[CellsView]] = {}
    for view in cells:
        cells_of.setdefault(view.queue, []).append(view)
    spec_of = {workload.id: workload.spec for workload in snapshot.workloads}
    usage: dict[QueueId, Resources] = {}
    for allocation in snapshot.allocations:
        spec = spec_of.get(allocation.workload)
        if spec is not None:
            usage[spec.queue] = usage.get(spec.queue, Resources()) + allocation.charge
    quota = Quota.of(snapshot.queues, usage)
    used = {queue.id: quota.used(queue.id) for queue in snapshot.queues}
    inside: dict[QueueId, list[Workload]] = {queue.id: [] for queue in snapshot.queues}
    for workload in snapshot.workloads:
        for queue in quota.path(workload.spec.queue):
            inside[queue.id].append(workload)
    lately = used_below(snapshot.history, snapshot.now_s)
    uses = {use.queue: use for use in snapshot.budgets}
    rows = (
        _queue_row(queue, used, inside[queue.id], snapshot, uses.get(queue.id), lately.get(queue.id, 0.0))
        for queue in snapshot.queues
    )
    return tuple(replace(row, cells=tuple(cells_of.get(row.spec.id, ()))) if cells_of else row for row in rows)


def _queue_row(
    queue: QueueSpec,
    used: Mapping[QueueId, Resources],
    ours: Sequence[Workload],
    snapshot: Snapshot,
    use: BudgetUse | None,
    lately_gpu_s: float,
) -> QueueRow:
    mine = used[queue.id]
    pending = [w for w in ours if w.state is State.PENDING]
    borrowed_by_siblings = total(
        _beyond(used[other.id], other.deserved)
        for other in snapshot.queues
        if other.parent == queue.parent and other.id != queue.id
    )
    idle = (queue.deserved - mine).floor_zero()
    lent = Resources.of_units({name: min(n, borrowed_by_siblings.units(name)) for name, n in idle})
    return QueueRow(
        spec=queue,
        used=mine,
        borrowed=_beyond(mine, queue.deserved),
        lent=lent,
        pending=sum(waiting_count(w) for w in pending),
        running=len(ours) - len(pending),
        oldest_pending_s=max((snapshot.now_s - w.submitted_s for w in pending), default=None),
        budget=_budget_row(use, queue.budget, snapshot.now_s),
        lately_gpu_s=lately_gpu_s,
    )


def _budget_row(use: BudgetUse | None, budget: Budget | None, now_s: float) -> BudgetRow | None:
    if use is None or budget is None:
        return None
    now = settled(use, budget, now_s)
    return BudgetRow(
        used_gpu_hours=now.hours(),
        since_s=now.since_s,
        burn=burn(use, budget, now_s),
        spent_at_s=spent_at_s(use, budget, now_s),
        again_s=next_period_s(budget, now_s),
    )


def _beyond(used: Resources, deserved: Resources) -> Resources:
    """What is used beyond deserved, of the resources that deserved names."""
    return Resources.of_units({name: max(0, used.units(name) - n) for name, n in deserved})


def node_rows(snapshot: Snapshot) -> tuple[NodeRow, ...]:
    """Every node with what our gangs use of it; O(nodes + members)."""
    here: dict[NodeId, list[tuple[Allocation, Member]]] = {}
    for allocation in snapshot.allocations:
        for member in allocation.members:
            here.setdefault(member.node, []).append((allocation, member))
    return tuple(_node_row(node, here.get(node.id, [])) for node in snapshot.nodes)


def _node_row(node: NodeSpec, here: Sequence[tuple[Allocation, Member]]) -> NodeRow:
    holders: list[DeviceHolder] = []
    for allocation, member in here:
        holders += [
            DeviceHolder(device, allocation.workload, allocation.attempt, member.role, share)
            for device, share in device_shares(member.bundle, member.devices)
        ]
    used = total(member.bundle for _, member in here)
    return NodeRow(node, used, tuple(sorted(holders, key=lambda h: (h.device, h.workload))))


def _workload_row(workload: Workload, turn: Turn, held: Mapping[tuple[WorkloadId, int], Allocation]) -> WorkloadRow:
    waits = turn.plan.waits.get(workload.id, ())
    if workload.state is State.PENDING and not waits:
        waits = JUST_ACCEPTED
    return WorkloadRow(
        workload=workload,
        position=turn.plan.positions.get(workload.id),
        waits=waits,
        estimate_s=turn.plan.estimates.get(workload.id),
        held=held.get((workload.id, workload.attempt)),
    )


def _current_allocations(snapshot: Snapshot) -> dict[tuple[WorkloadId, int], Allocation]:
    return {(a.workload, a.attempt): a for a in snapshot.allocations}
