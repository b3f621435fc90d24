"""Finished runs as files, so that an experiment that was interrupted goes on where it stopped.

A run's name ends in a digest of everything that decides its result: the trace's jobs, nodes, queues, profile, models,
seed, limit and rayorch's own code. A changed input is another name, so that nothing is ever mixed in.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import rayorch
from rayorch.core.errors import SpecError
from rayorch.sim.report.summary import SCHEMA, Summary, summary_from
from rayorch.sim.trace.model import Trace

FIELD = "--out"
CODE = ("core", "policies", "sim")
"""The packages that decide what comes out of a run."""


@functools.cache
def code_digest() -> str:
    """Of the source of the engine, the policies and the simulator as they are installed."""
    root = Path(rayorch.__file__).parent
    digest = hashlib.sha256(rayorch.__version__.encode())
    for package in CODE:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def trace_digest(trace: Trace) -> str:
    """Of its jobs, and of the rows that could not be used, which a report tells. O(jobs)."""
    digest = hashlib.sha256(repr((trace.speed, trace.services, trace.refused)).encode())
    asks: dict[int, str] = {}
    for job in trace.jobs:
        ask = asks.get(id(job.ask))
        if ask is None:
            ask = asks[id(job.ask)] = repr(job.ask)
        line = (
            job.id,
            job.submit_s,
            job.duration_s,
            job.queue,
            job.user,
            job.priority,
            job.name,
            job.steps,
            job.status,
            job.batch,
        )
        digest.update(f"{line!r} {ask}\n".encode())
    return digest.hexdigest()


def key_of(parts: Iterable[object]) -> str:
    """The digest of what decides a run's result; every part is written by its `repr`."""
    digest = hashlib.sha256(SCHEMA.encode())
    for part in (code_digest(), *parts):
        digest.update(repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of finished runs."""

    folder: Path

    @staticmethod
    def at(folder: Path) -> Store:
        """Make it if need be; SpecError where nothing can be written there."""
        try:
            (folder / "runs").mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder / "runs"):
                pass
        except OSError as error:
            raise SpecError(FIELD, f"can't write into {folder}: {error.strerror}") from error
        return Store(folder)

    def path(self, name: str, key: str) -> Path:
        """Where a run is kept. `name`: for people; `key`: what identifies it."""
        return self.folder / "runs" / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:80]}-{key[:16]}.json"

    def read(self, name: str, key: str) -> tuple[Summary | None, str]:
        """The finished run, or None; and a word where its file is there and can't be used."""
        path = self.path(name, key)
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None, ""
        except (OSError, ValueError, RecursionError) as error:
            return None, f"{path} can't be read and its run is done again: {error}"
        if not isinstance(value, dict) or value.get("key") != key:
            return None, f"{path} is not the run that its name says, which is done again"
        try:
            return summary_from(value.get("run")), ""
        except SpecError as error:
            return None, f"{path} can't be used and its run is done again: {error}"

    def write(self, name: str, key: str, run: Summary) -> None:
        """Keep a finished run: the whole file or nothing of it."""
        write_whole(self.path(name, key), json.dumps({"key": key, "run": run.to_dict()}))

    def write_per_job(self, name: str, key: str, text: bytes) -> None:
        """Keep what became of each job of it, gzipped CSV."""
        write_whole(self._per_job(name, key), text)

    def has_per_job(self, name: str, key: str) -> bool:
        """Whether that is there."""
        return self._per_job(name, key).exists()

    def _per_job(self, name: str, key: str) -> Path:
        return self.path(name, key).with_suffix(".jobs.csv.gz")


def write_whole(path: Path, text: str | bytes, field: str = FIELD) -> None:
    """The file with this content; whoever reads, or crashes, finds the old one or the new one. SpecError: neither."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode() if isinstance(text, str) else text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise SpecError(field, f"can't write {path}: {error.strerror}") from error
