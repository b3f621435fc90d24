"""Fragmentation: how much of what is free on a node the typical next task could not use.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (ATC'23),
section 3, with the classes of its artifact. For a task class m and a node n, R the sum of its free GPU units:

| case | when | F_n(m) |
|---|---|---|
| Q3 | enough devices have room, and the CPUs suffice | what is free on devices that are too full for it |
| Q4 | enough devices have room, the CPUs don't suffice | R |
| Q2, Q1 | too few devices have room, the CPUs suffice, or don't | R |
| NA | it may not run on this model of GPU | R |
| XL, XR | it needs no GPU; the CPUs suffice, or don't | R |

F_n is the mean over the classes by how often each is asked for. All of it is integers: the mean is kept times the sum
of the weights, so that it depends on no order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from rayorch.core.placement import TaskClass

COVERED = 0.95
"""Classes that together make up this part of all that is asked for are the typical ones, the most frequent first."""


def by_weight(task: TaskClass) -> tuple[int, int, int, int, list[str]]:
    """Sorts classes by how often they are asked for; of equals the larger is the greater."""
    return (task.weight, task.cpu, task.each, task.count, sorted(task.models))


def typical(classes: Iterable[TaskClass], covered: float = COVERED) -> tuple[TaskClass, ...]:
    """The most frequent of the classes (each once) that make up the part `covered`; ties go to the larger class."""
    ordered = sorted(classes, key=by_weight, reverse=True)
    total, sum_, found = sum(c.weight for c in ordered), 0, list[TaskClass]()
    for task in ordered:
        if sum_ >= covered * total:
            break
        found.append(task)
        sum_ += task.weight
    return tuple(found)


MOST_KNOWN = 200_000
"""Kinds of nodes whose fragmentation is kept."""

Level = tuple[tuple[int, tuple[int, ...]], ...]
"""For so many CPUs: what is needed of a device, rising, and how much weight is content when so many have room."""


class Fragmentation:
    """F_n for the typical classes, prepared so that one node costs a few microseconds.

    Of a node's model and its CPUs it matters only for which classes they suffice: all that suffice for the same are
    one level. Of its devices those that are full don't matter.
    """

    __slots__ = ("_by_model", "_known", "_levels", "_numbers", "classes", "total")

    def __init__(self, classes: Iterable[TaskClass]) -> None:
        self.classes = tuple(classes)
        self.total = sum(task.weight for task in self.classes)
        self._levels: list[Level] = []
        self._numbers: dict[Level, int] = {}
        self._by_model: dict[str, tuple[list[int], list[int]]] = {}
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def of(self, model: str, cpu: int, devices: Iterable[int]) -> int:
        """F_n times `total`, in GPU units."""
        return self.at(self.level(model, cpu), tuple(sorted(n for n in devices if n > 0)))

    def level(self, model: str, cpu: int) -> int:
        """The level of a node of this model with so many CPUs free."""
        found = self._by_model.get(model)
        if found is None:
            found = self._by_model[model] = self._of_model(model)
        cpus, numbers = found
        return numbers[bisect_right(cpus, cpu)]

    def at(self, level: int, free: tuple[int, ...]) -> int:
        """The same as `of`: for a level, and what is free of the devices that are not full, in rising order."""
        key = (level, free)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self._of(self._levels[level], free)
        return known

    def _of(self, level: Level, rising: tuple[int, ...]) -> int:
        free, fit, full, below = sum(rising), len(rising), 0, 0
        found = free * self.total
        for each, content in level:
            while fit and rising[full] < each:  # too full for this one and for all that need more
                below += rising[full]
                full, fit = full + 1, fit - 1
            if not fit:
                break
            found -= content[fit if fit < len(content) else -1] * (free - below)
        return found

    def _of_model(self, model: str) -> tuple[list[int], list[int]]:
        """The numbers of CPUs at which a level ends and the next begins, and the numbers of the levels."""
        able = [task for task in self.classes if task.each and (not task.models or model in task.models)]
        cpus = sorted({task.cpu for task in able})
        levels = [_content(task for task in able if task.cpu < cpu) for cpu in (*cpus, math.inf)]
        for level in levels:
            if level not in self._numbers:
                self._numbers[level] = len(self._levels)
                self._levels.append(level)
        return cpus, [self._numbers[level] for level in levels]


def _content(tasks: Iterable[TaskClass]) -> Level:
    """Of classes for which the CPUs suffice."""
    by_each: dict[int, dict[int, int]] = {}
    for task in tasks:
        counts = by_each.setdefault(task.each, {})
        counts[task.count] = counts.get(task.count, 0) + task.weight
    return tuple(
        (each, tuple(accumulate(counts.get(count, 0) for count in range(max(counts) + 1))))
        for each, counts in sorted(by_each.items())
    )
