"""Elastic members in runs: sizes, speed and what a change costs, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.types import State
from rayorch.policies.default import DEFAULT
from rayorch.sim.models import Amdahl, RestartCost, RestartModel, SimModels
from rayorch.sim.trace.model import TraceJob
from rayorch.sim.trace.outcome import JobRecord
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import job, nodes, trace

LINEAR = SimModels(scaling=Amdahl(0.0))


def elastic(one: TraceJob, least: int, most: int) -> TraceJob:
    """The job, which runs with so many members."""
    return replace(one, ask=replace(one.ask, least=least, most=most))


def sizes(record: JobRecord) -> list[tuple[float, float, float]]:
    """(from, to, GPUs) of each stretch."""
    return [(r.from_s, r.to_s, r.gpus) for r in record.runs]


def test_alone_it_takes_all_that_it_can_use_and_is_as_much_faster() -> None:
    made = trace(elastic(job("a", 0, 100, members=2), 1, 8))
    (record,) = run(made, nodes(2), DEFAULT, models=LINEAR).records
    assert sizes(record) == [(0.0, 25.0, 8.0)]  # four times as many members
    assert (record.gpus, record.resizes, record.elastic, record.state) == (2, 0, True, State.SUCCEEDED)

    # By Amdahl with a tenth: 2 members are 2/1.1 times as fast as one, 8 are 8/1.7 times.
    (record,) = run(made, nodes(2), DEFAULT, models=SimModels(scaling=Amdahl(0.1))).records
    assert record.ended_s is not None and abs(record.ended_s - 100 * (2 / 1.1) / (8 / 1.7)) < 1e-9


def test_it_starts_with_what_there_is_and_grows_when_more_comes_free() -> None:
    made = trace(job("first", 0, 40, gpus=6), elastic(job("a", 1, 100, members=4), 2, 8))
    first, a = run(made, nodes(1), DEFAULT, models=LINEAR).records
    # From 1 to 40 with 2 of the 4 that it asked for, at half its speed; the other 80.5 s with 8, twice as fast.
    assert sizes(first) == [(0.0, 40.0, 6.0)]
    assert sizes(a) == [(1.0, 40.0, 2.0), (40.0, 80.25, 8.0)]
    assert a.resizes == 1 and a.lost_gpu_s == 0


def test_who_goes_first_gets_its_surplus_back_and_it_grows_again_later() -> None:
    made = trace(elastic(job("a", 0, 100, members=4), 4, 8), job("b", 10, 20, members=4, priority=5))
    a, b = run(made, nodes(1), DEFAULT, models=LINEAR).records
    assert sizes(b) == [(10.0, 30.0, 4.0)]
    assert sizes(a) == [(0.0, 10.0, 8.0), (10.0, 30.0, 4.0), (30.0, 60.0, 8.0)]  # 20 + 20 + 60 s of work
    assert (a.resizes, a.preemptions) == (2, 0)


def test_each_change_costs_a_restart_and_a_checkpoint() -> None:
    models = replace(LINEAR, restart=RestartModel(default=RestartCost(restart_s=3.0, checkpoint_s=2.0)))
    made = trace(elastic(job("a", 0, 100, members=4), 4, 8), job("b", 10, 20, members=4, priority=5))
    a, _ = run(made, nodes(1), DEFAULT, models=models).records
    # 20 s of work up to 10; none up to 15, then 15 s of it up to 30; none up to 35, and 65 s at twice the speed.
    assert sizes(a) == [(0.0, 10.0, 8.0), (10.0, 30.0, 4.0), (30.0, 67.5, 8.0)]
    assert a.lost_gpu_s == 5 * 4 + 5 * 8


def test_what_was_not_saved_is_done_again_where_no_checkpoint_is_written_on_request() -> None:
    cost = RestartCost(restart_s=3.0, interval_s=8.0, on_request=False)
    models = replace(LINEAR, restart=RestartModel(default=cost))
    made = trace(elastic(job("a", 0, 100, members=4), 4, 8), job("b", 10, 20, members=4, priority=5))
    a, _ = run(made, nodes(1), DEFAULT, models=models).records
    # Of 20 s 16 are saved (2 s on 8 GPUs are lost); 3 s later 17 s of work make it 33, of which 32 are saved.
    assert [(start, gpus) for start, _, gpus in sizes(a)] == [(0.0, 8.0), (10.0, 4.0), (30.0, 8.0)]
    assert a.lost_gpu_s == (4 / 2 * 8 + 3 * 4) + (1 * 4 + 3 * 8)
    assert a.ended_s == 30 + 3 + (100 - 32) / 2


def test_two_that_are_alike_grow_evenly_where_the_profile_says_so() -> None:
    made = trace(*(elastic(job(id, 0, 100, members=1), 1, 8) for id in "ab"))
    one, two = run(made, nodes(1), replace(DEFAULT, even_growth=True), models=LINEAR).records
    assert sizes(one) == sizes(two) == [(0.0, 25.0, 4.0)]


def test_the_same_again_is_the_same_and_a_fixed_size_is_as_before() -> None:
    made = trace(*(elastic(job(f"j{n}", 7.0 * n, 60.0, members=1 + n % 3), 1, 4) for n in range(20)))
    first, again = run(made, nodes(1), DEFAULT), run(made, nodes(1), DEFAULT)
    assert first.log_sha256 == again.log_sha256
    assert all(record.state is State.SUCCEEDED for record in first.records)
    fixed = trace(*(elastic(one, one.ask.members, one.ask.members) for one in made.jobs))
    plain = trace(*(replace(one, ask=replace(one.ask, least=0, most=0)) for one in made.jobs))
    assert run(fixed, nodes(1), DEFAULT).log_sha256 == run(plain, nodes(1), DEFAULT).log_sha256
