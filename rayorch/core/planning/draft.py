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

from rayorch.core.decisions import Cordon, Reserve, Start, Stop, Wait, Watch
from rayorch.core.placement import PlacementView, ScoreBasis, score_basis
from rayorch.core.planning.channels import Taken, give, in_use
from rayorch.core.planning.charges import charge_quota, narrowed, refund_quota
from rayorch.core.planning.claims import Claim, Shape, staying
from rayorch.core.planning.facts import Facts as Facts
from rayorch.core.planning.index import NodeScore, View
from rayorch.core.planning.memory import Memory
from rayorch.core.planning.prices import Prices
from rayorch.core.planning.seats import Search
from rayorch.core.planning.takings import Leaving as Leaving
from rayorch.core.planning.takings import Move as Move
from rayorch.core.planning.takings import Removal as Removal
from rayorch.core.planning.together import parts_of
from rayorch.core.planning.waiting import Verdict, WaitBook
from rayorch.core.policy import OrderView, Profile, SortKey
from rayorch.core.quota import Quota
from rayorch.core.reservations import ReservationView
from rayorch.core.room import Room
from rayorch.core.sharing import device_need, is_share
from rayorch.core.slot import Slot
from rayorch.core.snapshot import Snapshot
from rayorch.core.topology import Domain
from rayorch.core.types import (
    UNIT,
    Channel,
    Member,
    NodeId,
    QueueId,
    Resources,
    State,
    Workload,
    WorkloadId,
    charge_of,
)
from rayorch.core.values import changed

if TYPE_CHECKING:
    from rayorch.core.planning.by_place import Lot
    from rayorch.core.planning.cells import CellBook
    from rayorch.core.planning.set_aside import Aside
    from rayorch.core.planning.timeline import Timeline
    from rayorch.core.planning.walk import Walk


def unscored(bundle: Resources, node: NodeId, slot: Slot) -> SortKey:
    """All nodes alike."""
    return ()


