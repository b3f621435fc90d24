"""How a row of equal units is divided: worked numbers, and against every other way."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.planning.segments import balanced, together

CAPACITIES = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def ranks(capacities: list[int]) -> list[tuple[int]]:
    return [(capacity,) for capacity in capacities]


def test_together_takes_the_smallest_domain_that_suffices() -> None:
    assert together([8, 5, 6], ranks([8, 5, 6]), 5) == {1: 5}


def test_together_takes_the_largest_and_then_the_tightest() -> None:
    assert together([8, 5, 6, 2], ranks([8, 5, 6, 2]), 13) == {0: 8, 1: 5}
    assert together([8, 5, 6, 2], ranks([8, 5, 6, 2]), 10) == {0: 8, 3: 2}


def test_balanced_parts() -> None:
    for capacities, need, parts in (
        ([10, 10, 4], 12, {0: 6, 1: 6}),
        ([10, 10, 4], 22, {2: 4, 0: 9, 1: 9}),
        ([11, 1, 10], 12, {2: 6, 0: 6}),
        ([9, 7, 6], 12, {2: 6, 1: 6}),  # the tighter two of the three
        ([4, 4, 4], 4, {0: 4}),  # one suffices
        ([5, 5, 5], 14, {0: 4, 1: 5, 2: 5}),
    ):
        assert balanced(capacities, ranks(capacities), need) == parts


@given(CAPACITIES, st.integers(1, 20))
def test_nobody_gets_more_than_fits_and_all_get_a_place_if_there_is_one(capacities: list[int], need: int) -> None:
    for divide in (together, balanced):
        parts = divide(capacities, ranks(capacities), need)
        assert (parts is None) == (sum(capacities) < need)
        if parts is not None:
            assert sum(parts.values()) == need
            assert all(0 < part <= capacities[index] for index, part in parts.items())


@given(CAPACITIES, st.integers(1, 20))
def test_together_uses_as_few_domains_as_can_be(capacities: list[int], need: int) -> None:
    parts = together(capacities, ranks(capacities), need)
    if parts is not None:
        largest = sorted(capacities, reverse=True)
        assert len(parts) == next(n for n in range(1, len(largest) + 1) if sum(largest[:n]) >= need)


@given(CAPACITIES, st.integers(1, 12))
def test_no_other_split_has_a_larger_least_part(capacities: list[int], need: int) -> None:
    parts = balanced(capacities, ranks(capacities), need)
    if parts is not None:
        ways = product(*(range(capacity + 1) for capacity in capacities))
        best = max(min(n for n in way if n) for way in ways if sum(way) == need)
        assert min(parts.values()) == best
