"""When an attempt is over, why, and when the next one may begin. Pure, and asked anew each turn.

The rule behind the times: an attempt that we lost contact with may still run until its lease is over, so no new
attempt of that workload starts before that, plus a margin. The lease has two hops. A runner gives up when the queue
owner has been silent for `lease_s`; its work gives up when the runner has been silent for `lease_s`, and may have heard
of the runner up to the last moment of the runner's own lease. So work whose runner is not known to have ended it may
go on for two leases after the last renewal; workers that lost their node, for one lease after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rayorch.core.events import AttemptEnded
from rayorch.core.lifecycle import Move
from rayorch.core.policy import Profile
from rayorch.core.retries import doubled_s, may_requeue, next_retry
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.time_limits import used_up
from rayorch.core.types import Allocation, Kind, NodeId, NodeSpec, State, StopCause, StopOrder, Workload

RUNNER_START_LIMIT_S = 180.0
"""A runner that has shown no sign of life this long after the start's deadline is given up."""

SOFT = (
    StopCause.PREEMPTED,
    StopCause.RECLAIMED,
    StopCause.DRAINED,
    StopCause.TIME_LIMIT,
    StopCause.MOVED,
    StopCause.UNPACKED,
)
"""Causes after which the attempt gets its grace: it is whole and can still commit a checkpoint."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One live attempt with all that is known of it.

    `lost`, `missing`: nodes of its seats that are LOST in the inventory, or unknown to it. `nodes`: all that it knows.
    """

    workload: Workload
    allocation: Allocation | None
    view: RunnerView | None
    lost: tuple[NodeId, ...]
    missing: tuple[NodeId, ...]
    now_s: float
    profile: Profile
    nodes: Mapping[NodeId, NodeSpec] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """A runner may be working."""
        return self.view is not None and self.view.phase.alive


def runner_existed(facts: Facts) -> bool:
    """Whether the attempt ever had a runner: one that is not there now has then died without a goodbye.

    A runner is started only when the gang's groups are there, and renews its lease before it does anything else.
    """
    workload = facts.workload
    if facts.view is not None or workload.ready_s is not None:
        return True
    if facts.allocation is not None and not facts.allocation.ready and workload.spec.kind is not Kind.SERVE:
        return False
    return workload.started_s is not None and workload.lease_renewed_s > workload.started_s


def ending(facts: Facts) -> AttemptEnded | None:
    """The event that ends the attempt, None while it goes on (or is still obeying its stop order)."""
    if facts.workload.state is State.STOPPING:
        return _end_of_stop(facts)
    if facts.workload.spec.kind is Kind.GANG:
        return _broken(facts)
    view = facts.view
    if view is not None and view.phase is RunnerPhase.ENDED:
        return _exited(facts, view)
    if view is not None and view.phase is RunnerPhase.GONE:
        return _contact_lost(facts, "its runner is gone without a goodbye")
    if view is None and runner_existed(facts):
        return _contact_lost(facts, "its runner is gone without a goodbye")
    return _broken(facts) or _never_up(facts)


def lease_end_s(workload: Workload, profile: Profile) -> float:
    """When an attempt that nobody hears of any more has certainly ended itself: two leases, see above."""
    signs = (workload.lease_renewed_s, workload.started_s or 0.0)
    return max(signs) + 2 * profile.lease_s + profile.lease_margin_s


def back_off_s(count: int, profile: Profile) -> float:
    """The wait after failure number `count` (from 1): doubled each time, bounded."""
    return doubled_s(profile.retry_backoff_s, count, profile.retry_backoff_max_s)


# ---------------------------------------------------------------- the attempt ends by itself, or is lost


