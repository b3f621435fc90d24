"""The knob that makes a policy believe something else than what happens, so that its robustness shows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Misstatement:
    """What is told is the truth times `factor`, times the exponential of a normal with deviation `noise`.

    The noise has the median 1: half of all statements are too high, half too low. The default tells the truth.
    """

    factor: float = 1.0
    noise: float = 0.0

    def of(self, value: float, rng: np.random.Generator) -> float:
        """What is told of one value; nothing is drawn without noise."""
        if self.noise == 0.0:
            return value * self.factor
        return value * self.factor * math.exp(self.noise * float(rng.standard_normal()))

    def of_all(self, values: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """What is told of many, in their order."""
        told = values * self.factor
        if self.noise:
            told = told * np.exp(self.noise * rng.standard_normal(len(values)))
        return np.asarray(told, dtype=float)


TRUTH = Misstatement()
