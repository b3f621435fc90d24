"""What a run writes down as it goes: the log, of which only the hash is kept, and the cluster over time."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import replace

import numpy as np

from rayorch.core.types import UNIT
from rayorch.sim.trace.fragments import Fragments
from rayorch.sim.trace.outcome import Series

LINES_AT_ONCE = 1_000
"""Lines go into the hash in heaps of so many."""


class Diary:
    """`events`: submissions, starts and ends so far. The amounts are those of this moment, in stored units of GPUs, so
    that no sum drifts. `fragments`: what is free and of no use, where that is measured."""

    def __init__(self, capacity: int, fragments: Fragments | None = None) -> None:
        self._hash = hashlib.sha256()
        self._lines: list[str] = []  # that are not in the hash yet
        self._rows = tuple(array("d") for _ in range(5))
        self._appends = tuple(column.append for column in self._rows)
        self._useless = array("d")
        self.fragments = fragments
        self.events = 0
        self.capacity = capacity
        self.allocated = 0
        self.waiting = 0
        self.waiting_jobs = 0

    def write(self, line: str) -> None:
        """One line of the log: when, what and to whom."""
        self._lines.append(line)
        if len(self._lines) >= LINES_AT_ONCE:
            self._take_in()

    def _take_in(self) -> None:
        self._hash.update("".join(self._lines).encode())
        self._lines.clear()

    def sample(self, now_s: float) -> None:
        """From this moment on the amounts are these."""
        times = self._rows[0]
        allocated, capacity, waiting = self.allocated / UNIT, self.capacity / UNIT, self.waiting / UNIT
        if times and times[-1] == now_s:
            for column in self._rows:
                column.pop()
            if self.fragments is not None:
                self._useless.pop()
        at, used, whole, jobs, asked = self._appends
        at(now_s), used(allocated), whole(capacity), jobs(self.waiting_jobs), asked(waiting)
        if self.fragments is not None:
            self._useless.append(self.fragments.gpus)

    @property
    def sha256(self) -> str:
        """Of the log so far."""
        self._take_in()
        return self._hash.hexdigest()

    def series(self) -> Series:
        """The cluster over time."""
        measured = self.fragments is not None
        fragmentation = np.frombuffer(self._useless, dtype=np.float64) if measured else None
        found = Series(*(np.frombuffer(column, dtype=np.float64) for column in self._rows))
        return found if fragmentation is None else replace(found, fragmentation=fragmentation)
