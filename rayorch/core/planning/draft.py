"""The plan in the making: the facts it is made on, private books to charge, and what has been decided so far.

There are two pairs of books. `now` is what is free at this moment: what starts must fit there. `soon` is what will be
free when all stops and shrinks that are under way or in this plan have taken effect, and the nodes that are on their
way have come, less what has been promised to their beneficiaries. What starts must fit in both, so that nobody takes
what is promised to another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rayorch.core.budgets import BudgetUse
from rayorch.core.capacity import GroupName
from rayorch.core.decisions import Cordon, Reserve, Start, Stop, Wait
from rayorch.core.planning.arrivals import Standing, standings
from rayorch.core.planning.channels import Taken, give, in_use
from rayorch.core.planning.charges import charge_quota, narrowed, refund_quota
from rayorch.core.planning.claims import Claim, Shape, staying
from rayorch.core.planning.index import NodeScore, View
from rayorch.core.planning.prices import Prices
from rayorch.core.planning.seats import Search
from rayorch.core.planning.takings import Leaving as Leaving
from rayorch.core.planning.takings import Move as Move
from rayorch.core.planning.takings import Removal as Removal
from rayorch.core.planning.takings import leaving_of, owed
from rayorch.core.planning.together import parts_of
from rayorch.core.planning.waiting import Verdict, WaitBook
from rayorch.core.policy import OrderView, Profile, SortKey
from rayorch.core.quota import Quota, QuotaTree
from rayorch.core.reservations import ReservationView
from rayorch.core.room import Room, bound
from rayorch.core.sharing import device_need
from rayorch.core.snapshot import Snapshot
from rayorch.core.topology import Domain, Topology
from rayorch.core.types import (
    Allocation,
    Channel,
    Member,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    State,
    Workload,
    WorkloadId,
    charge_of,
)

if TYPE_CHECKING:
    from rayorch.core.planning.set_aside import Aside
    from rayorch.core.planning.timeline import Timeline
    from rayorch.core.planning.walk import Walk

LIVE = (State.RUNNING, State.STOPPING)

ClaimKind = tuple[Shape, QueueId, Resources, str]
"""Claims of one kind fail together: (shape, queue, charge, the owner where owners have limits)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The snapshot with its indexes.

    `held`: the allocation of each live attempt. `leaving`: see Leaving. `holdings`: live attempts and what each holds.
    `owed`: for whom room is being freed, or was a moment ago; `repairs`: those of them
    that lost a part of their seats. `standings`: the node groups, where we run them.
    `arriving`: the group of each node that is on its way; `nodes` and `horizon` know these, `topology` doesn't.
    `orders`: the groups with an open order for some gang: for which, and on how many of its nodes each counts.
    `strictness`: what each queue says of its order (see `QueueSpec.strict`). `live_in`: the live attempts that hold
    seats, by queue. `budgets`: what is spent, by queue.
    """

    snapshot: Snapshot
    profile: Profile
    nodes: Mapping[NodeId, NodeSpec]
    workloads: Mapping[WorkloadId, Workload]
    held: Mapping[WorkloadId, Allocation]
    leaving: tuple[Leaving, ...]
    topology: Topology
    holdings: tuple[tuple[Workload, Resources], ...]
    owed: frozenset[WorkloadId]
    repairs: frozenset[WorkloadId]
    standings: Mapping[GroupName, Standing]
    arriving: Mapping[NodeId, GroupName]
    horizon: Topology
    orders: Mapping[str, Mapping[WorkloadId, int]]
    strictness: Mapping[QueueId, bool | None]
    live_in: Mapping[QueueId, list[Workload]]
    budgets: Mapping[QueueId, BudgetUse]

    @staticmethod
    def of(snapshot: Snapshot, profile: Profile) -> Facts:
        """Index a snapshot."""
        workloads = {w.id: w for w in snapshot.workloads}
        allocations = bound(snapshot.nodes, snapshot.allocations, snapshot.now_s)
        held: dict[WorkloadId, Allocation] = {}
        leaving: list[Leaving] = []
        for allocation in allocations:
            workload = workloads.get(allocation.workload)
            if workload is None or workload.state not in LIVE or workload.attempt != allocation.attempt:
                leaving.append(Leaving(allocation.workload, allocation.members, None, None))
                continue
            held[workload.id] = allocation
            gone = leaving_of(workload, allocation)
            if gone is not None:
                leaving.append(gone)
        live_in: dict[QueueId, list[Workload]] = {}
        for id in sorted(held):
            live_in.setdefault(workloads[id].spec.queue, []).append(workloads[id])
        topology = Topology.of(snapshot.nodes)
        asked = {w.spec.topology.required for w in snapshot.workloads if w.state is State.PENDING}
        levels = sorted(level for level in asked if level is not None)
        groups = standings(snapshot.capacity, snapshot.nodes, topology, levels, snapshot.now_s)
        coming = [node for name in groups for node in groups[name].arriving]
        broken = repairs(snapshot, profile.repair_hold_s)
        return Facts(
            snapshot=snapshot,
            profile=profile,
            nodes={node.id: node for node in (*snapshot.nodes, *coming)},
            workloads=workloads,
            held=held,
            leaving=tuple(leaving),
            topology=topology,
            owed=owed(snapshot, leaving) | broken,
            repairs=broken,
            strictness={spec.id: spec.strict for spec in snapshot.queues},
            live_in=live_in,
            budgets={use.queue: use for use in snapshot.budgets},
            holdings=tuple((workloads[id], held[id].charge) for id in sorted(held)),
            standings=groups,
            arriving={node.id: GroupName(node.group) for node in coming},
            horizon=Topology.of((*snapshot.nodes, *coming)) if coming else topology,
            orders={
                name: dict.fromkeys(order.beneficiaries, 0) | dict(order.shares)
                for name, standing in groups.items()
                if (order := standing.state.order) is not None and order.beneficiaries
            },
        )

    def strict(self, queue: QueueId) -> bool:
        """Whether the first of the queue that can't start keeps those behind it waiting."""
        own = self.strictness.get(queue)
        return self.profile.ordering.strict_fifo if own is None else own

    @property
    def now_s(self) -> float:
        """The snapshot's time."""
        return self.snapshot.now_s

    def ordered_for(self, id: WorkloadId) -> bool:
        """Whether an open order is for this gang."""
        return any(id in gangs for gangs in self.orders.values())

    def score(self, bundle: Resources, node: NodeId, free: Resources) -> SortKey:
        """The profile's score for a node."""
        return self.profile.score(bundle, self.nodes[node], free)

    def live(self) -> list[tuple[Workload, Allocation]]:
        """Live attempts that hold seats, by id."""
        return [(self.workloads[id], self.held[id]) for id in sorted(self.held)]


