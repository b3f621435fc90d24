"""The actor that keeps what attempts print: one file per attempt, below one folder on the head node.

Runners push to it (`LogPump`), the gateway reads from it. Offsets count bytes since the attempt's first one. An
append names its offset, so that repeating it changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from rayorch.actors.names import logs_name, owner_options
from rayorch.core.errors import SpecError
from rayorch.core.types import WorkloadId
from rayorch.core.views import LogChunk, log_name

log = logging.getLogger(__name__)

MAX_CALLS = 10_000
"""Calls at once: each log that somebody follows is one open call."""
READ_LIMIT_BYTES = 2**20
"""The most that one answer carries, whatever was asked for."""
FOLLOW_LIMIT_S = 60.0
PRUNE_PERIOD_S = 60.0
"""Looking at all files for room takes long when there are many."""
KEEP_YOUNG_S = 3600.0
"""Logs written within this time are not removed for room."""


# ---------------------------------------------------------------- files


@dataclass(frozen=True, slots=True)
class LogLimits:
    """`attempt_bytes`: of one attempt about this much is kept, the newest. `total_bytes`: of all attempts; beyond
    it the logs that have not been written to for longest are removed."""

    attempt_bytes: int = 64 * 2**20
    total_bytes: int = 4 * 2**30


class LogFiles:
    """The files of all attempts. The newest part of a log is `<attempt>.log`; when it has grown to half the limit
    it becomes `<attempt>.log.<offset of its first byte>` and replaces the one before."""

    def __init__(self, folder: Path, limits: LogLimits | None = None) -> None:
        self._folder = folder.resolve()
        self._limits = limits or LogLimits()
        self._sizes: dict[Path, int] = {}
        self._pruned_s = float("-inf")
        self._folder.mkdir(parents=True, exist_ok=True)

    def path(self, workload: WorkloadId, attempt: int) -> Path:
        """Where an attempt's newest output lies. SpecError for a name that leads out of the folder."""
        path = (self._folder / log_name(workload, attempt)).resolve()
        if not path.is_relative_to(self._folder):
            raise SpecError("workload", f"can't name a log: {workload!r}")
        return path

    def size(self, workload: WorkloadId, attempt: int) -> int:
        """The offset after the last byte; 0 when nothing was written."""
        path = self.path(workload, attempt)
        if path not in self._sizes:
            if not path.parent.is_dir():
                return 0  # nothing to remember of one that never wrote
            self._sizes[path] = _base(path) + _length(path)
        return self._sizes[path]

    def append(self, workload: WorkloadId, attempt: int, offset: int, data: bytes) -> int:
        """Add what is not there yet and return the new size.

        Nothing is written when `offset` lies beyond the size: the writer then goes on from what was returned.
        """
        size = self.size(workload, attempt)
        fresh = data[size - offset :] if offset <= size else b""
        if not fresh:
            return size
        path = self.path(workload, attempt)
        if size == 0:
            if time.monotonic() - self._pruned_s > PRUNE_PERIOD_S:
                self._pruned_s = time.monotonic()
                self.prune(time.time())
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(fresh)
        self._sizes[path] = size + len(fresh)
        if _length(path) > self._limits.attempt_bytes // 2:
            self._rotate(path)
        return self._sizes[path]

    def _rotate(self, path: Path) -> None:
        base = _base(path)
        for old in _older(path):
            old.unlink()
        path.rename(path.with_name(f"{path.name}.{base}"))
        # The base of the next part is found from this name and length, so the empty file must exist.
        path.touch()

    def read(self, workload: WorkloadId, attempt: int, offset: int, limit: int) -> tuple[int, bytes]:
        """At most `limit` bytes from `offset` on, and the offset of the first of them.

        A negative offset counts from the end. What was dropped for room is skipped.
        """
        path = self.path(workload, attempt)
        size = self.size(workload, attempt)
        if offset < 0:
            offset = max(0, size + offset)
        parts = [(int(old.suffix[1:]), old) for old in _older(path)] + [(_base(path), path)]
        start = max(offset, parts[0][0])
        out = b""
        for base, part in parts:
            at = start + len(out)
            if len(out) < limit and base <= at < base + _length(part):
                with part.open("rb") as file:
                    file.seek(at - base)
                    out += file.read(limit - len(out))
        return start, out

    def finish(self, workload: WorkloadId, attempt: int) -> None:
        """Note on disk that nothing will follow."""
        path = self.path(workload, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".ended").touch()

    def finished(self, workload: WorkloadId, attempt: int) -> bool:
        """Whether nothing will follow."""
        return self.path(workload, attempt).with_suffix(".ended").exists()

    def forget(self, workload: WorkloadId) -> None:
        """Remove all that was kept of a workload."""
        folder = self.path(workload, 0).parent
        if not folder.is_dir():
            return  # an entry of an array that never ran
        for path in [path for path in self._sizes if path.parent == folder]:
            del self._sizes[path]
        for file in sorted(folder.glob("*")):
            file.unlink()
        if folder != self._folder:
            folder.rmdir()

    def prune(self, now_s: float) -> None:
        """Remove the logs written to longest ago until the total is within its limit."""
        files = [(file.stat(), file) for file in sorted(self._folder.rglob("*.log*")) if file.is_file()]
        total = sum(stat.st_size for stat, _ in files)
        for stat, file in sorted(files, key=lambda item: (item[0].st_mtime, str(item[1]))):
            if total <= self._limits.total_bytes or now_s - stat.st_mtime < KEEP_YOUNG_S:
                return
            log.info("removing the log %s (%d bytes) for room", file, stat.st_size)
            file.unlink()
            self._sizes.pop(file, None)
            total -= stat.st_size
            if not any(file.parent.glob(f"{file.name.partition('.')[0]}.log*")):
                file.with_name(f"{file.name.partition('.')[0]}.ended").unlink(missing_ok=True)
            if not any(file.parent.iterdir()):
                file.parent.rmdir()


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _older(path: Path) -> list[Path]:
    return sorted(old for old in path.parent.glob(f"{path.name}.*") if old.suffix[1:].isdigit())


