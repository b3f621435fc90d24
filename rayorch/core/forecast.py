"""How long a workload will still run: two quantiles, from the most telling source that there is.

1. Its own steps: declared in all, reported so far, at the pace so far.
2. Finished work of its owner, name and size that took longer than any attempt of it so far: what is left by that.
3. What its owner expects.
4. The same as 2 with coarser classes: its queue and size, its size, its kind.
5. Its wall limit, which also bounds all others.

Nothing is known of an application that serves, nor where none of these is there.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from rayorch.core.history import History, Sample, ServiceClass, classes_of
from rayorch.core.service import run_s
from rayorch.core.time_limits import limit_at_s
from rayorch.core.types import Kind, Workload, WorkloadId, WorkloadSpec

MIN_NAMED = 5
"""So many of the same owner and name must have run longer to speak for it."""
MIN_COARSE = 20
"""So many of a coarser class."""
STEP_SLACK = 1.25
"""A pace measured so far is taken to hold within this factor in nine of ten cases."""
EXPECTED_SLACK = 2.0
"""What owners expect is taken to hold within this factor of the whole in nine of ten cases."""
QUANTILES = (0.5, 0.9)
MOST_CLASSES = 1024
"""So many classes' samples are kept in order."""

Remaining = tuple[float, float]
"""Seconds of work that are left, in half of all cases at most the first, in nine of ten at most the second."""


def is_foretold(spec: WorkloadSpec) -> bool:
    """Whether anything is known of how long it will run that is not learned from others."""
    return spec.wall_limit_s is not None or spec.expected_s is not None or spec.total_steps is not None


class Seen:
    """What forecasts of one turn need again in the next: to which classes work belongs, and how long samples took.

    It only saves time. Whoever keeps it says `forget` of work that is gone.
    """

    __slots__ = ("_names", "_runs")

    def __init__(self) -> None:
        self._names: dict[WorkloadId, tuple[WorkloadSpec, tuple[str, ...]]] = {}
        self._runs: dict[str, tuple[tuple[Sample, ...], list[float]]] = {}

    def names(self, spec: WorkloadSpec) -> tuple[str, ...]:
        """The classes of a workload, see `classes_of`."""
        known = self._names.get(spec.id)
        if known is None or known[0] is not spec:
            known = self._names[spec.id] = (spec, classes_of(spec))
        return known[1]

    def forget(self, id: WorkloadId) -> None:
        """It is gone, or another one."""
        self._names.pop(id, None)

    def runs_s(self, entry: ServiceClass) -> list[float]:
        """How long the samples of a class ran, in order; not to be changed."""
        known = self._runs.get(entry.name)
        if known is None or known[0] is not entry.samples:
            runs = _moved_on(*known, entry.samples) if known is not None else None
            if len(self._runs) > MOST_CLASSES:
                self._runs.clear()
            known = self._runs[entry.name] = (entry.samples, runs or sorted(sample.run_s for sample in entry.samples))
        return known[1]


def _moved_on(old: tuple[Sample, ...], runs: list[float], new: tuple[Sample, ...]) -> list[float] | None:
    """The run times in order after one more sample, for which the oldest may have gone; None: it is not that."""
    gone = len(old) + 1 - len(new)
    if not 0 <= gone <= 1 or old[gone:] != new[:-1]:
        return None
    for sample in old[:gone]:
        del runs[bisect_left(runs, sample.run_s)]
    insort(runs, new[-1].run_s)
    return runs


def outlasted_s(workload: Workload, done_s: float) -> float:
    """How many seconds its whole takes at least, if so many of them are done and count.

    More than these after an attempt whose work was lost. Without it two workloads that take longer than is thought
    would each look shorter whenever they begin anew, and stop each other for ever.
    """
    return max(done_s, workload.outlasted_s)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Quantiles of remaining time by what a history knows at `now_s`. `seen`: what former ones found out."""

    history: History
    now_s: float
    seen: Seen = field(default_factory=Seen, repr=False, compare=False)

    def remaining(self, workload: Workload) -> Remaining | None:
        """Seconds that the workload's work will still take, None where nothing is known. O(log samples)."""
        if workload.spec.kind is Kind.SERVE:
            return None
        done_s = run_s(workload, self.now_s)
        found = self._unbounded(workload, done_s, outlasted_s(workload, done_s))
        limit_s = workload.spec.wall_limit_s
        if limit_s is None:
            return found
        at_s = limit_at_s(workload)
        left_s = max(0.0, limit_s - workload.ran_s) if at_s is None else max(0.0, at_s - self.now_s)
        return (left_s, left_s) if found is None else (min(found[0], left_s), min(found[1], left_s))

    def _unbounded(self, workload: Workload, done_s: float, least_s: float) -> Remaining | None:
        spec = workload.spec
        if spec.total_steps is not None and (by_steps := _by_steps(workload, done_s)) is not None:
            return by_steps
        names = self.seen.names(spec)
        found = self.by_name(names, done_s, least_s)
        if found is not None:
            return found
        if (told := expected(spec.expected_s, done_s, least_s)) is not None:
            return told
        return self.coarsely(names, done_s, least_s)

    def by_name(self, names: tuple[str, ...], done_s: float, least_s: float) -> Remaining | None:
        """What finished work of the finest of these classes says of one of which `done_s` are done and that takes
        longer than `least_s` (`outlasted_s`)."""
        return self._from_class(names[0], done_s, least_s, MIN_NAMED)

    def coarsely(self, names: tuple[str, ...], done_s: float, least_s: float) -> Remaining | None:
        """The same of the first of the others that says anything."""
        for name in names[1:]:
            found = self._from_class(name, done_s, least_s, MIN_COARSE)
            if found is not None:
                return found
        return None

    def _from_class(self, name: str, done_s: float, least_s: float, least: int) -> Remaining | None:
        """What is left, by those of the class that took longer in all; None if fewer than `least` did."""
        entry = self.history.classes.get(name)
        if entry is None or len(entry.samples) < least:
            return None
        samples = self.seen.runs_s(entry)
        first = bisect_right(samples, least_s)
        count = len(samples) - first
        if count < least:
            return None
        half, most = QUANTILES
        last = first - 1
        return samples[last + math.ceil(half * count)] - done_s, samples[last + math.ceil(most * count)] - done_s


def expected(expected_s: float | None, done_s: float, least_s: float) -> Remaining | None:
    """What its owner's word for the whole says of work of which `done_s` are done and that takes longer than `least_s`
    (`outlasted_s`); None where it has been proved wrong."""
    if expected_s is None or least_s >= expected_s:
        return None
    return (expected_s - done_s, EXPECTED_SLACK * expected_s - done_s)


def _by_steps(workload: Workload, done_s: float) -> Remaining | None:
    total = workload.spec.total_steps
    if total is None or workload.step <= 0 or done_s <= 0:
        return None
    left_s = max(0, total - workload.step) * done_s / workload.step
    return (left_s, left_s * STEP_SLACK)
