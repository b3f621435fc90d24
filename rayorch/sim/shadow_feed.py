"""Snapshots of the turns that a journal records: what the planner was shown when it decided.

Each start carries the version of the queue owner's tree that it was planned on; the tree is played up to there and
joined with the nodes. Two things are not in a journal and are put together from what is: the nodes (given, or as large
as what was held on them) and the allocator's books (the committed seats of live attempts, less those whose end is
recorded a moment later: their seats were free already).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rayorch.core.allocations import AllocationChanges
from rayorch.core.copies import Copies
from rayorch.core.events import AttemptEnded, Event, Started, StopOrdered
from rayorch.core.inventory import Inventory
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import LIVE, Allocation, Kind, MemberPhase, NodeSpec, StopCause, Workload, WorkloadId
from rayorch.sim.readers.journal import JournalRead, SeatWatch, apply, start_tree

PLANNED = frozenset({StopCause.PREEMPTED, StopCause.RECLAIMED, StopCause.MOVED, StopCause.UNPACKED})
"""Stops that a plan chose, though the attempt could have gone on where it was."""

HELD_BACK_S = 5.0
"""A live journal is followed so far behind its end: what one plan decided is recorded by then."""

ENDING_S = 1.0
"""An end that is recorded so soon after a decision was known to the allocator when the plan was made."""


@dataclass(slots=True)
class RecordedTurn:
    """What one plan decided. `version`: of the tree that it was made on."""

    version: int
    at_s: float
    started: list[WorkloadId] = field(default_factory=list)
    stopped: list[WorkloadId] = field(default_factory=list)


Seen = tuple[Snapshot, RecordedTurn, int]
"""(what the planner was shown, what was decided on it, the last record that it knew)."""


class JournalFeed:
    """Events in, snapshots of recorded turns out, in order.

    `missed`: decisions that were made on a version that is gone by (the feed began later); `skipped`: events that do
    not follow from what is known.
    """

    def __init__(self, held: JournalRead, nodes: Sequence[NodeSpec] | None = None) -> None:
        self._tree = start_tree(held)
        self._first = self._tree.version
        self._events: deque[tuple[int, Event]] = deque()
        self._noted = 0
        self._applied = 0
        self._turns: dict[int, RecordedTurn] = {}
        self._open: RecordedTurn | None = None
        self._inventory = Inventory(1)
        self._copies = Copies()
        self.missed = 0
        self.skipped = 0
        self.sequence = held.sequence
        if nodes is None:
            nodes = nodes_of(held)
        self._inventory.observe(tuple(sorted(nodes, key=lambda node: node.id)), 0.0)

    def take(self, events: Iterable[tuple[int, Event]], to_the_end: bool = False) -> Iterator[Seen]:
        """Each turn that is complete by now; with `to_the_end` nothing more is to come."""
        for sequence, event in events:
            self._note(event)
            self._events.append((sequence, event))
            self.sequence = sequence
        newest_s = self._events[-1][1].at_s if self._events else 0.0
        while self._events:
            sequence, event = self._events[0]
            if not to_the_end and event.at_s > newest_s - HELD_BACK_S:
                return
            turn = self._turns.pop(self._first + self._applied, None)
            if turn is not None:
                yield self._snapshot(turn), turn, sequence - 1
            if apply(self._tree, event):
                self.skipped += 1
            self._events.popleft()
            self._applied += 1

    def _note(self, event: Event) -> None:
        """Which turn a decision belongs to. Those that follow each other without anything else were one plan's."""
        version = self._first + self._noted
        self._noted += 1
        match event:
            case Started():
                turn = self._turn(min(event.queues_version, version), event.at_s)
                if turn is not None:
                    turn.started.append(event.workload)
                    self._open = turn
            case StopOrdered() if event.order.cause in PLANNED:
                turn = self._open if self._open is not None else self._turn(version, event.at_s)
                if turn is not None:
                    turn.stopped.append(event.workload)
                    self._open = turn
            case _:
                self._open = None

    def _turn(self, version: int, at_s: float) -> RecordedTurn | None:
        if version < self._first + self._applied:
            self.missed += 1
            return None
        return self._turns.setdefault(version, RecordedTurn(version, at_s))

    def _snapshot(self, turn: RecordedTurn) -> Snapshot:
        """The join of the owners' facts as the turn saw them."""
        copies, tree, known = self._copies, self._tree, self._copies.versions
        queues = tree.changes_since(known.queues)
        copies.take_queues(queues)
        self._inventory.set_cordons(copies.cordons)
        nodes = self._inventory.changes_since(known.inventory)
        copies.take_nodes(nodes)
        ending = self._ending(turn.at_s)
        held = tuple(
            _allocation(workload)
            for id, workload in sorted(tree.workloads.items())
            if workload.state in LIVE and id not in ending
        )
        copies.take_books(AllocationChanges(known.allocations + 1, True, held, ()))
        return copies.joined(turn.at_s, synced=True)

    def _ending(self, at_s: float) -> set[WorkloadId]:
        """Whose end is recorded a moment after the decision."""
        found = set()
        for _, event in self._events:
            if event.at_s > at_s + ENDING_S:
                break
            if isinstance(event, AttemptEnded):
                found.add(event.workload)
        return found


def _allocation(workload: Workload) -> Allocation:
    """The seats of a live attempt, as the allocator has them; when they became ready is not looked at."""
    members = tuple(replace(member, phase=MemberPhase.READY) for member in workload.placement)
    started_s = workload.started_s if workload.started_s is not None else workload.submitted_s
    gang = tuple(sorted({member.surplus for member in members})) if workload.spec.kind is Kind.SERVE else (0,)
    return Allocation(workload.id, workload.attempt, members, started_s, math.inf, gang=gang)


def nodes_of(held: JournalRead) -> tuple[NodeSpec, ...]:
    """The nodes that a journal names, as large as the most that was held on them at once."""
    watch = SeatWatch()
    watch.begin(start_tree(held))
    for _, event in held.events:
        watch.see(event)
    return watch.nodes()