def _exited(facts: Facts, view: RunnerView) -> AttemptEnded | None:
    workload, profile, now_s = facts.workload, facts.profile, facts.now_s
    if view.exit_code == 0:
        return _event(facts, Move.SUCCEEDED, None, view.message or "finished", now_s)
    if facts.lost or facts.missing:
        return _contact_lost(facts, "a node under it was lost")
    if view.exit_code is None:
        return _contact_lost(facts, view.message or "its lease was over")
    ended_s = view.ended_s if view.ended_s is not None else now_s
    lost = _lost_devices(facts)
    if lost:
        # Not the work's fault, and nothing of it is left that could still run.
        return _event(facts, Move.REQUEUED, StopCause.NODE_LOST, f"{', '.join(lost)} under it was lost", now_s)
    if _told_of_losses(facts) and now_s < ended_s + profile.failure_settle_s:
        return None  # news of a lost GPU or node may be on its way; the runner's own is alive, or it would be gone
    reason = view.message or f"exit code {view.exit_code}"
    retry = next_retry(workload, view.exit_code, profile)
    if retry is None:
        return _event(facts, Move.FAILED, None, f"{reason}; no retries left", now_s)
    reason = f"{reason}; retry {retry.number} of {retry.most}"
    return _event(facts, Move.REQUEUED, None, reason, now_s + retry.delay_s)


def _lost_devices(facts: Facts) -> tuple[str, ...]:
    """The GPUs of an attempt's seats that the driver does not reach any more.

    By the books; when those are closed already, by what its runner was granted by name or saw in use.
    """
    held: set[tuple[NodeId, int]] = set()
    view, nodes = facts.view, facts.nodes
    if facts.allocation is not None:
        held.update((member.node, index) for member in facts.allocation.members for index in member.devices)
    elif view is not None:
        for seat in view.grant.seats if view.grant is not None else ():
            held.update((NodeId(seat.node_id), index) for index in seat.devices)
        for used in view.in_use or ():
            held.update((NodeId(used.node_id), index) for index in used.devices)
    return tuple(
        f"GPU {index} of {nodes[id].name}"
        for id, index in sorted(held)
        if id in nodes and any(device.lost and device.index == index for device in nodes[id].devices)
    )


def _told_of_losses(facts: Facts) -> bool:
    """Whether somebody may be about to tell that the ground has gone from under the attempt."""
    places = {member.node for member in facts.workload.placement}
    read = any(device.uuid for id in places if id in facts.nodes for device in facts.nodes[id].devices)
    return read or len(places) > 1


def _contact_lost(facts: Facts, reason: str) -> AttemptEnded:
    lost = facts.lost or facts.missing
    cause = StopCause.NODE_LOST if lost else StopCause.LEASE_LAPSED
    return _event(facts, Move.REQUEUED, cause, reason, _next_start_s(facts, cause))


def _broken(facts: Facts) -> AttemptEnded | None:
    """The ground has gone from under the attempt: no group of it is left, or a node that nobody knows any more."""
    allocation = facts.allocation
    gone = allocation is not None and bool(allocation.failed) and facts.workload.ready_s is not None
    if allocation is not None and not facts.missing and not gone:
        return None
    if allocation is not None and gone:
        reason = allocation.failed
    elif allocation is not None:
        reason = f"node {facts.missing[0]} under it does not exist any more"
    else:
        reason = "its placement groups do not exist any more"
    cause = StopCause.NODE_LOST if runner_existed(facts) else StopCause.START_FAILED
    return _event(facts, Move.REQUEUED, cause, reason, _next_start_s(facts, cause))


def _never_up(facts: Facts) -> AttemptEnded | None:
    """A runner that never showed a sign of life, or could not even be asked for."""
    workload = facts.workload
    started_s = workload.started_s or facts.now_s
    silent = facts.view is None or facts.view.phase is RunnerPhase.STARTING
    silent = silent and workload.lease_renewed_s <= started_s
    limit_s = started_s + facts.profile.start_deadline_s + RUNNER_START_LIMIT_S
    if not silent or facts.now_s < limit_s:
        return None
    cause = StopCause.START_FAILED
    return _event(facts, Move.REQUEUED, cause, "its runner never came up", _next_start_s(facts, cause))


# ---------------------------------------------------------------- the attempt was told to stop


