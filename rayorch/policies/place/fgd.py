"""Fragmentation gradient descent: the node, and the device, on which a task leaves least that others could not use.

Weng et al., "Beware of Fragmentation" (ATC'23), as its artifact has it (hkust-adsl/kubernetes-scheduler-simulator): the
score is the integer part of 100 * sigmoid(dF), dF = F before - F after in GPUs, and ties go to the first node by name.
Both matter: with exact scores it is no better than best fit, since small differences of F say little of what comes.
"""

from __future__ import annotations

import math

from rayorch.core.fragmentation import Fragmentation
from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, TaskClass, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import CPU, UNIT, Resources
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
    if not view.classes or node.slot.layout.sized or any(name[3:4] == "-" for name, _ in bundle.items):
        return None
    gradients = view.once(_gradients)
    key = (node.model, node.slot.amounts.get(CPU, 0), node.devices, bundle.units(CPU), bundle.gpu_units)
    if key not in gradients.known:
        gradients.known[key] = gradients.of(*key)
    return gradients.known[key]


class Gradients:
    """Gradients for what is typically asked for. `known`: those that were asked for, by all that they depend on."""

    def __init__(self, classes: tuple[TaskClass, ...]) -> None:
        self.fragmentation = Fragmentation(classes)
        self.known: dict[tuple[str, int, tuple[int, ...], int, int], Gradient | None] = {}

    def of(
        self, model: str, cpu: int, devices: tuple[int, ...], cpus: int, units: int
    ) -> tuple[int, int | None] | None:
        """See `gradient`: so much is free, and so many CPUs and GPU units are taken."""
        if len(self.known) > MOST_KNOWN:
            self.known.clear()
        fragmentation, left = self.fragmentation, cpu - cpus
        before = fragmentation.of(model, cpu, tuple(sorted(devices)))
        if not 0 < units < UNIT:
            after = fragmentation.of(model, left, tuple(sorted(_without(devices, units))))
            return quantised(before - after, fragmentation.total), None
        best, chosen, tried = -1, None, set[int]()
        for position, free in enumerate(devices):
            if free >= units and free not in tried:
                tried.add(free)
                rest = sorted((*devices[:position], free - units, *devices[position + 1 :]))
                found = quantised(before - fragmentation.of(model, left, tuple(rest)), fragmentation.total)
                if found > best:
                    best, chosen = found, position
        return (best, chosen) if chosen is not None else None


def quantised(change: int, total: int) -> int:
    """The integer part of 100 * sigmoid(change): `change` is in GPU units times `total`."""
    return math.floor(LEVELS / (1.0 + math.exp(-change / (total * UNIT))))


def _gradients(view: PlacementView) -> Gradients:
    return Gradients(view.classes)


def _without(devices: tuple[int, ...], units: int) -> list[int]:
    """What is left when whole devices, and a fraction of a further one, are taken as a slot takes them."""
    whole, fraction = divmod(units, UNIT)
    left = list(devices)
    for position, free in enumerate(left):
        if whole and free == UNIT:
            left[position], whole = 0, whole - 1
    if fraction:
        able = [position for position, free in enumerate(left) if free >= fraction]
        if able:
            left[min(able, key=lambda p: (left[p], p))] -= fraction
    return left
