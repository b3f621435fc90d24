"""RayCluster: the port between deciding and acting, over the owners' actors.

It keeps a dated copy of each owner's facts and fetches only what changed. Every decision goes first to the owner
that must agree with it; one that is refused was made on old facts and is planned again in the next turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import ray

from rayorch.actors.allocator import GroupsOf, Reservation
from rayorch.actors.group_facts import TOPOLOGY_PREFIX
from rayorch.actors.inventory import Sight
from rayorch.actors.names import allocator_name, find, inventory_name, queues_name
from rayorch.adapters.ray_demand import ensure_coordinator
from rayorch.core.allocations import gang_of
from rayorch.core.arrays import entry_ids
from rayorch.core.bound_devices import bundle_of
from rayorch.core.budgets import BudgetUse
from rayorch.core.capacity import Capacity
from rayorch.core.cluster import Outcome
from rayorch.core.decisions import Cordon, Decision, GangDemand, Plan, Reserve, Resize, Scale, Start, Stop
from rayorch.core.errors import ClusterError, RayorchError
from rayorch.core.events import NodeCordoned
from rayorch.core.history import History
from rayorch.core.joint import batches
from rayorch.core.policy import Profile
from rayorch.core.queues import QueueChanges
from rayorch.core.requests import CordonRequest, Reply, ResizeRequest, StartRequest
from rayorch.core.sharing import asks_of_ray
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import (
    Allocation,
    ArraySpec,
    Kind,
    MemberPhase,
    NodeHealth,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Workload,
    WorkloadId,
)
from rayorch.core.views import AutoscalerView

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 30.0
"""How long an owner may take to answer. It may be restarting: Ray repeats the call when it is back."""
SHAPES_PERIOD_S = 30.0
"""The queue owner holds the sizes of nodes in memory only: it is told again, in case it was restarted."""

DEMAND_PERIOD_S = 60.0
"""The demand for capacity is repeated, in case who keeps it was restarted; an equal one costs nothing."""

K = TypeVar("K")
V = TypeVar("V")


class RayCluster:
    """Implements `core.cluster.Cluster`. Used by one thread at a time."""

    def __init__(self, instance: str, profile: Profile) -> None:
        self._instance = instance
        self._profile = profile
        self._queues: Any = None
        self._inventory: Any = None
        self._allocator: Any = None
        self._coordinator: Any = None
        self._sent_demand: tuple[GangDemand, ...] | None = None
        self._demand_call: Any = None
        self._demand_sent_s = 0.0
        self._versions = Versions(0, -1, -1)
        self._renewals = 0
        self.queue_specs: dict[QueueId, QueueSpec] = {}
        self.workloads: dict[WorkloadId, Workload] = {}
        self.nodes: dict[NodeId, NodeSpec] = {}
        self.allocations: dict[tuple[WorkloadId, int], Allocation] = {}
        self.capacity = Capacity()
        self.history = History()
        self._budgets: tuple[BudgetUse, ...] = ()
        self._countables = Resources()
        self.autoscaler: AutoscalerView | None = None
        self.capacity_notes: tuple[str, ...] = ()
        self._capacity_version = -1
        self._cordons: dict[NodeId, NodeCordoned] = {}
        self._forgotten: list[WorkloadId] = []
        self._arrays: dict[WorkloadId, ArraySpec] = {}
        self._reservations: tuple[ReservationSpec, ...] = ()
        self._sorted_queues: tuple[QueueSpec, ...] = ()
        self._sorted_workloads: tuple[Workload, ...] = ()
        self._sorted_nodes: tuple[NodeSpec, ...] | None = None
        self._seen_nodes = -1
        self._sorted_allocations: tuple[Allocation, ...] = ()
        self._pushed_cordons: dict[NodeId, NodeCordoned] = {}
        self._pushed_shapes: int = -1
        self._pushed_served: dict[NodeId, Resources] | None = None
        self._shapes_pushed_s = 0.0

    # ------------------------------------------------------------ seeing

    def connect(self) -> None:
        """Find the owners. ClusterError while one is missing."""
        self._queues = find(queues_name(self._instance))
        self._inventory = find(inventory_name(self._instance))
        self._allocator = find(allocator_name(self._instance))
        self._coordinator = ensure_coordinator()

    @property
    def queues(self) -> Any:
        """The queue owner's handle."""
        return self._queues

    @property
    def allocator(self) -> Any:
        """The allocator's handle."""
        return self._allocator

    @property
    def inventory(self) -> Any:
        """The inventory's handle."""
        return self._inventory

    @property
    def cordons(self) -> Mapping[NodeId, NodeCordoned]:
        """The cordons in force."""
        return self._cordons

    def take_forgotten(self) -> tuple[WorkloadId, ...]:
        """The workloads that were forgotten since the last call, as far as we were told."""
        taken, self._forgotten = tuple(self._forgotten), []
        return taken

    def snapshot(self) -> Snapshot:
        """Fetch what changed from each owner and join it.

        `now_s` is of before the questions: a clock that is set forward meanwhile must not make the signs of life in
        the answers look old (the queue owner renews them when it sees such a step).
        """
        now_s = time.time()
        changed, sight, (booked, synced) = _answers(
            [
                self._queues.changes_since.remote((self._versions.queues, self._renewals)),
                self._inventory.sight_since.remote((self._versions.inventory, self._capacity_version)),
                self._allocator.changes_since.remote(self._versions.allocations),
            ]
        )
        self._take_queues(changed)
        inventory, full = self._take_sight(sight), sight.nodes.full
        if self._cordons != self._pushed_cordons or (full and self._cordons):
            # Not a turn may pass without the cordons: whoever set one was told that nothing new comes.
            self._pushed_cordons = dict(self._cordons)
            calls = [self._inventory.set_cordons.remote(tuple(self._cordons.values()))]
            calls.append(self._inventory.sight_since.remote((inventory, self._capacity_version)))
            inventory = self._take_sight(_answers(calls)[1])
        _merge(self.allocations, booked.full, {(a.workload, a.attempt): a for a in booked.allocations}, booked.removed)
        self._versions = Versions(changed.version, inventory, booked.version)
        self._renewals = changed.renewals
        if full:
            self._pushed_served = None  # a new inventory would take Serve's seats for foreign use
        self._keep_owners_informed(synced)
        if changed.full or changed.workloads or changed.forgotten or changed.folded:
            self._sorted_workloads = _in_order(self.workloads)
        if full or self._sorted_nodes is None or self._seen_nodes != inventory:
            self._sorted_nodes, self._seen_nodes = _in_order(self.nodes), inventory
        if booked.full or booked.allocations or booked.removed:
            self._sorted_allocations = _in_order(self.allocations)
        return Snapshot(
            versions=self._versions,
            now_s=now_s,
            queues=self._sorted_queues,
            workloads=self._sorted_workloads,
            nodes=self._sorted_nodes,
            allocations=self._sorted_allocations,
            synced=synced,
            capacity=self.capacity,
            history=self.history,
            countables=self._countables,
            reservations=self._reservations,
            budgets=self._budgets,
        )

    def _take_sight(self, sight: Sight) -> int:
        """Nodes and groups of one moment; answers with the inventory's version."""
        nodes = sight.nodes
        _merge(self.nodes, nodes.full, {n.id: n for n in nodes.nodes}, nodes.removed)
        if sight.capacity is not None or sight.capacity_version != self._capacity_version:
            self.capacity = sight.capacity or Capacity()
        self._capacity_version = sight.capacity_version
        self.autoscaler, self.capacity_notes = sight.autoscaler, sight.notes
        return nodes.version

    def _take_queues(self, changed: QueueChanges) -> None:
        if changed.queues is not None:
            self.queue_specs = {spec.id: spec for spec in changed.queues}
            self._sorted_queues = _in_order(self.queue_specs)
        self._cordons = {cordon.node: cordon for cordon in changed.cordons}
        self._reservations = changed.reservations
        for id in changed.forgotten:
            self._forgotten += (id, *entry_ids(id, self._arrays.pop(id, None)))
        self.history = self.history.changed(changed.history)
        self._budgets, self._countables = changed.budgets, changed.countables
        if changed.full:
            self.workloads.clear()
        for id in (*changed.forgotten, *changed.folded):
            self.workloads.pop(id, None)
        for workload in changed.workloads:
            if workload.spec.array is not None:
                self._arrays[workload.id] = workload.spec.array
            if workload.state.terminal:
                self.workloads.pop(workload.id, None)
            else:
                self.workloads[workload.id] = workload

    def _keep_owners_informed(self, synced: bool) -> None:
        """Pass copies on: what Serve holds to the inventory, what could ever be had to the queue owner's door.

        What Serve holds is not known while the allocator has not compared its books with the world (`synced`).
        """
        stale = time.monotonic() - self._shapes_pushed_s > SHAPES_PERIOD_S
        if stale or self._pushed_shapes != self._versions.inventory:
            self._queues.set_capacity.remote(self._inventory.shapes.remote())  # Ray passes the answer on
            self._pushed_shapes, self._shapes_pushed_s = self._versions.inventory, time.monotonic()
        if self.history.half_life_s != self._profile.ordering.usage_half_life_s:
            self._queues.set_half_life.remote(self._profile.ordering.usage_half_life_s)
        served = self._served()
        if synced and served != self._pushed_served:
            self._inventory.set_served.remote(served)
            self._pushed_served = served
        gone = {node.id for node in self.nodes.values() if node.health is NodeHealth.LOST}
        if gone:
            gone -= {m.node for allocation in self.allocations.values() for m in allocation.members}
        if gone:
            self._inventory.forget.remote(tuple(sorted(gone)))

    def _served(self) -> dict[NodeId, Resources]:
        """What the seats of Serve applications are charged on each node."""
        charged: dict[NodeId, Resources] = {}
        for allocation in self.allocations.values():
            if 0 in allocation.gang:
                continue  # a gang with a group of its own is no Serve application
            for member in allocation.members:
                charged[member.node] = charged.get(member.node, Resources()) + bundle_of(member)
        return charged

    # ------------------------------------------------------------ acting

    def commit(self, plan: Plan) -> tuple[Outcome, ...]:
        """Commit the plan's decisions: what frees room first, then starts, all of one kind in one round of calls.

        Capacity comes last: nobody on this cluster waits for it.
        """
        outcomes: dict[int, Outcome] = {}
        starts: list[tuple[int, Start]] = []
        scales: list[tuple[int, Scale]] = []
        for index, decision in enumerate(plan.decisions):
            match decision:
                case Start():
                    starts.append((index, decision))
                case Stop():
                    outcomes[index] = _outcome(decision, self._reply(self._queues.commit_stop, decision))
                case Resize():
                    outcomes[index] = self._resize(decision)
                case Scale():
                    scales.append((index, decision))
                case Cordon():
                    request = CordonRequest(decision.node, decision.reason)
                    outcomes[index] = _outcome(decision, self._reply(self._queues.cordon, request))
                case Reserve():
                    outcomes[index] = Outcome(decision, True)  # a promise within the plan; nothing to carry out
        outcomes.update(self._start(starts, plan.versions))
        outcomes.update((index, self._scale(scale)) for index, scale in scales)
        return tuple(outcomes[index] for index in sorted(outcomes))

    def _reply(self, method: Any, request: object) -> Reply:
        reply: Reply = _answers([method.remote(request)])[0]
        return reply

    def _start(self, starts: list[tuple[int, Start]], versions: Versions) -> dict[int, Outcome]:
        """Reserve, then commit, then begin to make the groups. What is refused gives its reservation back.

        The starts of a joint gang are reserved and committed together; where one is refused, all are.
        """
        outcomes: dict[int, Outcome] = {}
        deadline_s = time.time() + self._profile.start_deadline_s
        requests = tuple(self._reservation(start, deadline_s) for _, start in starts)
        refusals = _answers([self._allocator.reserve_many.remote(requests)])[0] if requests else ()
        whole: list[list[tuple[int, Start]]] = []
        for places in batches([start for _, start in starts]):
            refused = next((refusals[n] for n in places if refusals[n]), "")
            if not refused:
                whole.append([starts[n] for n in places])
                continue
            for n in places:
                index, start = starts[n]
                outcomes[index] = Outcome(start, False, refusals[n] or f"with its partner: {refused}")
                if not refusals[n]:
                    self._allocator.remove.remote(_groups_of(start))
        commits = tuple(StartRequest(batch[0][1], versions, tuple(s for _, s in batch[1:])) for batch in whole)
        replies = _answers([self._queues.commit_starts.remote(commits)])[0] if commits else ()
        making: list[GroupsOf] = []
        for batch, reply in zip(whole, replies, strict=True):
            for index, start in batch:
                outcomes[index] = _outcome(start, reply)
                if not reply.accepted:
                    self._allocator.remove.remote(_groups_of(start))
                elif self.workloads[start.workload].spec.kind is not Kind.SERVE:  # Serve makes its replicas' groups
                    making.append(_groups_of(start))
        if making:
            self._allocator.create_many.remote(tuple(making))
        return outcomes

    def _reservation(self, start: Start, deadline_s: float) -> Reservation:
        gang = gang_of(self.workloads[start.workload].spec, start.members)
        return Reservation(
            start.workload, start.attempt, start.members, deadline_s, self._versions.inventory, gang=gang
        )

    def _resize(self, resize: Resize) -> Outcome:
        """Shrink: committed, then the seats are marked as leaving. Growth: reserved, committed, then made."""
        held = self.allocations.get((resize.workload, resize.attempt))
        if held is None:
            return Outcome(resize, False, "it holds nothing")
        staying = tuple(m for m in held.members if m.surplus not in resize.remove)
        staying = tuple(m for m in staying if m.phase is not MemberPhase.RELEASING)
        if resize.add:
            deadline_s = time.time() + self._profile.start_deadline_s
            request = Reservation(
                resize.workload, resize.attempt, resize.add, deadline_s, self._versions.inventory, grow=True
            )
            answer = _answers_or_errors([self._allocator.reserve.remote(request)])[0]
            if isinstance(answer, RayorchError):
                return Outcome(resize, False, str(answer))
        reply = self._reply(self._queues.commit_resize, ResizeRequest(resize, (*staying, *resize.add)))
        added = GroupsOf(resize.workload, resize.attempt, tuple(sorted({m.surplus for m in resize.add})))
        if not reply.accepted:
            if resize.add:
                self._allocator.remove.remote(added)
            return _outcome(resize, reply)
        if resize.remove:
            self._allocator.release.remote(GroupsOf(resize.workload, resize.attempt, resize.remove))
        if resize.add and self.workloads[resize.workload].spec.kind is not Kind.SERVE:
            self._allocator.create.remote(added)
        return _outcome(resize, reply)

    def _scale(self, scale: Scale) -> Outcome:
        """State the demand, and change the node groups where they are ours to change."""
        self._demand(scale)
        if not scale.changes:
            return Outcome(scale, True)
        refusals = _answers([self._inventory.change_groups.remote(scale.changes)])[0]
        for refusal in refusals:
            log.info("refused: %s", refusal)
        return Outcome(scale, not refusals, "; ".join(refusals))

    def _demand(self, scale: Scale) -> None:
        """Tell Ray's autoscaler about whole gangs, held and wanted, if that has changed or was long ago.

        The turn does not wait for the answer; a call that failed is made again in a later turn.
        """
        if self._demand_call is not None and not self._demand_taken(self._demand_call):
            return
        gangs = (*scale.held, *scale.wanted)
        stale = time.monotonic() - self._demand_sent_s > DEMAND_PERIOD_S
        if gangs != self._sent_demand or stale:
            bundles = [asks_of_ray(bundle).to_floats() for gang in gangs for bundle in gang.bundles]
            names = self._label_names()
            selectors = [
                dict(gang.selector) if names is None else {names[s]: s[1] for s in gang.selector if s in names}
                for gang in gangs
                for _ in gang.bundles
            ]
            self._demand_call = self._coordinator.set_gang_demand.remote(bundles, selectors, self._instance)
            self._demand_sent_s = time.monotonic()
            self._sent_demand = gangs

    def _label_names(self) -> dict[tuple[str, str], str] | None:
        """(level or label, value) → the label's name for Ray's autoscaler; None while no group is known.

        One that it does not know must not be asked for: it would add no node for anybody.
        """
        if not self.capacity.groups:
            return None
        names: dict[tuple[str, str], str] = {}
        for state in self.capacity.groups:
            for name, value in state.group.autoscaler_labels:
                names[name.removeprefix(TOPOLOGY_PREFIX), value] = names[name, value] = name
        return names

    def _demand_taken(self, call: Any) -> bool:
        """Whether the last demand has been answered, or given up: then the next one may go out."""
        try:
            ray.get(call, timeout=0)
        except ray.exceptions.GetTimeoutError:
            if time.monotonic() - self._demand_sent_s < CALL_TIMEOUT_S:
                return False
            log.warning("the demand for capacity was not taken within %.0f s", CALL_TIMEOUT_S)
            self._sent_demand = None
        except ray.exceptions.RayError as error:
            log.warning("the demand for capacity was not taken: %s", error)
            self._sent_demand = None
        self._demand_call = None
        return True


