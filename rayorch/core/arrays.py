"""Arrays: one submission that stands for up to 100,000 workloads, held as one record and a few bytes for each entry.

The record is a workload of its own (`WorkloadSpec.array`): it never runs, and it ends when its last entry has ended.
Only entries that may run soon are *listed* as workloads of their own (`WorkloadSpec.entry`): those that run, and a
window of the next ones, which is as wide as what runs, so that it doubles while there is room. Which ones are listed
follows from the events alone, so a replay gives the same state; an event about one that is not listed lists it. Once
they have ended, entries are forgotten soon; the record goes on to know what became of them.

After Slurm, whose array is one record until an entry starts; differs in that what has ended folds back into it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from rayorch.core.timing import After, ArrayEntry, ArrayProgress, ArraySpec
from rayorch.core.types import State, Workload, WorkloadId, WorkloadSpec

WINDOW_LEAST, WINDOW_MOST = 32, 1_024
"""How many entries that have not started yet are listed at a time: as many as run, within these bounds."""

BEYOND_CAP = 8
"""Entries listed beyond the running cap, so that the next one is at hand when one ends."""

MOST_LISTED_WAITING = 4_096
"""Entries that failed and wait for their next attempt stay listed; at this number no further ones are."""

Ranges = tuple[tuple[int, int], ...]
"""(first, last) indices of runs of entries, in order."""


class EntryState(IntEnum):
    """Where an entry is, as one byte."""

    WAITING = 0  # nothing but its index exists
    LISTED = 1  # a workload of its own, which has not ended
    SUCCEEDED = 2
    FAILED = 3
    CANCELLED = 4


_OF_STATE = {
    State.SUCCEEDED: EntryState.SUCCEEDED,
    State.FAILED: EntryState.FAILED,
    State.CANCELLED: EntryState.CANCELLED,
}
_TO_STATE = {entry: state for state, entry in _OF_STATE.items()}


@dataclass(frozen=True, slots=True)
class ArrayState:
    """An array's entries for the journal's compaction; what is in none of the ranges waits or is listed.

    `ready`: of those that wait for the entry of the same index of another array, which may go. `attempts`,
    `exit_codes`: (index, number) of ended entries with more attempts than expected, or none, and of exit codes but 0.
    """

    array: WorkloadId
    succeeded: Ranges = ()
    failed: Ranges = ()
    cancelled: Ranges = ()
    ready: Ranges = ()
    attempts: Ranges = ()
    exit_codes: Ranges = ()


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One entry of an array in a list. `attempt`: its last one, 0 before the first."""

    index: int
    state: State
    attempt: int = 0
    exit_code: int | None = None