def repairs(snapshot: Snapshot, hold_s: float) -> frozenset[WorkloadId]:
    """Gangs that wait because they lost a part, for as long as they go before new work."""
    return frozenset(
        w.id
        for w in snapshot.workloads
        if w.former and w.state is State.PENDING and w.requeued_s is not None and snapshot.now_s - w.requeued_s < hold_s
    )


@dataclass(slots=True)
class Books:
    """Room and quota that belong together."""

    room: Room
    quota: Quota

    def copy(self) -> Books:
        """Books of their own with the same amounts."""
        return Books(self.room.copy(), self.quota.copy())

    def give(self, workload: Workload, members: Collection[Member], ends: bool) -> None:
        """Members of the workload leave; `ends`: its attempt ends with them."""
        for member in members:
            self.room.give(member.node, member.bundle, member.devices)
        refund_quota(workload, members, ends, self.quota)


@dataclass(slots=True)
class Draft:
    """What has been decided so far, and what has been found out on the way.

    `first`: the books of `now` before anything was decided. `budget`: what-ifs left. `closed`: nodes held for a head
    of a queue; `until`: when it should start on them, where that is known; `heads`: the queues that have such a head.
    `protected`: whom no eviction may touch, and why; `settling`: whose surplus seats alone may go. `fences`: those
    around a queue.
    `moved`: the seats that stopped workloads get elsewhere. `order_view`: see `view`.
    `unplaced`: shapes within their quota that found no room, for whom, and whether for others behind it too.
    `expected`: the seats of those that were promised some on nodes that are on their way, by `Claim.place`. `gated`:
    claims that wait for something else first. `failed`: (how it was tried, kind of claim), not tried again; `no_room`:
    (where, shape), not tried until room comes free. `verdicts`: what became of a kind of claim, for those behind it.
    `charges`: how often quota was taken or given back so far. `prices`: of memory shares. `walk`: stage 4's.
    `timeline`: when what runs should end (made when needed). `asides`: what is set aside for active reservations,
    `reservations`: how each of them is..
    `kept`, `kept_seats`: what is charged for gangs for whom seats of their last attempt are held, and these seats;
    `unrepaired`: those that are to be among these gangs.
    `touched`: the log of nodes that changed in any of the books or were closed; `views`: the indexes of what is free.
    `moves`, `moves_of`, `lowest_priority`: what could be evicted, in all and of whom, and the lowest priority of these;
    `moved_on`: who of them has been stopped since.
    `over`, `borrowed`: which queues hold more than their share of a resource, and which seats these are.
    `idle_room`, `ideal_room`: nothing held; and nothing sick, foreign or out of service either (made when needed).
    `room_waits`, `hopeless`, `holders`: why shapes find no room, shapes that no set of the nodes could take, and who
    holds most of a resource in a queue. `blocking`: queues with strict order whose head did not start, and what those
    behind it are told. `gpu_models`, `model_room`: those that there are, and what was free of each (made when
    needed). `queue_gates`: what keeps all of a queue
    waiting (of it, that which uses GPUs).
    """

    facts: Facts
    now: Books
    soon: Books
    first: Books
    budget: int
    prices: Prices
    stops: dict[WorkloadId, Stop] = field(default_factory=dict)
    removals: dict[WorkloadId, Removal] = field(default_factory=dict)
    starts: dict[WorkloadId, Start] = field(default_factory=dict)
    added: dict[WorkloadId, list[Member]] = field(default_factory=dict)
    reserves: list[Reserve] = field(default_factory=list)
    moved: list[Reserve] = field(default_factory=list)
    order_view: OrderView | None = None
    cordons: list[Cordon] = field(default_factory=list)
    leaving: list[Leaving] = field(default_factory=list)
    closed: dict[NodeId, WorkloadId] = field(default_factory=dict)
    until: dict[NodeId, float] = field(default_factory=dict)
    protected: dict[WorkloadId, str] = field(default_factory=dict)
    settling: dict[WorkloadId, str] = field(default_factory=dict)
    fences: dict[QueueId, tuple[QueueId, ...]] = field(default_factory=dict)
    unplaced: list[tuple[Shape, WorkloadId, bool]] = field(default_factory=list)
    expected: dict[tuple[WorkloadId, int], tuple[Member, ...]] = field(default_factory=dict)
    gated: list[Claim] = field(default_factory=list)
    failed: set[tuple[str, ClaimKind]] = field(default_factory=set)
    no_room: set[tuple[str, Shape]] = field(default_factory=set)
    verdicts: dict[ClaimKind, Verdict] = field(default_factory=dict)
    touched: list[NodeId] = field(default_factory=list)
    views: dict[str, View] = field(default_factory=dict)
    moves: tuple[Move, ...] | None = None
    moved_on: set[WorkloadId] = field(default_factory=set)
    moves_of: dict[WorkloadId, tuple[Move, ...]] = field(default_factory=dict)
    lowest_priority: int | None = None
    over: dict[str, tuple[int, list[QueueSpec]]] = field(default_factory=dict)
    heads: set[QueueId] = field(default_factory=set)
    waiting: dict[QueueId, int] = field(default_factory=dict)
    borrowed: dict[tuple[QueueId, str], frozenset[tuple[WorkloadId, int]]] = field(default_factory=dict)
    idle_room: Room | None = None
    channels: Taken | None = None
    ideal_room: Room | None = None
    holders: dict[tuple[str, QueueId | None], tuple[WorkloadId, ...]] = field(default_factory=dict)
    hopeless: dict[Shape, bool] = field(default_factory=dict)
    room_waits: dict[Shape, tuple[Wait, ...]] = field(default_factory=dict)
    waits: WaitBook = field(default_factory=WaitBook)
    estimates: dict[WorkloadId, float] = field(default_factory=dict)
    charges: int = 0
    kept: dict[WorkloadId, list[tuple[Room, NodeId, Resources, tuple[int, ...]]]] = field(default_factory=dict)
    kept_seats: dict[WorkloadId, tuple[Member, ...]] = field(default_factory=dict)
    unrepaired: list[Claim] = field(default_factory=list)
    walk: Walk | None = None
    timeline: Timeline | None = None
    asides: dict[str, Aside] = field(default_factory=dict)
    reservations: dict[str, ReservationView] = field(default_factory=dict)
    blocking: dict[QueueId, tuple[Wait, ...]] = field(default_factory=dict)
    gpu_models: tuple[str, ...] | None = None
    queue_gates: dict[tuple[QueueId, bool], tuple[Wait, ...]] = field(default_factory=dict)
    model_room: dict[str, int] | None = None

    @staticmethod
    def of(snapshot: Snapshot, profile: Profile) -> Draft:
        """Nothing decided yet."""
        facts = Facts.of(snapshot, profile)
        quota = Quota(QuotaTree(snapshot.queues), snapshot.countables)
        for workload, amount in facts.holdings:
            quota.charge(workload.spec.queue, amount, workload.spec.owner, 1)
        now = Books(Room.of(snapshot.nodes, snapshot.allocations, snapshot.now_s), quota)
        prices = Prices(facts.nodes.values())
        draft = Draft(facts, now, now, now.copy(), snapshot.what_if_budget, prices, leaving=list(facts.leaving))
        for gone in facts.leaving:
            draft.part()
            if gone.workload in facts.held:
                draft.soon.give(facts.workloads[gone.workload], gone.members, gone.ends)
            else:
                for member in gone.members:
                    draft.soon.room.give(member.node, member.bundle, member.devices)
        if facts.arriving:
            draft.part()
            draft.soon.room = draft.soon.room.joined_by(facts.nodes[id] for id in facts.arriving)
        return draft

    def part(self) -> None:
        """From here on `soon` differs from `now`; until something leaves or is promised they are the same books."""
        if self.soon is self.now:
            self.soon = self.now.copy()

    @property
    def both(self) -> tuple[Books, ...]:
        """`now` and `soon`, once if they are the same."""
        return (self.now,) if self.soon is self.now else (self.now, self.soon)

    def search(self, *rooms: Room) -> Search:
        """Where to look in these rooms: open nodes, the profile's score, the fullest domain that suffices."""

        def fullest(domain: Domain) -> SortKey:
            return (sum(rooms[0].gpu_units(node) for node in domain.nodes),)

        return Search(rooms, self.facts.topology, self.facts.score, fullest, frozenset(self.closed))

    def open_search(self) -> Search:
        """Where something can start now: room in both books."""
        view = self._view("open", lambda: tuple(books.room for books in self.both), self.facts.score)
        search = self.search(*view.rooms())
        return replace(search, view=view, domain_score=lambda domain: (view.units(domain),))

    def soon_search(self) -> Search:
        """Where something can start when all that is leaving has left."""
        view = self._view("soon", lambda: (self.soon.room,), self.facts.score)
        return replace(self.search(self.soon.room), view=view, domain_score=lambda domain: (view.units(domain),))

    def idle_search(self) -> Search:
        """Where something could start if all work ended: the nodes that are in use least first."""
        empty, soon = self.idle(), self.soon_search().view

        def least_used_first(bundle: Resources, node: NodeId, free: Resources) -> SortKey:
            return (self.in_use(node), *self.facts.score(bundle, node, free))

        view = self._view("idle", lambda: (empty,), least_used_first)
        assert soon is not None
        return replace(
            self.search(empty), score=least_used_first, view=view, domain_score=lambda domain: (-soon.units(domain),)
        )

    def in_use(self, node: NodeId) -> int:
        """GPU units of a node that will be in use when all that is leaving has left."""
        return self.idle().slot(node).gpu_units - self.soon.room.slot(node).gpu_units

    def _view(self, name: str, rooms: Callable[[], tuple[Room, ...]], score: NodeScore) -> View:
        if name not in self.views:
            self.views[name] = View(rooms, self.closed, self.facts.topology, score, self.touched)
        return self.views[name]

    def staying(self, id: WorkloadId) -> tuple[Member, ...]:
        """What a live attempt keeps after this plan, without what the plan adds; empty when it is stopped."""
        allocation = self.facts.held.get(id)
        workload = self.facts.workloads.get(id)
        if allocation is None or workload is None or workload.state is not State.RUNNING or id in self.stops:
            return ()
        removal = self.removals.get(id)
        gone = removal.numbers if removal is not None else set()
        return tuple(m for m in staying(allocation) if m.surplus not in gone)

    @property
    def view(self) -> OrderView:
        """What order policies see in this turn."""
        if self.order_view is None:
            facts, snapshot = self.facts, self.facts.snapshot
            queues = {spec.id: spec for spec in snapshot.queues}
            knobs = facts.profile.ordering
            past, work = snapshot.history, (snapshot.workloads, snapshot.allocations)
            self.order_view = OrderView(facts.now_s, knobs, queues, snapshot.nodes, past, *work)
        return self.order_view

    def standing(self, id: WorkloadId) -> tuple[Member, ...]:
        """All that a workload will hold: what it keeps, what it is given in this plan and what it is promised."""
        start = self.starts.get(id)
        promised = (m for r in (*self.reserves, *self.moved) if r.workload == id and r.from_release for m in r.members)
        given = (*(start.members if start is not None else ()), *self.added.get(id, ()))
        return (*self.staying(id), *given, *promised)

    def charge(self, claim: Claim, nodes: tuple[NodeId, ...], *books: Books) -> tuple[Member, ...]:
        """Seat the claim on these nodes in all these books; the devices are the first book's."""
        members: list[Member] = []
        paths, channels = self.facts.horizon.paths, self._channels(claim, nodes)
        for position, (ask, node) in enumerate(zip(claim.asks, nodes, strict=True)):
            devices = [pair.room.take(node, ask.bundle) for pair in books]
            member = ask.on(node, devices[0], self.facts.horizon.models.get(node, ""))
            if len(paths[node]) > 2 or position in channels:  # it has more than the level of all and its own
                path = paths[node][-1][1] if len(paths[node]) > 2 else ""
                member = replace(member, path=path, channel=channels.get(position))
            if device_need(ask.bundle).share_mib:
                member = replace(member, bundle=books[0].room.slot(node).realised(ask.bundle, devices[0]))
            members.append(member)
        for part, ours in parts_of(claim, tuple(members)):
            for pair in books:
                charge_quota(part, charge_of(ours), pair.quota)
        self.charges += 1
        self.touched.extend(nodes)
        return tuple(members)

    def _channels(self, claim: Claim, nodes: tuple[NodeId, ...]) -> Mapping[int, Channel]:
        """The NVLink channels of the claim's seats on these nodes; nobody else gets them in this plan."""
        layout = claim.shape.layout
        if layout is None or not layout.has_channels:
            return {}
        if self.channels is None:
            self.channels = in_use(m for held in self.facts.snapshot.allocations for m in held.members)
        return give(layout, nodes, self.facts.horizon, self.channels)

    def keep(self, id: WorkloadId, node: NodeId, bundle: Resources) -> bool:
        """Hold room for one who can't take it yet, in each book where it is there; False: it is gone."""
        taken = [(books.room, books.room.take(node, bundle)) for books in self.both if books.room.fits(node, bundle)]
        self.touched.append(node)
        self.kept.setdefault(id, []).extend((room, node, bundle, devices) for room, devices in taken)
        return bool(taken)

    def let_go(self, id: WorkloadId) -> None:
        """Hold nothing for it any more."""
        for room, node, bundle, devices in self.kept.pop(id, ()):
            room.give(node, bundle, devices)
            self.touched.append(node)

    def narrowed(self, claim: Claim) -> Claim:
        """The claim on those GPU models that the limits of its queue leave it."""
        if self.gpu_models is None:
            self.gpu_models = tuple(sorted(set(self.facts.horizon.models.values())))
        return narrowed(claim, self.gpu_models, *(books.quota for books in self.both))

    def kind(self, claim: Claim) -> ClaimKind:
        """What decides what becomes of a claim in this turn: its shape, its queue, what it counts for, whose it is."""
        limited = self.now.quota.limits_users(claim.queue)
        return claim.shape, claim.queue, claim.resources, claim.owner if limited else ""

    def close(self, claim: Claim, nodes: tuple[NodeId, ...], at_s: float | None = None) -> None:
        """Hold nodes for the head of a queue; `at_s`: it should start on them then, None: not known."""
        self.close_for(claim.id, nodes, at_s)

    def close_for(self, holder: WorkloadId, nodes: tuple[NodeId, ...], at_s: float | None) -> None:
        """Hold nodes for whoever it is."""
        self.closed.update((node, holder) for node in nodes)
        if at_s is not None:
            self.until.update((node, at_s) for node in nodes)
        self.touched.extend(nodes)

    def idle(self) -> Room:
        """The room if no gang held anything; foreign use and nodes that take nothing new as they are."""
        if self.idle_room is None:
            self.idle_room = Room.of(self.facts.snapshot.nodes, (), self.facts.now_s)
            for aside in self.asides.values():
                for seat in aside.seats:
                    self.idle_room.take(seat.node, seat.amount)
        return self.idle_room

    def stop(self, stop: Stop) -> None:
        """Order a stop; its seats come free soon, once."""
        workload = self.facts.workloads[stop.workload]
        kept = self.staying(stop.workload)
        ends = workload.state is State.RUNNING and stop.workload not in self.stops
        self.stops[stop.workload] = stop
        self._leave(workload, kept, stop.order.deadline_s, stop.order.beneficiary, ends)

    def remove(self, workload: Workload, numbers: set[int], removal: Removal) -> None:
        """Take surplus seats of a running attempt (further ones, if some are taken already)."""
        kept = self.staying(workload.id)
        known = self.removals.setdefault(workload.id, removal)
        known.numbers |= numbers
        leaving = tuple(m for m in kept if m.surplus in numbers)
        self._leave(workload, leaving, removal.release_by_s, removal.beneficiary, ends=False)

    def _leave(
        self,
        workload: Workload,
        members: tuple[Member, ...],
        deadline_s: float,
        beneficiary: WorkloadId | None,
        ends: bool,
    ) -> None:
        self.part()
        self.charges += 1
        self.soon.give(workload, members, ends)
        self.touched.extend(m.node for m in members)
        self._forget_moves(workload.id)
        self.no_room.clear()
        self.borrowed.clear()
        if members:
            self.leaving.append(Leaving(workload.id, members, deadline_s, beneficiary, ends))

    def _forget_moves(self, id: WorkloadId) -> None:
        """What a stopped attempt could have given is gone; after a shrink its moves are made anew."""
        self.moves_of.pop(id, None)
        if id in self.stops:
            self.moved_on.add(id)
        else:
            self.moves = None
