"""What running attempts give back, or could: surplus seats, or all that they hold; and who is owed the room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rayorch.core.lost_time import Rate, RateOf
from rayorch.core.planning.claims import staying
from rayorch.core.policy import SortKey
from rayorch.core.types import Allocation, Member, NodeId, Resources, State, StopCause, Workload, WorkloadId, charge_of
from rayorch.core.values import changed

OWED_S = 60.0
"""How long after its victim has been requeued, or should have shrunk, a beneficiary still goes before all others."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Seats that are being given back, by when at the latest (None: not known) and for whom.

    `ends`: all that the attempt holds, so that it ends with them.
    """

    workload: WorkloadId
    members: tuple[Member, ...]
    deadline_s: float | None
    beneficiary: WorkloadId | None
    ends: bool = False


@dataclass(slots=True)
class Removal:
    """Surplus numbers that a running attempt gives up in this plan."""

    numbers: set[int]
    release_by_s: float
    beneficiary: WorkloadId | None
    reason: str
    cost_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that frees room: a surplus seat of a running attempt, or (`stops`) all that it holds.

    `cost_gpu_s`: the work that is lost. `price`: that, as it counts by the victim's priority.
    """

    victim: Workload
    members: tuple[Member, ...]
    stops: bool
    cost_gpu_s: float
    price: float
    _frees: list[Resources] = field(default_factory=list, repr=False, compare=False)
    _by_node: list[tuple[tuple[NodeId, int], ...]] = field(default_factory=list, repr=False, compare=False)

    @property
    def frees(self) -> Resources:
        """What its queue no longer holds then; worked out once."""
        if not self._frees:
            self._frees.append(charge_of(self.members))
        return self._frees[0]

    @property
    def gpu_units_by_node(self) -> tuple[tuple[NodeId, int], ...]:
        """The GPU units that come free on each node where any do; worked out once."""
        if not self._by_node:
            self._by_node.append(self._units_by_node())
        return self._by_node[0]

    def _units_by_node(self) -> tuple[tuple[NodeId, int], ...]:
        first, units = self.members[0].bundle, self.members[0].bundle.gpu_units
        if len(self.members) == 1:
            return ((self.members[0].node, units),) if units else ()
        found: dict[NodeId, int] = {}
        for member in self.members:
            n = units if member.bundle is first else member.bundle.gpu_units
            if n:
                found[member.node] = found.get(member.node, 0) + n
        return tuple(found.items())

    @property
    def rank(self) -> SortKey:
        """Surplus seats before whole attempts, then the cheapest first."""
        return (self.stops, *self.key)

    @property
    def key(self) -> SortKey:
        """Cheapest first, then lower priority, then who started last, then the id."""
        number = 0 if self.stops else max((m.surplus for m in self.members), default=0)
        spec = self.victim.spec
        return (self.price, spec.priority, -(self.victim.started_s or 0.0), spec.id, -number)


@dataclass(frozen=True, slots=True)
class Offer:
    """What holds of an attempt's whole stop for as long as the workload and its seats are these very objects.

    `move`: the stop, at no cost. `rate`: what it costs. `least_s`: how long it runs at least by what it says itself.
    """

    workload: Workload
    allocation: Allocation
    move: Move
    rate: Rate
    started_s: float
    least_s: float

    @staticmethod
    def of(workload: Workload, allocation: Allocation, rate: RateOf) -> Offer | None:
        """None for an attempt that has other moves than its stop, or none at all."""
        spec, kept = workload.spec, staying(allocation)
        if workload.state is not State.RUNNING or not spec.preemptible or spec.resizable or not kept:
            return None
        move = Move(workload, kept, True, 0.0, 0.0)
        return Offer(
            workload, allocation, move, rate(workload, allocation), workload.started_s or 0.0, spec.min_runtime_s
        )

    def at(self, cost_gpu_s: float, price: float) -> Move:
        """The move at that cost."""
        return changed(self.move, cost_gpu_s=cost_gpu_s, price=price)


