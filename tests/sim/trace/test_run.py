"""Runs of small traces whose outcome can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

from rayorch.core.types import State
from rayorch.policies.default import DEFAULT
from rayorch.sim.trace.outcome import JobRun, Outcome
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import FIFO, job, nodes, trace


def times(outcome: Outcome) -> dict[str, tuple[float | None, float | None]]:
    """(first start, end) of each job."""
    return {record.id: (record.started_s, record.ended_s) for record in outcome.records}


def test_a_blocked_head_blocks_all_and_equal_times_keep_the_order_of_the_file() -> None:
    made = trace(
        job("a", 0, 100, gpus=6),
        job("b", 10, 50, gpus=4),  # waits for a
        job("c", 10, 10, gpus=2),  # would fit beside a, and stands behind b
        job("10", 20, 10, gpus=4),
        job("9", 20, 10, gpus=4),
    )

    outcome = run(made, nodes(1), FIFO)

    assert times(outcome) == {
        "a": (0, 100),
        "b": (100, 150),
        "c": (100, 110),
        "10": (110, 120),
        "9": (120, 130),
    }
    assert [record.id for record in outcome.records] == ["a", "b", "c", "10", "9"]
    assert all(record.state is State.SUCCEEDED for record in outcome.records)
    assert outcome.events == 15


def test_members_may_lie_on_any_nodes() -> None:
    outcome = run(trace(job("a", 0, 5, members=12)), nodes(2), FIFO)

    (record,) = outcome.records
    assert record.runs == (JobRun(0.0, 5.0, ("n0", "n1"), 12.0),)
    assert record.gpus == 12


def test_a_job_that_failed_in_the_trace_ends_as_long_and_loses_nothing() -> None:
    failed, cancelled = replace(job("a", 0, 50), status="failed"), replace(job("b", 0, 40), status="cancelled")

    a, b = run(trace(failed, cancelled), nodes(1), FIFO).records

    assert (a.state, a.ended_s, a.lost_gpu_s, a.jct_s) == (State.FAILED, 50.0, 0.0, None)
    assert (b.state, b.ended_s, b.lost_gpu_s, b.jct_s) == (State.CANCELLED, 40.0, 0.0, None)


def test_a_job_that_never_ends_is_let_in_and_told_nothing_of() -> None:
    (endless,) = run(trace(job("a", 0, math.inf)), nodes(1), FIFO, until_s=100.0).records

    assert (endless.state, endless.started_s, endless.ended_s) == (State.RUNNING, 0.0, None)


def test_more_important_work_stops_less_important_work_that_goes_on_where_it_was() -> None:
    made = trace(job("low", 0, 100, gpus=8), job("high", 40, 10, gpus=8, priority=5))

    outcome = run(made, nodes(1), DEFAULT)

    low, high = outcome.records
    assert high.runs == (JobRun(40.0, 50.0, ("n0",), 8.0),)
    assert [(r.from_s, r.to_s) for r in low.runs] == [(0.0, 40.0), (50.0, 110.0)]
    assert (low.preemptions, low.lost_gpu_s, low.state) == (1, 0.0, State.SUCCEEDED)
