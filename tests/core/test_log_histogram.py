"""Quantiles of a log-linear histogram are within 1/32 of the exact ones, and its size and its halving are bounded."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.codec import decode_as, encode
from rayorch.core.history import History, LongPast, ServiceClass
from rayorch.core.log_histogram import OCTAVES, PER_OCTAVE, LogHistogram, bin_of, middle_of, quantiles

BINS = OCTAVES * PER_OCTAVE + 1
PARTS = (0.01, 0.5, 0.8, 0.9, 1.0)


@given(st.lists(st.floats(1.0, 2.0**40, exclude_max=True), min_size=1, max_size=200))
def test_a_quantile_is_off_by_a_thirty_second_at_most(values: list[float]) -> None:
    ordered = sorted(values)
    exact = [ordered[math.ceil(part * len(ordered)) - 1] for part in PARTS]
    for found, wanted in zip(quantiles([LogHistogram().with_values(values)], PARTS), exact, strict=True):
        assert abs(found - wanted) <= wanted / (2 * PER_OCTAVE)


@given(st.floats(0.0, 1e300), st.floats(0.0, 1e300))
def test_bins_are_in_the_order_of_what_they_hold(one: float, other: float) -> None:
    assert 0 <= bin_of(min(one, other)) <= bin_of(max(one, other)) < BINS


@pytest.mark.parametrize("at", [0, 1, 15, 16, 17, 333, BINS - 1])
def test_the_middle_of_a_bin_is_in_it(at: int) -> None:
    assert bin_of(middle_of(at)) == at


def test_no_number_of_values_makes_it_larger_than_its_bins() -> None:
    values = [2 ** (n / 97) for n in range(97 * 60)]
    assert len(LogHistogram().with_values([0.0, *values, math.inf]).weights) == BINS


def test_what_is_halved_loses_weight_not_its_shape_and_is_forgotten_in_the_end() -> None:
    old = LogHistogram().with_values([10.0] * 60 + [1000.0] * 40)
    assert old.halved().total == 50 and quantiles([old.halved()], PARTS) == quantiles([old], PARTS)
    assert quantiles([old.halved(2).with_values([5000.0] * 26)], (0.5,)) == (middle_of(bin_of(5000.0)),)
    assert old.halved(0) is old and old.halved(20).weights == {} and quantiles([old.halved(2_000_000)], PARTS) == ()


def test_two_are_pooled_by_what_they_weigh() -> None:
    many, few = LogHistogram().with_values([10.0] * 90), LogHistogram().with_values([1000.0] * 10)
    assert quantiles([many, few], (0.9, 0.91)) == (middle_of(bin_of(10.0)), middle_of(bin_of(1000.0)))


@given(st.lists(st.floats(0.0, 1e12), max_size=30), st.integers(0, 12))
def test_it_is_written_exactly(values: list[float], halvings: int) -> None:
    histogram = LogHistogram().with_values(values).halved(halvings)
    classes = {"kind/train": ServiceClass("kind/train", 0.0, (), LongPast(3, histogram, histogram))}
    history = History(classes=classes)
    assert decode_as(History, encode(history)) == history
