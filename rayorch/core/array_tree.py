"""The part of the queue tree that keeps arrays: which entries are workloads, and what follows from their ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rayorch.core.arrays import ArrayBook, Arrays, EntryRow, EntryState
from rayorch.core.dependencies import text_of
from rayorch.core.errors import AdmissionError, StalePlanError
from rayorch.core.events import CancelRequested
from rayorch.core.timing import After
from rayorch.core.types import Workload, WorkloadId, WorkloadSpec


class ArrayTree:
    """The base of the queue tree, which says how a workload is stored (`_put`)."""

    def __init__(self) -> None:
        super().__init__()
        self._workloads: dict[WorkloadId, Workload] = {}
        self._arrays = Arrays()

    def _put(self, workload: Workload, at_s: float) -> None:
        raise NotImplementedError

    def find(self, id: WorkloadId) -> Workload | None:
        """A workload by its id, an array's entry also when it is no workload of its own now."""
        known = self._workloads.get(id)
        entry = self._arrays.of_entry(id) if known is None else None
        return known if entry is None else entry[0].virtual(entry[1], self._workloads[entry[0].spec.id])

    def entries(self, id: WorkloadId, first: int, limit: int) -> tuple[EntryRow, ...]:
        """Entries of an array from index `first` on, at most `limit`; AdmissionError when it is none."""
        record = self._workloads.get(id)
        if record is None or id not in self._arrays.books:
            raise AdmissionError("id", f"there is no array {id!r}")
        return tuple(self._arrays.rows(record, self._workloads, first, limit))

    def _known(self, id: WorkloadId) -> Workload:
        workload = self._workloads.get(id)
        if workload is None:
            raise StalePlanError(f"workload {id!r} does not exist")
        return workload

    def _refill(self, record: Workload, at_s: float) -> None:
        """List the entries that may run soon."""
        entries = self._arrays.refill(record)
        for entry in entries:
            self._put(entry, at_s)
        if entries:
            self._put(self._arrays.settled(self._workloads[record.id], at_s), at_s)

    def _list(self, id: WorkloadId, at_s: float) -> Workload:
        """An entry that an event is about although it is not listed: a release with another window wrote it."""
        found = self._arrays.of_entry(id)
        if found is None:
            raise KeyError(id)
        entry = found[0].enlist(found[1], self._workloads[found[0].spec.id])
        self._put(entry, at_s)
        return entry

    def _entry_changed(self, entry: Workload, old: Workload, at_s: float) -> None:
        """Keep the record, and let follow what follows for other arrays."""
        if (entry.state, entry.attempt) == (old.state, old.attempt):
            return
        assert entry.spec.entry is not None
        book = self._arrays.books[entry.spec.entry.array]
        book.changed(entry, old)
        if entry.state.terminal:
            self._followed(book, (entry.spec.entry.index,), at_s)
        self._put(self._arrays.settled(self._workloads[book.spec.id], at_s), at_s)

    def _followed(self, book: ArrayBook, indices: Iterable[int], at_s: float) -> None:
        """Entries have ended: those of the same index in arrays that correspond to it may go, or don't run."""
        left = [(book, index) for index in indices] if book.followers else []
        touched: dict[WorkloadId, None] = {}
        while left:
            ended, index = left.pop()
            for id in self._arrays.followed(ended, index):
                touched[id] = None
                if self._arrays.books[id].at(index) is EntryState.CANCELLED:
                    left.append((self._arrays.books[id], index))
        for id in touched:
            self._put(self._arrays.settled(self._workloads[id], at_s), at_s)

    def _cancels_entries(self, event: CancelRequested) -> bool:
        """Whether the event is about an array as a whole, or an entry that is not listed: then it is done here."""
        record = self._workloads.get(event.workload)
        found = self._arrays.of_entry(event.workload) if record is None else None
        if record is not None and record.spec.array is not None:
            book = self._arrays.books[record.id]
            waiting = book.waiting() if book.followers else []
            book.cancel_waiting()
            record = replace(record, cancel_requested=True, reason=event.reason)
        elif found is not None and found[0].cancel(found[1]):
            book, waiting = found[0], [found[1]]
            record = self._workloads[book.spec.id]
        else:
            return False
        self._followed(book, waiting, event.at_s)
        self._put(self._arrays.settled(record, event.at_s), event.at_s)
        return True

    def _check_dependencies(self, spec: WorkloadSpec) -> None:
        """AdmissionError for one on a workload that does not exist."""
        for n, dependency in enumerate(spec.after):
            if dependency.workload is not None and dependency.workload not in self._workloads:
                what = f"{text_of(dependency)}: {dependency.workload!r} does not exist, or ended too long ago"
                raise AdmissionError(f"after[{n}].workload", what)
            if dependency.kind is After.CORRESPONDING:
                self._check_corresponds(spec, dependency.workload, f"after[{n}].workload")

    def _check_corresponds(self, spec: WorkloadSpec, other: WorkloadId | None, field: str) -> None:
        book = self._arrays.books.get(other) if other is not None else None
        if book is None or spec.array is None:
            raise AdmissionError(field, f"aftercorr names an array, and {other!r} is none")
        first, last = spec.array.first, spec.array.first + spec.array.count - 1
        if first < book.array.first or last >= book.array.first + book.array.count:
            raise AdmissionError(field, f"array {other!r} has no entries {first} to {last}")

    def _check_entry_ids(self, spec: WorkloadSpec) -> None:
        """AdmissionError for an array one of whose entries would have the id of another workload."""
        if spec.array is None:
            return
        book = ArrayBook(spec)
        for id in self._workloads:
            head, _, number = id.rpartition(".")
            if head == spec.id and book.index_of(number) is not None:
                raise AdmissionError("array", f"workload {id!r} exists, and an entry would have its id")

    def _check_cap(self, workload: Workload) -> None:
        """StalePlanError when as many entries of its array run as may."""
        entry = workload.spec.entry
        book = self._arrays.books.get(entry.array) if entry is not None else None
        if entry is not None and book is not None and entry.max_running is not None and book.live >= entry.max_running:
            raise StalePlanError(f"{book.live} entries of array {entry.array} run, which is the most at a time")
