"""What is typically asked for: the classes of seats that came, learned from what was admitted.

Each seat that a workload needs counts `SEAT`; when all counts together are worth two windows of `WINDOW` seats, all
are halved. So what came a window ago counts half, by how much came since, not by the clock: a quiet night forgets
nothing. All of it is integers, and comes out the same when the journal is replayed.

What planners are told is the typical part of it (`core.fragmentation.typical`). It is told anew when a quarter more
has come, at least `FEWEST` seats, since every telling makes all scores of nodes anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayorch.core.fragmentation import by_weight, typical
from rayorch.core.placement import TaskClass, class_of
from rayorch.core.types import WorkloadSpec

WINDOW = 4_096
"""Seats; between one and two windows count."""
SEAT = 16
"""What a seat counts, so that the rarest class outlives some halvings."""
MOST_SEATS = 1_024
"""As many count of one workload: a single one of very many is not all that is typical."""
MOST_CLASSES = 512
"""Classes kept; beyond that the rarest are forgotten."""
FEWEST = 16
"""Seats; before that nothing is typical."""


@dataclass(frozen=True, slots=True)
class AskedClass:
    """A task class as it is written: the fields of one, its models sorted."""

    cpu: int
    each: int
    count: int
    models: tuple[str, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class AskedState:
    """All that the book knows. `counts`: each class by what it counts. `told`: what planners were told is typical.
    `since`: how many seats came after that.
    """

    counts: tuple[AskedClass, ...] = ()
    told: tuple[AskedClass, ...] = ()
    since: int = 0


class AskedBook:
    """The counts. `version`s are those of the tree that owns it and never go back."""

    def __init__(self, state: AskedState | None = None, version: int = 0) -> None:
        """Empty, or what `state` gave when `version` was the tree's."""
        state = state or AskedState()
        self._counts = {_kind(task): task.weight for task in task_classes(state.counts)}
        self._sum = sum(self._counts.values())
        self._told = state.told
        self._since = state.since
        self._told_at = version

    def state(self) -> AskedState:
        """All of it, sorted."""
        return AskedState(_written(sorted(self._classes(), key=by_weight)), self._told, self._since)

    def changes_since(self, version: int) -> tuple[AskedClass, ...] | None:
        """What is typical; None for a reader of that version who knows it."""
        return self._told if version < self._told_at or version == 0 else None

    def came(self, spec: WorkloadSpec, version: int) -> None:
        """A workload was admitted."""
        entries = spec.array.count if spec.array is not None else 1
        left = MOST_SEATS
        for role in spec.roles:
            seats = min(left, max(role.min_count, 1) * entries)
            if seats > 0:
                kind = class_of(role.bundle, spec.accelerators)
                self._counts[kind] = self._counts.get(kind, 0) + seats * SEAT
                self._sum += seats * SEAT
                self._since += seats
                left -= seats
        if self._sum >= 2 * WINDOW * SEAT:
            self._forget({kind: count // 2 for kind, count in self._counts.items() if count > 1})
        if len(self._counts) > MOST_CLASSES:
            kept = sorted(self._classes(), key=by_weight, reverse=True)[: MOST_CLASSES * 9 // 10]
            self._forget({_kind(task): task.weight for task in kept})
        if self._since >= max(FEWEST, self._sum // SEAT // 5):  # a fifth of all is a quarter of what was before
            self._told, self._since, self._told_at = _written(typical(self._classes())), 0, version

    def _forget(self, kept: dict[TaskClass, int]) -> None:
        self._counts = kept
        self._sum = sum(kept.values())

    def _classes(self) -> Iterable[TaskClass]:
        return (TaskClass(k.cpu, k.each, k.count, k.models, weight) for k, weight in self._counts.items())


def task_classes(asked: Iterable[AskedClass]) -> tuple[TaskClass, ...]:
    """As scores see them."""
    return tuple(TaskClass(a.cpu, a.each, a.count, frozenset(a.models), a.weight) for a in asked)


def _written(tasks: Iterable[TaskClass]) -> tuple[AskedClass, ...]:
    return tuple(AskedClass(t.cpu, t.each, t.count, tuple(sorted(t.models)), t.weight) for t in tasks)


def _kind(task: TaskClass) -> TaskClass:
    """What the counts are kept by: the class, once."""
    return TaskClass(task.cpu, task.each, task.count, task.models, 1)
