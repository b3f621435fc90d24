"""What happened in a case against what was expected, at the levels that its README names.

Placed: a task counts as placed when it runs, is bound or is nominated at the end. Evicted: a task that ran at the
beginning and is being released or waits at the end. Moved: a task that ran and is nominated at the end; it counts as
placed and not as evicted. Which of these a moved task was on, and every node, is not compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.sim.conformance.cases import Case
from rayorch.sim.conformance.pods import PENDING, PLACED, RELEASING, World


@dataclass(frozen=True, slots=True)
class Effect:
    """The tasks that hold or will hold a place, and those that lost theirs."""

    placed: frozenset[str]
    evicted: frozenset[str]


@dataclass(frozen=True, slots=True)
class Difference:
    """Tasks on which the outcome and the expectation differ, by level; empty where they agree."""

    placed: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.placed or self.evicted)


def _effect(states: dict[str, tuple[str, bool]]) -> Effect:
    """From each task's (status, did it run at the beginning)."""
    return Effect(
        placed=frozenset(id for id, (status, _) in states.items() if status in PLACED),
        evicted=frozenset(id for id, (status, ran) in states.items() if ran and status in (RELEASING, PENDING)),
    )


def happened(world: World) -> Effect:
    """What has become of the pods."""
    return _effect({pod.task.id: (pod.status, pod.ran) for pod in world.pods})


def expected(case: Case, world: World) -> dict[str, str]:
    """The expected status of each task that the case speaks of: its own, else its job's."""
    found: dict[str, str] = {}
    for pod in world.pods:
        for outcome in (case.expect.tasks.get(pod.task.id), case.expect.jobs.get(pod.job.name)):
            if outcome is not None and outcome.status is not None:
                found[pod.task.id] = outcome.status
                break
    return found


def difference(case: Case, world: World) -> Difference:
    """Where the world is not as the case expects it."""
    states = expected(case, world)
    ran = {pod.task.id: pod.ran for pod in world.pods}
    wanted, found = _effect({id: (status, ran[id]) for id, status in states.items()}), happened(world)
    return Difference(
        placed=tuple(sorted((wanted.placed ^ found.placed) & states.keys())),
        evicted=tuple(sorted((wanted.evicted ^ found.evicted) & states.keys())),
    )
