"""Until when nothing is to be looked at in those who run, and for whom that time is over."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from rayorch.core.types import WorkloadId


class QuietTimes:
    """A time for each of many workloads, in order. A question costs those whose time is over, not all."""

    __slots__ = ("_heap", "_until")

    def __init__(self) -> None:
        self._until: dict[WorkloadId, float] = {}
        self._heap: list[tuple[float, WorkloadId]] = []  # the same in order, with entries that hold no more

    def keep(self, id: WorkloadId, until_s: float) -> None:
        """Its time, in place of any other."""
        self._until[id] = until_s
        heappush(self._heap, (until_s, id))

    def drop(self, id: WorkloadId) -> None:
        """It has none any more."""
        self._until.pop(id, None)

    def over(self, now_s: float) -> set[WorkloadId]:
        """Those whose time is over. They stay such until they are given another."""
        heap, found = self._heap, set[WorkloadId]()
        over: list[tuple[float, WorkloadId]] = []
        while heap and heap[0][0] <= now_s:
            entry = heappop(heap)
            if self._until.get(entry[1]) == entry[0] and entry[1] not in found:
                found.add(entry[1])
                over.append(entry)
        for entry in over:
            heappush(heap, entry)
        if len(heap) > 2 * len(self._until) + 64:
            self._heap = [(until_s, id) for id, until_s in self._until.items()]
            heapify(self._heap)
        return found
