"""Costs that follow from the time: what a marked policy says by its rate; plans are the same without the mark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.played.crowd import Crowd
from rayorch.core.lost_time import Rate, rate_of
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.types import Allocation, Workload
from rayorch.policies.default import DEFAULT
from rayorch.policies.victims import lost_work


def unmarked(workload: Workload, allocation: Allocation, now_s: float) -> float:
    """The same cost, to be asked for each moment."""
    return lost_work.cost(workload, allocation, now_s)


def test_a_rate_grows_from_its_beginning_on() -> None:
    rate = Rate(since_s=100.0, fixed_s=30.0, each=4.0)
    assert (rate.at(50.0), rate.at(100.0), rate.at(110.0)) == (120.0, 120.0, 160.0)
    assert Rate(float("inf"), 30.0, 2.0).at(1e9) == 60.0


def test_only_a_marked_policy_has_a_rate() -> None:
    assert rate_of(lost_work.cost) is lost_work.rate
    assert rate_of(unmarked) is None


@pytest.mark.parametrize("seed", [1, 2])
def test_plans_are_the_same_whether_or_not_the_policy_has_a_rate(seed: int) -> None:
    crowd = Crowd.of(24, 200, (2, 2, 2), seed=seed)
    crowd.priorities = (0.6, 0.3, 0.1)
    slow, memories, stops = replace(DEFAULT, victims=unmarked), (Memory(), Memory()), 0
    for _ in range(8):
        crowd.submit(10)
        snapshot = crowd.snapshot()
        fast, other = (plan(snapshot, p, m) for p, m in zip((DEFAULT, slow), memories, strict=True))
        assert fast.decisions == other.decisions
        stops += sum(type(decision).__name__ == "Stop" for decision in fast.decisions)
        crowd.carry_out(fast)
    assert stops
