"""Stages 1 and 2. Protect: what this turn must not take from. Heal: attempts that can't or must not go on.

A stop is ordered once: a stopping attempt gets a second order only if it is stronger (`STRENGTH`), or if a node under
it must be empty sooner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rayorch.core.decisions import Stop
from rayorch.core.joint import half_started, joint_key
from rayorch.core.planning.claims import staying
from rayorch.core.planning.draft import Draft, Removal
from rayorch.core.planning.queue_gates import drained_by
from rayorch.core.queues import STRENGTH
from rayorch.core.time_limits import limit_at_s
from rayorch.core.types import (
    Allocation,
    Kind,
    Member,
    NodeHealth,
    NodeId,
    State,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
)

SERVE_SETUP_S = 600.0
"""How much longer the seats of a Serve application may take: Serve makes its groups only once the application has been
built, with its environment and imports. Its runner gives it up sooner when that fails."""


def protect(draft: Draft) -> None:
    """No eviction may touch some of what runs in this turn: `Draft.protected` knows of each why, and of whom."""
    draft.protected = Protected(draft)


class Protected(Mapping[WorkloadId, str]):
    """Why no eviction may touch a running workload, worked out when it is asked. Others may add to it."""

    def __init__(self, draft: Draft) -> None:
        self._facts = draft.facts
        self._more: dict[WorkloadId, str] = {}

    @property
    def own(self) -> Mapping[WorkloadId, str]:
        """What others have added to it."""
        return self._more

    def __setitem__(self, id: WorkloadId, reason: str) -> None:
        self._more[id] = reason

    def __getitem__(self, id: WorkloadId) -> str:
        reason = self._more.get(id) or self._reason(id)
        if not reason:
            raise KeyError(id)
        return reason

    def __contains__(self, id: object) -> bool:
        return id in self._more or bool(self._reason(id))

    def __iter__(self) -> Iterator[WorkloadId]:
        return (id for id in self._facts.live_ids if id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _reason(self, id: object) -> str:
        workload = self._facts.workloads.get(id) if id in self._facts.held else None  # type: ignore[call-overload]
        if workload is None:
            return ""
        spec = workload.spec
        if not self._facts.profile.preemption:
            return "preemption is switched off"
        if workload.state is not State.RUNNING:
            return "it is stopping already"
        return "" if spec.preemptible else "it is not preemptible"


def heal(draft: Draft) -> None:
    """Order the end, or the smaller size, of every attempt that is not whole, not alive or not wanted.

    Only those are looked at whom one of the rules below could concern now (`attention.py`).
    """
    facts = draft.facts
    failed = [w for id in facts.joint if (w := facts.workloads[id]).last_started_s]
    for workload, allocation in ((facts.workloads[id], facts.held[id]) for id in facts.uneasy):
        ends = [
            end
            for end in (
                _cancelled(draft, workload),
                _lost(draft, workload, allocation),
                _not_started(draft, workload, allocation),
                _lapsed(draft, workload),
                _drained(draft, workload, allocation),
                _over_time(draft, workload),
                _closed(draft, workload, allocation),
                _half_started(draft, workload, failed),
            )
            if end is not None
        ]
        old = workload.stop
        if old is not None and workload.state is State.STOPPING:
            ends = [end for end in ends if STRENGTH[end.cause] > STRENGTH[old.cause]]
        if ends:
            end = max(ends, key=lambda e: STRENGTH[e.cause])
            deadline_s = end.deadline_s if old is None else min(end.deadline_s, old.deadline_s)
            order = StopOrder(end.cause, end.reason, draft.facts.now_s, deadline_s)
            draft.stop(Stop(workload.id, workload.attempt, order, end.cost_gpu_s))
        elif (sooner := _sooner(draft, workload, allocation)) is not None:
            draft.stop(Stop(workload.id, workload.attempt, sooner))


@dataclass(frozen=True, slots=True)
class _End:
    cause: StopCause
    reason: str
    deadline_s: float
    cost_gpu_s: float = 0.0


def _cancelled(draft: Draft, workload: Workload) -> _End | None:
    if not workload.cancel_requested:
        return None
    reason = workload.reason or "cancelled"  # what its owner said
    return _End(StopCause.CANCELLED, reason, draft.facts.now_s + workload.spec.grace_s)


def _lost(draft: Draft, workload: Workload, allocation: Allocation) -> _End | None:
    kept = staying(allocation)
    nodes = draft.facts.nodes
    lost = sorted({m.node for m in kept if m.node not in nodes or nodes[m.node].health is NodeHealth.LOST})
    if not lost:
        return None
    now_s = draft.facts.now_s
    names = ", ".join(nodes[n].name if n in nodes else n for n in lost)
    cause = draft.facts.profile.recover(workload, allocation, tuple(lost), now_s)
    if cause is None and not _can_leave(workload, kept, frozenset(lost)):
        cause = StopCause.NODE_LOST  # whatever the policy says: a placement group that lost a node is not whole again
    if cause is not None:
        cost = draft.facts.profile.victims(workload, allocation, now_s)
        return _End(cause, f"node {names} was lost under it", now_s, cost)
    # Other seats may be leaving: nothing of what was lost can be waited for, and so they keep the time that they have.
    by_s = max(now_s, workload.release_by_s or now_s)
    _leave_nodes(draft, workload, kept, frozenset(lost), by_s, f"node {names} was lost under these seats")
    return None


def _not_started(draft: Draft, workload: Workload, allocation: Allocation) -> _End | None:
    if workload.ready_s is not None:
        return None
    now_s = draft.facts.now_s
    if allocation.failed:
        return _End(StopCause.START_FAILED, f"its seats could not be made: {allocation.failed}", now_s)
    extra_s = SERVE_SETUP_S if workload.spec.kind is Kind.SERVE else 0.0
    if not allocation.ready and now_s > allocation.deadline_s + extra_s:
        late_s = now_s - allocation.reserved_s
        return _End(StopCause.START_FAILED, f"its seats were not ready after {late_s:.0f} s", now_s)
    return None


def _half_started(draft: Draft, workload: Workload, others: list[Workload]) -> _End | None:
    """A joint gang of which one member could not start is not whole: the others that began with it wait again too."""
    if workload.spec.joint is None:
        return None
    ours = (other for other in others if joint_key(other.spec) == joint_key(workload.spec))
    partner = half_started(workload, ours)
    if partner is None:
        return None
    return _End(StopCause.START_FAILED, f"{partner.id}, which it starts together with, could not", draft.facts.now_s)


def _lapsed(draft: Draft, workload: Workload) -> _End | None:
    """The lease counts from the last sign of life. An attempt that gave none yet has the start's own bounds."""
    if workload.state is not State.RUNNING or workload.started_s is None or not draft.facts.snapshot.synced:
        return None
    seen_s = max(workload.lease_renewed_s, workload.started_s)
    if workload.ready_s is None and seen_s <= workload.started_s:
        return None
    profile = draft.facts.profile
    silent_s = draft.facts.now_s - seen_s
    if silent_s <= profile.lease_s + profile.lease_margin_s:
        return None
    return _End(StopCause.LEASE_LAPSED, f"no sign of life for {silent_s:.0f} s", draft.facts.now_s)


