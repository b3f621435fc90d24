"""What a run writes down as it goes: the log, of which only the hash is kept, and the cluster over time."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import replace

import numpy as np

from rayorch.core.types import UNIT
from rayorch.sim.trace.fragments import Fragments
from rayorch.sim.trace.outcome import Series


class Diary:
    """`events`: submissions, starts and ends so far. The amounts are those of this moment, in stored units of GPUs, so
    that no sum drifts. `fragments`: what is free and of no use, where that is measured."""

    def __init__(self, capacity: int, fragments: Fragments | None = None) -> None:
        self._hash = hashlib.sha256()
        self._rows = tuple(array("d") for _ in range(5))
        self._useless = array("d")
        self.fragments = fragments
        self.events = 0
        self.capacity = capacity
        self.allocated = 0
        self.waiting = 0
        self.waiting_jobs = 0

    def write(self, line: str) -> None:
        """One line of the log: when, what and to whom."""
        self._hash.update(line.encode())

    def sample(self, now_s: float) -> None:
        """From this moment on the amounts are these."""
        times = self._rows[0]
        row = (now_s, self.allocated / UNIT, self.capacity / UNIT, float(self.waiting_jobs), self.waiting / UNIT)
        if times and times[-1] == now_s:
            for column in self._rows:
                column.pop()
            if self.fragments is not None:
                self._useless.pop()
        for column, value in zip(self._rows, row, strict=True):
            column.append(value)
        if self.fragments is not None:
            self._useless.append(self.fragments.gpus)

    @property
    def sha256(self) -> str:
        """Of the log so far."""
        return self._hash.hexdigest()

    def series(self) -> Series:
        """The cluster over time."""
        measured = self.fragments is not None
        fragmentation = np.frombuffer(self._useless, dtype=np.float64) if measured else None
        found = Series(*(np.frombuffer(column, dtype=np.float64) for column in self._rows))
        return found if fragmentation is None else replace(found, fragmentation=fragmentation)
