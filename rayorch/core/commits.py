"""What the queue owner checks of a decision or a report before it becomes an event, one workload at a time."""

from __future__ import annotations

from collections.abc import Container, Iterable

from rayorch.core.decisions import Resize, Start, Watch
from rayorch.core.dependencies import waits_text
from rayorch.core.errors import StalePlanError
from rayorch.core.events import Accompanied, Resized, Started
from rayorch.core.reports import AttemptReport, CheckpointCommitted, DemandReported, SeatsInUse, StepReported
from rayorch.core.snapshot import Versions
from rayorch.core.types import Member, NodeId, State, StopCause, StopOrder, Workload

STRENGTH = {
    StopCause.PREEMPTED: 0,
    StopCause.RECLAIMED: 0,
    StopCause.DRAINED: 0,
    StopCause.TIME_LIMIT: 1,
    StopCause.CANCELLED: 2,
    StopCause.START_FAILED: 3,
    StopCause.MOVED: 0,
    StopCause.STALE: 0,
    StopCause.UNPACKED: 0,
    StopCause.LEASE_LAPSED: 3,
    StopCause.NODE_LOST: 3,
}
"""A stop order replaces one under way only if it is stronger: an attempt that can't answer needn't be waited for.
Of two that are equally strong, the one with the earlier deadline counts."""


def stronger(order: StopOrder, than: StopOrder) -> bool:
    """Whether an order replaces the one under way."""
    return (STRENGTH[order.cause], -order.deadline_s) > (STRENGTH[than.cause], -than.deadline_s)


def check_start(workload: Workload, start: Start, now_s: float) -> None:
    """StalePlanError unless the workload waits, may start by now, and this would be its next attempt."""
    if workload.spec.array is not None:
        raise StalePlanError(f"{workload.id} is an array: its entries start, not itself")
    if workload.state is not State.PENDING:
        raise StalePlanError(f"{workload.id} is {workload.state.value}, not PENDING (attempt {workload.attempt})")
    if start.attempt != workload.attempt + 1:
        raise StalePlanError(f"the next attempt of {workload.id} is {workload.attempt + 1}, not {start.attempt}")
    if now_s < workload.not_before_s:
        raise StalePlanError(f"{workload.id} must not start before {workload.not_before_s:.3f}")
    if workload.spec.begin_s is not None and now_s < workload.spec.begin_s:
        raise StalePlanError(f"{workload.id} must not start before {workload.spec.begin_s:.3f}, as it was asked")
    if workload.unmet:
        raise StalePlanError(f"{workload.id} must not start yet: {waits_text(workload.unmet)}")


def check_open(members: Iterable[Member], cordons: Container[NodeId]) -> None:
    """StalePlanError for a new seat on a node that was cordoned since the decision: nothing new goes there."""
    for member in members:
        if member.node in cordons:
            raise StalePlanError(f"node {member.node} is cordoned: no new seat on it")


def started(start: Start, placement: tuple[Member, ...], versions: Versions, now_s: float) -> Started:
    """The event of a start on these seats."""
    return Started(
        workload=start.workload,
        attempt=start.attempt,
        members=placement,
        queues_version=versions.queues,
        inventory_version=versions.inventory,
        allocations_version=versions.allocations,
        reason=start.reason,
        at_s=now_s,
        cell=start.cell,
        cell_domains=start.cell_domains,
    )


def resized(resize: Resize, placement: tuple[Member, ...], now_s: float) -> Resized:
    """The event of a change of seats to these."""
    return Resized(
        workload=resize.workload,
        attempt=resize.attempt,
        members=placement,
        release_by_s=resize.release_by_s,
        beneficiary=resize.beneficiary,
        reason=resize.reason,
        at_s=now_s,
    )


def watched(workload: Workload, watch: Watch, now_s: float) -> tuple[Accompanied, ...]:
    """What is to be noted of those who share a GPU with an attempt; nothing where it is known."""
    known = workload.pace
    if known is not None and (known.beside, known.ready, known.model) == (watch.beside, watch.ready, watch.model):
        return ()
    return (Accompanied(workload.id, watch.attempt, watch.beside, watch.ready, watch.model, now_s),)


def is_news(workload: Workload, report: AttemptReport) -> bool:
    """Whether a report of the current attempt says what is not known yet."""
    match report:
        case StepReported(step=step):
            return step > workload.step
        case CheckpointCommitted(step=step, uri=uri):
            old = workload.checkpoint
            return old is None or step > old.step or (step == old.step and uri != old.uri)
        case DemandReported(ongoing=ongoing, queued=queued, target_per_replica=target):
            was = workload.demand
            return was is None or (was.ongoing, was.queued, was.target_per_replica) != (ongoing, queued, target)
        case SeatsInUse():
            return False  # the allocator's business
        case _:
            return True
