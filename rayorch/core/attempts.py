"""How one event changes one workload. The queue tree calls this live and at replay, so both give the same state."""

from __future__ import annotations

from rayorch.core import pace as pacing
from rayorch.core.events import (
    Accompanied,
    AttemptEnded,
    AttemptReady,
    CancelRequested,
    Reported,
    Resized,
    Started,
    StopOrdered,
)
from rayorch.core.lifecycle import Move, next_state
from rayorch.core.minimum import is_whole
from rayorch.core.reports import CheckpointCommitted, DemandReported, StepReported
from rayorch.core.retries import counted
from rayorch.core.service import attained_gpu_s, run_s, saved_s
from rayorch.core.sharing import with_gpus
from rayorch.core.time_limits import counted_s
from rayorch.core.types import (
    UNIT,
    Checkpoint,
    Demand,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    Pace,
    QueueId,
    State,
    StopCause,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.core.values import changed

LOST_A_PART = (StopCause.NODE_LOST, StopCause.LEASE_LAPSED, StopCause.DRAINED)
"""Causes of an end after which some of the seats may still be there for the next attempt."""

WorkloadEvent = CancelRequested | Started | AttemptReady | Resized | StopOrdered | AttemptEnded | Accompanied | Reported


_NEW = Workload(WorkloadSpec(WorkloadId(""), "", Kind.JOB, QueueId(""), ()), State.PENDING, 0.0)


def accepted(spec: WorkloadSpec, at_s: float, sequence: int) -> Workload:
    """A workload that was submitted now: `Workload(spec, State.PENDING, at_s, sequence=sequence)`, made sooner."""
    return changed(_NEW, spec=spec, submitted_s=at_s, sequence=sequence)


def advance(workload: Workload, event: WorkloadEvent) -> Workload:
    """The workload after the event. TransitionError when the lifecycle has no such move."""
    match event:
        case CancelRequested():
            return _cancelled(workload, event)
        case Started():
            return _started(workload, event)
        case AttemptReady():
            return changed(workload, ready_s=event.at_s, lease_renewed_s=max(workload.lease_renewed_s, event.at_s))
        case Resized():
            return _resized(workload, event)
        case StopOrdered():
            return changed(
                workload,
                state=next_state(workload, Move.STOP_ORDERED),
                stop=event.order,
                reason=event.order.reason,
            )
        case AttemptEnded():
            return _ended(workload, event)
        case Accompanied():
            pace = pacing.opened(workload.pace, event.beside, event.ready, event.model, event.at_s)
            return changed(workload, pace=pace)
        case Reported():
            return _reported(workload, event)


def seats_only(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Members without phase, group and devices, in the order of their groups: what the queue owner commits to.

    Devices are the allocator's business: those of a plan are only what it expected to get.
    """
    plain = [m if _is_plain(m) else _plain(m) for m in members]
    if len(plain) == 1:
        return members if plain[0] is members[0] else (plain[0],)
    if len(plain) > 1:
        plain.sort(key=lambda m: (m.surplus, m.bundle_index, m.role, m.index))
    return tuple(plain)


def _is_plain(m: Member) -> bool:
    return m.phase is MemberPhase.RESERVED and not (m.group_id or m.devices or m.exact)


def _plain(member: Member) -> Member:
    return changed(member, phase=MemberPhase.RESERVED, group_id="", devices=(), exact=False)


def size_of(members: tuple[Member, ...]) -> tuple[tuple[str, int], ...]:
    """Members per role, by role name."""
    counts: dict[str, int] = {}
    for member in members:
        counts[member.role] = counts.get(member.role, 0) + 1
    return tuple(sorted(counts.items()))


def _cancelled(workload: Workload, event: CancelRequested) -> Workload:
    if workload.state is not State.PENDING:
        return changed(workload, cancel_requested=True, reason=event.reason)
    return changed(
        workload,
        state=next_state(workload, Move.CANCELLED),
        cancel_requested=True,
        ended_s=event.at_s,
        reason=event.reason,
    )


def _started(workload: Workload, event: Started) -> Workload:
    return changed(
        workload,
        state=next_state(workload, Move.STARTED),
        attempt=event.attempt,
        placement=seats_only(event.members),
        size=size_of(event.members),
        started_s=event.at_s,
        ready_s=None,
        resized_s=None,
        release_by_s=None,
        release_for=None,
        demand=None,
        demand_low_since_s=None,
        lease_renewed_s=event.at_s,
        reason=event.reason,
        former=(),
        short_since_s=None,
        cell=event.cell,
        cell_domains=event.cell_domains,
    )


def _resized(workload: Workload, event: Resized) -> Workload:
    resized = changed(
        workload,
        placement=seats_only(event.members),
        size=size_of(event.members),
        resized_s=event.at_s,
        attained_gpu_s=attained_gpu_s(workload, event.at_s),
        reason=event.reason,
        short_since_s=_short_since_s(workload, event),
    )
    if event.release_by_s is not None:
        resized = changed(resized, release_by_s=event.release_by_s, release_for=event.beneficiary)
    return _with_low_since(resized, event.at_s)


def _short_since_s(workload: Workload, event: Resized) -> float | None:
    if is_whole(workload.spec, dict(size_of(event.members))):
        return None
    return workload.short_since_s if workload.short_since_s is not None else event.at_s


def _ended(workload: Workload, event: AttemptEnded) -> Workload:
    own_failure = event.cause is None and event.move in (Move.REQUEUED, Move.FAILED)
    done_s = run_s(workload, event.at_s) if event.move is Move.SUCCEEDED else saved_s(workload, event.at_s)
    over = event.move is not Move.REQUEUED
    ended = changed(
        workload,
        state=next_state(workload, event.move),
        placement=(),
        size=(),
        stop=None,
        release_by_s=None,
        release_for=None,
        demand=None,
        demand_low_since_s=None,
        short_since_s=None,
        cell="",
        lease_renewed_s=0.0,  # renewals are not journalled, so nothing of them may outlive the attempt
        exit_code=event.exit_code,
        attained_gpu_s=attained_gpu_s(workload, event.at_s),
        progress_s=done_s,
        reason=event.reason,
        failures=workload.failures + own_failure,
        preemptions=workload.preemptions + (event.cause in (StopCause.PREEMPTED, StopCause.RECLAIMED)),
        node_losses=workload.node_losses + (event.cause in (StopCause.NODE_LOST, StopCause.LEASE_LAPSED)),
        start_failures=workload.start_failures + (event.cause is StopCause.START_FAILED),
        ran_s=workload.ran_s + counted_s(workload, event.cause, event.at_s),
        rule_failures=counted(workload, event.exit_code) if own_failure else workload.rule_failures,
        requeues=workload.requeues + (not over and event.cause is not None),
        ended_s=event.at_s if over else workload.ended_s,
    )
    if workload.pace is not None:
        ended = changed(ended, pace=pacing.ended(workload.pace))
    if over:
        return ended
    if event.cause is StopCause.UNPACKED:
        ended = changed(ended, spec=on_whole_gpus(workload.spec), asked=workload.asked or workload.spec)
    # What came after the last checkpoint is lost; the next attempt begins there.
    resumes_at = workload.checkpoint.step if workload.checkpoint is not None else 0
    return changed(
        ended,
        outlasted_s=max(workload.outlasted_s, run_s(workload, event.at_s)),
        started_s=None,
        ready_s=None,
        not_before_s=event.not_before_s,
        step=resumes_at,
        requeued_s=event.at_s,
        last_cause=event.cause,
        last_started_s=workload.started_s,
        former=_former(workload, event.cause),
        yielded_to=workload.stop.beneficiary if workload.stop is not None else None,
    )


def _former(workload: Workload, cause: StopCause | None) -> tuple[Member, ...]:
    """The seats that the next attempt looks for first: what may be left of the last one's, or where it moves to."""
    if cause in LOST_A_PART:
        return workload.placement
    if cause is not StopCause.MOVED or workload.stop is None or not workload.stop.seats:
        return ()
    nodes = {(role, index): NodeId(node) for role, index, node in workload.stop.seats}
    return tuple(
        changed(m, node=nodes[m.role, m.index], path="", model="", channel=None)
        for m in workload.placement
        if (m.role, m.index) in nodes
    )


def _reported(workload: Workload, event: Reported) -> Workload:
    match event.report:
        case StepReported(step=step):
            return changed(workload, step=max(workload.step, step), pace=_paced(workload, step, event.at_s))
        case CheckpointCommitted(step=step, uri=uri, at_s=at_s):
            checkpoint = Checkpoint(step=step, uri=uri, committed_s=at_s, attempt=event.attempt)
            return changed(workload, checkpoint=checkpoint, step=max(workload.step, step))
        case DemandReported(ongoing=ongoing, queued=queued, at_s=at_s, target_per_replica=target):
            demand = Demand(ongoing=ongoing, queued=queued, reported_s=at_s, target_per_replica=target)
            return _with_low_since(changed(workload, demand=demand), event.at_s)
        case _:
            return workload


def on_whole_gpus(spec: WorkloadSpec) -> WorkloadSpec:
    """The same with a whole GPU for each member that asked for a part of one."""
    roles = tuple(
        changed(role, bundle=with_gpus(role.bundle, UNIT)) if 0 < role.bundle.gpu_units < UNIT else role
        for role in spec.roles
    )
    return changed(spec, roles=roles)


def _paced(workload: Workload, step: int, at_s: float) -> Pace | None:
    return pacing.stepped(workload.pace, step, at_s) if workload.pace is not None else None


def _with_low_since(workload: Workload, at_s: float) -> Workload:
    """Keep since when the demand has been below what the present members could serve."""
    demand = workload.demand
    if demand is None or demand.target_per_replica <= 0:
        return workload
    members = sum(count for _, count in workload.size)
    low = demand.ongoing + demand.queued <= (members - 1) * demand.target_per_replica
    if not low:
        return changed(workload, demand_low_since_s=None)
    if workload.demand_low_since_s is None:
        return changed(workload, demand_low_since_s=at_s)
    return workload