def _base(path: Path) -> int:
    """The offset of the first byte of the newest part."""
    return max((int(old.suffix[1:]) + _length(old) for old in _older(path)), default=0)


def whole_text(data: bytes, more_follows: bool) -> tuple[str, int]:
    """`data` as text and how many of its bytes that text stands for: a character cut by the end is left for later."""
    used = len(data)
    if more_follows:
        for back in range(1, min(4, used) + 1):
            byte = data[used - back]
            if byte & 0xC0 != 0x80:  # the first byte of a character
                length = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
                used -= back if length > back else 0
                break
    return data[:used].decode("utf-8", errors="replace"), used


# ---------------------------------------------------------------- the actor


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`folder`: where the files lie, on the head node."""

    instance: str
    folder: str
    limits: LogLimits = LogLimits()


class LogStoreShell:
    """Keeps and serves the output of all attempts."""

    def __init__(self, settings: LogSettings) -> None:
        self._files = LogFiles(Path(settings.folder), settings.limits)
        self._grown: dict[tuple[WorkloadId, int], asyncio.Event] = {}

    @ray.method
    async def append(self, workload: WorkloadId, attempt: int, offset: int, data: bytes) -> int:
        """Add output; returns the size afterwards, which is where the writer goes on (see `LogFiles.append`)."""
        size = self._files.append(workload, attempt, offset, data)
        self._wake(workload, attempt)
        return size

    @ray.method
    async def finish(self, workload: WorkloadId, attempt: int) -> None:
        """Nothing will follow: whoever follows the log may leave."""
        self._files.finish(workload, attempt)
        self._wake(workload, attempt)

    @ray.method
    async def read(self, workload: WorkloadId, attempt: int, offset: int, limit: int = READ_LIMIT_BYTES) -> LogChunk:
        """A piece of the log, at once; a negative offset counts from the end."""
        return self._chunk(workload, attempt, offset, limit)

    def _chunk(self, workload: WorkloadId, attempt: int, offset: int, limit: int) -> LogChunk:
        start, data = self._files.read(workload, attempt, offset, max(4, min(limit, READ_LIMIT_BYTES)))
        ended = self._files.finished(workload, attempt)
        at_end = start + len(data) >= self._files.size(workload, attempt)
        text, used = whole_text(data, more_follows=not (ended and at_end))
        return LogChunk(text=text, next_offset=start + used, ended=ended and at_end)

    @ray.method
    async def follow(self, workload: WorkloadId, attempt: int, offset: int, wait_s: float) -> LogChunk:
        """As `read`, but waits up to `wait_s` for something that lies beyond `offset`."""
        deadline = time.monotonic() + min(wait_s, FOLLOW_LIMIT_S)
        while True:
            chunk = self._chunk(workload, attempt, offset, READ_LIMIT_BYTES)
            left = deadline - time.monotonic()
            if chunk.text or chunk.ended or left <= 0:
                return chunk
            grown = self._grown.setdefault((workload, attempt), asyncio.Event())
            try:
                await asyncio.wait_for(grown.wait(), left)
            except TimeoutError:
                return chunk

    @ray.method
    async def ping(self) -> None:
        """A sign of life."""

    @ray.method
    async def forget(self, workloads: tuple[WorkloadId, ...]) -> None:
        """These workloads are forgotten: a later one of the same id begins with an empty log."""
        for workload in workloads:
            try:
                self._files.forget(workload)
            except (OSError, SpecError) as error:
                log.warning("the output of %s was not removed: %s", workload, error)

    def _wake(self, workload: WorkloadId, attempt: int) -> None:
        grown = self._grown.pop((workload, attempt), None)
        if grown is not None:
            grown.set()


LogStore = ray.remote(LogStoreShell)


def start_log_store(settings: LogSettings, **options: Any) -> Any:
    """Start the log store, or find it running; `options` say where (Ray's actor options)."""
    fixed = owner_options(logs_name(settings.instance))
    return LogStore.options(**fixed, max_concurrency=MAX_CALLS, enable_task_events=False, **options).remote(settings)


# ---------------------------------------------------------------- the writer's side

BATCH_BYTES = 64 * 1024
BATCH_WAIT_S = 0.2
SEND_BYTES = 2**20
"""The most that one call carries. Each call takes a while on a busy cluster: what has piled up, and at the end of an
attempt has only seconds left, must need few of them."""
BUFFER_BYTES = 4 * 2**20
RETRY_FIRST_S = 0.2
RETRY_MOST_S = 5.0


class LogPump:
    """Carries output to the store without ever making its source wait.

    What the store does not take in time is dropped, oldest first, and a line in the log says how much.
    `send(offset, data)` returns the store's size, or raises: then it is tried again, first after RETRY_FIRST_S.
    """

    def __init__(self, send: Callable[[int, bytes], Awaitable[int]], buffer_bytes: int = BUFFER_BYTES) -> None:
        self._send = send
        self._limit = buffer_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._offset = 0
        self._more = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._run())

    def write(self, data: bytes) -> None:
        """Take output; returns at once."""
        for i in range(0, len(data), BATCH_BYTES):
            self._waiting.append(data[i : i + BATCH_BYTES])
        self._waiting_bytes += len(data)
        while self._waiting_bytes > self._limit:
            gone = len(self._waiting.popleft())
            self._waiting_bytes -= gone
            self._dropped += gone
        self._more.set()

    async def close(self, timeout_s: float) -> None:
        """Send what is left, for at most `timeout_s`, and stop."""
        self._closing = True
        self._more.set()
        try:
            await asyncio.wait_for(self._task, timeout_s)
        except TimeoutError:
            log.warning("%d bytes of output were not stored within %.1f s", self._waiting_bytes, timeout_s)

    async def _run(self) -> None:
        while True:
            await self._more.wait()
            if not self._closing and self._waiting_bytes < BATCH_BYTES:
                await asyncio.sleep(BATCH_WAIT_S)
            self._more.clear()
            while self._waiting or self._dropped:
                await self._deliver(self._take())
            if self._closing:
                return

    def _take(self) -> bytes:
        batch = b""
        if self._dropped:
            batch = f"\n[rayorch: {self._dropped} bytes of output dropped here]\n".encode()
            self._dropped = 0
        parts, size = [batch], len(batch)
        while self._waiting and size + len(self._waiting[0]) <= SEND_BYTES + 100:
            parts.append(self._waiting.popleft())
            size += len(parts[-1])
        self._waiting_bytes -= size - len(batch)
        return b"".join(parts)

    async def _deliver(self, batch: bytes) -> None:
        """Bring one batch to the store, however long that takes; only what waits behind it may be dropped."""
        pause_s = RETRY_FIRST_S
        while True:
            try:
                size = await self._send(self._offset, batch)
            except Exception as error:  # noqa: BLE001 - whatever ails the store, the job must not notice
                log.info("the log store did not take %d bytes, again in %.1f s: %s", len(batch), pause_s, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MOST_S)
                continue
            if size >= self._offset + len(batch):
                self._offset = size
                return
            # The store has lost what it had: go on from where it is.
            batch = batch[max(0, size - self._offset) :]
            self._offset = size
