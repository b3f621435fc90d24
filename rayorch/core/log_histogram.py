"""A histogram of positive numbers whose bins grow with what they hold: quantiles of a long past in little memory.

Each octave [2^e, 2^(e+1)) is divided into `PER_OCTAVE` bins of equal width (the log-linear layout of HdrHistogram), so
that a bin's middle is within 1 / (2 * PER_OCTAVE) of everything in it, whatever the distribution. What is below 1 is
one bin, what is beyond 2^OCTAVES is counted in the last. Bins are found and weights halved without rounding: the same
numbers give the same histogram on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

PER_OCTAVE = 16
"""So a quantile is off by 1/32 at most."""
OCTAVES = 40
"""2^40 GPU-seconds are 35,000 GPU-years."""
LEAST_WEIGHT = 2.0**-10
"""A bin that has been halved below it is forgotten."""


@dataclass(frozen=True, slots=True)
class LogHistogram:
    """How much of each bin there was; bins that are not there are empty."""

    weights: Mapping[int, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """How many values, what was forgotten in part counting in part."""
        return math.fsum(self.weights.values())

    def with_values(self, values: Iterable[float]) -> LogHistogram:
        """With these too, each counting one."""
        weights = dict(self.weights)
        for value in values:
            at = bin_of(value)
            weights[at] = weights.get(at, 0.0) + 1.0
        return LogHistogram(weights)

    def halved(self, times: int = 1) -> LogHistogram:
        """Everything counts half as much, so many times."""
        if times <= 0:
            return self
        weights = {at: math.ldexp(weight, -times) for at, weight in self.weights.items()}
        return LogHistogram({at: weight for at, weight in weights.items() if weight >= LEAST_WEIGHT})


def bin_of(value: float) -> int:
    """The bin that a number is counted in; 0: below 1."""
    if value < 1:
        return 0
    if value >= 2.0**OCTAVES:
        return OCTAVES * PER_OCTAVE
    mantissa, exponent = math.frexp(value)
    return 1 + (exponent - 1) * PER_OCTAVE + int((mantissa - 0.5) * 2 * PER_OCTAVE)


def middle_of(at: int) -> float:
    """The number that stands for a bin."""
    if at == 0:
        return 0.5
    octave, part = divmod(at - 1, PER_OCTAVE)
    return math.ldexp(1 + (part + 0.5) / PER_OCTAVE, octave)


def quantiles(histograms: Iterable[LogHistogram], parts: Sequence[float]) -> tuple[float, ...]:
    """The values below or at which these parts of all lie (nearest rank); empty where there is nothing."""
    pooled: dict[int, float] = {}
    for histogram in histograms:
        for at, weight in histogram.weights.items():
            pooled[at] = pooled.get(at, 0.0) + weight
    bins = sorted(pooled)
    if not bins:
        return ()
    total = math.fsum(pooled.values())
    return tuple(middle_of(_reaching(bins, pooled, part * total)) for part in parts)


def _reaching(bins: Sequence[int], weights: Mapping[int, float], wanted: float) -> int:
    reached = 0.0
    for at in bins:
        reached += weights[at]
        if reached >= wanted:
            return at
    return bins[-1]
