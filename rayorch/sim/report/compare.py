"""Several runs side by side: means over seeds with confidence intervals, and differences that are paired by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rayorch.sim.report.measures import BY_KEY, Better
from rayorch.sim.report.summary import Summary

LEVEL = 0.95

_STUDENT = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
    2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272,
)  # fmt: skip
"""The 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; beyond the table its expansion about the normal one (error below 1e-4)."""
    if freedom < 1:
        raise ValueError(f"needs a degree of freedom, got {freedom}")
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `count` values. `half`: half the width of its 95 % confidence interval, None for a single value."""

    mean: float
    half: float | None
    count: int

    @property
    def low(self) -> float:
        """The lower end; the mean where there is no interval."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + (self.half or 0.0)


def interval(values: Sequence[float]) -> Interval | None:
    """The mean with the t interval of independent values; None without any."""
    if not values:
        return None
    count, mean = len(values), math.fsum(values) / len(values)
    if count < 2:
        return Interval(mean, None, count)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Interval(mean, student(count - 1) * math.sqrt(variance / count), count)


@dataclass(frozen=True, slots=True)
class Group:
    """The runs of one profile at one load, by seed."""

    profile: str
    load: float | None
    runs: tuple[Summary, ...]

    def of(self, key: str) -> Interval | None:
        """A measure over the seeds; None where a run lacks it."""
        values = [run.figures[key] for run in self.runs]
        known = [value for value in values if value is not None]
        return interval(known) if len(known) == len(values) else None


def groups(runs: Sequence[Summary]) -> tuple[Group, ...]:
    """By load (as in the trace first, then from small to large), and within it by profile in the order given."""
    found: dict[tuple[float | None, str], list[Summary]] = {}
    for run in runs:
        found.setdefault((run.load, run.profile), []).append(run)
    profiles = list(dict.fromkeys(run.profile for run in runs))

    def place(key: tuple[float | None, str]) -> tuple[float, int]:
        return (-1.0 if key[0] is None else key[0], profiles.index(key[1]))

    return tuple(
        Group(profile, load, tuple(sorted(found[load, profile], key=lambda run: run.seed)))
        for load, profile in sorted(found, key=place)
    )


def by_load(runs: Sequence[Summary]) -> dict[float | None, list[Group]]:
    """The same, those of each load together."""
    found: dict[float | None, list[Group]] = {}
    for group in groups(runs):
        found.setdefault(group.load, []).append(group)
    return found


class Verdict(StrEnum):
    """Words for a difference."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference seen"
    UNKNOWN = ""  # one pair only, or no direction is the better one


@dataclass(frozen=True, slots=True)
class Difference:
    """A profile against the first one, by one measure at one load: value − the first's, paired by seed.

    `relative`: the mean difference over the first's mean, None where that is 0. `verdict`: a word of `Verdict`; a
    difference counts as seen where the 95 % interval of the paired differences leaves 0 out.
    """

    key: str
    load: float | None
    profile: str
    baseline: str
    by: Interval
    relative: float | None
    verdict: Verdict


def differences(runs: Sequence[Summary], keys: Sequence[str]) -> tuple[Difference, ...]:
    """Each profile against the first at the same load, over the seeds that both have run."""
    found: list[Difference] = []
    for load, at_load in by_load(runs).items():
        baseline, *others = at_load
        for other in others:
            found += [d for key in keys if (d := _difference(key, load, baseline, other)) is not None]
    return tuple(found)


def _difference(key: str, load: float | None, baseline: Group, other: Group) -> Difference | None:
    first = {run.seed: run.figures[key] for run in baseline.runs}
    pairs = [(run.figures[key], first.get(run.seed)) for run in other.runs]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    by = interval([a - b for a, b in known])
    if by is None:
        return None
    mean = math.fsum(b for _, b in known) / len(known)
    relative = by.mean / mean if mean else None
    return Difference(key, load, other.profile, baseline.profile, by, relative, _verdict(key, by))


def _verdict(key: str, by: Interval) -> Verdict:
    better = BY_KEY[key].better
    if by.half is None or better is Better.NEITHER:
        return Verdict.UNKNOWN
    if by.low <= 0.0 <= by.high:
        return Verdict.SAME
    return Verdict.BETTER if (by.mean < 0) == (better is Better.LESS) else Verdict.WORSE


def seeds_change_nothing(runs: Sequence[Summary]) -> bool:
    """Whether several seeds were run and every one of them gave the very same log: no model draws anything."""
    logs: dict[tuple[str, float | None], set[str]] = {}
    for run in runs:
        logs.setdefault((run.profile, run.load), set()).add(run.log_sha256)
    several = {(run.profile, run.load) for run in runs if run.seed != runs[0].seed}
    return bool(several) and all(len(found) == 1 for found in logs.values())
