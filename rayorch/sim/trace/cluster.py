"""TraceCluster: the owners' own classes with nothing between them, for whole traces.

What a plan decides takes effect at once: groups are there when they are reserved, calls never fail, contact is never
lost. What takes time is the work itself, and what stops it (`run.py`). `SimCluster` is the one with messages, actors
that die and calls that get lost; the decisions, and the checks when they are committed, are the same code in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from rayorch.core.allocations import Allocations, gang_of
from rayorch.core.asked import AskedClass
from rayorch.core.capacity import Capacity
from rayorch.core.cluster import Outcome
from rayorch.core.decisions import Cordon, Decision, Plan, Resize, Scale, Start, Stop, Watch
from rayorch.core.endings import Facts, ending
from rayorch.core.errors import RayorchError
from rayorch.core.events import AttemptEnded, Event
from rayorch.core.history import History
from rayorch.core.inventory import Inventory, with_groups
from rayorch.core.lifecycle import Move
from rayorch.core.policy import Profile
from rayorch.core.queues import QueueTree
from rayorch.core.reports import AttemptReport
from rayorch.core.rows import Table
from rayorch.core.runners import RunnerKey, RunnerPhase, RunnerView
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    UNIT,
    Allocation,
    Member,
    MemberPhase,
    NodeHealth,
    NodeId,
    NodeSpec,
    QueueSpec,
    State,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.sim.trace.events import JUST_AFTER_S
from rayorch.sim.trace.supply import Supplies

FIXED = Capacity(fixed=True)
"""The nodes of a trace are all that there will ever be."""
NEVER_S = 1e12
"""A lease that does not lapse in any trace. (Infinite would not be a time.)"""


def without_leases(profile: Profile) -> Profile:
    """The profile with leases that never lapse: contact is never lost here, and no journal says anything of it."""
    return replace(profile, lease_s=NEVER_S)


class Witness(Protocol):
    """Who is told what has become of an attempt, in the moment in which it happens."""

    def started(self, workload: Workload, members: tuple[Member, ...]) -> None:
        """An attempt was committed and its seats are there."""
        ...

    def resized(self, workload: Workload, members: tuple[Member, ...]) -> None:
        """A running attempt has other seats now."""
        ...

    def told_to_stop(self, workload: Workload, order: StopOrder) -> None:
        """An attempt is to end."""
        ...

    def watched(self, watch: Watch) -> None:
        """Others are beside an attempt on its GPU than before; its pace is about to be counted anew."""
        ...

    def refused(self, decision: Decision, reason: str) -> None:
        """An owner did not let a decision pass."""
        ...


class TraceCluster:
    """Implements `core.cluster.Cluster`. See the module's docstring.

    `planned`: the profile that plans are to be made with: the given one with leases that do not lapse.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        queues: Sequence[QueueSpec],
        profile: Profile,
        start_s: float = 0.0,
        supplies: Supplies | None = None,
    ) -> None:
        self.profile = profile
        self.planned = without_leases(profile)
        self.now_s = start_s
        self.witness: Witness = Silent()
        self.tree = QueueTree()
        self.books = Allocations(1)
        self.inventory = Inventory(1)
        self.supplies = supplies
        first = supplies.first if supplies is not None else ()
        self._up = {node.id: node for node in (*nodes, *first)}
        self._used_s = {node.id: start_s for node in first}  # when seats there have come or gone, since it was looked
        self._versions = Versions(0, -1, -1)
        self._queues: tuple[QueueSpec, ...] = ()
        self._workloads: Table[WorkloadId, Workload] = Table()
        self._nodes: Table[NodeId, NodeSpec] = Table()
        self._allocations: Table[RunnerKey, Allocation] = Table()
        self.history = History()
        self._asked: tuple[AskedClass, ...] = ()
        self.inventory.observe(tuple(self._up.values()), start_s)
        if supplies is None:
            self.tree.set_capacity(self.inventory.shapes())
        else:
            self.tree.set_capacity(with_groups(self.inventory.shapes(), (), supplies.shapes))
        for queue in queues:
            self.record(self.tree.set_queue(queue, start_s))
        self.record(self.tree.set_half_life(profile.ordering.usage_half_life_s, start_s))

    def record(self, events: tuple[Event, ...]) -> None:
        """Events take effect, and what follows from them by itself."""
        while events:
            for event in events:
                self.tree.apply(event)
            events = self.tree.due(self.now_s)

    # ------------------------------------------------------------ the port

    def snapshot(self) -> Snapshot:
        """What is known now."""
        before = self._versions
        queues = self.tree.changes_since(before.queues, near=True)
        books = self.books.changes_since(before.allocations)
        if self.supplies is not None:
            self._see_idle(self.supplies)
        for gone in (*queues.forgotten, *queues.folded):
            self._workloads.drop(gone)
        for workload in queues.workloads:
            if workload.state.terminal:
                self._workloads.drop(workload.spec.id)
            else:
                self._workloads.put(workload.spec.id, workload)
        if self.inventory.version != before.inventory:
            nodes = self.inventory.changes_since(before.inventory)
            for node in nodes.nodes:
                self._nodes.put(node.id, node)
            for id in nodes.removed:
                self._nodes.drop(id)
        for allocation in books.allocations:
            self._allocations.put((allocation.workload, allocation.attempt), allocation)
        for key in books.removed:
            self._allocations.drop(key)
        self._queues = queues.queues if queues.queues is not None else self._queues
        self._versions = Versions(queues.version, self.inventory.version, books.version)
        self.history = self.history.changed(queues.history)
        self._asked = queues.asked if queues.asked is not None else self._asked
        return Snapshot(
            versions=self._versions,
            now_s=self.now_s,
            queues=self._queues,
            workloads=self._workloads.rows(),
            nodes=self._nodes.rows(),
            allocations=self._allocations.rows(),
            capacity=FIXED if self.supplies is None else self.supplies.capacity(self.inventory.nodes, self.now_s),
            history=self.history,
            asked=self._asked,
            countables=queues.countables,
            reservations=queues.reservations,
            budgets=queues.budgets,
        )

    def commit(self, plan: Plan) -> tuple[Outcome, ...]:
        """Each decision through the owners, in order; a refusal is an outcome."""
        outcomes: list[Outcome] = []
        joint: set[WorkloadId] = set()
        for decision in plan.decisions:
            if isinstance(decision, Start) and decision.workload in joint:
                continue
            if isinstance(decision, Start) and decision.partners:
                partners = [d for d in plan.decisions if isinstance(d, Start) and d.workload in decision.partners]
                joint.update(partner.workload for partner in partners)
                outcomes += self._commit([decision, *partners], plan.versions)
            else:
                outcomes += self._commit([decision], plan.versions)
        return tuple(outcomes)

    def _commit(self, decisions: Sequence[Decision], versions: Versions) -> list[Outcome]:
        """One decision, or the starts of one joint gang."""
        first = decisions[0]
        try:
            match first:
                case Start():
                    self._start([d for d in decisions if isinstance(d, Start)], versions)
                case Stop():
                    self._stop(first)
                case Resize():
                    self._resize(first)
                case Scale() if self.supplies is not None:
                    return [self._scale(first, self.supplies)]
                case Watch():
                    self.witness.watched(first)
                    self.record(self.tree.commit_watch(first, self.now_s))
                case Cordon():
                    self.record(self.tree.cordon(first.node, first.reason, None, self.now_s))
                    self.inventory.set_cordons(self.tree.cordons)
                case _:
                    pass  # promises, and nodes that nobody provides here
        except RayorchError as error:
            for decision in decisions:
                self.witness.refused(decision, str(error))
            return [Outcome(decision, False, str(error)) for decision in decisions]
        return [Outcome(decision, True) for decision in decisions]

    def _start(self, starts: list[Start], versions: Versions) -> None:
        now_s, books = self.now_s, self.books
        reserved: list[Start] = []
        try:
            for start in starts:
                spec = self.tree.workloads[start.workload].spec
                deadline_s = now_s + self.profile.start_deadline_s
                gang = gang_of(spec, start.members)
                id, attempt, made = start.workload, start.attempt, f"{start.workload}/{start.attempt}"
                books.reserve(id, attempt, start.members, self.inventory.nodes, now_s, deadline_s, gang, made)
                self._use(start.members)
                reserved.append(start)
            self.record(self.tree.commit_start(starts[0], versions, now_s, tuple(starts[1:])))
        except RayorchError:
            for start in reserved:
                self._remove(start.workload, start.attempt, None)
            raise
        for start in starts:
            held = books.allocations[start.workload, start.attempt]
            self.witness.started(self.tree.workloads[start.workload], held.members)

    def _stop(self, stop: Stop) -> None:
        events = self.tree.commit_stop(stop, self.now_s)
        self.record(events)
        if events:
            self.witness.told_to_stop(self.tree.workloads[stop.workload], stop.order)

    def _scale(self, scale: Scale, supplies: Supplies) -> Outcome:
        """Each change of a node group by itself: one that is refused keeps no other back."""
        refused = []
        for change in scale.changes:
            try:
                gone = supplies.change(change, self.now_s)
            except RayorchError as error:
                refused.append(str(error))
                self.witness.refused(scale, str(error))
                continue
            if gone:
                self.change_nodes([node.id for node in gone], ())
                for node in gone:
                    self.inventory.forget(node.id)
        return Outcome(scale, not refused, "; ".join(refused))

    def _use(self, members: Iterable[Member]) -> None:
        """Seats there have come, or gone, in this moment."""
        if self.supplies is not None:
            self._used_s.update(dict.fromkeys((member.node for member in members), self.now_s))

    def _see_idle(self, supplies: Supplies) -> None:
        """Nodes of groups where nobody has held a seat since some time; the plan is asked when it is long enough."""
        since: dict[NodeId, float | None] = {}
        for id, used_s in self._used_s.items():
            node = self.inventory.nodes.get(id)
            after_s = supplies.idle_after_s(node) if node is not None else None
            if node is not None and after_s is not None:
                since[id] = used_s if self.books.is_free(id) else None
                if since[id] is not None:
                    supplies.wake(used_s + after_s + JUST_AFTER_S)
        self._used_s.clear()
        self.inventory.set_idle(since)

    def _resize(self, resize: Resize) -> None:
        """Seats come and go in one moment: nobody is asked to leave them first."""
        id, attempt, now_s = resize.workload, resize.attempt, self.now_s
        held = self.books.allocations.get((id, attempt))
        members = held.members if held is not None else ()
        staying = tuple(m for m in members if m.surplus not in resize.remove and m.phase is not MemberPhase.RELEASING)
        if resize.add:
            deadline_s = now_s + self.profile.start_deadline_s
            self.books.grow(id, attempt, resize.add, self.inventory.nodes, now_s, deadline_s)
            self._use(resize.add)
        try:
            self.record(self.tree.commit_resize(resize, (*staying, *resize.add), now_s))
        except RayorchError:
            self._remove(id, attempt, {m.surplus for m in resize.add})
            raise
        self._make_groups(id, attempt)
        self._remove(id, attempt, set(resize.remove))
        self.witness.resized(self.tree.workloads[id], self.books.allocations[id, attempt].members)

    def _make_groups(self, id: WorkloadId, attempt: int) -> None:
        for surplus in sorted({m.surplus for m in self.books.allocations[id, attempt].members}):
            if self.books.creating(id, attempt, surplus):
                self.books.ready(id, attempt, surplus, f"{id}/{attempt}/{surplus}")

    def _remove(self, id: WorkloadId, attempt: int, surpluses: set[int] | None) -> None:
        held = None
        if surpluses is not None or self.supplies is not None:
            held = self.books.allocations.get((id, attempt))
            self._use(held.members if held is not None else ())
        if surpluses is None:
            self.books.all_removed(id, attempt)
            return
        for surplus in sorted({m.surplus for m in held.members}) if held is not None else ():
            if surplus in surpluses:
                self.books.removed(id, attempt, surplus)

    # ------------------------------------------------------------ what happens outside

    def submit(self, spec: WorkloadSpec) -> None:
        """A user submits. SpecError or AdmissionError."""
        self.record(self.tree.submit(spec, self.now_s))

    def ready(self, id: WorkloadId, attempt: int) -> None:
        """The attempt's work has begun."""
        self.record(self.tree.ready(id, attempt, self.now_s))

    def report(self, id: WorkloadId, attempt: int, report: AttemptReport) -> None:
        """The attempt's own report."""
        self.record(self.tree.report(id, attempt, report, self.now_s))

    def end(self, id: WorkloadId, attempt: int, exit_code: int) -> Workload:
        """The attempt's work is over: its seats are free, and the rules say what becomes of it."""
        workload, held = self.tree.workloads[id], self.books.allocations.get((id, attempt))
        # Nobody has to wait for news of a node: here all is known in the moment in which it happens.
        ended_s = self.now_s - self.profile.failure_settle_s
        view = RunnerView(id, attempt, RunnerPhase.ENDED, exit_code, ended_s=ended_s)
        nodes = self.inventory.nodes
        lost: tuple[NodeId, ...] = ()
        if exit_code:
            under = sorted({m.node for m in workload.placement})
            lost = tuple(node for node in under if node not in nodes or nodes[node].health is NodeHealth.LOST)
        end = ending(Facts(workload, held, view, lost, (), self.now_s, self.profile, nodes))
        assert end is not None, f"{id} has ended and goes on"
        return self._close(end)

    def lose_seats(self, id: WorkloadId, attempt: int, surpluses: tuple[int, ...], reason: str) -> None:
        """Some members have died, and what is left goes on without their seats."""
        self._resize(Resize(id, attempt, (), surpluses, reason))

    def cancel(self, id: WorkloadId, attempt: int) -> Workload:
        """Its owner ends the attempt."""
        self.record(self.tree.cancel(id, "cancelled, as in the trace", self.now_s))
        reason = "cancelled, as in the trace"
        return self._close(
            AttemptEnded(id, attempt, Move.REQUEUED, StopCause.CANCELLED, None, reason, self.now_s, self.now_s)
        )

    def _close(self, end: AttemptEnded) -> Workload:
        self._remove(end.workload, end.attempt, None)
        self.record(self.tree.end_attempt(end))
        return self.tree.workloads[end.workload]

    def change_nodes(self, gone: Sequence[NodeId], come: Sequence[NodeSpec]) -> None:
        """Nodes are lost, come back, or are other ones now."""
        supplies = self.supplies
        if supplies is not None:  # what was given back meanwhile does not come back because it is well again
            come = [node for node in come if supplies.stands(node)]
            supplies.changed()
        for id in gone:
            self._up.pop(id, None)
        self._up.update((node.id, node) for node in come)
        self.inventory.observe(tuple(self._up.values()), self.now_s)
        if supplies is not None:
            self._used_s.update((node.id, self.now_s) for node in come)

    @property
    def gpu_units(self) -> int:
        """Of all nodes that are up, without devices that are lost. O(nodes)."""
        return sum(
            node.total.gpu_units - UNIT * sum(device.lost for device in node.devices)
            for node in self.inventory.nodes.values()
            if node.health is not NodeHealth.LOST
        )

    def live_on(self, node: NodeId) -> list[tuple[WorkloadId, int]]:
        """The attempts that hold seats on a node, in order."""
        return sorted(key for key, held in self.books.allocations.items() if any(m.node == node for m in held.members))

    def state_of(self, id: WorkloadId) -> State | None:
        """How a workload is, None for one that is not known (any more)."""
        workload = self.tree.workloads.get(id)
        return workload.state if workload is not None else None


class Silent:
    """Nobody is told."""

    def started(self, workload: Workload, members: tuple[Member, ...]) -> None:
        """See Witness."""

    def resized(self, workload: Workload, members: tuple[Member, ...]) -> None:
        """See Witness."""

    def told_to_stop(self, workload: Workload, order: StopOrder) -> None:
        """See Witness."""

    def watched(self, watch: Watch) -> None:
        """See Witness."""

    def refused(self, decision: Decision, reason: str) -> None:
        """See Witness."""
