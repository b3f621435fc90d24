"""Times for many workloads, asked in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.planning.quiet import QuietTimes
from rayorch.core.types import WorkloadId

STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 9))), max_size=200)


@given(STEPS, st.integers(0, 9))
def test_over_are_those_whose_newest_time_has_come(steps: list[tuple[str, int | None]], now_s: int) -> None:
    times, plain = QuietTimes(), dict[str, int]()
    for name, until_s in steps:
        if until_s is None:
            times.drop(WorkloadId(name))
            plain.pop(name, None)
        else:
            times.keep(WorkloadId(name), until_s)
            plain[name] = until_s
        expected = {name for name, until_s in plain.items() if until_s <= now_s}
        assert times.over(now_s) == times.over(now_s) == expected