ClaimKind = tuple[Shape, QueueId, Resources, str]
"""Claims of one kind fail together: (shape, queue, charge, the owner where owners have limits)."""


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

    `was_first`: see `first`. `budget`: what-ifs left. `closed`: nodes held for a head
    of a queue; `until`: when it should start on them, where that is known; `heads`: the queues that have such a head.
    `protected`: whom no eviction may touch, and why; `fences`: those
    around a queue.
    `moved`: the seats that stopped workloads get elsewhere; `watches`: what is noted of those that share GPUs;
    `movable`: what could be moved so. `order_view`: see `view`.
    `unplaced`: shapes within their quota that found no room, for whom, and whether for others behind it too.
    `expected`: the seats of those that were promised some on nodes that are on their way, by `Claim.place`. `gated`:
    claims that wait for something else first. `failed`: (how it was tried, kind of claim), not tried again; `no_room`:
    (where, shape), not tried until room comes free. `verdicts`: what became of a kind of claim, for those behind it.
    `charged`: the log of queues whose quota was taken or given back. `prices`: of memory shares. `walk`: stage 4's.
    `timeline`: when what runs should end (made when needed). `asides`: what is set aside for active reservations,
    `reservations`: how each of them is..
    `kept`, `kept_seats`: what is charged for gangs for whom seats of their last attempt are held, and these seats;
    `unrepaired`: those that are to be among these gangs.
    `touched`: the log of nodes that changed in any of the books or were closed; `views`: the indexes of what is free.
    `moves`, `moves_of`, `lowest_priority`: what could be evicted, in all and of whom, and the lowest priority of these;
    `moved_on`: who of them has been stopped since. `ranked`: who runs in a queue, by the profile's order.
    `over`, `borrowed`: which queues hold more than their share of a resource, and which seats these are; `lot`: what
    could go by place for the claims of a queue.
    `plain_score`: see `_plain_score`.
    `idle_room`, `ideal_room`: nothing held; and nothing sick, foreign or out of service either (made when needed).
    `room_waits`, `hopeless`, `holders`: why shapes find no room, shapes that no set of the nodes could take, and who
    holds most of a resource in a queue. `blocking`: queues with strict order whose head did not start, and what those
    behind it are told. `model_room`: what was free of each GPU model (made when needed). `queue_gates`: what keeps all
    of a queue waiting (of it, that which uses GPUs). `cells`: the book of the queues' cells, where there are any;
    `keeping`: the nodes where what is being looked at may not start for their sake.
    """

    facts: Facts
    now: Books
    soon: Books
    was_first: Books | None
    budget: int
    prices: Prices
    memory: Memory
    stops: dict[WorkloadId, Stop] = field(default_factory=dict)
    removals: dict[WorkloadId, Removal] = field(default_factory=dict)
    starts: dict[WorkloadId, Start] = field(default_factory=dict)
    added: dict[WorkloadId, list[Member]] = field(default_factory=dict)
    reserves: list[Reserve] = field(default_factory=list)
    moved: list[Reserve] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    movable: tuple[Move, ...] | None = None
    order_view: OrderView | None = None
    cordons: list[Cordon] = field(default_factory=list)
    leaving: list[Leaving] = field(default_factory=list)
    closed: dict[NodeId, WorkloadId] = field(default_factory=dict)
    until: dict[NodeId, float] = field(default_factory=dict)
    protected: Mapping[WorkloadId, str] = field(default_factory=dict)
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
    ranked: dict[QueueId, list[tuple[SortKey, float, SortKey, Workload]]] = field(default_factory=dict)
    over: dict[str, tuple[int, dict[QueueId | None, set[QueueId]]]] = field(default_factory=dict)
    heads: set[QueueId] = field(default_factory=set)
    waiting: dict[QueueId, int] = field(default_factory=dict)
    borrowed: dict[tuple[QueueId, str], frozenset[tuple[WorkloadId, int]]] = field(default_factory=dict)
    lot: tuple[tuple[QueueId, tuple[str, ...], int], Lot | None] | None = None
    idle_room: Room | None = None
    channels: Taken | None = None
    ideal_room: Room | None = None
    holders: dict[tuple[str, QueueId | None], tuple[WorkloadId, ...]] = field(default_factory=dict)
    hopeless: dict[Shape, bool] = field(default_factory=dict)
    room_waits: dict[Shape, tuple[Wait, ...]] = field(default_factory=dict)
    waits: WaitBook = field(default_factory=WaitBook)
    estimates: dict[WorkloadId, float] = field(default_factory=dict)
    charged: list[QueueId] = field(default_factory=list)
    kept: dict[WorkloadId, list[tuple[Room, NodeId, Resources, tuple[int, ...]]]] = field(default_factory=dict)
    together: dict[tuple[Shape, tuple[tuple[str, int], ...]], bool] = field(default_factory=dict)
    kept_seats: dict[WorkloadId, tuple[Member, ...]] = field(default_factory=dict)
    unrepaired: list[Claim] = field(default_factory=list)
    walk: Walk | None = None
    timeline: Timeline | None = None
    asides: dict[str, Aside] = field(default_factory=dict)
    reservations: dict[str, ReservationView] = field(default_factory=dict)
    blocking: dict[QueueId, tuple[Wait, ...]] = field(default_factory=dict)
    queue_gates: dict[tuple[QueueId, bool], tuple[Wait, ...]] = field(default_factory=dict)
    model_room: dict[str, int] | None = None
    released: bool = False
    plain_score: tuple[NodeScore, PlacementView | None] | None = None
    shut: frozenset[NodeId] = frozenset()
    cells: CellBook | None = None
    keeping: frozenset[NodeId] = frozenset()

    @staticmethod
    def of(snapshot: Snapshot, profile: Profile, memory: Memory | None = None) -> Draft:
        """Nothing decided yet. `memory`: what was worked out for the last snapshot, which is brought up to date."""
        memory = memory if memory is not None else Memory()
        return Draft.on(memory.see(snapshot, profile), memory)

    @staticmethod
    def on(facts: Facts, memory: Memory) -> Draft:
        """The same, once the memory has seen the snapshot."""
        now = Books(memory.room.lend() if memory.lends else memory.room.copy(), memory.quota.copy())
        prices = Prices(facts.nodes.values())
        first = None if memory.lends else now.copy()
        draft = Draft(facts, now, now, first, facts.snapshot.what_if_budget, prices, memory)
        draft.leaving, draft.hopeless = list(facts.leaving), memory.hopeless
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

    @property
    def first(self) -> Books:
        """The books of `now` before anything was decided; of a memory that lends, made when somebody asks."""
        if self.was_first is None:
            self.was_first = Books(self.memory.room.before_loan(), self.memory.quota)
        return self.was_first

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

        if len(self.shut) != len(self.closed):
            self.shut = frozenset(self.closed)
        shut = self.shut | self.keeping if self.keeping else self.shut
        return Search(rooms, self.facts.topology, self.facts.score, fullest, shut)

    def open_search(self) -> Search:
        """Where something can start now: room in both books."""
        score, memo = self._plain_score()
        view = self._view("open", lambda: tuple(books.room for books in self.both), score, memo)
        return self._indexed(view, score)

    def _indexed(self, view: View, score: NodeScore) -> Search:
        """Where to look in the rooms of an index: open nodes, that score, the fullest domain that suffices."""
        if len(self.shut) != len(self.closed):
            self.shut = frozenset(self.closed)

        def fullest(domain: Domain) -> SortKey:
            return (view.units(domain),)

        if self.keeping:  # of which the index does not know
            return Search(view.rooms(), self.facts.topology, score, fullest, self.shut | self.keeping)
        return Search(view.rooms(), self.facts.topology, score, fullest, self.shut, view=view)

    def open_search_for(self, claim: Claim) -> Search:
        """The same for this claim, where scores depend on who asks."""
        search = self.open_search()
        if score_basis(self.facts.profile.score) is not ScoreBasis.CLAIM:
            return search
        alone = len(claim.asks) == 1
        return replace(search, score=self.facts.score_for(claim.id), view=search.view if alone else None)

    def _plain_score(self) -> tuple[NodeScore, PlacementView | None]:
        """The profile's score as far as it does not depend on who asks; what it is kept under for equal nodes."""
        if self.plain_score is None:
            basis = score_basis(self.facts.profile.score)
            score = self.facts.score if basis is not ScoreBasis.CLAIM else unscored
            self.plain_score = score, None if basis is ScoreBasis.NODE else self.facts.placement
        return self.plain_score

    def soon_search(self) -> Search:
        """Where something can start when all that is leaving has left."""
        score, memo = self._plain_score()
        view = self._view("soon", lambda: (self.soon.room,), score, memo)
        return self._indexed(view, score)

    def idle_search(self) -> Search:
        """Where something could start if all work ended: the nodes that are in use least first."""
        empty = self.idle()
        if self.keeping:
            return replace(self.search(empty), score=self._least_used_first)
        soon = self.soon_search().view
        view = self._view("idle", lambda: (empty,), self._least_used_first)
        assert soon is not None
        return replace(
            self.search(empty), score=view.score, view=view, domain_score=lambda domain: (-soon.units(domain),)
        )

    def _least_used_first(self, bundle: Resources, node: NodeId, slot: Slot) -> SortKey:
        return (self.in_use(node), *self.facts.score(bundle, node, slot))

    def in_use(self, node: NodeId) -> int:
        """GPU units of a node that will be in use when all that is leaving has left."""
        return self.idle().slot(node).gpu_units - self.soon.room.slot(node).gpu_units

    def _view(
        self, name: str, rooms: Callable[[], tuple[Room, ...]], score: NodeScore, memo: PlacementView | None = None
    ) -> View:
        view = self.views.get(name)
        if view is None:
            known = self.memory.views.get(name) if not self.released else None
            if known is not None:
                known.begin(rooms, self.closed, score, self.touched, memo)
            view = known or View(rooms, self.closed, self.facts.topology, score, self.touched, memo)
            self.views[name] = view
        return view

    def release(self) -> None:
        """The plan is made. What is asked of it from now on must not touch what the memory goes on with."""
        self.memory.end(self.touched, self.facts.leaving, self.views)
        self.views, self.hopeless, self.released = {}, dict(self.hopeless), True

    def staying(self, id: WorkloadId) -> tuple[Member, ...]:
        """What a live attempt keeps after this plan, without what the plan adds; empty when it is stopped."""
        allocation = self.facts.held.get(id)
        workload = self.facts.workloads.get(id)
        if allocation is None or workload is None or workload.state is not State.RUNNING or id in self.stops:
            return ()
        removal = self.removals.get(id)
        if removal is None:
            return staying(allocation)
        return tuple(m for m in staying(allocation) if m.surplus not in removal.numbers)

    @property
    def view(self) -> OrderView:
        """What order policies see in this turn."""
        if self.order_view is None:
            self.order_view = OrderView.of(self.facts.snapshot, self.facts.profile.ordering)
        return self.order_view

    def standing(self, id: WorkloadId) -> tuple[Member, ...]:
        """All that a workload will hold: what it keeps, what it is given in this plan and what it is promised."""
        start = self.starts.get(id)
        promised = (m for r in (*self.reserves, *self.moved) if r.workload == id and r.from_release for m in r.members)
        given = (*(start.members if start is not None else ()), *self.added.get(id, ()))
        return (*self.staying(id), *given, *promised)

    def charge(self, claim: Claim, nodes: tuple[NodeId, ...], *books: Books) -> tuple[Member, ...]:
        """Seat the claim on these nodes in all these books; the devices are the first book's.

        A further seat of one who runs is on these devices in the other books too, where they are free.
        """
        members: list[Member] = []
        paths, channels = self.facts.horizon.paths, self._channels(claim, nodes)
        for position, (ask, node) in enumerate(zip(claim.asks, nodes, strict=True)):
            wished = self.wished(claim, ask.bundle, node, books[0]) if len(nodes) == 1 else ()
            devices = [books[0].room.take(node, ask.bundle, wished)]
            for pair in books[1:]:
                if not (claim.grows and is_share(ask.bundle) and pair.room.retake(node, ask.bundle, devices[0])):
                    devices.append(pair.room.take(node, ask.bundle, wished))
            member = ask.on(node, devices[0], self.facts.horizon.models.get(node, ""))
            if len(paths[node]) > 2 or position in channels:  # it has more than the level of all and its own
                path = paths[node][-1][1] if len(paths[node]) > 2 else ""
                member = changed(member, path=path, channel=channels.get(position))
            if device_need(ask.bundle).share_mib:
                member = changed(member, bundle=books[0].room.slot(node).realised(ask.bundle, devices[0]))
            members.append(member)
        for part, ours in parts_of(claim, tuple(members)):
            for pair in books:
                charge_quota(part, charge_of(ours), pair.quota)
            self.charged.append(part.queue)
        self.touched.extend(nodes)
        return tuple(members)

    def wished(self, claim: Claim, bundle: Resources, node: NodeId, books: Books) -> tuple[int, ...]:
        """The device that the profile wishes a share of a GPU on, where devices can be chosen; none: any."""
        device = self.facts.profile.device
        slot = books.room.slot(node)
        if not slot.layout.exact or not 0 < bundle.gpu_units < UNIT:
            return ()
        position = device(bundle, self.facts.node_view(node, slot), self.facts.placement_for(claim.id))
        return () if position is None else (slot.indices[position],)

    def _channels(self, claim: Claim, nodes: tuple[NodeId, ...]) -> Mapping[int, Channel]:
        """The NVLink channels of the claim's seats on these nodes; nobody else gets them in this plan."""
        layout = claim.shape.layout
        if layout is None or not layout.has_channels:
            return {}
        if self.channels is None:
            self.channels = in_use(m for held in self.facts.snapshot.allocations for m in held.members)
        return give(layout, nodes, self.facts.horizon, self.channels)

    def keep(self, id: WorkloadId, node: NodeId, bundle: Resources) -> bool:
        """Hold room for one who can't take it yet, in each book where it is there; False: it is gone, or promised."""
        if not self.soon.room.fits(node, bundle):
            return False
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
        return narrowed(claim, self.facts.horizon.model_names, *(books.quota for books in self.both))

    def kind(self, claim: Claim) -> ClaimKind:
        """What decides what becomes of a claim in this turn: its shape, its queue, what it counts for, whose it is."""
        limited = self.now.quota.limits_users(claim.queue)
        owner = claim.owner if limited else ""
        return claim.shape, claim.queue, claim.resources, f"{owner} keeping cells" if self.keeping else owner

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
            room = self.memory.idle.copy() if not self.released else None
            self.idle_room = room or Room.of(self.facts.snapshot.nodes, (), self.facts.now_s)
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
        self.charged.append(workload.spec.queue)
        self.soon.give(workload, members, ends)
        self.touched.extend(m.node for m in members)
        self._forget_moves(workload.id)
        self.no_room.clear()
        above = {spec.id for spec in self.soon.quota.path(workload.spec.queue)}
        self.borrowed = {key: seats for key, seats in self.borrowed.items() if key[0] not in above}
        if members:
            self.leaving.append(Leaving(workload.id, members, deadline_s, beneficiary, ends))

    def _forget_moves(self, id: WorkloadId) -> None:
        """What a stopped attempt could have given is gone; after a shrink its moves are made anew."""
        self.moves_of.pop(id, None)
        if id in self.stops:
            self.moved_on.add(id)
        else:
            self.moves = None
