"""What stands in the journal's rows: bodies, checksums that form a chain, the mark, and the upgrade of old formats."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rayorch.core.codec import FORMAT_VERSION, Json, encode, encode_in_parts, from_data, parse
from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.events import Event, workload_of

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE record (
    sequence INTEGER PRIMARY KEY, format INTEGER NOT NULL, workload TEXT NOT NULL, body TEXT NOT NULL,
    checksum BLOB NOT NULL
);
CREATE INDEX record_workload ON record (workload, sequence);
CREATE TABLE snapshot (
    sequence INTEGER PRIMARY KEY, format INTEGER NOT NULL, chain BLOB NOT NULL, body BLOB NOT NULL,
    checksum BLOB NOT NULL
);
"""


class JournalError(ClusterError):
    """The journal can't be used as it is; the message says what to do."""


class JournalMissing(JournalError):
    """The journal that must be here is not here, or another one is."""


class JournalLocked(JournalError):
    """Another owner has this journal open."""


class JournalCorrupt(JournalError):
    """Something that was acknowledged is damaged or gone; the message names it."""


class JournalUnwritable(JournalError):
    """The disk refused a write: nothing of this batch was acknowledged. Later attempts may succeed."""


# ---------------------------------------------------------------- bodies

Migration = Callable[[Json], Json]

MIGRATIONS: Mapping[int, Migration] = {}
"""Version n -> how data of version n becomes data of version n + 1. Applied when a row is read, never in place."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event ready to be written; `workload` is empty for events that are not about one."""

    workload: str
    body: str


def entry_of(event: Event) -> Entry:
    """The event as text. SpecError when a part of it has no place in the format."""
    return Entry(str(workload_of(event) or ""), encode(event))


def value_of(version: int, body: str, migrations: Mapping[int, Migration] = MIGRATIONS) -> object:
    """The value that a body of some format version holds.

    Raises SpecError for a body that is no value, JournalError for a version that this release can't read.
    """
    if version > FORMAT_VERSION:
        raise JournalError(
            f"written in format {version}, this release reads up to {FORMAT_VERSION}: install the newer release again"
        )
    data = parse(body)
    for step in range(version, FORMAT_VERSION):
        if step not in migrations:
            raise JournalError(f"there is no way from format {step} to {step + 1}: upgrade through an older release")
        data = migrations[step](data)
    return from_data(data)


def pack_state(state: object) -> bytes:
    """A snapshot's body: text made small (about a tenth), so that writing it does not hold up the writer."""
    return zlib.compress(encode_in_parts(state).encode(), level=1)


def unpack_state(body: bytes) -> str:
    """The text in a snapshot's body. SpecError when it is not packed text."""
    try:
        return zlib.decompress(body).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise SpecError("", f"is not a packed state: {error}") from error


# ---------------------------------------------------------------- checksums


def chain_start(journal_id: str) -> bytes:
    """What the first record's checksum is chained to."""
    return hashlib.blake2s(journal_id.encode(), digest_size=16).digest()


def record_checksum(previous: bytes, sequence: int, version: int, workload: str, body: str) -> bytes:
    """The checksum of one record, which covers all before it."""
    head = f"{sequence}\0{version}\0{workload}\0".encode()
    return hashlib.blake2s(previous + head + body.encode(), digest_size=16).digest()


def snapshot_checksum(journal_id: str, sequence: int, version: int, chain: bytes, body: bytes) -> bytes:
    """The checksum of one snapshot."""
    head = f"{journal_id}\0{sequence}\0{version}\0".encode()
    return hashlib.blake2s(head + chain + body, digest_size=16).digest()


# ---------------------------------------------------------------- the mark


@dataclass(frozen=True, slots=True)
class Mark:
    """The last sequence that was acknowledged, kept beside the journal."""

    journal_id: str
    sequence: int

    def to_bytes(self) -> bytes:
        """One line of fixed length, so that it is overwritten in place and never needs room on the disk."""
        text = f"{self.journal_id} {self.sequence:020d}"
        return f"{text} {zlib.crc32(text.encode()):08x}\n".encode()

    @staticmethod
    def of_bytes(data: bytes) -> Mark | None:
        """None for a line that was torn while it was written."""
        text, _, checksum = data.decode(errors="replace").rstrip("\n").rpartition(" ")
        if f"{zlib.crc32(text.encode()):08x}" != checksum:
            return None
        journal_id, _, sequence = text.partition(" ")
        return Mark(journal_id, int(sequence))
