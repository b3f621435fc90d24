"""Stage 4. Order: who goes first, line by line (`lines.py`).

First of all who is owed room that is being freed for it. Within a queue then the profile's `order`, then the id. Across
queues the heads are compared anew after each start: the profile's `queue_order`, then the heads' own keys.

Of a line only the first is looked at; when it can't start, its `Verdict` closes the line for all behind it that are no
more important. What is asked of the walk afterwards (places in the order, who lacks room) is asked of what was closed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from rayorch.core.decisions import Wait
from rayorch.core.ordering import OrderView, QueueHead, SortKey, is_by_class
from rayorch.core.planning.claims import Claim, Gang, Shape, start_claim
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.lines import Docket, Entry, Line
from rayorch.core.planning.waiting import Segment, Verdict
from rayorch.core.quota import Limited
from rayorch.core.types import QueueId, Resources, TopologyRequest, Workload, WorkloadId

NOTHING = Gang((), Shape((), TopologyRequest(), False), Resources())
"""Stands where a claim says itself what is asked for."""


@dataclass(frozen=True, slots=True)
class Request:
    """A claim, and what keeps it from being looked at now (empty: nothing does)."""

    claim: Claim
    gate: tuple[Wait, ...] = ()


@dataclass(eq=False, slots=True)
class _Cursor:
    """A line, or one request alone (`single`), and how far the walk has come in it."""

    entries: list[Entry]
    gang: Gang
    top: int
    single: Request | None = None
    position: int = 0


@dataclass(eq=False, slots=True)
class Rest:
    """Some of a queue that do not start in this turn. `lacks`: they wait for nothing but room.

    `verdict`: why, where it is one for all of them. `claim`: the one that it is, where it is one alone. `dropped`: of
    no interest any more to whoever looks through those who lack room.
    """

    entries: list[Entry]
    gang: Gang
    lacks: bool
    gated: bool = False
    claim: Claim | None = None
    verdict: Verdict | None = None
    dropped: bool = False

    @property
    def shape(self) -> Shape:
        """What each of them asks for."""
        return self.gang.shape if self.claim is None else self.claim.shape


@dataclass(eq=False, slots=True)
class _Queue:
    id: QueueId
    cursors: list[tuple[SortKey, int, _Cursor]] = field(default_factory=list)
    rests: list[Rest] = field(default_factory=list)


class Walk:
    """One turn's way through all requests. Iterate over it, and say of each claim that does not start why it waits."""

    def __init__(self, draft: Draft, docket: Docket, view: OrderView) -> None:
        self._draft = draft
        self._view = view
        self._docket = docket
        self._apart: set[WorkloadId] = set()
        self._mixed: set[int] = set()  # the entries of lines of whom some are looked at by themselves
        self._left: set[WorkloadId] = set()
        self._gated: list[tuple[SortKey, Request]] = []
        self._queues: dict[QueueId, _Queue] = {}
        self._current: tuple[_Queue, _Cursor, Claim | None] | None = None
        self._limited: dict[int, Limited] = {}
        self._ordered: dict[tuple[QueueId, int, int, bool], SortKey] = {}  # by class of head, until the next charge
        self._charges = 0
        self._by_class = is_by_class(draft.facts.profile.queue_order)
        self.turn_away: Callable[[Workload, Gang], bool] | None = None
        self._partners: dict[WorkloadId, list[tuple[SortKey, Claim]]] = {}
        for queue, lines in docket.lines():
            here = self._queue(queue)
            for line in lines:
                here.cursors.append((line.entries[0][0], len(here.cursors), _cursor(line)))

    def _queue(self, id: QueueId) -> _Queue:
        queue = self._queues.get(id)
        if queue is None:
            queue = self._queues[id] = _Queue(id)
        return queue

    def alone(self, request: Request, key: SortKey, partners: Sequence[tuple[SortKey, Claim]] = ()) -> None:
        """A request that is looked at by itself. Its line passes over it and its `partners`, for whom it speaks."""
        claim = request.claim
        if partners:
            self._partners[claim.id] = list(partners)
            for _, part in partners:
                self._set_apart(part.id)
        queue = self._queue(claim.queue)
        entries: list[Entry] = [(key, claim.workload)]
        if not claim.grows:
            self._set_apart(claim.id)
        if request.gate:
            self._gated.append((key, request))
            queue.rests.append(Rest(entries, NOTHING, lacks=False, gated=True, claim=claim))
        else:
            cursor = _Cursor(entries, NOTHING, claim.priority, request)
            queue.cursors.append((key, len(queue.cursors), cursor))

    # ------------------------------------------------------------ who is looked at before

    @property
    def docket(self) -> Docket:
        """All who wait."""
        return self._docket

    def joint_claims(self) -> list[tuple[SortKey, Claim]]:
        """Those that speak for a whole joint gang, which could start."""
        found = [cursor for queue in self._queues.values() for _, _, cursor in queue.cursors]
        return [
            (cursor.entries[0][0], cursor.single.claim)
            for cursor in found
            if cursor.single is not None and cursor.single.claim.parts
        ]

    def gated_ids(self) -> frozenset[WorkloadId]:
        """Who can't be looked at yet."""
        return frozenset(request.claim.id for _, request in self._gated)

    def pass_over(self, id: WorkloadId) -> bool:
        """It has been looked at, and its line passes over it; False: the walk comes to it all the same, alone."""
        if id in self._apart:
            return False
        self._set_apart(id)
        return True

    # ------------------------------------------------------------ the walk

    def gated(self) -> Iterator[Request]:
        """What can't be looked at yet, in order."""
        yield from (request for _, request in sorted(self._gated, key=lambda entry: entry[0]))

    def __iter__(self) -> Iterator[Request]:
        """The other requests, the first one first; later ones are compared after earlier ones have been decided."""
        draft = self._draft
        heap: list[tuple[SortKey, QueueId, int]] = []
        across = self._across if len(self._queues) > 1 else _with_nobody
        for queue in self._queues.values():
            heapq.heapify(queue.cursors)
            self._settle(queue)
            if queue.cursors:
                heap.append((across(queue), queue.id, len(draft.charged)))
        heapq.heapify(heap)
        while heap:
            key, id, seen = heap[0]
            queue = self._queues[id]
            if seen != len(draft.charged):
                fresh = across(queue)
                if fresh > key:  # its queue has taken more since; others may go first now
                    heapq.heapreplace(heap, (fresh, id, len(draft.charged)))
                    continue
            cursor = queue.cursors[0][2]
            if cursor.single is not None or not self._turned_away(queue, cursor):
                request = cursor.single or Request(self._claim(cursor))
                self._current = (queue, cursor, request.claim)
                yield request
            self._next(queue, cursor)
            if queue.cursors:
                heapq.heapreplace(heap, (across(queue), id, len(draft.charged)))
            else:
                heapq.heappop(heap)

    def _turned_away(self, queue: _Queue, cursor: _Cursor) -> bool:
        """Whether `turn_away`, where there is one, has closed the line without a look at anything."""
        if self.turn_away is None:
            return False
        self._current = (queue, cursor, None)
        return self.turn_away(cursor.entries[cursor.position][1], self._draft.prices.of_gang(cursor.gang))

    def _claim(self, cursor: _Cursor) -> Claim:
        return start_claim(cursor.entries[cursor.position][1], self._draft.prices.of_gang(cursor.gang))

    def _next(self, queue: _Queue, cursor: _Cursor) -> None:
        """What was looked at is over with, or (after `close`) what is left of it is more important."""
        if self._current is not None:
            cursor.position += 1
        self._current = None
        _, number, _ = heapq.heappop(queue.cursors)
        if cursor.position < len(cursor.entries):
            heapq.heappush(queue.cursors, (cursor.entries[cursor.position][0], number, cursor))
        self._settle(queue)

    def _settle(self, queue: _Queue) -> None:
        """Pass over those who are looked at by themselves."""
        while queue.cursors:
            _, number, cursor = queue.cursors[0]
            if cursor.single is not None or cursor.entries[cursor.position][1].spec.id not in self._apart:
                return
            cursor.position += 1
            if cursor.position < len(cursor.entries):
                heapq.heapreplace(queue.cursors, (cursor.entries[cursor.position][0], number, cursor))
            else:
                heapq.heappop(queue.cursors)

    def _across(self, queue: _Queue) -> SortKey:
        key, _, cursor = queue.cursors[0]
        if cursor.single is not None:
            return self._key(key, cursor.single.claim.workload, cursor.single.claim, False)
        return self._key(key, cursor.entries[cursor.position][1], self._draft.prices.of_gang(cursor.gang), False)

    def _key(self, key: SortKey, workload: Workload, asked: Claim | Gang, gated: bool) -> SortKey:
        """The key across queues of one that has this key within its own."""
        if not self._by_class or not isinstance(asked, Gang):
            return (key[0], *self._across_queues(workload, asked, gated), *key[1:])
        if self._charges != len(self._draft.charged):
            self._charges = len(self._draft.charged)
            self._ordered.clear()
        kind = (workload.spec.queue, id(asked), workload.spec.priority, gated)  # the docket, or the prices, keep gangs
        known = self._ordered.get(kind)
        if known is None:
            known = self._ordered[kind] = self._across_queues(workload, asked, gated)
        return (key[0], *known, *key[1:])

    def _across_queues(self, workload: Workload, asked: Claim | Gang, gated: bool) -> SortKey:
        quota, queue = self._draft.soon.quota, workload.spec.queue
        # What can't start anyway keeps nobody waiting who stands behind it in its queue.
        limited = self._limited.get(id(asked))
        if limited is None:
            limited = quota.limited(asked.resources)
            if isinstance(asked, Gang):
                self._limited[id(asked)] = limited
        capped, borrows, _ = quota.standing(queue, limited)
        head = QueueHead(workload, asked.resources, borrows and not capped and not gated, quota)
        return self._draft.facts.profile.queue_order(head, self._view)

    # ------------------------------------------------------------ what is told

    def tell(self, verdict: Verdict) -> None:
        """The claim that is being looked at waits for these reasons; nobody behind it does."""
        assert self._current is not None
        queue, cursor, claim = self._current
        assert claim is not None
        rest = Rest([cursor.entries[cursor.position]], NOTHING, verdict.lacks_room, claim=claim, verdict=verdict)
        queue.rests.append(rest)
        if not claim.grows:
            self._draft.waits.put(claim.id, verdict)
        self._tell_partners(queue, claim, verdict)

    def _tell_partners(self, queue: _Queue, claim: Claim, verdict: Verdict) -> None:
        """What keeps the one who speaks for them keeps them too; it is counted once among those who lack room."""
        for key, part in self._partners.get(claim.id, ()):
            queue.rests.append(Rest([(key, part.workload)], NOTHING, False, claim=part, verdict=verdict))
            self._draft.waits.put(part.id, verdict)

    def close(self, verdict: Verdict) -> bool:
        """It waits, and so do all behind it in its line, but for those that are more important.

        Answers whether there are any behind it.
        """
        assert self._current is not None
        queue, cursor, claim = self._current
        if cursor.single is not None and claim is not None:
            queue.rests.append(Rest(cursor.entries, NOTHING, verdict.lacks_room, claim=claim, verdict=verdict))
            if not claim.grows:
                self._draft.waits.put(claim.id, verdict)
            self._tell_partners(queue, claim, verdict)
            return False
        behind, more = self._others(cursor.entries, cursor.position), list[Entry]()
        priority = cursor.entries[cursor.position][1].spec.priority
        if cursor.top > priority:
            more = [entry for entry in behind if entry[1].spec.priority > priority]
            behind = [entry for entry in behind if entry[1].spec.priority <= priority]
        queue.rests.append(Rest(behind, cursor.gang, verdict.lacks_room, verdict=verdict))
        self._draft.waits.put_line(Segment(behind, verdict))
        cursor.entries, cursor.position = more, 0
        self._current = None
        return len(behind) > 1

    def _others(self, entries: list[Entry], since: int = 0) -> list[Entry]:
        """Those from this one on, without those who are looked at by themselves."""
        apart = self._apart
        if id(entries) not in self._mixed:
            return entries[since:]
        return [entry for entry in entries[since:] if entry[1].spec.id not in apart]

    def _set_apart(self, workload: WorkloadId) -> None:
        self._apart.add(workload)
        if (place := self._docket.place(workload)) is not None:
            self._mixed.add(id(place[0].entries))

    def close_all(self, verdict: Verdict) -> None:
        """Everybody who is in a line waits for this, and nobody of them is looked at."""
        for queue in self._queues.values():
            for _, _, cursor in queue.cursors:
                if cursor.single is None:
                    entries = self._others(cursor.entries)
                    queue.rests.append(Rest(entries, cursor.gang, False))
                    self._draft.waits.put_line(Segment(entries, verdict))
            queue.cursors = [entry for entry in queue.cursors if entry[2].single is not None]

    def take_all(self) -> list[tuple[SortKey, Claim]]:
        """All that can be looked at now, for who does not go through them one by one; say `left` of those that wait."""
        found: list[tuple[SortKey, Claim]] = []
        for queue in self._queues.values():
            for _, _, cursor in queue.cursors:
                if cursor.single is not None:
                    found.append((cursor.entries[0][0], cursor.single.claim))
                    continue
                gang = self._draft.prices.of_gang(cursor.gang)
                found += [(key, start_claim(workload, gang)) for key, workload in self._others(cursor.entries)]
            queue.cursors = []
        return found

    def left(self, key: SortKey, claim: Claim, verdict: Verdict) -> None:
        """One of them waits for these reasons."""
        entries: list[Entry] = [(key, claim.workload)]
        rest = Rest(entries, NOTHING, verdict.lacks_room, claim=claim, verdict=verdict)
        self._queue(claim.queue).rests.append(rest)
        if not claim.grows:
            self._draft.waits.put(claim.id, verdict)

    # ------------------------------------------------------------ afterwards

    def places(self) -> Iterator[WorkloadId]:
        """All that wait, in the order in which they would be looked at now."""
        for workload, rest in self._in_order(lambda rest: True):
            if rest.claim is None or not rest.claim.grows:
                yield workload.spec.id

    def lacking(self, only: Callable[[Rest], bool] = lambda rest: True) -> Iterator[tuple[Claim, Rest]]:
        """Those that wait for nothing but room, in that order. Of a rest that is dropped meanwhile no more come.

        `only`: of which rests, asked once of each.
        """
        for workload, rest in self._in_order(lambda rest: rest.lacks and only(rest)):
            yield self.claim_of(workload, rest), rest

    def lacking_among(self, ids: Collection[WorkloadId], most: int) -> Iterator[tuple[Workload, Rest]]:
        """Of the first `most` that wait for nothing but room those that are among these, in order.

        Whoever is looked at by itself is among them. Where nobody else could come in between, and all are among the
        first, the others are not even counted.
        """
        rests = [[rest for rest in queue.rests if rest.lacks] for queue in self._queues.values()]
        lacking = [rest for found in rests for rest in found]
        if not ids and all(rest.claim is None for rest in lacking):
            return
        if sum(1 for found in rests if found) == 1 and sum(len(rest.entries) for rest in lacking) <= most:
            yield from self._in_order(lambda rest: rest.lacks, ids)
            return
        for count, (workload, rest) in enumerate(self._in_order(lambda rest: rest.lacks)):
            if count >= most:
                return
            if rest.claim is not None or workload.spec.id in ids:
                yield workload, rest

    def claim_of(self, workload: Workload, rest: Rest) -> Claim:
        """What one of a rest asks for."""
        return rest.claim or start_claim(workload, self._draft.prices.of_gang(rest.gang))

    def leave(self, id: WorkloadId) -> None:
        """It starts after all."""
        self._left.add(id)
        self._draft.waits.discard(id)

    def keep_all(self) -> None:
        """Nobody is dropped any more."""
        for queue in self._queues.values():
            for rest in queue.rests:
                rest.dropped = False

    def add_to_lacking(self, wait: Wait) -> None:
        """A further reason for all that wait for room."""
        for queue in self._queues.values():
            for rest in queue.rests:
                if rest.lacks and rest.claim is not None and not rest.claim.grows:
                    self._draft.waits.add(rest.claim.id, (wait,))
                elif rest.lacks and rest.verdict is not None and rest.claim is None:
                    rest.verdict.more = (*rest.verdict.more, wait)

    def _in_order(
        self, wanted: Callable[[Rest], bool], among: Collection[WorkloadId] | None = None
    ) -> Iterator[tuple[Workload, Rest]]:
        """Those of these rests; `among`: of those who are not looked at by themselves only these."""
        heap: list[tuple[SortKey, QueueId, Workload, Rest]] = []
        lines: dict[QueueId, Iterator[tuple[SortKey, int, Workload, Rest]]] = {}
        for queue in self._queues.values():
            rests = [rest for rest in queue.rests if wanted(rest)]
            if rests:
                entries = [_entries(number, rest, among) for number, rest in enumerate(rests)]
                lines[queue.id] = heapq.merge(*entries) if len(entries) > 1 else entries[0]
        if len(lines) == 1:  # nobody to be compared with
            for _, _, workload, rest in next(iter(lines.values())):
                if not rest.dropped and workload.spec.id not in self._left:
                    yield workload, rest
            return

        def push(queue: QueueId) -> None:
            entry = next(lines[queue], None)
            if entry is not None:
                key, _, workload, rest = entry
                asked = rest.claim or self._draft.prices.of_gang(rest.gang)
                heapq.heappush(heap, (self._key(key, workload, asked, rest.gated), queue, workload, rest))

        for id in lines:
            push(id)
        while heap:
            _, id, workload, rest = heapq.heappop(heap)
            if not rest.dropped and workload.spec.id not in self._left:
                yield workload, rest
            push(id)


def _entries(
    number: int, rest: Rest, among: Collection[WorkloadId] | None
) -> Iterator[tuple[SortKey, int, Workload, Rest]]:
    entries = rest.entries
    if among is not None and rest.claim is None:
        entries = [entry for entry in entries if entry[1].spec.id in among]
    for key, workload in entries:
        if rest.dropped:
            return
        yield key, number, workload, rest


def _with_nobody(queue: _Queue) -> SortKey:
    """The key across queues where there is only one."""
    return ()


def _cursor(line: Line) -> _Cursor:
    return _Cursor(line.entries, line.gang, line.top)
