"""Step functions of time: from changes to means over equal parts of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A value over time: 0 before `times_s[0]`, then `values[i]` from `times_s[i]` up to the next."""

    times_s: Floats
    values: Floats

    @staticmethod
    def of_changes(changes: Iterable[tuple[float, float]]) -> Steps:
        """The sum of changes (time, by how much), in any order; O(n log n)."""
        pairs = np.array(list(changes), dtype=np.float64).reshape(-1, 2)
        times, where = np.unique(pairs[:, 0], return_inverse=True)
        at_once = np.bincount(where, weights=pairs[:, 1], minlength=len(times)) if len(times) else np.zeros(0)
        return Steps(times, np.cumsum(at_once))

    def area(self, until_s: Floats) -> Floats:
        """The integral up to each of these times."""
        if not len(self.times_s):
            return np.zeros_like(until_s)
        sums = np.concatenate([[0.0], np.cumsum(self.values[:-1] * np.diff(self.times_s))])
        return np.where(
            until_s <= self.times_s[0],
            0.0,
            np.interp(until_s, self.times_s, sums) + np.maximum(0.0, until_s - self.times_s[-1]) * self.values[-1],
        )

    def means(self, edges_s: Floats) -> Floats:
        """The mean between each two neighbouring edges; of an empty part the value is 0."""
        lengths = np.diff(edges_s)
        areas = np.diff(self.area(edges_s))
        return np.divide(areas, lengths, out=np.zeros_like(areas), where=lengths > 0)

    def mean(self, from_s: float, to_s: float) -> float:
        """The mean between two times, 0 where there is nothing between them."""
        return float(self.means(np.array([from_s, to_s]))[0])


def parts(from_s: float, to_s: float, count: int) -> Floats:
    """The edges of `count` equal parts of a stretch of time."""
    return np.linspace(from_s, max(from_s, to_s), count + 1)