class ArrayBook:
    """The entries of one array. Counts are kept, so that everything but `cancel_waiting` and `state` is O(1)."""

    def __init__(self, spec: WorkloadSpec) -> None:
        assert spec.array is not None
        self.spec = spec
        self.array: ArraySpec = spec.array
        self.partners = tuple(d.workload for d in spec.after if d.kind is After.CORRESPONDING and d.workload)
        self.followers: list[WorkloadId] = []
        self.remembered: set[int] = set()  # entries that are workloads now, ended ones too
        self.live = self.fresh = self.listed_waiting = 0
        self._states = bytearray(spec.array.count)
        self._counts = [spec.array.count, 0, 0, 0, 0]
        self._next = 0
        self._ready: list[int] = []
        self._attempts: dict[int, int] = {}
        self._exit_codes: dict[int, int] = {}

    # ------------------------------------------------------------ reading

    def index_of(self, text: str) -> int | None:
        """The index that the last part of an entry's id names; None when it is none of this array's."""
        if not text.isascii() or not text.isdigit() or len(text) > 10 or (text[0] == "0" and text != "0"):
            return None
        index = int(text)
        return index if 0 <= index - self.array.first < self.array.count else None

    def at(self, index: int) -> EntryState:
        """Where an entry is."""
        return EntryState(self._states[index - self.array.first])

    def id_of(self, index: int) -> WorkloadId:
        """An entry's id."""
        return WorkloadId(f"{self.spec.id}.{index}")

    @property
    def progress(self) -> ArrayProgress:
        """The counts that are shown."""
        waiting, _, succeeded, failed, cancelled = self._counts
        return ArrayProgress(
            waiting + self.listed_waiting, self.live, succeeded, failed, cancelled, self.listed_waiting
        )

    @property
    def over(self) -> bool:
        """Whether every entry has ended."""
        return self._counts[EntryState.WAITING] + self._counts[EntryState.LISTED] == 0

    def spec_of(self, index: int) -> WorkloadSpec:
        """An entry as a workload of its own. What the array waits for has happened before it is listed."""
        entry = ArrayEntry(self.spec.id, index, self.array.max_running)
        return replace(self.spec, id=self.id_of(index), array=None, after=(), entry=entry)

    def row(self, index: int) -> EntryRow:
        """What is remembered of an entry that is no workload now."""
        state = _TO_STATE.get(self.at(index), State.PENDING)
        ran = state in (State.SUCCEEDED, State.FAILED)
        code = self._exit_codes.get(index, 0 if state is State.SUCCEEDED else None)
        return EntryRow(index, state, self._attempts.get(index, int(ran)), code)

    def virtual(self, index: int, record: Workload) -> Workload:
        """An entry that is no workload now, as if it were one."""
        row = self.row(index)
        return Workload(
            self.spec_of(index),
            row.state,
            record.submitted_s,
            attempt=row.attempt,
            exit_code=row.exit_code,
            sequence=record.sequence,
            reason=f"entry of array {record.id}",
        )

    def state(self) -> ArrayState:
        """For the journal's compaction."""
        by_state = [_ranges(self._indices(state)) for state in EntryState]
        return ArrayState(
            self.spec.id,
            by_state[EntryState.SUCCEEDED],
            by_state[EntryState.FAILED],
            by_state[EntryState.CANCELLED],
            _ranges(sorted(self._ready)),
            tuple(sorted(self._attempts.items())),
            tuple(sorted(self._exit_codes.items())),
        )

    @staticmethod
    def restore(spec: WorkloadSpec, state: ArrayState, entries: Iterable[Workload]) -> ArrayBook:
        """The book that `state` described; `entries`: those that are workloads."""
        book = ArrayBook(spec)
        for entry_state, ranges in (
            (EntryState.SUCCEEDED, state.succeeded),
            (EntryState.FAILED, state.failed),
            (EntryState.CANCELLED, state.cancelled),
        ):
            for first, last in ranges:
                for index in range(first, last + 1):
                    book._move(index, entry_state)
        for workload in entries:
            index = index_in(workload)
            book.remembered.add(index)
            if not workload.state.terminal:
                book._move(index, EntryState.LISTED)
                book._tally(workload, 1)
        book._ready = [index for first, last in state.ready for index in range(first, last + 1)]
        book._attempts, book._exit_codes = dict(state.attempts), dict(state.exit_codes)
        return book

    def _indices(self, state: EntryState) -> Iterable[int]:
        return (self.array.first + n for n, found in enumerate(self._states) if found == state)

    # ------------------------------------------------------------ changing

    def take_next(self) -> int | None:
        """The next entry to be listed now; None while enough are, or none is left that may go."""
        window = max(WINDOW_LEAST, min(self.live, WINDOW_MOST))
        cap = self.array.max_running
        if self.fresh >= window or self.listed_waiting >= MOST_LISTED_WAITING:
            return None
        if cap is not None and self.live + self.fresh >= cap + BEYOND_CAP:
            return None
        return self._next_ready() if self.partners else self._next_waiting()

    def _next_waiting(self) -> int | None:
        self._next = self._states.find(EntryState.WAITING, self._next)
        if self._next < 0:
            self._next = self.array.count
            return None
        return self.array.first + self._next

    def _next_ready(self) -> int | None:
        while self._ready:
            if self.at(self._ready[0]) is EntryState.WAITING:
                return self._ready[0]
            heapq.heappop(self._ready)
        return None

    def enlist(self, index: int, record: Workload) -> Workload:
        """Make an entry a workload."""
        workload = Workload(self.spec_of(index), State.PENDING, record.submitted_s, sequence=record.sequence)
        self._move(index, EntryState.LISTED)
        self.remembered.add(index)
        self._tally(workload, 1)
        return workload

    def changed(self, workload: Workload, old: Workload) -> None:
        """A listed entry's state or attempt is another one."""
        self._tally(old, -1)
        self._tally(workload, 1)
        if workload.state.terminal and not old.state.terminal:
            index = index_in(workload)
            self._move(index, _OF_STATE[workload.state])
            if workload.attempt != int(workload.state is not State.CANCELLED):
                self._attempts[index] = workload.attempt
            if workload.exit_code:
                self._exit_codes[index] = workload.exit_code

    def cancel(self, index: int) -> bool:
        """An entry that is not listed is not to run. False: it is none of those that wait."""
        if self.at(index) is not EntryState.WAITING:
            return False
        self._move(index, EntryState.CANCELLED)
        return True

    def cancel_waiting(self) -> None:
        """None of those that are not listed is to run."""
        self._states = self._states.replace(bytes([EntryState.WAITING]), bytes([EntryState.CANCELLED]))
        self._counts[EntryState.CANCELLED] += self._counts[EntryState.WAITING]
        self._counts[EntryState.WAITING] = 0
        self._ready.clear()

    def waiting(self) -> list[int]:
        """Those that are not listed; O(n)."""
        return list(self._indices(EntryState.WAITING))

    def ready(self, index: int) -> None:
        """What this entry waited for in other arrays has happened."""
        heapq.heappush(self._ready, index)

    def _move(self, index: int, to: EntryState) -> None:
        offset = index - self.array.first
        self._counts[self._states[offset]] -= 1
        self._counts[to] += 1
        self._states[offset] = to

    def _tally(self, workload: Workload, sign: int) -> None:
        if workload.state is State.PENDING:
            self.listed_waiting += sign
            self.fresh += sign * (workload.attempt == 0)
        elif not workload.state.terminal:
            self.live += sign


