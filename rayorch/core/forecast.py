"""How long a workload will still run: two quantiles, from the most telling source that there is.

1. Its own steps: declared in all, reported so far, at the pace so far.
2. Finished work of its owner, name and size: how long those that ran longer than it has so far went on.
3. What its owner expects.
4. The same as 2 with coarser classes: its queue and size, its size, its kind.
5. Its wall limit, which also bounds all others.

Nothing is known of an application that serves, nor where none of these is there.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from rayorch.core.history import History, classes_of
from rayorch.core.service import run_s
from rayorch.core.time_limits import limit_at_s
from rayorch.core.types import Kind, Workload

MIN_NAMED = 5
"""So many of the same owner and name must have run longer to speak for it."""
MIN_COARSE = 20
"""So many of a coarser class."""
STEP_SLACK = 1.25
"""A pace measured so far is taken to hold within this factor in nine of ten cases."""
EXPECTED_SLACK = 2.0
"""What owners expect is taken to hold within this factor of the whole in nine of ten cases."""
QUANTILES = (0.5, 0.9)

Remaining = tuple[float, float]
"""Seconds of work that are left, in half of all cases at most the first, in nine of ten at most the second."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Quantiles of remaining time by what a history knows at `now_s`."""

    history: History
    now_s: float
    _sorted: dict[str, list[float]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _known: dict[tuple[str, float, int], Remaining | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def remaining(self, workload: Workload) -> Remaining | None:
        """Seconds that the workload's work will still take, None where nothing is known. O(log samples)."""
        if workload.spec.kind is Kind.SERVE:
            return None
        done_s = run_s(workload, self.now_s)
        found = self._unbounded(workload, done_s)
        limit_s = workload.spec.wall_limit_s
        if limit_s is None:
            return found
        at_s = limit_at_s(workload)
        left_s = max(0.0, limit_s - workload.ran_s) if at_s is None else max(0.0, at_s - self.now_s)
        return (left_s, left_s) if found is None else (min(found[0], left_s), min(found[1], left_s))

    def _unbounded(self, workload: Workload, done_s: float) -> Remaining | None:
        by_steps = _by_steps(workload, done_s)
        if by_steps is not None:
            return by_steps
        named, *coarse = classes_of(workload.spec)
        found = self._from_class(named, done_s, MIN_NAMED)
        expected_s = workload.spec.expected_s
        if found is None and expected_s is not None and done_s < expected_s:
            return (expected_s - done_s, EXPECTED_SLACK * expected_s - done_s)
        for name in coarse:
            found = found or self._from_class(name, done_s, MIN_COARSE)
        return found

    def _from_class(self, name: str, done_s: float, least: int) -> Remaining | None:
        """How long those of the class that ran longer than `done_s` went on; None if fewer than `least` did."""
        if name not in self.history.classes:
            return None
        key = (name, done_s, least)
        if key not in self._known:
            self._known[key] = self._quantiles(name, done_s, least)
        return self._known[key]

    def _quantiles(self, name: str, done_s: float, least: int) -> Remaining | None:
        entry = self.history.classes[name]
        if len(entry.samples) < least:
            return None
        if name not in self._sorted:
            self._sorted[name] = sorted(sample.run_s for sample in entry.samples)
        samples = self._sorted[name]
        first = bisect_right(samples, done_s)
        count = len(samples) - first
        if count < least:
            return None
        half, most = (samples[first + math.ceil(q * count) - 1] - done_s for q in QUANTILES)
        return (half, most)


def _by_steps(workload: Workload, done_s: float) -> Remaining | None:
    total = workload.spec.total_steps
    if total is None or workload.step <= 0 or done_s <= 0:
        return None
    left_s = max(0, total - workload.step) * done_s / workload.step
    return (left_s, left_s * STEP_SLACK)
