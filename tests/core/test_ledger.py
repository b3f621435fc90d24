"""GPU-seconds by class from events, adding up to what was held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.events import AttemptEnded, AttemptReady, Event, Reported, Resized, Started, StopOrdered, Submitted
from rayorch.core.ledger import StepsLost, allocated, ledger_of
from rayorch.core.lifecycle import Move
from rayorch.core.reports import AttemptReport, CheckpointCommitted, DemandReported, StepReported, WorkersStarted
from rayorch.core.types import Kind, Member, NodeId, StopCause, StopOrder, WorkloadId
from tests.scenes import gpus, spec

A = WorkloadId("a")


def submitted(kind: Kind = Kind.TRAIN) -> Submitted:
    return Submitted(spec("a", (1, 4), kind=kind), 0.0)


def seats(count: int) -> tuple[Member, ...]:
    return tuple(Member("worker", i, NodeId("n1"), gpus(1), max(0, i)) for i in range(count))


def start(at_s: float, count: int = 2, attempt: int = 1) -> Started:
    return Started(A, attempt, seats(count), 1, 1, 1, "", at_s)


def told(report: AttemptReport, attempt: int = 1) -> Reported:
    return Reported(A, attempt, report, report.at_s)


def saved(step: int, at_s: float) -> Reported:
    return told(CheckpointCommitted(step, "file:///c", at_s))


def stop(at_s: float, cause: StopCause = StopCause.PREEMPTED) -> StopOrdered:
    return StopOrdered(A, 1, StopOrder(cause, "", at_s, at_s + 30), at_s)


def end(at_s: float, move: Move = Move.REQUEUED, cause: StopCause | None = StopCause.PREEMPTED) -> AttemptEnded:
    return AttemptEnded(A, 1, move, cause, None, "", at_s, at_s)


def classes(events: list[Event], now_s: float = 1000.0) -> dict[str, float]:
    """The classes that are not zero."""
    return {name: amount for name, amount in ledger_of(events).total(now_s).gpu_seconds().items() if amount}


def test_work_that_finishes_is_productive_and_its_start_is_restart() -> None:
    events: list[Event] = [submitted(), start(10), AttemptReady(A, 1, 15), end(35, Move.SUCCEEDED, None)]
    assert classes(events) == {"restart": 10.0, "productive": 40.0}


def test_work_after_the_last_checkpoint_of_a_lost_node_is_lost() -> None:
    events: list[Event] = [
        submitted(),
        start(0),
        AttemptReady(A, 1, 0),
        saved(100, 10),
        told(StepReported(140, 14)),
        end(15, cause=StopCause.NODE_LOST),
    ]
    assert classes(events) == {"productive": 20.0, "lost": 10.0}
    assert ledger_of(events).steps_lost == (StepsLost(A, 1, StopCause.NODE_LOST, 40, 15),)


def test_a_preemption_that_is_answered_by_a_checkpoint_loses_nothing() -> None:
    events: list[Event] = [
        submitted(),
        start(0),
        AttemptReady(A, 1, 0),
        told(StepReported(50, 9)),
        stop(10),
        saved(52, 12),
        end(13),
    ]
    assert classes(events) == {"productive": 20.0, "checkpoint": 4.0, "idle": 2.0}
    assert ledger_of(events).steps_lost == ()


def test_a_preemption_that_is_not_answered_loses_what_was_not_saved() -> None:
    events: list[Event] = [submitted(), start(0), AttemptReady(A, 1, 0), told(StepReported(50, 9)), stop(10), end(40)]
    assert classes(events) == {"lost": 20.0, "checkpoint": 60.0}
    assert [lost.steps for lost in ledger_of(events).steps_lost] == [50]


def test_steps_before_the_checkpoint_that_it_resumed_from_are_not_lost_again() -> None:
    events: list[Event] = [submitted(), start(0), AttemptReady(A, 1, 0), saved(100, 5), end(6)]
    events += [start(10, attempt=2), Reported(A, 2, StepReported(130, 12), 12)]
    events += [AttemptEnded(A, 2, Move.REQUEUED, StopCause.NODE_LOST, None, "", 13, 13)]
    assert [lost.steps for lost in ledger_of(events).steps_lost] == [30]


def test_a_resize_changes_the_rate_and_restarts_training() -> None:
    events: list[Event] = [
        submitted(),
        start(0),
        AttemptReady(A, 1, 0),
        Resized(A, 1, seats(4), None, None, "", 10),
        told(WorkersStarted(4, 12)),
        end(20, Move.SUCCEEDED, None),
    ]
    assert classes(events) == {"productive": 20.0 + 32.0, "restart": 8.0}


def test_a_shrink_waits_for_its_checkpoint_and_then_restarts() -> None:
    events: list[Event] = [
        submitted(),
        start(0, 4),
        AttemptReady(A, 1, 0),
        Resized(A, 1, seats(2), 40.0, None, "", 10),
        saved(1, 11),
        told(WorkersStarted(2, 13)),
        end(20, Move.SUCCEEDED, None),
    ]
    assert classes(events) == {"productive": 40.0 + 14.0, "checkpoint": 2.0, "restart": 4.0}


def test_an_application_is_idle_without_requests_and_loses_nothing_when_it_ends() -> None:
    events: list[Event] = [
        submitted(Kind.SERVE),
        start(0),
        AttemptReady(A, 1, 0),
        told(DemandReported(0, 0, 5)),
        told(DemandReported(3, 0, 15)),
        end(20, cause=StopCause.DRAINED),
    ]
    assert classes(events) == {"productive": 20.0, "idle": 20.0}
    assert ledger_of(events).steps_lost == ()


def test_a_running_attempt_is_counted_up_to_now() -> None:
    assert classes([submitted(), start(0), AttemptReady(A, 1, 5)], 8.0) == {"restart": 10.0, "productive": 6.0}


def test_events_of_another_attempt_change_nothing() -> None:
    events: list[Event] = [submitted(), start(10, attempt=2), AttemptReady(A, 1, 15), end(20)]
    assert classes(events, 30.0) == {"restart": 40.0}


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.floats(0, 5, allow_nan=False), st.integers(1, 4)),
        max_size=30,
    ),
    st.sampled_from(list(Kind)),
)
def test_the_classes_add_up_to_the_allocated_time_exactly(steps: list[tuple[int, float, int]], kind: Kind) -> None:
    events: list[Event] = [submitted(kind)]
    now_s, attempt, live = 0.0, 0, False
    for what, passed_s, count in steps:
        now_s += passed_s
        if not live:
            attempt, live = attempt + 1, True
            events.append(start(now_s, count, attempt))
            continue
        made: list[Event] = [
            AttemptReady(A, attempt, now_s),
            Resized(A, attempt, seats(count), None, None, "", now_s),
            Resized(A, attempt, seats(count), now_s + 9, None, "", now_s),
            StopOrdered(A, attempt, StopOrder(StopCause.PREEMPTED, "", now_s, now_s), now_s),
            Reported(A, attempt, CheckpointCommitted(count, "", now_s), now_s),
            Reported(A, attempt, StepReported(count, now_s), now_s),
            Reported(A, attempt, DemandReported(count - 1, 0, now_s), now_s),
            AttemptEnded(A, attempt, Move.REQUEUED, None, 1, "", now_s, now_s),
            AttemptEnded(A, attempt, Move.SUCCEEDED, None, 0, "", now_s, now_s),
        ]
        events.append(made[what])
        live = what < 7
    end_s = now_s + 1
    accounts = ledger_of(events).accounts(end_s)
    assert {id: account.total for id, account in accounts.items() if account.total} == {
        id: amount for id, amount in allocated(events, end_s).items() if amount
    }
