"""What moves can reach at most on an openb list: a bound that holds however many pods are moved, and where to.

A move drops nobody, and a pod that finds room is started. So whoever came before the first pod that found none lies on
some GPU to the end, wherever that is; only of those that came later some may be left out. What these GPUs can hold at
most is a question of cutting stock, and its linear relaxation has a simple answer by duality: give each share a weight
such that what fits on one GPU never weighs more than one whole GPU. Then all shares together take at least as many
GPUs as they weigh, and a share of the size s and the weight w adds s - w to what is allocated when all GPUs are used.
Shares that add something all count; of those that take something away only those that are there for certain.

The weights are the solution of the linear program for the default list, in twelfths of a GPU; for other lists they
hold as well but may say less. CPUs, memory, models and nodes are left out: the truth is lower.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.played.openb import Pod, Scene, allocation
from rayorch.core.types import UNIT

TWELFTHS = ((0.81, 12), (0.55, 8), (0.46, 6), (0.32, 4), (0.23, 3), (0.22, 1))
"""(from this part of a GPU on, weight)."""


def weight(pod: Pod) -> float:
    """What a pod takes at least of GPUs, in units."""
    if pod.each == UNIT or pod.gpus != 1:
        return float(pod.gpu_units)
    return next((twelfths * UNIT / 12 for size, twelfths in TWELFTHS if pod.each >= round(size * UNIT)), 0.0)


def ceiling(scene: Scene, certain: int, loads: Sequence[int] = (100,)) -> dict[int, float]:
    """The allocated GPUs [% of capacity] that nothing exceeds at these loads; the first `certain` pods all started."""
    gains = np.array([pod.gpu_units - weight(pod) for pod in scene.pods])
    counted = np.where(gains > 0, gains, np.where(np.arange(len(gains)) < certain, gains, 0.0))
    arrived = np.cumsum([pod.gpu_units for pod in scene.pods])
    at_most = np.minimum(arrived, scene.capacity + np.cumsum(counted))
    return allocation(scene, [int(units) for units in np.ceil(at_most)], loads)


def before_the_first_dropped(scene: Scene, used: Sequence[int]) -> int:
    """How many pods came, and started, before the first one that did not; `used`: GPU units after each."""
    arrived = np.cumsum([pod.gpu_units for pod in scene.pods])
    short = np.flatnonzero(np.asarray(used) < arrived)
    return int(short[0]) if len(short) else len(used)
