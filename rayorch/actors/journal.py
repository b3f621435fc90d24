"""The queue owner's memory on disk: what was acknowledged is there after any crash.

One SQLite file in WAL mode with `synchronous=FULL`; a batch of events is one transaction and one fsync.

    meta      the journal's id (made once) and its format version
    record    sequence, format, workload, body (an event as text), checksum
    snapshot  sequence, format, body (the tree after that record, packed), chain (that record's checksum), checksum

Records are only added. Their sequence has no gap and each checksum covers the one before it, so a record that was
changed, removed or moved is found. A snapshot makes older records unnecessary: the last two snapshots are kept with
all records after the older one, so that one damaged snapshot loses nothing.

SQLite drops a torn end of its log by itself, silently, and can't know whether that had been acknowledged. We can:
after each commit the last sequence is written beside the journal (`<path>.mark`, never ahead of the disk), and a
journal that ends before its mark is refused. Nothing that fails a check is repaired here: the operator restores a
backup (`restore_backup`), and so accepts the loss of what came after it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rayorch.actors.journal_files import MarkFile, mark_path, sync, take_lock
from rayorch.actors.journal_format import (
    SCHEMA,
    Entry,
    JournalCorrupt,
    JournalError,
    JournalMissing,
    JournalUnwritable,
    Mark,
    chain_start,
    record_checksum,
    snapshot_checksum,
    unpack_state,
    value_of,
)
from rayorch.core.codec import FORMAT_VERSION
from rayorch.core.errors import SpecError
from rayorch.core.events import Event
from rayorch.core.requests import EventsPage, RecordedEvent

log = logging.getLogger(__name__)

LOCK_WAIT_S = 15.0
"""How long an owner waits for its predecessor's lock: a killed process lets go within a moment, a living one never."""