class Arrays:
    """The books of all arrays by the record's id."""

    def __init__(self) -> None:
        self.books: dict[WorkloadId, ArrayBook] = {}

    def of_entry(self, id: WorkloadId) -> tuple[ArrayBook, int] | None:
        """The book and the index of an entry's id; None when it is no array's. O(1)."""
        array, dot, number = id.rpartition(".")
        book = self.books.get(WorkloadId(array)) if dot else None
        index = book.index_of(number) if book is not None else None
        return (book, index) if book is not None and index is not None else None

    def accept(self, record: Workload) -> Workload:
        """Open the book of a new array; entries whose partners have ended are judged at once."""
        book = self.books[record.id] = ArrayBook(record.spec)
        for partner in book.partners:
            self.books[partner].followers.append(record.id)
        if book.partners:
            for index in range(book.array.first, book.array.first + book.array.count):
                self._judge(book, index)
        return replace(record, progress=book.progress)

    def settled(self, record: Workload, at_s: float) -> Workload:
        """The record with its progress, and ended when its last entry has."""
        book = self.books[record.id]
        progress = book.progress
        started_s = at_s if record.started_s is None and progress.running else record.started_s
        changed = replace(record, progress=progress, started_s=started_s)
        if not book.over or record.state.terminal:
            return changed
        state = State.FAILED if progress.failed else State.CANCELLED if progress.cancelled else State.SUCCEEDED
        reason = f"{progress.succeeded} of {book.array.count} entries succeeded"
        reason += f", {progress.failed} failed" if progress.failed else ""
        reason += f", {progress.cancelled} were cancelled" if progress.cancelled else ""
        said = f"; {record.reason}" if record.cancel_requested else ""
        return replace(changed, state=state, ended_s=at_s, reason=reason + said)

    def refill(self, record: Workload) -> list[Workload]:
        """The entries that are listed now, in order."""
        book = self.books[record.id]
        found: list[Workload] = []
        if record.state.terminal or record.cancel_requested or record.unmet:
            return found
        while (index := book.take_next()) is not None:
            found.append(book.enlist(index, record))
        return found

    def followed(self, book: ArrayBook, index: int) -> list[WorkloadId]:
        """An entry has ended: let those of the same index go, or not run. Answers with the arrays that changed."""
        touched = [id for id in book.followers if id in self.books and self._judge(self.books[id], index)]
        return touched

    def _judge(self, book: ArrayBook, index: int) -> bool:
        """Whether something follows for an entry from what has become of its partners."""
        if book.index_of(str(index)) is None or book.at(index) is not EntryState.WAITING:
            return False
        states = [self.books[partner].at(index) for partner in book.partners if partner in self.books]
        if any(state in (EntryState.FAILED, EntryState.CANCELLED) for state in states):
            return book.cancel(index)
        if all(state is EntryState.SUCCEEDED for state in states):
            book.ready(index)
            return True
        return False

    def forget(self, id: WorkloadId) -> tuple[WorkloadId, ...]:
        """Close a book. Answers with the entries that are workloads still."""
        book = self.books.pop(id)
        return tuple(book.id_of(index) for index in sorted(book.remembered))

    def restore(self, states: Iterable[ArrayState], workloads: Iterable[Workload]) -> None:
        """The books that the states described."""
        records: dict[WorkloadId, Workload] = {}
        entries: dict[WorkloadId, list[Workload]] = {}
        for workload in workloads:
            if workload.spec.array is not None:
                records[workload.id] = workload
            elif workload.spec.entry is not None:
                entries.setdefault(workload.spec.entry.array, []).append(workload)
        for state in states:
            self.books[state.array] = ArrayBook.restore(records[state.array].spec, state, entries.get(state.array, ()))
        for book in self.books.values():
            for partner in book.partners:
                if partner in self.books:
                    self.books[partner].followers.append(book.spec.id)

    def rows(self, record: Workload, known: Mapping[WorkloadId, Workload], first: int, limit: int) -> list[EntryRow]:
        """Entries from index `first` on, at most `limit`."""
        book = self.books[record.id]
        found: list[EntryRow] = []
        start = max(first, book.array.first)
        for index in range(start, min(start + limit, book.array.first + book.array.count)):
            workload = known.get(book.id_of(index))
            if workload is None:
                found.append(book.row(index))
            else:
                found.append(EntryRow(index, workload.state, workload.attempt, workload.exit_code))
        return found