def leaving_of(workload: Workload, allocation: Allocation) -> Leaving | None:
    """What an attempt gives back already; None when it gives nothing."""
    if workload.state is State.STOPPING:
        order = workload.stop
        return Leaving(
            workload.id,
            allocation.members,
            order.deadline_s if order is not None else None,
            order.beneficiary if order is not None else None,
            ends=True,
        )
    stay = staying(allocation)
    if len(stay) == len(allocation.members):
        return None
    kept = {id(member) for member in stay}  # they are the allocation's own; to compare each with each is square
    members = tuple(m for m in allocation.members if id(m) not in kept)
    return Leaving(workload.id, members, workload.release_by_s, workload.release_for)


def owed(
    leaving: Iterable[Leaving], workloads: Mapping[WorkloadId, Workload], yielded: Iterable[WorkloadId], now_s: float
) -> frozenset[WorkloadId]:
    """Who is owed room: what was freed for a workload, or what it was moved to, is its own for a bounded time.

    Who has made room for others since is owed nothing more: it would take first what it has just given.
    """
    found: set[WorkloadId] = set()
    for gone in leaving:
        if gone.beneficiary is not None:
            order, taker = workloads[gone.workload].stop, workloads.get(gone.beneficiary)
            if order is None or taker is None or not _gave_seats(taker, order.ordered_s):
                found.add(gone.beneficiary)
    for id in yielded:
        workload = workloads[id]
        if workload.requeued_s is not None and now_s <= workload.requeued_s + OWED_S:
            to = workload.yielded_to
            taker = workloads.get(to) if to is not None else None
            if to is not None and (taker is None or not _made_way(taker, workload.requeued_s)):
                found.add(to)
            if to is not None and workload.last_cause is StopCause.MOVED and workload.state is State.PENDING:
                found.add(id)
    return frozenset(found)


def owed_by_shrinks(
    workloads: Mapping[WorkloadId, Workload], yielded: Iterable[WorkloadId], now_s: float
) -> frozenset[WorkloadId]:
    """Who is owed what shrinks that are over have freed, until it has had it, for a bounded time."""
    found: set[WorkloadId] = set()
    for id in yielded:
        giver = workloads[id]
        by_s, taker = giver.release_by_s, workloads.get(giver.release_for) if giver.release_for is not None else None
        if taker is not None and by_s is not None and now_s <= by_s + OWED_S and not _had_its_turn(taker, giver, by_s):
            found.add(taker.id)
    return frozenset(found)


def owes_until_s(workload: Workload) -> float | None:
    """Until when what it has given may be owed to somebody; None: it has given nothing.

    It is `OWED_S` from its end, and from when the seats of its last shrink must have come free at the latest.
    """
    ended_s = workload.requeued_s if workload.yielded_to is not None else None
    shrunk_s = workload.release_by_s if workload.release_for is not None else None
    since_s = max((s for s in (ended_s, shrunk_s) if s is not None), default=None)
    return None if since_s is None else since_s + OWED_S


def _made_way(taker: Workload, since_s: float) -> bool:
    """Whether it had the room that was free at that time, and has left or grown smaller since."""
    return (taker.requeued_s or 0.0) > since_s or _gave_seats(taker, since_s)


def _gave_seats(taker: Workload, since_s: float) -> bool:
    """Whether the current attempt has given seats to others at that time or later, and goes on with fewer."""
    if taker.release_for is None or taker.release_by_s is None:
        return False
    return taker.release_by_s >= since_s + taker.spec.grace_s  # a shrink's deadline is its time and this


def _had_its_turn(taker: Workload, giver: Workload, release_by_s: float) -> bool:
    """Whether it has started, ended or changed its seats after that shrink: it had what was freed for it, or gave it.

    Not at that very time: what it got then it may have got before.
    """
    times_s = (taker.started_s, taker.resized_s, taker.requeued_s)
    # A shrink's deadline is its time and the grace; a difference of the two would be off by a rounding.
    return any(at_s is not None and at_s + giver.spec.grace_s > release_by_s for at_s in times_s)
