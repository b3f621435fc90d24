"""Who of those that wait is short enough, without a look at the others.

Backfill asks in every turn who would have left before a head needs its nodes, and in a long queue hardly anybody would.
What decides is the forecast, and that says the same of all work of the same classes, or what each one's owner expects.
So those who wait are kept by classes, and within these by what is expected. How long those are whose length depends on
more is asked one by one (`Timeline.longest_s`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from rayorch.core.forecast import Forecast, Seen, expected, outlasted_s
from rayorch.core.service import run_s
from rayorch.core.types import Kind, Workload, WorkloadId

SLACK = 1e-9
"""Sums of times are rounded: who is longer by no more than this part is found too."""

Timed = list[tuple[float, WorkloadId]]
"""Workloads in order of a length."""

Found = dict[WorkloadId, float | None]
"""How long each of some workloads is; None: it has to be asked, and may be longer than was asked for."""


class _Group:
    """Work of the same classes that has come as far. `told`: by the length that its owner expects; `blank`: those
    of whom nobody expects any. `limited`: its time is, so that each of it has to be asked."""

    __slots__ = ("blank", "done_s", "least_s", "limited", "names", "told")

    def __init__(self, names: tuple[str, ...], done_s: float, least_s: float, limited: bool) -> None:
        self.names = names
        self.done_s = done_s
        self.least_s = least_s
        self.limited = limited
        self.told: Timed = []
        self.blank: dict[WorkloadId, None] = {}

    def within(self, forecast: Forecast, most_s: float, found: Found) -> None:
        """Add those that are no longer than this."""
        known = forecast.by_name(self.names, self.done_s, self.least_s)
        told = self.told
        if known is not None:
            if known[1] <= most_s:
                length_s = None if self.limited else known[1]
                found.update(dict.fromkeys(self.blank, length_s))
                found.update((id, length_s) for _, id in told)
            return
        if told and told[0][0] <= most_s:
            short = told[: bisect_right(told, most_s, key=_length)]
            found.update((id, None if self.limited else length_s) for length_s, id in short)
        if self.blank:
            coarse = forecast.coarsely(self.names, self.done_s, self.least_s)
            if coarse is not None and coarse[1] <= most_s:
                found.update(dict.fromkeys(self.blank, None if self.limited else coarse[1]))


class Lengths:
    """See the module."""

    __slots__ = ("_bounded", "_groups", "_odd", "_where", "seen")

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self._groups: dict[tuple[tuple[str, ...], float, float, bool], _Group] = {}
        self._bounded: Timed = []  # by what the limit on their time leaves them
        self._odd: dict[WorkloadId, None] = {}
        self._where: dict[WorkloadId, tuple[_Group | None, float | None, float | None]] = {}

    def put(self, workload: Workload) -> None:
        """It waits; it did not before."""
        spec, id = workload.spec, workload.spec.id
        if spec.kind is Kind.SERVE:
            return  # of which nothing is known
        limited = spec.wall_limit_s is not None
        if (spec.total_steps is not None and workload.step > 0) or (limited and workload.started_s is not None):
            self._odd[id] = None
            self._where[id] = (None, None, None)
            return
        bound_s: float | None = None
        if spec.wall_limit_s is not None:
            bound_s = max(0.0, spec.wall_limit_s - workload.ran_s) + spec.grace_s
            insort(self._bounded, (bound_s, id))
        done_s = run_s(workload, 0.0)  # of one that waits it is the same at any time
        key = (self.seen.names(spec), done_s, outlasted_s(workload, done_s), limited)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(*key)
        told_s: float | None = None
        if (told := expected(spec.expected_s, group.done_s, group.least_s)) is not None:
            told_s = told[1]
            insort(group.told, (told_s, id))
        else:
            group.blank[id] = None
        self._where[id] = (group, told_s, bound_s)

    def drop(self, id: WorkloadId) -> None:
        """It waits no longer."""
        group, told_s, bound_s = self._where.pop(id, (None, None, None))
        self._odd.pop(id, None)
        if bound_s is not None:
            del self._bounded[bisect_left(self._bounded, (bound_s, id))]
        if group is None:
            return
        if told_s is not None:
            del group.told[bisect_left(group.told, (told_s, id))]
        else:
            del group.blank[id]
        if not group.told and not group.blank:
            del self._groups[group.names, group.done_s, group.least_s, group.limited]

    def within(self, forecast: Forecast, most_s: float) -> Found:
        """All that wait and would hold their seats for no longer than this if they started now (`longest_s`)."""
        most_s += SLACK * (abs(most_s) + abs(forecast.now_s))
        found: Found = dict.fromkeys(self._odd)
        for group in self._groups.values():
            group.within(forecast, most_s, found)
        found.update((id, None) for _, id in self._bounded[: bisect_right(self._bounded, most_s, key=_length)])
        return found


def _length(entry: tuple[float, WorkloadId]) -> float:
    return entry[0]
