"""How long work runs, and what the policy is told of that beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rayorch.core.errors import SpecError
from rayorch.core.wellformed import MAX_SECONDS
from rayorch.sim.models.misstatement import TRUTH, Misstatement


class Told(StrEnum):
    """What a workload's owner says of its run time (`WorkloadSpec.expected_s`)."""

    EXPECTED = "expected"  # what it takes, as the misstatement has it
    NOTHING = "nothing"  # the policy has what it learns from finished work (core.forecast), or what needs no estimate


@dataclass(frozen=True, slots=True)
class RunTimes:
    """For each job, in order [s]: what it takes, and what is told of that (NaN: nothing)."""

    actual_s: NDArray[np.float64]
    told_s: NDArray[np.float64]

    def told(self, index: int) -> float | None:
        """What is told of one, as a workload has it: at most what the door takes; of one that never ends nothing."""
        value = float(self.told_s[index])
        return min(value, MAX_SECONDS) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class RunSample:
    """One run that is over: its class (such as `TraceJob.name`), what it took and what was told of that before [s]."""

    name: str
    run_s: float
    told_s: float | None = None


@dataclass(frozen=True, slots=True)
class RuntimeModel:
    """`spread`: by how much a run departs from what the trace says, as the deviation of its logarithm; 0: not at all.

    `told`, `misstated`: what the policy hears of it. The default is the trace's run time, told exactly.
    """

    spread: float = 0.0
    told: Told = Told.EXPECTED
    misstated: Misstatement = TRUTH

    def draw(self, durations_s: NDArray[np.float64], rng: np.random.Generator) -> RunTimes:
        """For all jobs of a trace at once, in its order, so that no policy's choice moves a draw."""
        durations_s = np.asarray(durations_s, dtype=float)
        actual_s = durations_s
        if self.spread:
            # The mean stays that of the trace, so that the offered load does.
            noise = self.spread * rng.standard_normal(len(durations_s)) - self.spread**2 / 2.0
            actual_s = durations_s * np.exp(noise)
        if self.told is Told.NOTHING:
            return RunTimes(actual_s, np.full(len(durations_s), np.nan))
        return RunTimes(actual_s, self.misstated.of_all(actual_s, rng))

    @staticmethod
    def fit(samples: Iterable[RunSample]) -> RuntimeModel:
        """How much runs of one class differ, and how far what owners said was off. SpecError without a sample.

        Classes that ran once say nothing about the spread. Where nobody said anything, nothing is told.
        """
        by_class: dict[str, list[float]] = {}
        told: list[float] = []
        count = 0
        for sample in samples:
            if sample.run_s <= 0:
                continue
            count += 1
            by_class.setdefault(sample.name, []).append(math.log(sample.run_s))
            if sample.told_s is not None and sample.told_s > 0:
                told.append(math.log(sample.told_s / sample.run_s))
        if not count:
            raise SpecError("samples", "there is no run that took any time")
        repeated = [np.asarray(logs) for logs in by_class.values() if len(logs) > 1]
        freedom = sum(len(logs) - 1 for logs in repeated)
        squares = sum(float(((logs - logs.mean()) ** 2).sum()) for logs in repeated)
        spread = math.sqrt(squares / freedom) if freedom else 0.0
        if not told:
            return RuntimeModel(spread, Told.NOTHING)
        off = Misstatement(math.exp(float(np.median(told))), float(np.std(told)))
        return RuntimeModel(spread, Told.EXPECTED, off)
