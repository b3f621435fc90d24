"""What is to happen when: one heap, ties in the order of kinds, then of who was put in first."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple

from rayorch.core.types import WorkloadId

INFINITY = float("inf")


class Moment(IntEnum):
    """What happens; of one moment the smaller goes first: who ends makes room for who comes."""

    END = 0  # an attempt's work is done
    STOPPED = 1  # an attempt that was told to stop has ended
    READY = 2  # a restarted attempt begins its work
    REPAIR = 3  # nodes are well again
    FAULT = 4  # nodes fail
    NOTICE = 5  # that nodes will be taken away is announced
    WAKE = 6  # nothing happens, but the plan may be another one now
    JOIN = 7  # a node that was ordered is there
    DEMAND = 8  # an application has another demand
    REPORT = 9  # a job whose pace is watched says how far it has come


NOBODY = WorkloadId("")
"""Of what befalls no workload."""
JUST_AFTER_S = 1e-3
"""Rules that hold up to a moment are over after it."""


class Scheduled(NamedTuple):
    """One entry. `stamp`: of the attempt when it was put in, or the number of a fault."""

    at_s: float
    kind: Moment
    number: int
    id: WorkloadId
    stamp: int


class Moments:
    """See the module."""

    def __init__(self) -> None:
        self._heap: list[Scheduled] = []
        self._count = 0

    @property
    def first_s(self) -> float:
        """When the next thing happens; infinite: nothing does."""
        return self._heap[0].at_s if self._heap else INFINITY

    def put(self, at_s: float, kind: Moment, id: WorkloadId, stamp: int) -> None:
        """This happens then."""
        self._count += 1
        heapq.heappush(self._heap, Scheduled(at_s, kind, self._count, id, stamp))

    def due(self, now_s: float) -> Scheduled | None:
        """The first that has come by now; None: none has."""
        if self._heap and self._heap[0].at_s <= now_s:
            return heapq.heappop(self._heap)
        return None
