"""Fragmentation gradient descent: the node, and the device, on which a task leaves least that others could not use.

Weng et al., "Beware of Fragmentation" (ATC'23), as its artifact has it (hkust-adsl/kubernetes-scheduler-simulator): the
score is the integer part of 100 * sigmoid(dF), dF = F before - F after in GPUs, and ties go to the first node by name.
Both matter: with exact scores it is no better than best fit, since small differences of F say little of what comes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort

from rayorch.core.fragmentation import Fragmentation
from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, TaskClass, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import CPU, GPU, UNIT, Resources
from rayorch.policies.place import best_fit

Gradient = tuple[int, int | None]
"""(quantised score, position of the device that a share goes to)."""

LEVELS = 100
"""Into how many steps the score is cut."""
MOST_KNOWN = 200_000
"""Gradients that are kept."""


@scored_by(ScoreBasis.STATE, classes=True)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """The highest quantised gradient first. Without typical classes, or for parts of GPUs by memory: best fit."""
    found = gradient(bundle, node, view)
    return (-found[0],) if found is not None else best_fit.score(bundle, node, view)


def device(bundle: Resources, node: NodeView, view: PlacementView) -> int | None:
    """The position of the device that a share goes to; None: the tightest that takes it."""
    found = gradient(bundle, node, view)
    return found[1] if found is not None else None


def gradient(bundle: Resources, node: NodeView, view: PlacementView) -> Gradient | None:
    """None where it can't be told. The bundle fits on the node."""
    slot, cpus, units = node.slot, 0, 0
    for name, n in bundle.items:
        if name == GPU:
            units = n
        elif name == CPU:
            cpus = n
        elif name[3:4] == "-":  # gpu-…, mig-…
            return None
    if not view.classes or slot.layout.sized:
        return None
    return view.once(_gradients).of(node.model, slot.amounts.get(CPU, 0), slot.devices, cpus, units)


class Gradients:
    """Gradients for what is typically asked for. `known`: those that were asked for, by all that they depend on."""

    def __init__(self, classes: tuple[TaskClass, ...]) -> None:
        self.fragmentation = Fragmentation(classes)
        self.known: dict[tuple[int, int, tuple[int, ...], int], tuple[int, tuple[int, ...]]] = {}

    def of(self, model: str, cpu: int, devices: tuple[int, ...], cpus: int, units: int) -> Gradient | None:
        """See `gradient`: so much is free, and so many CPUs and GPU units are taken."""
        level = self.fragmentation.level
        rising = sorted(devices)
        key = (level(model, cpu), level(model, cpu - cpus), tuple(rising[bisect_right(rising, 0) :]), units)
        known = self.known.get(key)
        if known is None:
            if len(self.known) > MOST_KNOWN:
                self.known.clear()
            known = self.known[key] = self._of(*key)
        best, on = known
        if len(on) < 2:
            return best, devices.index(on[0]) if on else None
        return best, min(map(devices.index, on))

    def _of(self, now: int, then: int, rising: tuple[int, ...], units: int) -> tuple[int, tuple[int, ...]]:
        """The highest score and, of a share, what is free of the devices on which it has that.

        `now`, `then`: the levels of fragmentation by the CPUs that are free, and that will be.
        """
        at, total = self.fragmentation.at, self.fragmentation.total
        before = at(now, rising)
        if not 0 < units < UNIT:
            return quantised(before - at(then, _without(rising, units)), total), ()
        scores: dict[int, int] = {}
        for position, free in enumerate(rising):
            if free >= units and free not in scores:
                left = [*rising[:position], *rising[position + 1 :]]
                if free > units:
                    insort(left, free - units)
                scores[free] = quantised(before - at(then, tuple(left)), total)
        best = max(scores.values(), default=-1)
        return best, tuple(free for free, score in scores.items() if score == best)


def quantised(change: int, total: int) -> int:
    """The integer part of 100 * sigmoid(change): `change` is in GPU units times `total`."""
    return math.floor(LEVELS / (1.0 + math.exp(-change / (total * UNIT))))


def _gradients(view: PlacementView) -> Gradients:
    return Gradients(view.classes)


def _without(rising: tuple[int, ...], units: int) -> tuple[int, ...]:
    """What is left when whole devices, and a fraction of a further one, are taken as a slot takes them."""
    whole, fraction = divmod(units, UNIT)
    left = list(rising)
    for _ in range(min(whole, left.count(UNIT))):
        left.remove(UNIT)
    if fraction:
        position = bisect_left(left, fraction)
        if position < len(left) and (rest := left.pop(position) - fraction):
            insort(left, rest)
    return tuple(left)
