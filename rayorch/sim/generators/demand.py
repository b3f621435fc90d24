"""Demand of applications that serve: a day's wave with noise, or as a file says.

The wave is what is seen of public inference services: a peak in the afternoon, a trough at night, and noise whose
neighbours are alike (log-normal, an hour's memory). No published series of requests is among the project's data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rayorch.core.errors import SpecError
from rayorch.sim.models.streams import stream
from rayorch.sim.readers.rows import Table, TraceBuilder, number

DAY_S = 86_400.0
MEMORY_S = 3_600.0
MOST_STEPS = 200_000
COLUMNS = ("time", "requests")

Demand = tuple[tuple[float, float], ...]
"""(time, requests at once): from then on."""


@dataclass(frozen=True, slots=True)
class Diurnal:
    """`peak`: requests at once at the best time of the day, without noise; `low`: of that, at the worst. `noise`:
    deviation of the logarithm, by which the mean stays. `step_s`: how often it changes. `peak_s`: time of the peak."""

    peak: float
    low: float = 0.3
    noise: float = 0.1
    step_s: float = 300.0
    peak_s: float = 15 * 3600.0

    def wave(self, at_s: float) -> float:
        """Without noise."""
        phase = 2.0 * math.pi * (at_s - self.peak_s) / DAY_S
        return self.peak * (self.low + (1.0 - self.low) * (1.0 + math.cos(phase)) / 2.0)

    def draw(self, name: str, seed: int, until_s: float) -> Demand:
        """From 0 to `until_s`; its noise has a stream of its own by name. SpecError for too many steps."""
        steps = max(1, math.ceil(until_s / self.step_s))
        if steps > MOST_STEPS:
            raise SpecError("demand", f"takes at most {MOST_STEPS} steps, got {steps} of {self.step_s:g} s")
        rng = stream(seed, "demand", name)
        keep = math.exp(-self.step_s / MEMORY_S)
        level, found = float(rng.standard_normal()), []
        for n in range(steps):
            at_s = n * self.step_s
            factor = math.exp(self.noise * level - self.noise**2 / 2.0) if self.noise else 1.0
            found.append((at_s, self.wave(at_s) * factor))
            level = keep * level + math.sqrt(1.0 - keep * keep) * float(rng.standard_normal())
        return tuple(found)


def read_demand(path: str | Path) -> Demand:
    """time [s], requests (at once): rising times. SpecError with the line of the first wrong row, or without any."""
    builder = TraceBuilder("demand", path)
    found: list[tuple[float, float]] = []
    builder.each(
        Table(path, COLUMNS, builder),
        lambda _, row: found.append((number(row["time"], "time"), number(row["requests"], "requests"))),
    )
    if builder.refused or not found:
        first = next(iter(builder.refused), None)
        raise SpecError(str(path), f"line {first.line} {first.reason}" if first else "has no row")
    if any(later[0] <= former[0] for former, later in pairwise(found)):
        raise SpecError(str(path), "times must rise")
    return tuple(found)