def _groups_of(start: Start) -> GroupsOf:
    return GroupsOf(start.workload, start.attempt, tuple(sorted({m.surplus for m in start.members})))


def _in_order(copy: Mapping[Any, V]) -> tuple[V, ...]:
    """The values by key, which is their order in a snapshot. Those that did not change are the same objects."""
    return tuple(map(copy.__getitem__, sorted(copy)))


def _outcome(decision: Decision, reply: Reply) -> Outcome:
    return Outcome(decision, reply.accepted, reply.message)


def _merge(copy: dict[K, V], full: bool, changed: Mapping[K, V], removed: Iterable[K]) -> None:
    """Bring a dated copy up to date."""
    if full:
        copy.clear()
    copy.update(changed)
    for key in removed:
        copy.pop(key, None)


def _answers(calls: list[Any]) -> list[Any]:
    """What several calls answer. ClusterError when an owner can't be reached in time."""
    try:
        return list(ray.get(calls, timeout=CALL_TIMEOUT_S))
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise ClusterError(f"an owner does not answer: {error}") from error


def _answers_or_errors(calls: list[Any]) -> list[Any]:
    """The same, with a refusal (StalePlanError …) as a value in its place."""
    out: list[Any] = []
    for call in calls:
        try:
            out.extend(_answers([call]))
        except RayorchError as error:
            if isinstance(error, ClusterError):
                raise
            out.append(error)
    return out
