"""The files beside a journal: the lock that keeps a second owner out, the mark, and backups put back."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import time
from pathlib import Path

from rayorch.actors.journal_format import JournalError, JournalLocked, Mark

log = logging.getLogger(__name__)

LOCK_POLL_S = 0.05
MARK_BYTES = 256
"""More than a mark has."""


def mark_path(path: Path) -> Path:
    """Where the mark of the journal at `path` lies."""
    return path.with_name(f"{path.name}.mark")


def take_lock(path: Path, wait_s: float) -> int:
    """The lock's descriptor; the kernel lets go when the process ends, however it ends.

    JournalLocked when another has it for longer than `wait_s`.
    """
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
                os.close(lock)
                raise JournalLocked(f"{path} is open in another owner (process {owner or 'unknown'})") from None
            time.sleep(LOCK_POLL_S)
        else:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            return lock


class MarkFile:
    """The mark of one journal, held open."""

    def __init__(self, journal: Path) -> None:
        self.path = mark_path(journal)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)

    def read(self) -> Mark | None:
        """None when there is none yet, or one that was torn while it was written (logged)."""
        data = os.pread(self._descriptor, MARK_BYTES, 0)
        mark = Mark.of_bytes(data) if data else None
        if data and mark is None:
            log.warning("the mark %s is torn: whether the journal's end is missing can't be told", self.path)
        return mark

    def write(self, mark: Mark) -> None:
        """Not synced: it has to outlive the process; after a power cut an older mark is merely weaker."""
        try:
            os.pwrite(self._descriptor, mark.to_bytes(), 0)
        except OSError as error:
            log.error("the mark %s can't be written, a lost end would not be noticed: %s", self.path, error)

    def close(self) -> None:
        """Sync and let go."""
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)


def restore_backup(backup: str | Path, path: str | Path) -> None:
    """Put a backup in the place of the journal at `path`, which nobody may have open.

    What is there, its log and its mark included, is kept beside it as `<name>.before-restore`: records written after
    the backup are given up knowingly. JournalLocked, JournalError.
    """
    backup, path = Path(backup).absolute(), Path(path).absolute()
    if not backup.is_file():
        raise JournalError(f"no backup at {backup}")
    lock = take_lock(path, 0.0)
    try:
        partial = path.with_name(f"{path.name}.partial")
        shutil.copyfile(backup, partial)
        sync(partial)
        # The log of another history would be replayed into the restored file, so it must not stay.
        for suffix in ("-wal", "-shm", ".mark", ""):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(f"{path.name}{suffix}").rename(path.with_name(f"{path.name}{suffix}.before-restore"))
        partial.rename(path)
        sync(path.parent)
    except OSError as error:
        raise JournalError(f"{backup} can't be restored to {path}: {error}") from error
    finally:
        os.close(lock)


def sync(path: Path) -> None:
    """Force a file's or a folder's contents to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
