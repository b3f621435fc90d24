"""Who must be left alone, from whom, and for how long: what stage 6 asks before it looks at costs.

An attempt *settles*: until it has run for as long as it, its queue and the profile say, its minimum is not stopped; its
surplus seats may go. A *fence* around a queue keeps preemption inside and outside apart; what a queue borrowed is
reclaimed across it. A claim may have to wait a while before it evicts anyone, so that nodes can be added first.
"""

from __future__ import annotations

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.queue_gates import queue_gate
from rayorch.core.retries import may_requeue
from rayorch.core.time_limits import used_up
from rayorch.core.types import QueueId, StopCause, Workload


def settling(draft: Draft, workload: Workload) -> str:
    """Why an attempt may not be stopped yet; empty when it may."""
    ran_s = draft.facts.now_s - (workload.started_s or 0.0)
    least_s = workload.spec.min_runtime_s
    if ran_s < least_s:
        return f"it has run {ran_s:.0f} s of its {least_s:.0f} s minimum"
    exempt_s = draft.facts.profile.eviction.exempt_s
    if ran_s < exempt_s:
        return f"it has run {ran_s:.0f} s of the {exempt_s:.0f} s that everybody has"
    spec = draft.now.quota.min_runtime(workload.spec.queue)
    if spec is not None and ran_s < spec.min_runtime_s:
        return f"it has run {ran_s:.0f} s of the {spec.min_runtime_s:.0f} s that queue {spec.id} gives"
    return ""


def comes_back(draft: Draft, workload: Workload) -> bool:
    """Whether it would start again after a move: else it would end, or wait before a queue that lets nobody in."""
    by_s = draft.facts.now_s + workload.spec.grace_s
    if not may_requeue(workload) or used_up(workload, StopCause.MOVED, by_s):
        return False
    return not queue_gate(draft, workload.spec.queue, True)


def fenced_off(draft: Draft, one: QueueId, other: QueueId) -> bool:
    """Whether a fence stands between two queues, so that neither preempts in the other."""
    return one != other and _fences(draft, one) != _fences(draft, other)


def _fences(draft: Draft, queue: QueueId) -> tuple[QueueId, ...]:
    known = draft.fences.get(queue)
    if known is None:
        known = tuple(spec.id for spec in draft.now.quota.path(queue) if spec.fence)
        draft.fences[queue] = known
    return known


def delay_left_s(workload: Workload, now_s: float) -> float:
    """How long it still waits before it evicts anyone; the time begins anew whenever it was evicted itself."""
    if not workload.spec.preemption_delay_s:
        return 0.0
    since_s = max(workload.submitted_s, workload.requeued_s or 0.0)
    return max(0.0, since_s + workload.spec.preemption_delay_s - now_s)


def delay_wait(workload: Workload, now_s: float) -> tuple[Wait, ...]:
    """That it does not evict anyone yet, if so."""
    left_s = delay_left_s(workload, now_s)
    if not left_s:
        return ()
    detail = f"it takes nobody's room for another {left_s:.0f} s, so that nodes can be added first"
    return (Wait(WaitReason.PREEMPTION_DELAY, detail, False, left_s, 0, "s", unblocks=f"{left_s:.0f} s of waiting"),)
