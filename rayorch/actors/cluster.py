"""RayCluster: the port between deciding and acting, over the owners' actors.

It keeps a dated copy of each owner's facts and fetches only what changed. Every decision goes first to the owner
that must agree with it; one that is refused was made on old facts and is planned again in the next turn.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import ray

from rayorch.actors.allocator import GroupsOf, Reservation
from rayorch.actors.group_facts import TOPOLOGY_PREFIX
from rayorch.actors.inventory import Sight
from rayorch.actors.names import allocator_name, find, inventory_name, queues_name
from rayorch.adapters.ray_demand import ensure_coordinator
from rayorch.core.allocations import gang_of
from rayorch.core.bound_devices import bundle_of
from rayorch.core.capacity import Capacity
from rayorch.core.cluster import Outcome
from rayorch.core.copies import Copies
from rayorch.core.decisions import Cordon, Decision, GangDemand, Plan, Reserve, Resize, Scale, Start, Stop, Watch
from rayorch.core.errors import ClusterError, RayorchError
from rayorch.core.events import NodeCordoned
from rayorch.core.joint import batches
from rayorch.core.policy import Profile
from rayorch.core.requests import CordonRequest, Reply, ResizeRequest, StartRequest
from rayorch.core.sharing import asks_of_ray
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    Kind,
    MemberPhase,
    NodeId,
    Resources,
)
from rayorch.core.views import AutoscalerView

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 30.0
"""How long an owner may take to answer. It may be restarting: Ray repeats the call when it is back."""
SHAPES_PERIOD_S = 30.0
"""The queue owner holds the sizes of nodes in memory only: it is told again, in case it was restarted."""

DEMAND_PERIOD_S = 60.0
"""The demand for capacity is repeated, in case who keeps it was restarted; an equal one costs nothing."""


class RayCluster(Copies):
    """Implements `core.cluster.Cluster`. Used by one thread at a time."""

    def __init__(self, instance: str, profile: Profile) -> None:
        super().__init__()
        self._instance = instance
        self._profile = profile
        self._queues: Any = None
        self._inventory: Any = None
        self._allocator: Any = None
        self._coordinator: Any = None
        self._sent_demand: tuple[GangDemand, ...] | None = None
        self._demand_call: Any = None
        self._demand_sent_s = 0.0
        self.autoscaler: AutoscalerView | None = None
        self.capacity_notes: tuple[str, ...] = ()
        self._capacity_version = -1
        self._pushed_cordons: dict[NodeId, NodeCordoned] | None = None
        self._pushed_shapes: int = -1
        self._pushed_served: dict[NodeId, Resources] | None = None
        self._served_of: object = None
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
        self.take_queues(changed)
        self.take_books(booked)
        self._take_sight(sight)
        if sight.nodes.full:  # it may be a new inventory, which would take Serve's seats for foreign use
            self._pushed_cordons = self._pushed_served = None
        if self._cordons != self._pushed_cordons:
            # Not a turn may pass without the cordons: whoever set one was told that nothing new comes.
            cordons = dict(self._cordons)
            calls = [self._inventory.set_cordons.remote(tuple(cordons.values()))]
            calls.append(self._inventory.sight_since.remote((self._versions.inventory, self._capacity_version)))
            self._take_sight(_answers(calls)[1])
            self._pushed_cordons = cordons
        seen = self.joined(now_s, synced)
        self._keep_owners_informed(seen)
        return seen

    def _take_sight(self, sight: Sight) -> None:
        """Nodes and groups of one moment."""
        self.take_nodes(sight.nodes)
        if sight.capacity is not None or sight.capacity_version != self._capacity_version:
            self.capacity = sight.capacity or Capacity()
        self._capacity_version = sight.capacity_version
        self.autoscaler, self.capacity_notes = sight.autoscaler, sight.notes

    def _keep_owners_informed(self, seen: Snapshot) -> None:
        """Pass copies on: what Serve holds to the inventory, what could ever be had to the queue owner's door.

        What Serve holds is not known while the allocator has not compared its books with the world (`synced`).
        """
        stale = time.monotonic() - self._shapes_pushed_s > SHAPES_PERIOD_S
        if stale or self._pushed_shapes != self._versions.inventory:
            self._queues.set_capacity.remote(self._inventory.shapes.remote())  # Ray passes the answer on
            self._pushed_shapes, self._shapes_pushed_s = self._versions.inventory, time.monotonic()
        if self.history.half_life_s != self._profile.ordering.usage_half_life_s:
            self._queues.set_half_life.remote(self._profile.ordering.usage_half_life_s)
        if seen.synced and (self._pushed_served is None or seen.allocations is not self._served_of):
            served, self._served_of = self._served(), seen.allocations
            if served != self._pushed_served:
                self._inventory.set_served.remote(served)
                self._pushed_served = served
        if gone := self.deserted():
            self._inventory.forget.remote(gone)

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
        outcomes = self._stop(plan) | self._watch(plan)
        starts: list[tuple[int, Start]] = []
        scales: list[tuple[int, Scale]] = []
        for index, decision in enumerate(plan.decisions):
            match decision:
                case Start():
                    starts.append((index, decision))
                case Stop() | Watch():
                    continue  # done
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

    def _stop(self, plan: Plan) -> dict[int, Outcome]:
        """All stops at once, each accepted or refused on its own; by their places in the plan."""
        stops = [(index, decision) for index, decision in enumerate(plan.decisions) if isinstance(decision, Stop)]
        if not stops:
            return {}
        replies = self._reply(self._queues.commit_stops, tuple(stop for _, stop in stops))
        return {index: _outcome(stop, reply) for (index, stop), reply in zip(stops, replies, strict=True)}

    def _watch(self, plan: Plan) -> dict[int, Outcome]:
        """Who shares GPUs with whom, all at once; by their places in the plan."""
        watches = [(index, decision) for index, decision in enumerate(plan.decisions) if isinstance(decision, Watch)]
        if not watches:
            return {}
        replies = self._reply(self._queues.commit_watches, tuple(watch for _, watch in watches))
        return {index: _outcome(watch, reply) for (index, watch), reply in zip(watches, replies, strict=True)}

    def _reply(self, method: Any, request: object) -> Any:
        return _answers([method.remote(request)])[0]

    def _start(self, starts: list[tuple[int, Start]], versions: Versions) -> dict[int, Outcome]:
        """Reserve, then commit, then begin to make the groups. What is refused gives its reservation back.

        The starts of a joint gang are reserved and committed together; where one is refused, all are.
        """
        outcomes: dict[int, Outcome] = {}
        deadline_s = time.time() + self._profile.start_deadline_s
        requests = tuple(self._reservation(start, deadline_s) for _, start in starts)
        refusals = _answers([self._allocator.reserve_many.remote(requests)])[0] if requests else ()
        whole: list[list[tuple[int, Start]]] = []
        dropped: list[GroupsOf] = []
        for places in batches([start for _, start in starts]):
            refused = next((refusals[n] for n in places if refusals[n]), "")
            if not refused:
                whole.append([starts[n] for n in places])
                continue
            for n in places:
                index, start = starts[n]
                outcomes[index] = Outcome(start, False, refusals[n] or f"with its partner: {refused}")
                if not refusals[n]:
                    dropped.append(_groups_of(start))
        commits = tuple(StartRequest(batch[0][1], versions, tuple(s for _, s in batch[1:])) for batch in whole)
        replies = _answers([self._queues.commit_starts.remote(commits)])[0] if commits else ()
        making: list[GroupsOf] = []
        for batch, reply in zip(whole, replies, strict=True):
            for index, start in batch:
                outcomes[index] = _outcome(start, reply)
                if not reply.accepted:
                    dropped.append(_groups_of(start))
                elif self.workloads[start.workload].spec.kind is not Kind.SERVE:  # Serve makes its replicas' groups
                    making.append(_groups_of(start))
        if dropped:
            self._allocator.remove_many.remote(tuple(dropped))
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
                self._allocator.remove_many.remote((added,))
            return _outcome(resize, reply)
        if resize.remove:
            self._allocator.release.remote(GroupsOf(resize.workload, resize.attempt, resize.remove))
        if resize.add and self.workloads[resize.workload].spec.kind is not Kind.SERVE:
            self._allocator.create_many.remote((added,))
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


def _outcome(decision: Decision, reply: Reply) -> Outcome:
    return Outcome(decision, reply.accepted, reply.message)


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