def _drained(draft: Draft, workload: Workload, allocation: Allocation) -> _End | None:
    """Leave a draining node with the workload's grace before the deadline; without a deadline, at once."""
    now_s, grace_s = draft.facts.now_s, workload.spec.grace_s
    kept = staying(allocation)
    due: dict[NodeId, float] = {}
    for member in kept:
        node = draft.facts.nodes.get(member.node)
        if node is None or node.health is not NodeHealth.DRAINING:
            continue
        leave_by_s = now_s + grace_s if node.drain_deadline_s is None else node.drain_deadline_s
        if now_s >= leave_by_s - grace_s - draft.facts.profile.lease_margin_s:
            due[node.id] = leave_by_s
    if not due or workload.state is not State.RUNNING:
        return None
    names = ", ".join(draft.facts.nodes[id].name for id in sorted(due))
    by_s = max(now_s, min(due.values()))
    if _can_leave(workload, kept, frozenset(due)):
        _leave_nodes(draft, workload, kept, frozenset(due), by_s, f"node {names} is drained")
        return None
    cost = draft.facts.profile.victims(workload, allocation, now_s)
    return _End(StopCause.DRAINED, f"node {names} is drained", by_s, cost)


def _over_time(draft: Draft, workload: Workload) -> _End | None:
    """At its wall limit an attempt is told to stop, and has its grace after it."""
    limit_s, now_s = limit_at_s(workload), draft.facts.now_s
    if limit_s is None or now_s < limit_s or workload.state is not State.RUNNING:
        return None
    reason = f"it has run its wall limit of {workload.spec.wall_limit_s:g} s"
    return _End(StopCause.TIME_LIMIT, reason, now_s + workload.spec.grace_s)


def _closed(draft: Draft, workload: Workload, allocation: Allocation) -> _End | None:
    """Its queue is drained, or has spent a budget that says so: it goes back to the queue and waits there."""
    if workload.state is not State.RUNNING:
        return None
    why = drained_by(draft, workload.spec.queue, bool(allocation.held.gpu_units))
    if not why:
        return None
    cost = draft.facts.profile.victims(workload, allocation, draft.facts.now_s)
    return _End(StopCause.DRAINED, why, draft.facts.now_s + workload.spec.grace_s, cost)


def _sooner(draft: Draft, workload: Workload, allocation: Allocation) -> StopOrder | None:
    """The same order with an earlier deadline, when a node under a stopping attempt must be empty before that."""
    order = workload.stop
    if order is None or workload.state is not State.STOPPING:
        return None
    under = [draft.facts.nodes.get(member.node) for member in allocation.members]
    draining = [node for node in under if node is not None and node.health is NodeHealth.DRAINING]
    deadlines = [node.drain_deadline_s for node in draining if node.drain_deadline_s is not None]
    by_s = max(draft.facts.now_s, min(deadlines, default=order.deadline_s))
    return replace(order, deadline_s=by_s) if by_s < order.deadline_s else None


def _can_leave(workload: Workload, kept: tuple[Member, ...], nodes: frozenset[NodeId]) -> bool:
    """Whether the rest goes on without the seats on these nodes: surplus seats, or some but not all replicas."""
    leaving = [m for m in kept if m.node in nodes]
    if workload.spec.kind is Kind.SERVE:
        return len(leaving) < len(kept)
    return workload.spec.resizable and all(m.surplus > 0 for m in leaving)


def _leave_nodes(
    draft: Draft, workload: Workload, kept: tuple[Member, ...], nodes: frozenset[NodeId], by_s: float, reason: str
) -> None:
    if workload.state is not State.RUNNING or workload.id in draft.stops:
        return
    numbers = {m.surplus for m in kept if m.node in nodes}
    draft.remove(workload, numbers, Removal(set(), by_s, None, reason))
