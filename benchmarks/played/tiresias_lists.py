"""The queues of Tiresias' own simulator as an order, with its quirks, to compare runs with what it printed.

It keeps three lists and looks at them only when a job comes or ends, or at the moment for which it had worked out a
demotion. Four things about them are not in the paper, nor in `rayorch.policies.order.las`:

1. When a job will be demoted is worked out as (limit - seconds) / GPUs, in mixed units: too late once it has run.
   Any job that comes or ends meanwhile is an occasion to notice it, one list down at a time.
2. A demoted job goes to the end of its new list, behind all that wait there, and loses its room to them at once.
3. After each look those that run are put before those that wait, in each list. So who waits never takes the room of
   who runs in the same list, but for the demoted; who starts runs behind those that ran before; who is stopped waits
   before those that waited already.
4. With Gittins indices each list is sorted by them anew at each look, the oldest of equals first, so that there who
   waits does take the room of who runs. The indices are of a table: that of the next larger sample less one.

An order of ours is a pure function; this one remembers lists from turn to turn, so each run needs one of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from rayorch.core.ordering import Basis, OrderView, SortKey
from rayorch.core.types import GPU, LIVE, UNIT, Workload, WorkloadId
from rayorch.policies.order.gittins import ARTIFACT_DELTA_GPU_S

PARTS = 2
"""The whole key says who may take whose room."""
LEAST_S = 1.0
"""All times of the artifact are whole seconds."""


class Lists:
    """An order policy. `limits`: attained service at which a job goes one list down, in GPU-seconds.

    `samples`: service times, rising, of which Gittins indices are worked out; empty: first come, first served.
    """

    basis = Basis.TURN
    takes_back = True

    def __init__(self, limits: Sequence[float], samples: Sequence[float] = ()) -> None:
        self._limits = tuple(limits)
        self._samples = tuple(samples)
        self._indices = _table(self._samples)
        self._lists: list[list[WorkloadId]] = [[] for _ in range(len(self._limits) + 1)]
        self._level: dict[WorkloadId, int] = {}
        self._ran_s: dict[WorkloadId, float] = {}
        self._gpus: dict[WorkloadId, float] = {}
        self._places: dict[WorkloadId, SortKey] = {}
        self._looked_s = 0.0
        self._running: set[WorkloadId] = set()
        self.ranks = (PARTS, self._changes_s)

    def __call__(self, workload: Workload, view: OrderView) -> SortKey:
        """(list, place in it); the smallest goes first."""
        view.once(self._advance)
        return self._places[workload.id]

    def _changes_s(self, workload: Workload, view: OrderView) -> float | None:
        """When the artifact would look again for its sake; until then its place stays."""
        return max(self._demoted_s(workload.id), view.now_s + LEAST_S)

    def _demoted_s(self, id: WorkloadId) -> float:
        """The first quirk."""
        at = self._level.get(id, 0)
        if at == len(self._limits):
            return math.inf
        return self._looked_s + math.ceil((self._limits[at] - self._ran_s.get(id, 0.0)) / self._gpus[id])

    # ------------------------------------------------------------ a look

    def _advance(self, view: OrderView) -> None:
        """The lists as of this turn; they stay as they are where the artifact would not look."""
        there = {workload.id: workload for workload in view.work}
        live = {id for id, workload in there.items() if workload.state in LIVE}
        changed = there.keys() != self._level.keys()
        if not changed and view.now_s < min((self._demoted_s(id) for id in live), default=math.inf):
            return
        if view.now_s > self._looked_s or not self._level:
            self._take_over(view.now_s, live)
        came = sorted((w.submitted_s, w.sequence, id) for id, w in there.items() if id not in self._level)
        for id in self._level.keys() - there.keys():
            self._lists[self._level.pop(id)].remove(id)
        for _, _, id in came:
            self._level[id], self._ran_s[id] = 0, 0.0
            self._gpus[id] = there[id].spec.least(GPU) / UNIT
            self._lists[0].append(id)
        self._demote(there)
        self._settle(there)

    def _take_over(self, now_s: float, live: set[WorkloadId]) -> None:
        """What has been done since the last look, and those that run put before those that wait."""
        for id in live & self._level.keys():
            self._ran_s[id] += now_s - self._looked_s
        for at, entries in enumerate(self._lists):
            self._lists[at] = [id for id in entries if id in live] + [id for id in entries if id not in live]
        self._running, self._looked_s = live, now_s

    def _demote(self, there: dict[WorkloadId, Workload]) -> None:
        """Who has attained the limit of its list goes to the end of the next one; the oldest first."""
        for id in sorted(self._running & there.keys(), key=lambda id: (there[id].submitted_s, there[id].sequence)):
            at = self._level[id]
            if at < len(self._limits) and self._ran_s[id] * self._gpus[id] >= self._limits[at]:
                self._lists[at].remove(id)
                self._lists[at + 1].append(id)
                self._level[id] = at + 1

    def _settle(self, there: dict[WorkloadId, Workload]) -> None:
        if self._samples:
            for entries in self._lists:
                entries.sort(key=lambda id: (-self._index(id), there[id].submitted_s))
        self._places = {id: (at, place) for at, entries in enumerate(self._lists) for place, id in enumerate(entries)}

    def _index(self, id: WorkloadId) -> float:
        attained = self._ran_s[id] * self._gpus[id]
        place = bisect_right(self._samples, attained)
        return self._indices[place] if place < len(self._samples) else 0.0


def _table(samples: Sequence[float], delta: float = ARTIFACT_DELTA_GPU_S) -> tuple[float, ...]:
    """The index at each sample less one, rounded as the artifact rounds it, so that it has the same ties.

    Where the quantum reaches beyond the largest sample, that one is taken for one that does not end within it.
    """
    count, found = len(samples), []
    for sample in samples:
        at = bisect_right(samples, sample - 1)
        until = bisect_right(samples, sample - 1 + delta) if sample + delta <= samples[-1] else count - 1
        part = round((until - at) / (count - at), 5)
        mean = round((sum(samples[at:until]) + delta * (count - until)) / (count - at), 5)
        found.append(round(part * 1e6 / mean, 4))
    return tuple(found)
