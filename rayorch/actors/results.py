"""The actor that keeps what submitted functions returned: one file per workload, below one folder on the head node.

The bytes are never unpickled here. A driver hands its result in with its attempt; an attempt that was replaced
is refused, so that a result is always that of the attempt which counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from rayorch.actors.names import find, on_head, owner_options, queues_name
from rayorch.core.errors import SpecError
from rayorch.core.requests import ACCEPTED, AttemptRef, Reply
from rayorch.core.types import State, Workload, WorkloadId

log = logging.getLogger(__name__)

TOTAL_BYTES = 8 * 2**30
"""Beyond this the results that were written longest ago are removed."""
OWNER_TIMEOUT_S = 30.0
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\Z")


def results_name(instance: str) -> str:
    """The result store's actor name."""
    return f"results/{instance}"


class ResultFiles:
    """The files, without Ray."""

    def __init__(self, folder: Path, total_bytes: int = TOTAL_BYTES) -> None:
        self._folder = folder
        self._total_bytes = total_bytes
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, workload: WorkloadId) -> Path:
        if not _SAFE.match(workload):
            raise SpecError("workload", f"can't name a result: {workload!r}")
        return self._folder / f"{workload}.pkl"

    def put(self, workload: WorkloadId, data: bytes) -> None:
        """Replace what was there, whole or not at all, and make room."""
        path = self._path(workload)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(data)
        partial.rename(path)
        self._prune(path)

    def get(self, workload: WorkloadId) -> bytes | None:
        """What was put, None when there is nothing."""
        path = self._path(workload)
        return path.read_bytes() if path.is_file() else None

    def forget(self, workload: WorkloadId) -> None:
        """Remove what was put, if anything was."""
        if _SAFE.match(workload):  # no other can have put anything
            self._path(workload).unlink(missing_ok=True)

    def _prune(self, newest: Path) -> None:
        files = sorted((f.stat().st_mtime, f.name, f.stat().st_size, f) for f in self._folder.glob("*.pkl"))
        total = sum(size for _, _, size, _ in files)
        for _, _, size, file in files:
            if total <= self._total_bytes:
                return
            if file != newest:
                log.info("removing the result %s (%d bytes) for room", file, size)
                file.unlink()
                total -= size


@dataclass(frozen=True, slots=True)
class ResultSettings:
    """`folder`: where the files lie, on the head node."""

    folder: str
    instance: str = "main"
    total_bytes: int = TOTAL_BYTES


def accepts_result(known: Workload | None, attempt: AttemptRef) -> Reply:
    """Whether a result counts: its attempt is the current one, and its workload has not failed or been cancelled."""
    if (
        known is None
        or known.attempt != attempt.attempt
        or known.state not in (State.RUNNING, State.STOPPING, State.SUCCEEDED)
    ):
        return Reply(False, "stale", "", f"attempt {attempt.attempt} of {attempt.workload} is not the current one")
    return ACCEPTED


class ResultStoreShell:
    """Keeps and hands out results."""

    def __init__(self, settings: ResultSettings) -> None:
        self._instance = settings.instance
        self._files = ResultFiles(Path(settings.folder), settings.total_bytes)

    @ray.method
    async def put(self, attempt: AttemptRef, data: bytes) -> Reply:
        """Keep the result of the current attempt; "stale" for any other."""
        owner = find(queues_name(self._instance))
        known = await asyncio.wait_for(owner.workload.remote(attempt.workload), OWNER_TIMEOUT_S)
        reply = accepts_result(known, attempt)
        if reply.accepted:
            await asyncio.to_thread(self._files.put, attempt.workload, data)
        return reply

    @ray.method
    async def get(self, workload: WorkloadId) -> bytes | None:
        """The result, None when there is none."""
        return await asyncio.to_thread(self._files.get, workload)

    @ray.method
    async def forget(self, workloads: tuple[WorkloadId, ...]) -> None:
        """These workloads are forgotten: a later one of the same id must not seem to have their result."""
        for workload in workloads:
            await asyncio.to_thread(self._files.forget, workload)


ResultStore = ray.remote(ResultStoreShell)


def start_result_store(settings: ResultSettings) -> Any:
    """The instance's result store on the head node, created if it does not run."""
    fixed = owner_options(results_name(settings.instance))
    return ResultStore.options(**fixed, resources=on_head()).remote(settings)
