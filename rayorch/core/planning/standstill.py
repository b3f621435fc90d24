"""A turn that finds everything as the last one left it, but for work that has come to stand behind a blocked head.

In a queue with strict order nobody passes the first workload that can't start. While nothing ends, a trace full of
waiting work consists of submissions that change nothing: the head finds what it found, and all behind it wait for it.
Such a turn decides what the last one did, so that it need not be gone through again. What must hold for that is all in
this module, in two halves: what the last plan was made of (`standing`), and what has happened since (`still`).

1. The last plan changed nothing: it started, stopped, resized and promised nobody, and nothing in it depends on the
   time (no time for a head, nobody evicted or spared, no estimates).
2. Since then only work has come that waits (`Memory.only_work_came`): the same nodes, seats, queues and other work.
3. There is one queue with work that waits, its head is the same one, and all that has come ranks behind it. So the walk
   would look at the same head, in the same room, with the same quota, and close the queue behind it.
4. Nobody is such that the time alone makes him somebody to look at: stages 1, 2, 7 and 8 find nobody, and no gate is
   asked of anybody.

Only for a memory that lends (`memory.py`): the reasons of those that wait are worked out by a plan made anew, in case
that somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from rayorch.core.decisions import Decision, Plan, Reserve, Scale
from rayorch.core.placement import PlacementView
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.memory import Memory
from rayorch.core.planning.waiting import Listed
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import QueueId, Workload, WorkloadId

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Standstill:
    """A plan that changed nothing, and for whom its queue stands still. `placement`: what its scores looked at."""

    decisions: tuple[Decision, ...]
    queue: QueueId
    head: Workload
    placement: PlacementView


def standing(draft: Draft, made: Plan) -> Standstill | None:
    """What the next turn may go on from; None where this one decided anything, or looked at the time."""
    facts, memory = draft.facts, draft.memory
    snapshot, profile = facts.snapshot, facts.profile
    if len(draft.blocking) != 1 or profile.preemption or profile.eviction.passes:
        return None
    if draft.timeline is not None or draft.estimates or draft.soon is not draft.now:
        return None
    if not all(isinstance(decision, Scale) or _is_hold(decision) for decision in made.decisions):
        return None
    ((queue, waits),) = draft.blocking.items()
    head = facts.workloads.get(waits[0].blockers[0])
    if head is None or not _is_alone(memory, queue) or not _same_anywhen(memory, snapshot, profile):
        return None
    return Standstill(made.decisions, queue, head, facts.placement)


def still(before: Standstill, memory: Memory, snapshot: Snapshot, profile: Profile) -> bool:
    """Whether this turn would decide the same. What waits stands in its line already (`Memory.line_up`)."""
    return (
        memory.only_work_came
        and _same_anywhen(memory, snapshot, profile)
        and _is_alone(memory, before.queue)
        and memory.docket.first(before.queue) is before.head
        and memory.placement(snapshot, profile) is before.placement
    )


def _is_hold(decision: Decision) -> bool:
    """Whether it holds nodes for a head until nobody knows when."""
    return isinstance(decision, Reserve) and not decision.from_release and not decision.kept and decision.at_s is None


def _is_alone(memory: Memory, queue: QueueId) -> bool:
    """Whether all that waits stands in the lines of this queue, and nobody's gate has to be asked."""
    docket = memory.docket
    return docket.only(queue) and not docket.special and not docket.arrays


def _same_anywhen(memory: Memory, snapshot: Snapshot, profile: Profile) -> bool:
    """Whether nobody and nothing is such that a later time would be another thing to decide about."""
    return memory.calm(snapshot, profile) and snapshot.synced and not snapshot.budgets


def again(before: Standstill, snapshot: Snapshot, anew: Callable[[], Plan]) -> Plan:
    """The same decisions for this snapshot. `anew`: see `told`."""
    return told(Plan(snapshot.versions, snapshot.now_s, before.decisions), anew)


def told(made: Plan, anew: Callable[[], Plan]) -> Plan:
    """These decisions with all that has to be told of those who wait. `anew`: a plan that remembers nothing, for it."""
    once = _Once(anew)
    return Plan(
        versions=made.versions,
        now_s=made.now_s,
        decisions=made.decisions,
        waits=_Told(lambda: once.plan.waits),
        estimates=_Told(lambda: once.plan.estimates),
        positions=_Told(lambda: once.plan.positions),
    )


class _Once:
    """A plan that is made when somebody asks."""

    def __init__(self, make: Callable[[], Plan]) -> None:
        self._make = make

    @cached_property
    def plan(self) -> Plan:
        """Made once."""
        return self._make()


class _Told(Listed[V]):
    """What that plan says."""

    def __init__(self, told: Callable[[], Mapping[WorkloadId, V]]) -> None:
        self._told = told

    def _all(self) -> Mapping[WorkloadId, V]:
        return self._told()

    def __getitem__(self, id: WorkloadId) -> V:
        return self._told()[id]
