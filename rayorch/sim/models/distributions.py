"""Distributions of times [s] that can be fitted to what was seen and drawn from: all that the models need.

Each has `draw(rng)`, `mean` and `scaled(factor)`; `fit` takes positive samples and raises SpecError without any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayorch.core.errors import SpecError


def _logs(samples: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray([value for value in samples if value > 0 and math.isfinite(value)], dtype=float)
    if not len(values):
        raise SpecError("samples", "there is no positive one to fit to")
    return np.asarray(np.log(values), dtype=float)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    value: float = 0.0

    @property
    def mean(self) -> float:
        """It."""
        return self.value

    def draw(self, rng: np.random.Generator) -> float:
        """It; nothing is drawn."""
        return self.value

    def scaled(self, factor: float) -> Fixed:
        """`factor` times as long."""
        return Fixed(self.value * factor)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """`median` times the exponential of a normal with deviation `sigma`."""

    median: float
    sigma: float

    @staticmethod
    def fit(samples: Sequence[float]) -> Lognormal:
        """By maximum likelihood."""
        logs = _logs(samples)
        return Lognormal(float(np.exp(logs.mean())), float(logs.std()))

    @property
    def mean(self) -> float:
        """The mean."""
        return self.median * math.exp(self.sigma**2 / 2.0)

    def draw(self, rng: np.random.Generator) -> float:
        """One value."""
        return self.median * math.exp(self.sigma * float(rng.standard_normal()))

    def scaled(self, factor: float) -> Lognormal:
        """`factor` times as long."""
        return Lognormal(self.median * factor, self.sigma)


@dataclass(frozen=True, slots=True)
class Weibull:
    """Times between failures: `shape` 1 is the exponential, below 1 failures come in bursts (young parts fail more)."""

    scale: float
    shape: float = 1.0

    @staticmethod
    def of_mean(mean: float, shape: float = 1.0) -> Weibull:
        """The one with that mean."""
        return Weibull(mean / math.gamma(1.0 + 1.0 / shape), shape)

    @staticmethod
    def fit(samples: Sequence[float]) -> Weibull:
        """By maximum likelihood: the shape by bisection (its equation has one root), then the scale."""
        logs = _logs(samples)
        mean = float(logs.mean())
        centred = logs - mean  # so that no power overflows
        if float(np.ptp(centred)) < 1e-9:
            return Weibull(math.exp(mean), MOST_SHAPE)

        def slope(shape: float) -> float:
            powers = np.exp(shape * centred - (shape * centred).max())
            return float((powers * centred).sum() / powers.sum()) - 1.0 / shape

        low, high = LEAST_SHAPE, MOST_SHAPE
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        shape = math.sqrt(low * high)
        top = float((shape * centred).max())
        power = float(np.exp(shape * centred - top).mean())
        return Weibull(math.exp(mean + (math.log(power) + top) / shape), shape)

    @property
    def mean(self) -> float:
        """The mean."""
        return self.scale * math.gamma(1.0 + 1.0 / self.shape)

    def draw(self, rng: np.random.Generator) -> float:
        """One value."""
        if self.shape == 1.0:
            return self.scale * float(rng.standard_exponential())
        return self.scale * float(rng.weibull(self.shape))

    def scaled(self, factor: float) -> Weibull:
        """`factor` times as long."""
        return Weibull(self.scale * factor, self.shape)


LEAST_SHAPE = 0.05
MOST_SHAPE = 50.0
MAX_SAMPLES = 4_096
"""An empirical distribution keeps so many quantiles at most."""


@dataclass(frozen=True, slots=True)
class Empirical:
    """What was seen, with straight lines between; `values` ascending."""

    values: tuple[float, ...]

    @staticmethod
    def fit(samples: Sequence[float]) -> Empirical:
        """Of all samples, or of evenly spaced quantiles where there are very many."""
        values = np.sort(np.asarray(samples, dtype=float))
        if not len(values):
            raise SpecError("samples", "there is none to fit to")
        if len(values) > MAX_SAMPLES:
            values = np.quantile(values, (np.arange(MAX_SAMPLES) + 0.5) / MAX_SAMPLES)
        return Empirical(tuple(values.tolist()))

    @property
    def mean(self) -> float:
        """The mean of the samples."""
        return float(np.mean(self.values))

    def draw(self, rng: np.random.Generator) -> float:
        """One value."""
        at = float(rng.random()) * (len(self.values) - 1)
        first = int(at)
        low, high = self.values[first], self.values[min(first + 1, len(self.values) - 1)]
        return low + (at - first) * (high - low)

    def scaled(self, factor: float) -> Empirical:
        """`factor` times as long."""
        return Empirical(tuple(value * factor for value in self.values))


Distribution = Fixed | Lognormal | Weibull | Empirical