BUSY_TIMEOUT_S = 5.0
KEPT_SNAPSHOTS = 2
PROBE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a journal holds: a state (None: none was saved yet) and the events after it."""

    state: object | None
    state_sequence: int
    events: tuple[RecordedEvent, ...]


class Journal:
    """An open journal. One thread at a time writes; `events` and `backup` may be called from any other."""

    def __init__(self, path: Path, lock: int, max_page_count: int | None) -> None:
        self._path = path
        self._lock = lock
        self._max_page_count = max_page_count
        self._reading = threading.Lock()
        self._failure = ""
        self._mark: MarkFile | None = None
        self._writer = self._connect()
        self._reader = self._connect(read_only=True)
        self.journal_id = ""
        self._sequence = 0
        self._chain = b""
        self._snapshot_sequence = 0
        self._oldest = 1

    # ------------------------------------------------------------ opening and closing

    @staticmethod
    def open(
        path: str | Path,
        expected_id: str | None = None,
        create: bool = False,
        max_page_count: int | None = None,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> Journal:
        """Open the journal at `path`, alone.

        `expected_id`: the journal that must be found here. `create`: make one where there is none; never
        together with an expected id. `max_page_count`: most pages of 4 KiB that the file may have.
        Raises JournalMissing, JournalLocked or JournalCorrupt; each check of the contents is in `recover`.
        """
        path = Path(path).absolute()
        if create and expected_id is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() and (expected_id is not None or not create):
            raise JournalMissing(f"no journal at {path}: it is never made anew where one is expected; restore a backup")
        if not path.exists() and mark_path(path).exists():
            raise JournalMissing(f"{path} is gone, but {mark_path(path)} says that it held records; restore a backup")
        lock = take_lock(path, lock_wait_s)
        try:
            journal = Journal(path, lock, max_page_count)
        except sqlite3.Error as error:
            os.close(lock)
            raise JournalCorrupt(f"{path} can't be opened: {error}; restore a backup") from error
        try:
            journal._begin(expected_id, create)
        except BaseException:
            journal.close()
            raise
        return journal

    def _connect(self, read_only: bool = False) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if read_only:
            connection.execute("PRAGMA query_only=ON")
        elif self._max_page_count is not None:
            connection.execute(f"PRAGMA max_page_count={int(self._max_page_count)}")
        return connection

    def _begin(self, expected_id: str | None, create: bool) -> None:
        try:
            if not self._writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                if not create or expected_id is not None:
                    raise JournalMissing(f"{self._path} is not a journal; restore a backup")
                self._create()
            meta = dict(self._writer.execute("SELECT key, value FROM meta WHERE key != 'probe'").fetchall())
        except sqlite3.Error as error:
            raise JournalCorrupt(f"{self._path} can't be read: {error}; restore a backup") from error
        self.journal_id = meta["journal_id"]
        if expected_id is not None and expected_id != self.journal_id:
            raise JournalMissing(f"{self._path} is journal {self.journal_id}, expected {expected_id}: wrong disk?")
        if int(meta["format_version"]) > FORMAT_VERSION:
            raise JournalError(
                f"{self._path} has format {meta['format_version']}, this release reads up to {FORMAT_VERSION}:"
                " install the newer release again"
            )
        self._read_end()
        self._check_mark()
        if int(meta["format_version"]) < FORMAT_VERSION:
            with self._transaction() as connection:
                connection.execute("UPDATE meta SET value = ? WHERE key = 'format_version'", (str(FORMAT_VERSION),))

    def _create(self) -> None:
        with self._transaction() as connection:
            for statement in SCHEMA.split(";"):
                connection.execute(statement)
            rows = [("journal_id", uuid.uuid4().hex), ("format_version", str(FORMAT_VERSION))]
            connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        sync(self._path.parent)

    def _read_end(self) -> None:
        """Where the journal ends, whatever its contents are worth."""
        snapshot = self._writer.execute("SELECT sequence, chain FROM snapshot ORDER BY sequence DESC").fetchone()
        last = self._writer.execute("SELECT sequence, checksum FROM record ORDER BY sequence DESC").fetchone()
        oldest = self._writer.execute("SELECT min(sequence) FROM record").fetchone()[0]
        if snapshot and (last is None or last[0] < snapshot[0]):
            raise JournalCorrupt(
                f"{self._path}: the records up to snapshot {snapshot[0]} are missing; restore a backup"
            )
        self._snapshot_sequence = snapshot[0] if snapshot else 0
        self._sequence, self._chain = last or (0, chain_start(self.journal_id))
        self._oldest = oldest if oldest is not None else self._sequence + 1

    def _check_mark(self) -> None:
        self._mark = MarkFile(self._path)
        mark = self._mark.read()
        if mark is not None and mark.journal_id != self.journal_id:
            raise JournalMissing(
                f"{self._mark.path} belongs to journal {mark.journal_id}, {self._path} is {self.journal_id}"
            )
        if mark is not None and mark.sequence > self._sequence:
            raise JournalCorrupt(
                f"{self._path} ends at record {self._sequence}, but record {mark.sequence} was acknowledged: records"
                f" {self._sequence + 1} to {mark.sequence} are lost; restore a newer backup, or accept the loss by"
                f" removing {self._mark.path}"
            )
        self._mark.write(Mark(self.journal_id, self._sequence))

    def close(self) -> None:
        """Let go of the files and the lock; a second call does nothing."""
        if self._lock < 0:
            return
        with self._reading:
            self._reader.close()
        self._writer.close()
        if self._mark is not None:
            self._mark.close()
        os.close(self._lock)
        self._lock = -1

    # ------------------------------------------------------------ what it is

    @property
    def path(self) -> Path:
        """The journal's file."""
        return self._path

    @property
    def sequence(self) -> int:
        """The last acknowledged record, 0 when there is none."""
        return self._sequence

    @property
    def snapshot_sequence(self) -> int:
        """The record after which the newest snapshot was taken, 0 when there is none."""
        return self._snapshot_sequence

    @property
    def failure(self) -> str:
        """Why the last write was refused; empty while all is well."""
        return self._failure

    # ------------------------------------------------------------ writing

    def append(self, entries: Sequence[Entry]) -> int:
        """Write the entries as one batch; when this returns they are durable. Returns the last sequence.

        JournalUnwritable when the disk refuses: then none of them counts, and the next call tries anew.
        """
        sequence, chain = self._sequence, self._chain
        rows = []
        for entry in entries:
            sequence += 1
            chain = record_checksum(chain, sequence, FORMAT_VERSION, entry.workload, entry.body)
            rows.append((sequence, FORMAT_VERSION, entry.workload, entry.body, chain))
        with self._transaction() as connection:
            connection.executemany("INSERT INTO record VALUES (?, ?, ?, ?, ?)", rows)
        self._sequence, self._chain = sequence, chain
        if self._mark is not None:
            self._mark.write(Mark(self.journal_id, sequence))
        return sequence

    def probe(self) -> None:
        """Whether the disk takes writes, with room for a small batch: JournalUnwritable if not. Costs one fsync.

        After a refused batch it also removes what of it reached the disk.
        """
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('probe', ?)", ("0" * PROBE_BYTES,))

    def set_page_limit(self, max_page_count: int) -> None:
        """Most pages of 4 KiB that the file may have from now on."""
        self._max_page_count = max_page_count
        self._writer.execute(f"PRAGMA max_page_count={int(max_page_count)}")

    def write_snapshot(self, sequence: int, body: bytes) -> None:
        """Save the state (`pack_state`) after record `sequence`; records that no kept snapshot needs are removed."""
        if sequence <= self._snapshot_sequence:
            return
        with self._transaction() as connection:
            row = connection.execute("SELECT checksum FROM record WHERE sequence = ?", (sequence,)).fetchone()
            if row is None:
                raise JournalCorrupt(f"{self._path}: record {sequence} is missing")
            checksum = snapshot_checksum(self.journal_id, sequence, FORMAT_VERSION, row[0], body)
            connection.execute(
                "INSERT INTO snapshot VALUES (?, ?, ?, ?, ?)", (sequence, FORMAT_VERSION, row[0], body, checksum)
            )
            kept = connection.execute("SELECT sequence FROM snapshot ORDER BY sequence DESC").fetchall()
            oldest = self._oldest - 1
            if len(kept) >= KEPT_SNAPSHOTS:
                oldest = kept[KEPT_SNAPSHOTS - 1][0]
                connection.execute("DELETE FROM snapshot WHERE sequence < ?", (oldest,))
                connection.execute("DELETE FROM record WHERE sequence <= ?", (oldest,))
        self._snapshot_sequence = sequence
        self._oldest = oldest + 1

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, durable on leaving."""
        try:
            if self._failure:
                self._reconnect()
            self._writer.execute("BEGIN IMMEDIATE")
            yield self._writer
            self._writer.execute("COMMIT")
            self._failure = ""
        except sqlite3.Error as error:
            self._failure = f"{self._path} can't be written: {error}"
            self._roll_back()
            raise JournalUnwritable(self._failure) from error
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except sqlite3.Error as error:
            log.warning("journal %s: rolling back failed, the next write opens it anew: %s", self._path, error)

    def _reconnect(self) -> None:
        """After a failed write, whose end may still have reached the disk: what was refused must not come back."""
        self._writer.close()
        self._writer = self._connect()
        last = self._writer.execute("SELECT max(sequence) FROM record").fetchone()[0]
        if (last or 0) > self._sequence:
            log.warning(
                "journal %s: removing records %d to %d of a refused batch", self._path, self._sequence + 1, last
            )
            self._writer.execute("DELETE FROM record WHERE sequence > ?", (self._sequence,))
        elif (last or 0) < self._sequence:
            raise JournalCorrupt(f"{self._path} ends at record {last}, but {self._sequence} was acknowledged")

    # ------------------------------------------------------------ reading

    def recover(self) -> Recovered:
        """Everything, checked. JournalCorrupt names the first record or snapshot that is wrong.

        A damaged newest snapshot is replaced by the one before and the records after it, with a warning.
        """
        try:
            return self._recover()
        except sqlite3.Error as error:
            raise JournalCorrupt(f"{self._path} can't be read: {error}; restore a backup") from error

    def _recover(self) -> Recovered:
        state, start, chain = self._recover_snapshot()
        events = []
        expected = start + 1
        rows = self._writer.execute(  # beyond the end can lie what was refused: see _reconnect
            "SELECT sequence, format, workload, body, checksum FROM record WHERE sequence > ? AND sequence <= ?"
            " ORDER BY sequence",
            (start, self._sequence),
        )
        for sequence, version, workload, body, checksum in rows:
            if sequence != expected:
                raise JournalCorrupt(f"{self._path}: record {expected} is missing; restore a backup")
            chain = record_checksum(chain, sequence, version, workload, body)
            if chain != checksum:
                raise JournalCorrupt(f"{self._path}: record {sequence} is damaged (checksum); restore a backup")
            events.append(RecordedEvent(sequence, self._event(sequence, version, body)))
            expected += 1
        if expected != self._sequence + 1:
            raise JournalCorrupt(f"{self._path}: record {expected} is missing; restore a backup")
        return Recovered(state, start, tuple(events))

    def _recover_snapshot(self) -> tuple[object | None, int, bytes]:
        """(state, its sequence, the checksum to chain to) of the newest sound snapshot."""
        rows = self._writer.execute(
            "SELECT sequence, format, chain, body, checksum FROM snapshot ORDER BY sequence DESC"
        ).fetchall()
        for sequence, version, chain, body, checksum in rows:
            if snapshot_checksum(self.journal_id, sequence, version, chain, body) == checksum:
                return self._state(sequence, version, body), sequence, chain
            log.warning("journal %s: snapshot %d is damaged (checksum), using the one before", self._path, sequence)
        if rows and self._oldest != 1:
            raise JournalCorrupt(f"{self._path}: every snapshot is damaged (checksum); restore a backup")
        return None, 0, chain_start(self.journal_id)

    def _value(self, what: str, version: int, body: str) -> object:
        try:
            return value_of(version, body)
        except (SpecError, JournalError) as error:
            raise JournalCorrupt(f"{self._path}: {what} can't be read: {error}") from error

    def _state(self, sequence: int, version: int, body: bytes) -> object:
        try:
            text = unpack_state(body)
        except SpecError as error:
            raise JournalCorrupt(f"{self._path}: snapshot {sequence} {error.message}") from error
        return self._value(f"snapshot {sequence}", version, text)

    def _event(self, sequence: int, version: int, body: str) -> Event:
        return cast(Event, self._value(f"record {sequence}", version, body))

    def events(self, cursor: int, limit: int, workload: str | None = None) -> EventsPage:
        """At most `limit` acknowledged events after `cursor`, of one workload or of all."""
        end = self._sequence
        condition = "sequence > ? AND sequence <= ?" + ("" if workload is None else " AND workload = ?")
        values: list[int | str] = [cursor, end] if workload is None else [cursor, end, workload]
        query = f"SELECT sequence, format, body FROM record WHERE {condition} ORDER BY sequence LIMIT ?"
        try:
            with self._reading:
                rows = self._reader.execute(query, (*values, limit + 1)).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"{self._path} can't be read: {error}") from error
        found = tuple(RecordedEvent(s, self._event(s, version, body)) for s, version, body in rows[:limit])
        more = len(rows) > limit
        next_cursor = found[-1].sequence if more else max(cursor, end)
        return EventsPage(found, next_cursor, more, self._oldest)

    def backup(self, target: str | Path) -> int:
        """Copy the journal to `target` while it is written to; returns the last sequence in the copy.

        The copy appears whole or not at all. JournalError when it can't be made.
        """
        target = Path(target).absolute()
        partial = target.with_name(f"{target.name}.partial")
        try:
            partial.unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                with contextlib.closing(self._connect(read_only=True)) as source:
                    source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
                sequence = copy.execute("SELECT max(sequence) FROM record").fetchone()[0] or 0
            sync(partial)
            partial.rename(target)
            sync(target.parent)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"no backup at {target}: {error}") from error
        return int(sequence)


def ensure_journal(path: str | Path) -> str:
    """The id of the journal at `path`, which is made if there is none: what whoever starts the owners asks first."""
    journal = Journal.open(path, create=True)
    try:
        return journal.journal_id
    finally:
        journal.close()
