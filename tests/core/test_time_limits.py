"""Wall limits: what counts, when the stop is ordered, and that it is the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import Start, Stop, WaitReason
from rayorch.core.endings import Facts, ending
from rayorch.core.errors import StalePlanError
from rayorch.core.events import AttemptEnded, Reported, Started
from rayorch.core.lifecycle import Move
from rayorch.core.planner import plan
from rayorch.core.reports import CheckpointCommitted
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.snapshot import Versions
from rayorch.core.time_limits import longest_s
from rayorch.core.types import State, StopCause, StopOrder, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.build import apply, seats, tree, workload
from tests.scenes import NOW, node, pending, reasons, running, snapshot, started

W = WorkloadId("w")


def limited(**facts: object) -> Workload:
    spec = workload("w", wall_limit_s=100.0, grace_s=10.0)
    base = Workload(spec, State.RUNNING, 0.0, attempt=1, placement=seats("n1", 1), started_s=1000.0, ready_s=1001.0)
    return replace(base, **facts)  # type: ignore[arg-type]


def test_the_stop_is_ordered_at_the_limit_with_the_grace_after_it() -> None:
    held = running("a", ["n1"], wall_limit_s=60.0, grace_s=10.0)
    ran = (replace(held[0], started_s=NOW - 59), held[1])
    assert not [d for d in plan(snapshot([node("n1")], [ran]), DEFAULT).decisions if isinstance(d, Stop)]
    over = (replace(held[0], started_s=NOW - 60), held[1])
    (stop,) = [d for d in plan(snapshot([node("n1")], [over]), DEFAULT).decisions if isinstance(d, Stop)]
    assert (stop.order.cause, stop.order.deadline_s) == (StopCause.TIME_LIMIT, NOW + 10)
    assert "60 s" in stop.order.reason


def test_an_attempt_that_ran_into_its_limit_has_failed_for_good_also_with_retries_left() -> None:
    order = StopOrder(StopCause.TIME_LIMIT, "it has run its wall limit of 100 s", 1100.0, 1110.0)
    workload_ = limited(state=State.STOPPING, stop=order)
    view = RunnerView(W, 1, RunnerPhase.ENDED, exit_code=75, ended_s=1105.0)
    end = ending(Facts(workload_, None, view, (), (), 1105.0, DEFAULT))
    assert end is not None
    assert (end.move, end.cause) == (Move.FAILED, StopCause.TIME_LIMIT)


def test_what_others_took_back_does_not_count_but_what_a_checkpoint_saved_does() -> None:
    built = tree(waiting=[workload("w", wall_limit_s=100.0)])
    apply(built, [Started(W, 1, seats("n1", 1), 0, 0, 0, "", 1000.0)])
    apply(built, [Reported(W, 1, CheckpointCommitted(5, "s3://c", 1030.0), 1030.0)])
    apply(built, [AttemptEnded(W, 1, Move.REQUEUED, StopCause.PREEMPTED, None, "", 0.0, 1050.0)])
    assert built.workloads[W].ran_s == 30.0
    apply(built, [Started(W, 2, seats("n1", 1), 0, 0, 0, "", 2000.0)])
    apply(built, [AttemptEnded(W, 2, Move.REQUEUED, StopCause.NODE_LOST, None, "", 0.0, 2050.0)])
    assert built.workloads[W].ran_s == 30.0, "the second attempt saved nothing"
    apply(built, [Started(W, 3, seats("n1", 1), 0, 0, 0, "", 3000.0)])
    apply(built, [AttemptEnded(W, 3, Move.REQUEUED, None, 1, "", 0.0, 3040.0)])
    assert built.workloads[W].ran_s == 70.0, "a failure of its own counts whole"
    assert longest_s(built.workloads[W]) == 30.0 + 30.0


def test_nothing_goes_back_to_the_queue_that_has_no_time_left() -> None:
    view = RunnerView(W, 1, RunnerPhase.ENDED, exit_code=1, ended_s=1070.0)
    spec = replace(limited().spec, max_retries=5)
    end = ending(
        Facts(limited(spec=spec, ran_s=30.0), None, view, (), (), 1070.0, replace(DEFAULT, failure_settle_s=0))
    )
    assert end is not None
    assert (end.move, end.cause) == (Move.FAILED, None)
    assert "wall limit" in end.reason


# ---------------------------------------------------------------- begin


def test_it_does_not_start_before_it_was_asked_to_and_says_when() -> None:
    waiting = pending("a", begin_s=NOW + 90)
    made = plan(snapshot([node("n1")], [waiting]), DEFAULT)
    assert started(made) == {}
    assert reasons(made, "a") == [WaitReason.BEGIN_TIME]
    assert made.estimates[WorkloadId("a")] == NOW + 90
    due = plan(snapshot([node("n1")], [pending("a", begin_s=NOW)]), DEFAULT)
    assert started(due) == {"a": ["n1"]}


def test_the_owner_refuses_a_start_that_comes_too_early() -> None:
    built = tree(waiting=[workload("w", begin_s=500.0)])
    start = Start(W, 1, seats("n1", 1), "fits")
    with pytest.raises(StalePlanError, match="500"):
        built.commit_start(start, Versions(), 499.0)
    assert built.commit_start(start, Versions(), 500.0)
