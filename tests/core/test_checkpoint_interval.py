"""Young's and Daly's intervals against worked numbers and against the optimum that they approximate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rayorch.core.checkpoint_interval import (
    LONGEST_S,
    SHORTEST_S,
    YEAR_S,
    FailureRate,
    daly_s,
    interval_s,
    wasted_part,
    young_s,
)


@pytest.mark.parametrize(
    ("checkpoint_s", "mtbf_s", "young", "daly"),
    [(60.0, 86_400.0, 3219.94, 3180.06), (300.0, 10_800.0, 2545.58, 2349.51), (600.0, 3_600.0, 2078.46, 1697.71)],
)
def test_worked_numbers(checkpoint_s: float, mtbf_s: float, young: float, daly: float) -> None:
    assert young_s(checkpoint_s, mtbf_s) == pytest.approx(young, abs=0.01)
    assert daly_s(checkpoint_s, mtbf_s) == pytest.approx(daly, abs=0.01)


def test_first_order_waste() -> None:
    assert wasted_part(young_s(60.0, 86_400.0), 60.0, 86_400.0) == pytest.approx(0.0373, abs=5e-5)
    assert wasted_part(young_s(300.0, 10_800.0), 300.0, 10_800.0) == pytest.approx(0.2357, abs=5e-5)


def test_a_thousand_nodes_that_fail_once_a_year() -> None:
    rate = FailureRate(1.0, YEAR_S)
    assert rate.mtbf_s(1024) / 3600 == pytest.approx(8.5605, rel=1e-3)
    assert young_s(60.0, rate.mtbf_s(1024)) == pytest.approx(1922.4, rel=1e-3)


def test_a_checkpoint_longer_than_two_failures_is_written_once_between_failures() -> None:
    assert daly_s(1000.0, 400.0) == 400.0
    assert math.isinf(daly_s(60.0, math.inf))
    assert daly_s(0.0, 3600.0) == 0.0


@pytest.mark.parametrize(("checkpoint_s", "mtbf_s"), [(60.0, 86_400.0), (300.0, 10_800.0)])
def test_exponential_failures_waste_least_near_it(checkpoint_s: float, mtbf_s: float) -> None:
    def factor(work_s: float) -> float:
        """Expected time for a second of work, when an interrupted interval is done again."""
        return mtbf_s * math.expm1((work_s + checkpoint_s) / mtbf_s) / work_s

    best = min(factor(work_s) for work_s in np.geomspace(60, 50_000, 2_000))
    assert factor(daly_s(checkpoint_s, mtbf_s)) < best * 1.0001
    assert factor(young_s(checkpoint_s, mtbf_s)) < best * 1.02


def test_the_interval_in_force_stays_until_it_is_off_by_a_fifth() -> None:
    best_s = interval_s(10.0, 36_000.0)
    assert SHORTEST_S < best_s < LONGEST_S
    assert interval_s(10.0, 36_000.0, best_s * 1.15) == best_s * 1.15
    assert interval_s(10.0, 36_000.0, best_s * 1.5) == best_s
    assert interval_s(1e-3, 60.0) == SHORTEST_S
    assert interval_s(600.0, math.inf) == LONGEST_S


def test_the_rate_follows_what_is_seen() -> None:
    young = FailureRate()
    grown = young.seen(99, 99 * YEAR_S / 10)
    assert young.mtbf_s() == YEAR_S
    assert grown.mtbf_s() == pytest.approx(YEAR_S * 10.9 / 100)
