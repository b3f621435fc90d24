"""Runs in which ranks fall by themselves, the loop goes by rounds, and seats decide how fast work is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayorch.core.eviction import EvictionKnobs
from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import BackfillKnobs
from rayorch.core.types import Resources
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import las, remaining
from rayorch.sim.models import RestartCost, RestartModel, SimModels
from rayorch.sim.trace.model import Ask, TraceJob
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import FIFO, job, nodes, trace

LEVELS = replace(
    DEFAULT,
    order=las.key,
    ordering=OrderKnobs(las_thresholds_gpu_s=(400.0,)),
    eviction=EvictionKnobs(by_order=True, consolidate=False),
    backfill=BackfillKnobs(hold=False),
)
"""Least attained service in two levels, with its preemptions."""


def test_who_is_demoted_makes_room_in_that_moment() -> None:
    made = trace(job("long", 0, 100, gpus=8), job("new", 10, 20, gpus=4))

    outcome = run(made, nodes(1), LEVELS)

    long, new = outcome.records
    assert [(r.from_s, r.to_s) for r in new.runs] == [(50.0, 70.0)], "after 400 GPU-seconds on 8 GPUs"
    assert [(r.from_s, r.to_s) for r in long.runs] == [(0.0, 50.0), (70.0, 120.0)]
    assert long.preemptions == 1


def test_of_one_level_the_older_takes_the_room_of_the_younger_where_the_order_says_so() -> None:
    made = trace(job("a", 0, 10, gpus=4), job("old", 1, 20, gpus=8), job("young", 2, 30, gpus=4))

    level = run(made, nodes(1), LEVELS)
    senior = run(made, nodes(1), replace(LEVELS, order=las.senior_key))

    assert [r.started_s for r in level.records] == [0.0, 32.0, 2.0]
    assert [(r.from_s, r.to_s) for r in senior.records[1].runs] == [(10.0, 30.0)]
    assert [(r.from_s, r.to_s) for r in senior.records[2].runs] == [(2.0, 10.0), (30.0, 52.0)]


def test_by_rounds_work_ends_when_it_ends_and_room_is_given_away_at_the_next_round() -> None:
    made = trace(job("a", 10, 80, gpus=8), job("b", 60, 30, gpus=8))

    a, b = run(made, nodes(1), FIFO, round_s=60.0).records

    assert (a.started_s, a.ended_s) == (60.0, 140.0)
    assert (b.started_s, b.ended_s) == (180.0, 210.0)


@dataclass(frozen=True)
class HalfWhenSplit:
    """Half as fast on more than one node."""

    def rate(self, job: TraceJob, gpus_by_node: tuple[int, ...]) -> float:
        """See SpeedModel."""
        return 1.0 if len(gpus_by_node) == 1 else 0.5


def test_work_is_as_fast_as_its_seats_and_the_first_start_may_cost_time_too() -> None:
    made = trace(job("whole", 0, 10, members=8), job("split", 0, 10, members=12))
    models = SimModels(restart=RestartModel(default=RestartCost(start_s=3.0)), speed=HalfWhenSplit())

    whole, split = run(made, nodes(3), FIFO, models=models).records

    assert whole.ended_s == 13.0 and split.ended_s == 23.0


def test_work_that_takes_longer_than_is_thought_does_not_stop_each_other_for_ever() -> None:
    short = [job(f"s{n:02}", 0, 100 + 5 * n) for n in range(60)]
    longer = [job(f"l{n:02}", 0, 2_600 + 10 * n) for n in range(40)]
    late = [job(f"new{n}", 90_000, 2_500) for n in range(4)]
    beat = Ask(1, Resources.of({"CPU": 1}))
    turns = [TraceJob(f"t{n:03}", 90_000.0 + 60 * n, 1.0, beat, queue="other") for n in range(300)]
    shortest = replace(DEFAULT, order=remaining.key, eviction=EvictionKnobs(by_order=True, consolidate=False))
    lossy = RestartModel(default=RestartCost(60.0, interval_s=1_800.0, on_request=False))

    outcome = run(
        trace(*short, *longer, *late, *turns), nodes(1, 2), shortest, until_s=120_000.0, models=SimModels(restart=lossy)
    )

    found = [record for record in outcome.records if record.id.startswith("new")]
    assert all(record.ended_s is not None and record.preemptions <= 2 for record in found), found
    assert any(record.preemptions for record in found), "each looks shorter than what has run for some minutes"
