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

from bisect import bisect_right
from collections.abc import Iterable

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


class Fragmentation:
    """F_n for the typical classes, prepared so that one node costs a few microseconds."""

    __slots__ = ("_by_model", "_known", "classes", "total")

    def __init__(self, classes: Iterable[TaskClass]) -> None:
        self.classes = tuple(classes)
        self.total = sum(task.weight for task in self.classes)
        self._by_model: dict[str, list[tuple[int, list[tuple[int, list[int], list[int]]]]]] = {}
        self._known: dict[tuple[str, int, tuple[int, ...]], int] = {}

    def of(self, model: str, cpu: int, devices: tuple[int, ...]) -> int:
        """F_n times `total`, in GPU units."""
        key = (model, cpu, devices)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= 200_000:
                self._known.clear()
            known = self._known[key] = self._of(model, cpu, devices)
        return known

    def _of(self, model: str, cpu: int, devices: tuple[int, ...]) -> int:
        free = sum(devices)
        found = free * self.total
        if not free:
            return 0
        for each, demands in self._groups(model):
            fit, below = 0, 0
            for n in devices:
                if n >= each:
                    fit += 1
                else:
                    below += n
            if not fit:
                break  # nor does any that needs more of a device
            for count, cpus, weights in demands:
                if count > fit:
                    break
                if position := bisect_right(cpus, cpu):
                    found -= weights[position - 1] * (free - below)
        return found

    def _groups(self, model: str) -> list[tuple[int, list[tuple[int, list[int], list[int]]]]]:
        """The classes that may run on a model: by what they need of a device, then by how many devices, rising.

        Of each the CPUs that it needs, rising, and how much weight needs at most that many.
        """
        groups = self._by_model.get(model)
        if groups is None:
            found: dict[int, dict[int, list[TaskClass]]] = {}
            for task in self.classes:
                if task.each and (not task.models or model in task.models):
                    found.setdefault(task.each, {}).setdefault(task.count, []).append(task)
            groups = []
            for each in sorted(found):
                demands = []
                for count in sorted(found[each]):
                    tasks = sorted(found[each][count], key=lambda task: task.cpu)
                    sums, sum_ = list[int](), 0
                    for task in tasks:
                        sum_ += task.weight
                        sums.append(sum_)
                    demands.append((count, [task.cpu for task in tasks], sums))
                groups.append((each, demands))
            self._by_model[model] = groups
        return groups