def _end_of_stop(facts: Facts) -> AttemptEnded | None:
    workload, now_s = facts.workload, facts.now_s
    order = workload.stop
    assert order is not None, f"{workload.id} is STOPPING without an order"
    if facts.alive:
        # A runner that can't be reached has been refused its lease since the deadline.
        unconfirmed_s = order.deadline_s + facts.profile.lease_s + facts.profile.lease_margin_s
        if now_s < unconfirmed_s:
            return None
    elif _client_has_time(facts, order):
        return None
    if _finished_untold(facts):
        return _event(facts, Move.SUCCEEDED, None, "finished before the stop took effect", now_s)
    if workload.cancel_requested or order.cause is StopCause.CANCELLED:
        return _event(facts, Move.CANCELLED, StopCause.CANCELLED, order.reason, now_s)
    if order.cause is StopCause.TIME_LIMIT:
        return _event(facts, Move.FAILED, StopCause.TIME_LIMIT, order.reason, now_s)
    if workload.spec.kind is Kind.GANG and order.cause is StopCause.LEASE_LAPSED:
        return _event(facts, Move.CANCELLED, order.cause, "expired: its client sent no heartbeats", now_s)
    return _event(facts, Move.REQUEUED, order.cause, order.reason, _next_start_s(facts, order.cause))


def _client_has_time(facts: Facts, order: StopOrder) -> bool:
    """A leased gang has no runner that could say that it has let go: its client has until the deadline."""
    workload = facts.workload
    soft = order.cause in SOFT and not workload.cancel_requested
    return workload.spec.kind is Kind.GANG and soft and facts.now_s < order.deadline_s


def _finished_untold(facts: Facts) -> bool:
    """It ended with exit code 0, and not because it was told to.

    A training driver that is told to stop exits with another code, so its 0 means finished. A command or a Serve
    application may well exit with 0 because it was told.
    """
    view = facts.view
    if view is None or view.phase is not RunnerPhase.ENDED or view.exit_code != 0:
        return False
    told = view.grant is not None and view.grant.stop is not None
    return not told or (facts.workload.spec.kind is Kind.TRAIN and not facts.workload.cancel_requested)


# ---------------------------------------------------------------- shared


def _next_start_s(facts: Facts, cause: StopCause) -> float:
    """The earliest time of the next attempt."""
    workload, profile, now_s = facts.workload, facts.profile, facts.now_s
    earliest_s = now_s
    if cause is StopCause.START_FAILED and workload.start_failures > 0:
        earliest_s += back_off_s(workload.start_failures, profile)
    if workload.spec.kind is Kind.GANG or not runner_existed(facts):
        return earliest_s  # nobody ever worked on these seats but through the groups, which are gone
    ended = facts.view is not None and facts.view.phase is RunnerPhase.ENDED and facts.view.exit_code is not None
    if not ended:
        earliest_s = max(earliest_s, lease_end_s(workload, profile))
    if cause is StopCause.NODE_LOST or facts.lost or facts.missing:
        # Workers on the lost node were heard of at the latest when its loss was noticed.
        noticed_s = workload.stop.ordered_s if workload.stop is not None else now_s
        earliest_s = max(earliest_s, noticed_s + profile.lease_s + profile.lease_margin_s)
    return earliest_s


def _event(facts: Facts, move: Move, cause: StopCause | None, reason: str, not_before_s: float) -> AttemptEnded:
    workload = facts.workload
    if move is Move.REQUEUED and cause is not None and not may_requeue(workload):
        move, reason = Move.FAILED, f"{reason}; it may be requeued {workload.spec.max_requeues} times, and was"
    elif move is Move.REQUEUED and used_up(workload, cause, facts.now_s):
        move, reason = Move.FAILED, f"{reason}; its wall limit leaves no time for another attempt"
    return AttemptEnded(
        workload=workload.id,
        attempt=workload.attempt,
        move=move,
        cause=cause,
        exit_code=facts.view.exit_code if facts.view is not None else None,
        reason=reason,
        not_before_s=not_before_s,
        at_s=facts.now_s,
    )