def entry_ids(array: WorkloadId, spec: ArraySpec | None) -> tuple[WorkloadId, ...]:
    """The ids of all entries of an array; none of what is no array."""
    if spec is None:
        return ()
    return tuple(WorkloadId(f"{array}.{index}") for index in range(spec.first, spec.first + spec.count))


def array_variables(spec: WorkloadSpec) -> dict[str, str]:
    """What an entry finds in its environment: which one it is, and of which array."""
    if spec.entry is None:
        return {}
    return {"RAYORCH_ARRAY_ID": spec.entry.array, "RAYORCH_ARRAY_INDEX": str(spec.entry.index)}


def index_in(workload: Workload) -> int:
    """The index of a workload that is an entry."""
    assert workload.spec.entry is not None
    return workload.spec.entry.index


def shown_state(workload: Workload) -> State:
    """The state to show: an array of which something runs is running, although the record itself never does."""
    running = workload.progress is not None and workload.progress.running > 0
    return State.RUNNING if running and workload.state is State.PENDING else workload.state


def waiting_count(workload: Workload | None) -> int:
    """How many waiting workloads a workload counts for: an array for those of its entries that are not listed."""
    if workload is None or workload.state is not State.PENDING:
        return 0
    progress = workload.progress
    return 1 if progress is None else progress.waiting - progress.listed


def _ranges(indices: Iterable[int]) -> Ranges:
    """Runs of indices that are in order."""
    found: list[list[int]] = []
    for index in indices:
        if found and index == found[-1][1] + 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return tuple((first, last) for first, last in found)
