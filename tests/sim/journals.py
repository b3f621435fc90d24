"""Journals for simulated queue owners: the real format in memory, and the real file, each torn by a crash.

In memory, a batch that was torn is on the disk up to some byte; what SQLite does with that is done here: a transaction
without its end is dropped. The checksums, the chain, the bodies and the snapshots are the real ones.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rayorch.actors.journal import Journal
from rayorch.actors.journal_format import (
    Entry,
    chain_start,
    entry_of,
    pack_state,
    record_checksum,
    snapshot_checksum,
    unpack_state,
    value_of,
)
from rayorch.core.codec import FORMAT_VERSION, decode
from rayorch.core.events import Event
from rayorch.core.queues import QueueTree, TreeState

ID = "0123456789abcdef"
BASE, LOG, MARK = "journal.db", "journal.db-wal", "journal.db.mark"
COMPACT_EVERY = 60
Row = tuple[int, int, str, str, bytes]


class RecordJournal:
    """The rows that the real journal would hold, in memory. Every `COMPACT_EVERY` records a snapshot replaces them."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._torn: tuple[Row, ...] = ()
        self._snapshot: tuple[int, bytes, bytes, bytes] | None = None  # sequence, chain, body, checksum
        self._sequence = 0
        self._chain = chain_start(ID)
        self.torn = 0

    def append(self, events: tuple[Event, ...]) -> None:
        """SimJournal."""
        rows = self._rows_of([entry_of(event) for event in events])
        self._rows += rows
        self._sequence, self._chain = rows[-1][0], rows[-1][4]

    def tear(self, events: tuple[Event, ...], share: float) -> None:
        """SimJournal."""
        self.torn += 1
        if share >= 1:
            self.append(events)
            return
        rows = self._rows_of([entry_of(event) for event in events])
        reached = int(share * sum(len(row[3]) for row in rows))
        kept: list[Row] = []
        for row in rows:  # the last one is cut within its body
            kept.append((*row[:3], row[3][:reached], row[4]))
            reached -= len(row[3])
            if reached <= 0:
                break
        self._torn = tuple(kept)

    def read(self) -> tuple[QueueTree, int]:
        """SimJournal: everything checked, from the newest snapshot on."""
        self._torn = ()  # a transaction without its end
        tree, sequence, chain = QueueTree(), 0, chain_start(ID)
        if self._snapshot is not None:
            sequence, chain, body, checksum = self._snapshot
            assert snapshot_checksum(ID, sequence, FORMAT_VERSION, chain, body) == checksum
            state = decode(unpack_state(body))
            assert isinstance(state, TreeState)
            tree = QueueTree.restore(state)
        for row in self._rows:
            number, version, workload, body_text, checksum = row
            assert number == sequence + 1, f"record {sequence + 1} is missing"
            chain = record_checksum(chain, number, version, workload, body_text)
            assert chain == checksum, f"record {number} is damaged"
            tree.apply(value_of(version, body_text))  # type: ignore[arg-type]  # nothing but events is written
            sequence = number
        if len(self._rows) > COMPACT_EVERY:
            body = pack_state(tree.dump())
            self._snapshot = (sequence, chain, body, snapshot_checksum(ID, sequence, FORMAT_VERSION, chain, body))
            self._rows.clear()
        return tree, sequence

    def tail(self, count: int) -> list[str]:
        """SimJournal."""
        return [row[3] for row in self._rows[-count:]]

    def _rows_of(self, entries: list[Entry]) -> list[Row]:
        rows, sequence, chain = [], self._sequence, self._chain
        for entry in entries:
            sequence += 1
            chain = record_checksum(chain, sequence, FORMAT_VERSION, entry.workload, entry.body)
            rows.append((sequence, FORMAT_VERSION, entry.workload, entry.body, chain))
        return rows


def torn(before: bytes, after: bytes, share: float) -> bytes:
    """A file of which so much of what was written has reached the disk, in the order of its bytes, but not all."""
    longest = max(len(before), len(after))
    old, new = (np.frombuffer(data.ljust(longest, b"\0"), np.uint8) for data in (before, after))
    differing = np.flatnonzero(old != new)
    if not len(differing):
        return after
    first, last = int(differing[0]), int(differing[-1])
    cut = first + int(share * (last - first))
    return after[:cut] + before[cut:]


class FileJournal:
    """The real journal in a folder. A crash leaves copies of its files, the log cut where the write was torn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._life = 0
        self._journal: Journal | None = Journal.open(self._path, create=True, lock_wait_s=0.0)
        self._written = 0
        self.torn = 0

    @staticmethod
    @contextlib.contextmanager
    def in_memory() -> Iterator[FileJournal]:
        """In a folder that needs no disk where there is one; gone afterwards."""
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(dir=shared, prefix="ro-life-") as folder:
            journal = FileJournal(Path(folder))
            try:
                yield journal
            finally:
                journal.close()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._life}" / BASE

    def append(self, events: tuple[Event, ...]) -> None:
        """SimJournal."""
        assert self._journal is not None, "nobody writes after a crash before the journal was read"
        self._journal.append([entry_of(event) for event in events])
        self._written += 1
        if self._written % 50 == 0:
            self._compact()

    def tear(self, events: tuple[Event, ...], share: float) -> None:
        """SimJournal."""
        self.torn += 1
        before = self.files()
        assert self._journal is not None
        self._journal.append([entry_of(event) for event in events])
        after = self.files()
        if share < 1:
            self.crash({**before, LOG: torn(before.get(LOG, b""), after[LOG], share)})
        else:
            self.crash({**after, MARK: before[MARK]})

    def files(self) -> dict[str, bytes]:
        """What is on the disk now, by the name of the file."""
        folder = self._path.parent
        return {name: (folder / name).read_bytes() for name in (BASE, LOG, MARK) if (folder / name).exists()}

    def crash(self, files: dict[str, bytes]) -> None:
        """The process ends here; the next one finds these files."""
        assert self._journal is not None
        source = self._path.parent
        self._life += 1
        target = self._path.parent
        target.mkdir()
        for name, data in files.items():
            (target / name).write_bytes(data)
        self._journal.close()
        self._journal = None
        shutil.rmtree(source)

    def read(self) -> tuple[QueueTree, int]:
        """SimJournal."""
        if self._journal is not None:
            self.crash(self.files())
        self._journal = Journal.open(self._path, lock_wait_s=0.0)
        recovered = self._journal.recover()
        state = recovered.state
        assert state is None or isinstance(state, TreeState)
        tree = QueueTree() if state is None else QueueTree.restore(state)
        for recorded in recovered.events:
            tree.apply(recorded.event)
        return tree, self._journal.sequence

    def tail(self, count: int) -> list[str]:
        """SimJournal."""
        if self._journal is None:
            return []
        return [repr(recorded.event) for recorded in self._journal.recover().events[-count:]]

    def close(self) -> None:
        """Let go of the files."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _compact(self) -> None:
        """What the owner does now and then: the state so far as a snapshot."""
        assert self._journal is not None
        recovered = self._journal.recover()
        state = recovered.state
        assert state is None or isinstance(state, TreeState)
        tree = QueueTree() if state is None else QueueTree.restore(state)
        for recorded in recovered.events:
            tree.apply(recorded.event)
        self._journal.write_snapshot(self._journal.sequence, pack_state(tree.dump()))
