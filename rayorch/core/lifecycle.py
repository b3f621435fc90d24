"""The states of a workload and the one table of moves between them, a reason on every arrow.

    PENDING ──started──▶ RUNNING ──stop ordered──▶ STOPPING
       ▲                    │                          │
       └────── requeued ────┴────────── requeued ──────┘
    RUNNING, STOPPING and PENDING end in SUCCEEDED, FAILED or CANCELLED.

`RESERVING` is not a state: it is derived from an allocation whose attempt has not been committed.
"""

from __future__ import annotations

from enum import StrEnum

from rayorch.core.errors import TransitionError
from rayorch.core.types import State, Workload


class Move(StrEnum):
    """Why a workload changes state."""

    STARTED = "started"  # the queue owner committed an attempt
    STOP_ORDERED = "stop_ordered"  # preempted, reclaimed, drained, cancelled, node lost
    REQUEUED = "requeued"  # the attempt ended without finishing the work
    SUCCEEDED = "succeeded"  # the work ended with exit code 0
    FAILED = "failed"  # the work's own failure, no retries left
    CANCELLED = "cancelled"  # its owner asked for it

    __hash__ = str.__hash__


TRANSITIONS: dict[tuple[State, Move], State] = {
    (State.PENDING, Move.STARTED): State.RUNNING,
    (State.PENDING, Move.CANCELLED): State.CANCELLED,
    (State.RUNNING, Move.STOP_ORDERED): State.STOPPING,
    (State.RUNNING, Move.REQUEUED): State.PENDING,
    (State.RUNNING, Move.SUCCEEDED): State.SUCCEEDED,
    (State.RUNNING, Move.FAILED): State.FAILED,
    (State.STOPPING, Move.STOP_ORDERED): State.STOPPING,  # a later, stronger order (cancel while preempted)
    (State.STOPPING, Move.REQUEUED): State.PENDING,
    (State.STOPPING, Move.SUCCEEDED): State.SUCCEEDED,  # it finished before the stop took effect
    (State.STOPPING, Move.FAILED): State.FAILED,
    (State.STOPPING, Move.CANCELLED): State.CANCELLED,
}


def next_state(workload: Workload, move: Move) -> State:
    """Where `move` leads from the workload's state; TransitionError with its story if the table has no such arrow."""
    target = TRANSITIONS.get((workload.state, move))
    if target is None:
        raise TransitionError(
            f"workload {workload.id} can't be {move.value} in state {workload.state.value}"
            f" (attempt {workload.attempt}, submitted at {workload.submitted_s:.3f},"
            f" {workload.preemptions} preemptions, {workload.failures} failures,"
            f" last reason: {workload.reason or 'none'})"
        )
    return target
