"""What the planner remembers from turn to turn, so that a turn costs what has changed and not what there is.

A plan is the same with it and without it: what is kept is worked out from the last snapshot alone, and is brought up to
date by comparing the objects of the new one with those of the last. An object that is the same one has not changed,
since all of them are frozen; equal ones that are not the same are looked at anew, which costs time and nothing else.

What a plan holds on to (it is explained after the next turn has begun) is never changed here: it gets copies. A memory
that lends gives none: with it a turn costs what has changed alone, and a plan has nothing more to say once the next
turn has begun. That is for who carries a plan out at once and asks for no reasons, as a run of a trace does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from rayorch.core.asked import AskedClass, task_classes
from rayorch.core.capacity import GroupName, Provider
from rayorch.core.decisions import GangDemand
from rayorch.core.forecast import Seen, is_foretold
from rayorch.core.lost_time import rate_of
from rayorch.core.ordering import Basis
from rayorch.core.placement import PlacementView, TaskClass, capacity_by_model, looks_at_classes
from rayorch.core.planning.arrivals import Standing, standings
from rayorch.core.planning.attention import (
    disturbs,
    has_parts,
    is_breaking,
    is_special,
    may_ask,
    may_grow,
    quiet_until_s,
    troubles,
)
from rayorch.core.planning.claims import Shape
from rayorch.core.planning.facts import Facts
from rayorch.core.planning.groups import required_levels
from rayorch.core.planning.index import View
from rayorch.core.planning.lines import Docket
from rayorch.core.planning.lines import Key as OrderKey
from rayorch.core.planning.quiet import QuietTimes
from rayorch.core.planning.seat_memory import Key, SeatMemory
from rayorch.core.planning.takings import Leaving, Offer, leaving_of, owed, owed_by_shrinks, owes_until_s
from rayorch.core.planning.tracked import Tracked, ideal
from rayorch.core.policy import Profile, moves_somebody
from rayorch.core.quota import Quota, QuotaTree
from rayorch.core.room import Room
from rayorch.core.snapshot import Snapshot
from rayorch.core.topology import Topology
from rayorch.core.types import (
    LIVE,
    Allocation,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    State,
    Workload,
    WorkloadId,
)

if TYPE_CHECKING:
    from rayorch.core.planning.standstill import Standstill

K = TypeVar("K")
T = TypeVar("T")


class Memory(SeatMemory):
    """See the module. One planner's own: no two plans may be made with it at the same time.

    `only_work_came`: since the last snapshot nothing has changed but that work has come which waits. `standing`: what
    the last plan was, where the next one may be the same (`standstill.py`).
    """

    def __init__(self, lends: bool = False) -> None:
        """`lends`: see the module."""
        self.lends = lends
        self._profile: Profile | None = None
        self._now_s = float("-inf")
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        super().forget()
        self._profile = None
        self._queues: tuple[QueueSpec, ...] | None = None
        self._countables = Resources()
        self._workloads: Tracked[WorkloadId, Workload] = Tracked()
        self._nodes: Tracked[NodeId, NodeSpec] = Tracked()
        self._allocations: Tracked[Key, Allocation] = Tracked()
        self.workloads: dict[WorkloadId, Workload] = {}
        self.topology = Topology.of(())
        self.quota = Quota(QuotaTree(()))
        self.seen = Seen()
        self.docket = Docket(is_special, self._limits_users, self.seen)
        self.views: dict[str, View] = {}
        self.fresh: dict[WorkloadId, Workload] = {}
        self.only_work_came = False
        self.standing: Standstill | None = None
        self._placement = PlacementView()
        self._asked: tuple[tuple[AskedClass, ...], tuple[TaskClass, ...]] = ((), ())
        self._capacity: dict[str, int] = {}
        self._ordered_by: tuple[object, object] = (None, None)
        self.hopeless: dict[Shape, bool] = {}
        self.demands: dict[WorkloadId, GangDemand] = {}
        self.offers: dict[WorkloadId, Offer | None] = {}  # of live attempts that were asked for one
        self._tree = QuotaTree(())
        self._held: dict[WorkloadId, Allocation] = {}
        self._live_ids: list[WorkloadId] = []
        self.foretold: dict[WorkloadId, None] = {}  # of those that hold seats, in the same order
        self._charged: dict[WorkloadId, tuple[Workload, Resources]] = {}
        self._leaving: dict[WorkloadId, list[Leaving]] = {}
        self._live_in: dict[QueueId, dict[WorkloadId, Workload]] = {}
        self._priorities: dict[int, int] = {}  # how many of each could be evicted
        self._quiet = QuietTimes()
        self._disturbed: list[QueueId] = []
        self._uneasy: list[WorkloadId] = []
        self._strictness: dict[QueueId, bool | None] = {}
        self.has_cells = False
        self._asking: set[WorkloadId] = set()
        self._growing: set[WorkloadId] = set()
        self._yielded: dict[WorkloadId, float] = {}  # of those that have given something: until when it may be owed
        self._saved: set[WorkloadId] = set()
        self._broken: set[WorkloadId] = set()
        self._joint: set[WorkloadId] = set()
        self._sharing: set[WorkloadId] = set()

    def _limits_users(self, queue: QueueId) -> bool:
        return self.quota.limits_users(queue)

    # ------------------------------------------------------------ a new snapshot

    def see(self, snapshot: Snapshot, profile: Profile) -> Facts:
        """Bring everything up to date; what this turn knows."""
        self.take(snapshot, profile)
        return self.facts(snapshot, profile)

    def take(self, snapshot: Snapshot, profile: Profile) -> None:
        """Bring everything up to date."""
        if self._profile is not profile or snapshot.now_s < self._now_s:
            self.forget()
        begins = self._profile is None
        self._profile, self._now_s = profile, snapshot.now_s
        if self.lends:
            self.room.reclaim()
        self.only_work_came = not (begins or self._blocked)
        self._take_queues(snapshot)
        self.dirty |= self._take_nodes(snapshot)
        changed = self._take_work(snapshot)
        if self._blocked:
            self._take_blocked(snapshot.now_s)
        for id in sorted(changed) if len(changed) > 1 else changed:
            self._place(id, profile)
        if self._yielded:
            for id in [id for id, until_s in self._yielded.items() if until_s < self._now_s]:
                del self._yielded[id]
        if begins and (rate := rate_of(profile.victims)) is not None:  # later ones are made when somebody asks
            self.offers = {id: Offer.of(self.workloads[id], held, rate) for id, held in self._held.items()}
        self._uneasy = self._over(snapshot.now_s)

    def calm(self, snapshot: Snapshot, profile: Profile) -> bool:
        """Whether nobody who runs asks for anything, must end or could be moved, and nothing is held or owed.

        Then there is nothing to decide but for those who wait.
        """
        return (
            snapshot.capacity.fixed
            and not self.has_cells
            and not (self._uneasy or self._asking or self._growing or self._joint or self._saved or self._sharing)
            and not (self._leaving or self._yielded or self._broken or snapshot.reservations)
            and not (profile.eviction.whole_node_worth_s or moves_somebody(profile.moves))
        )

    @property
    def nobody_waits(self) -> bool:
        """Whether no work waits for its turn."""
        return not (self.fresh or len(self.docket) or self.docket.arrays)

    def _take_queues(self, snapshot: Snapshot) -> None:
        if snapshot.queues == self._queues and snapshot.countables == self._countables:
            return
        self.only_work_came = False
        self._queues, self._countables = snapshot.queues, snapshot.countables
        self._disturbed = [spec.id for spec in snapshot.queues if disturbs(spec)]
        self._strictness = {spec.id: spec.strict for spec in snapshot.queues}
        self.has_cells = any(spec.cells for spec in snapshot.queues)
        self._tree = QuotaTree(snapshot.queues)
        self.quota = Quota(self._tree, snapshot.countables)
        for workload, amount in self._charged.values():
            self.quota.charge(workload.spec.queue, amount, workload.spec.owner, 1)
        self.docket = Docket(is_special, self._limits_users, self.seen)  # who limits users may be another one
        self.fresh = {id: workload for id, workload in self.workloads.items() if workload.state is State.PENDING}

    # ------------------------------------------------------------ lines and indexes

    def line_up(self, key: OrderKey, basis: Basis, history: object) -> Docket:
        """All that wait, each in its place. `basis`, `history`: for how long the keys hold."""
        holds = basis is Basis.WORKLOAD or (basis is Basis.HISTORY and self._ordered_by == (history, self._queues))
        if not holds and len(self.docket):
            self.docket.reorder(key)
        self._ordered_by = (history, self._queues)
        if self.fresh:
            self.docket.put([self.fresh[id] for id in sorted(self.fresh)], key)
            self.fresh = {}
        return self.docket

    def end(self, touched: Iterable[NodeId], leaving: Iterable[Leaving], views: Mapping[str, View]) -> None:
        """A plan is made: what it changed in its copies is as before in the next turn."""
        self.dirty.update(touched)
        self.dirty.update(member.node for gone in leaving for member in gone.members)
        self.views.update(views)

    # ------------------------------------------------------------ nodes

    def _take_nodes(self, snapshot: Snapshot) -> set[NodeId]:
        gone, come = self._nodes.take(snapshot.nodes, self.nodes)
        if not gone and not come:
            return set()
        self.only_work_came = False
        new = {node.id: node for node in come}
        old = {node.id: node for node in gone}
        changed = set(old.keys() | new.keys())
        places = any(
            a is None or b is None or (a.topology, a.model) != (b.topology, b.model)
            for a, b in ((old.get(id), new.get(id)) for id in changed)
        )
        if any(ideal(old.get(id)) != ideal(new.get(id)) for id in changed):
            self.hopeless = {}
            self.demands = {}
        for id in old.keys() - new.keys():
            del self.nodes[id]
        self.nodes.update(new)
        if places:
            self.topology = Topology.of(snapshot.nodes)
            self.views.clear()
        if any(a is None or b is None or a.total != b.total for a, b in ((old.get(i), new.get(i)) for i in changed)):
            self._capacity = capacity_by_model(snapshot.nodes)
        first = not (self._on_node or self.room.has_nodes)
        if first:
            self.room, self.idle = (Room.of(snapshot.nodes, (), snapshot.now_s) for _ in range(2))
        for id in sorted(changed):
            node = new.get(id)
            (self._troubled.add if troubles(node) else self._troubled.discard)(id)
            if not first:
                self._settle(id, node, snapshot.now_s)
                self.idle.settle(id, node, (), snapshot.now_s)
            if node is not None and node.blocked_until_s > 0:
                self._blocked.add(id)
            else:
                self._blocked.discard(id)
        return changed

    # ------------------------------------------------------------ workloads and what they hold

    def _take_work(self, snapshot: Snapshot) -> set[WorkloadId]:
        gone, come = self._workloads.take(snapshot.workloads, self.workloads)
        new = {workload.spec.id: workload for workload in come}
        for workload in gone:
            if workload.spec.id not in new:
                del self.workloads[workload.spec.id]
        self.workloads.update(new)
        changed = {workload.spec.id for workload in gone} | new.keys()
        left, taken = self._allocations.take(snapshot.allocations, self._known)
        fresh = {(a.workload, a.attempt): a for a in taken}
        for allocation in left:
            key = (allocation.workload, allocation.attempt)
            if key not in fresh:
                self._rebook(key, None)
                self._known.pop(key)
        for key, allocation in fresh.items():
            self._known[key] = allocation
            if all(m.devices or not m.bundle.gpu_units for m in allocation.members):
                self._unbound.discard(key)
                self._rebook(key, allocation)
            else:
                self._unbound.add(key)
        if gone or left or taken or self._unbound or any(workload.state is not State.PENDING for workload in come):
            self.only_work_came = False
        changed.update(allocation.workload for allocation in (*left, *taken))
        if self._unbound:
            changed |= self._bind(snapshot.now_s)
        self._settle_foreign(snapshot.now_s)
        return changed

    def _place(self, id: WorkloadId, profile: Profile) -> None:
        """What follows from a workload and its seats, anew."""
        workload = self.workloads.get(id)
        self._clear(id)
        pending = workload is not None and workload.state is State.PENDING
        place = self.docket.place(id)
        if id in self.docket.arrays or (place is not None and (not pending or place[2] is not workload)):
            self.docket.drop((id,))
            place = None
        self.fresh.pop(id, None)
        if workload is not None and pending and place is None:
            self.fresh[id] = workload
        for attempt in self._attempts.get(id, ()):
            allocation = self._bound[id, attempt]
            if workload is None or workload.state not in LIVE or workload.attempt != attempt:
                self._leaving.setdefault(id, []).append(Leaving(id, allocation.members, None, None))
                continue
            self._hold(workload, allocation, profile)
        if workload is None:
            self.seen.forget(id)
            return
        if may_ask(workload):
            self._asking.add(id)
        if may_grow(workload):
            self._growing.add(id)
        if (workload.former and pending) or is_breaking(workload):
            self._broken.add(id)
        if workload.spec.joint is not None:
            self._joint.add(id)
        until_s = owes_until_s(workload)
        if until_s is not None and self._now_s <= until_s:
            self._yielded[id] = until_s
        if workload.checkpoint is not None and not pending:
            self._saved.add(id)

    def _clear(self, id: WorkloadId) -> None:
        if self._held.pop(id, None) is not None:
            self.foretold.pop(id, None)
            del self._live_ids[bisect_left(self._live_ids, id)]
            workload, amount = self._charged.pop(id)
            self.quota.refund(workload.spec.queue, amount, workload.spec.owner, 1)
            queue = workload.spec.queue
            live = self._live_in[queue]
            del live[id]
            if not live:
                del self._live_in[queue]
            self._count_priority(workload, -1)
        self._leaving.pop(id, None)
        self.demands.pop(id, None)
        self.offers.pop(id, None)
        self._quiet.drop(id)
        self._asking.discard(id)
        self._growing.discard(id)
        self._yielded.pop(id, None)
        self._saved.discard(id)
        self._broken.discard(id)
        self._joint.discard(id)
        self._sharing.discard(id)

    def _count_priority(self, workload: Workload, more: int) -> None:
        spec, counts = workload.spec, self._priorities
        if spec.preemptible and workload.state is State.RUNNING:
            count = counts[spec.priority] = counts.get(spec.priority, 0) + more
            if not count:
                del counts[spec.priority]

    def _hold(self, workload: Workload, allocation: Allocation, profile: Profile) -> None:
        id, queue, amount = workload.spec.id, workload.spec.queue, allocation.charge
        self._held[id] = allocation
        if is_foretold(workload.spec):
            self.foretold[id] = None
        insort(self._live_ids, id)
        self._charged[id] = (workload, amount)
        self.quota.charge(queue, amount, workload.spec.owner, 1)
        self._live_in.setdefault(queue, {})[id] = workload
        self._count_priority(workload, 1)
        self._quiet.keep(id, quiet_until_s(workload, allocation, profile))
        if profile.packing.unpack and has_parts(allocation):
            self._sharing.add(id)
        gone = leaving_of(workload, allocation)
        if gone is not None:
            self._leaving.setdefault(id, []).append(gone)

    # ------------------------------------------------------------ facts

    def facts(self, snapshot: Snapshot, profile: Profile) -> Facts:
        """What a turn over the snapshot that was taken last knows."""
        groups: Mapping[GroupName, Standing] = {}
        if snapshot.capacity.provider is not Provider.NONE:
            asked = {level for _, lines in self.docket.lines() for line in lines for level in line.gang.shape.levels}
            for workload in self.fresh.values():
                asked.update(required_levels(workload.spec))
            levels = sorted(asked)
            groups = standings(snapshot.capacity, snapshot.nodes, self.topology, levels, snapshot.now_s)
        coming = [node for name in groups for node in groups[name].arriving]
        leaving = tuple(gone for id in sorted(self._leaving) for gone in self._leaving[id])
        broken = self._repairs(snapshot.now_s, profile.repair_hold_s)
        promised = owed(leaving, self.workloads, self._yielded, snapshot.now_s)
        shrunk_for = owed_by_shrinks(self.workloads, self._yielded, snapshot.now_s)
        self.dirty.update(member.node for gone in leaving for member in gone.members)
        placement = self.placement(snapshot, profile)
        for view in self.views.values():
            view.changed(self.dirty)
        self.dirty = set()
        return Facts(
            snapshot=snapshot,
            profile=profile,
            nodes=self._lent(self.nodes) if not coming else {**self.nodes, **{node.id: node for node in coming}},
            workloads=self._lent(self.workloads),
            held=self._lent(self._held),
            charged=self._lent(self._charged),
            leaving=leaving,
            topology=self.topology,
            owed=promised | shrunk_for | broken,
            shrunk_for=shrunk_for - promised - broken,
            repairs=broken,
            joint=sorted(self._joint),
            strictness=self._strictness,
            live_in=self._lent_live_in(),
            budgets={use.queue: use for use in snapshot.budgets},
            live_ids=self._live_ids if self.lends else tuple(self._live_ids),
            uneasy=self._uneasy,
            asking=sorted(self._asking),
            growing=sorted(self._growing),
            saved=self._saved,
            sharing=sorted(self._sharing),
            lowest_priority=min(self._priorities, default=2**63) if profile.preemption else 2**63,
            placement=placement,
            standings=groups,
            arriving={node.id: GroupName(node.group) for node in coming},
            horizon=Topology.of((*snapshot.nodes, *coming)) if coming else self.topology,
            orders={
                name: dict.fromkeys(order.beneficiaries, 0) | dict(order.shares)
                for name, standing in groups.items()
                if (order := standing.state.order) is not None and order.beneficiaries
            },
        )

    def placement(self, snapshot: Snapshot, profile: Profile) -> PlacementView:
        """What scores may look at; another object, and all nodes are scored anew, where something of it is other."""
        knobs = profile.placement
        classes = knobs.classes
        if not classes and (looks_at_classes(profile.score) or moves_somebody(profile.moves)):
            if self._asked[0] is not snapshot.asked:
                self._asked = (snapshot.asked, task_classes(snapshot.asked))
            classes = self._asked[1]
        if not self._placement.same(classes, self._capacity, knobs.seed):
            self._placement = PlacementView(classes, self._capacity, knobs.seed)
            for view in self.views.values():
                view.rescore()
        return self._placement

    def _lent(self, mapping: dict[K, T]) -> Mapping[K, T]:
        return mapping if self.lends else dict(mapping)

    def _lent_live_in(self) -> Mapping[QueueId, Collection[Workload]]:
        if self.lends:
            return {queue: live.values() for queue, live in self._live_in.items()}
        return {queue: tuple(live.values()) for queue, live in self._live_in.items()}

    def _repairs(self, now_s: float, hold_s: float) -> frozenset[WorkloadId]:
        """Gangs that wait, or are about to, because they lost a part, for as long as they go before new work."""
        found: set[WorkloadId] = set()
        for id in self._broken:
            workload = self.workloads[id]
            since_s = workload.requeued_s if workload.stop is None else workload.stop.ordered_s
            if since_s is not None and now_s - since_s < hold_s:
                found.add(id)
        return frozenset(found)

    def _over(self, now_s: float) -> list[WorkloadId]:
        """Whom stage 2 could have something to say about."""
        found = self._quiet.over(now_s)
        for node in self._troubled if self._troubled else ():
            keys = self._on_node.get(node)
            if keys and troubles(self.nodes.get(node)):
                found.update(id for id, _ in keys if id in self._held)
        if self._disturbed:
            for queue, live in self._live_in.items():
                if any(queue == other or queue.startswith(f"{other}/") for other in self._disturbed):
                    found |= live.keys()
        return sorted(found) if found else []
