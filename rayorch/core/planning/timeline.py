"""When there will be room: which seats come free by when, by the forecast of what runs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter

from rayorch.core.forecast import Forecast, is_foretold
from rayorch.core.planning.claims import Shape
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.lengths import Found
from rayorch.core.planning.seats import find
from rayorch.core.room import Room
from rayorch.core.time_limits import longest_s
from rayorch.core.types import UNIT, Member, NodeId, State, Workload, WorkloadId

MAX_PROBES = 24
"""Trial placements for one head; beyond that its time counts as unknown."""


Release = tuple[float, tuple[Member, ...]]
"""When seats are expected to come free, and which."""


@dataclass(frozen=True, slots=True)
class Opening:
    """When a claim should find room, and on which nodes."""

    at_s: float
    nodes: tuple[NodeId, ...]


class Timeline:
    """What is expected of the attempts that run, made once a turn."""

    def __init__(self, draft: Draft) -> None:
        facts = draft.facts
        self.now_s = facts.now_s
        self.forecast = Forecast(facts.snapshot.history, facts.now_s, draft.memory.seen)
        self._learned = bool(facts.snapshot.history.classes)
        self._running: list[tuple[float, WorkloadId]] | None = None
        self._releases: list[Release] = []
        self._started = -1

    def short(self, draft: Draft, most_s: float) -> Found:
        """Those that wait in lines and are no longer than this (see `longest_s`)."""
        return draft.memory.docket.lengths.within(self.forecast, most_s)

    def longest_s(self, workload: Workload) -> float | None:
        """How long it may hold its seats when it starts now, in nine of ten cases; None: nothing is known.

        A wall limit bounds it with the grace that comes after it.
        """
        if not self._known(workload):
            return None
        found = self.forecast.remaining(workload)
        limit_s = longest_s(workload)
        if found is None or limit_s is None:
            return None if found is None else found[1]
        return found[1] if found[1] + workload.spec.grace_s < limit_s else limit_s

    def releases(self, draft: Draft) -> list[Release]:
        """All of them, the soonest first; what starts in this plan included."""
        if self._started != len(draft.starts):
            self._started = len(draft.starts)
            self._releases = self._of(draft)
        return self._releases

    def _known(self, workload: Workload) -> bool:
        """Whether the forecast may know anything; most workloads of most clusters are out of the question."""
        return self._learned or is_foretold(workload.spec)

    def _of(self, draft: Draft) -> list[Release]:
        held, stops = draft.facts.held, draft.stops
        if self._running is None:  # once a turn: most of what is looked at runs already
            ids = held if self._learned else draft.memory.foretold
            self._running = [(at_s, id) for id in ids if (at_s := self._ends_s(draft, id)) is not None]
        found = [(at_s, held[id].members) for at_s, id in self._running if id not in stops]
        for id, start in draft.starts.items():
            at_s = self._ends_s(draft, id)
            if at_s is not None:
                found.append((at_s, start.members))
        return sorted(found, key=itemgetter(0))

    def _ends_s(self, draft: Draft, id: WorkloadId) -> float | None:
        workload = draft.facts.workloads[id]
        if workload.state is State.STOPPING or not self._known(workload):
            return None
        left = self.forecast.remaining(workload)
        return None if left is None else self.now_s + left[0]


def opening(draft: Draft, shape: Shape, timeline: Timeline) -> Opening | None:
    """The earliest time at which the shape should fit, on nodes that nobody else holds; None when nothing is known.

    What runs is taken to end as it does in half of all cases: who is let in before must not be in the way if it does.
    """
    releases = timeline.releases(draft)
    if not releases:
        return None
    times = sorted({at_s for at_s, _ in releases})
    first = _lower_bound(draft, shape, releases, times)
    if first is None:
        return None
    probe = _Probe(draft, shape, releases)
    low, high, step = first - 1, first, 1
    while (nodes := probe.fits(times[high])) is None:
        if high == len(times) - 1 or probe.count >= MAX_PROBES:
            return None
        low, high, step = high, min(high + step, len(times) - 1), step * 2
    while high - low > 1:
        middle = (low + high) // 2
        if (better := probe.fits(times[middle])) is not None:
            nodes, high = better, middle
        else:
            low = middle
    return Opening(times[high], nodes)


class _Probe:
    """Trial placements in the room of later times."""

    def __init__(self, draft: Draft, shape: Shape, releases: list[Release]) -> None:
        self._draft = draft
        self._shape = shape
        self._releases = releases
        self._times = [at_s for at_s, _ in releases]
        self.count = 0

    def fits(self, at_s: float) -> tuple[NodeId, ...] | None:
        """The nodes that take the shape then."""
        self.count += 1
        room = freed(self._draft.soon.room, self._releases[: bisect_right(self._times, at_s)])
        return find(self._shape, replace(self._draft.search(room), view=None))


def freed(room: Room, releases: Iterable[Release]) -> Room:
    """A copy of the room in which these seats have come free."""
    later = room.copy()
    for _, members in releases:
        for member in members:
            later.give(member.node, member.bundle, member.devices)
    return later


def _lower_bound(draft: Draft, shape: Shape, releases: list[Release], times: list[float]) -> int | None:
    """The first of the times at which the whole GPUs could suffice, counted node by node; None: at none of them."""
    bundle, count = max(shape.bundles, key=lambda b: (b[0].gpu_units * b[1], b[1]))
    piece = bundle.gpu_units
    if piece < UNIT or piece % UNIT:
        return 0
    models, allowed = draft.facts.topology.models, shape.accelerators
    room = draft.soon.room
    units = {
        node: room.gpu_units(node)
        for node in draft.facts.topology.nodes
        if room.usable(node) and node not in draft.closed and (not allowed or models.get(node) in allowed)
    }
    pieces = sum(n // piece for n in units.values())
    if pieces >= count:
        return 0
    for at_s, members in releases:
        for member in members:
            before = units.get(member.node)
            if before is not None:
                units[member.node] = before + member.bundle.gpu_units
                pieces += units[member.node] // piece - before // piece
        if pieces >= count:
            return bisect_left(times, at_s)
    return None
