"""SimCluster: the owners' own classes, the real planner and the real reconciliation, over a simulated outside.

What is simulated is only what Ray and the network do: nodes, placement groups, runners, calls between actors. Every
call between two of them is a numbered step at which a fault may strike (`faults.py`). The clock moves in ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from rayorch.core.adoption import adopt_world, leftovers
from rayorch.core.allocations import Allocations
from rayorch.core.bound_devices import bundle_of
from rayorch.core.capacity import Capacity
from rayorch.core.cluster import Outcome
from rayorch.core.decisions import GroupChange, Plan
from rayorch.core.device_binding import devices_of
from rayorch.core.errors import ClusterError, RayorchError, StalePlanError
from rayorch.core.events import Event, Reported
from rayorch.core.inventory import Inventory
from rayorch.core.policy import Profile
from rayorch.core.queues import QueueTree
from rayorch.core.reports import AttemptReport
from rayorch.core.runners import RunnerKey, RunnerView
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import (
    LIVE,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    NodeSpec,
    QueueSpec,
    Resources,
    WorkloadId,
    WorkloadSpec,
    group_name,
)
from rayorch.sim.autoscaler import SimAutoscaler
from rayorch.sim.controller import SimController
from rayorch.sim.faults import (
    Actor,
    Again,
    CallSite,
    Cancel,
    Died,
    Fault,
    Faults,
    Kill,
    Late,
    LoseNode,
    LoseReply,
    LoseRequest,
    LoseRunner,
    NoFaults,
    Tear,
    Twice,
)
from rayorch.sim.groups import SimProvider
from rayorch.sim.journal import PlainJournal, SimJournal
from rayorch.sim.late import LateMessages
from rayorch.sim.scaling import SimScaling
from rayorch.sim.work import SimAttempts, SimWork
from rayorch.sim.world import SimWorld

T = TypeVar("T")

Decide = Callable[[Snapshot, Profile], Plan]


class SimCluster:
    """Implements `core.cluster.Cluster`. See the module's docstring.

    `journal` is what survives the queue owner, `history` the events that are in it as values. `checks` is called at
    every step and after every tick. `provider`: who adds and removes nodes, besides those that are there from the
    start; `autoscaler`: who changes its counts, None: we do.
    """

    def __init__(
        self,
        nodes: tuple[NodeSpec, ...],
        queues: tuple[QueueSpec, ...],
        profile: Profile,
        decide: Decide,
        works: Mapping[WorkloadId, SimWork] | None = None,
        faults: Faults | None = None,
        instance: str = "sim",
        tick_s: float = 0.5,
        start_s: float = 1000.0,
        provider: SimProvider | None = None,
        autoscaler: SimAutoscaler | None = None,
        journal: SimJournal | None = None,
    ) -> None:
        self.profile = profile
        self.instance = instance
        self.now_s = self.start_s = self._worked_s = start_s
        self.tick_s = tick_s
        self.works = dict(works or {})
        self.world = SimWorld(nodes)
        self.attempts = SimAttempts(self.world, self.works, instance, start_s)
        self.faults: Faults = faults if faults is not None else NoFaults()
        self.journal: SimJournal = journal if journal is not None else PlainJournal()
        self._tearing: float | None = None
        self.moves = 0
        """Grows with every event but reports, and with every life of the queue owner."""
        self.history: list[Event] = []
        self.sites: list[CallSite] = []
        self.refusals: list[str] = []
        self.checks: Callable[[], None] = lambda: None
        self._stack: list[Actor] = []
        self._late = LateMessages()
        self._lives = 0
        self._tree: QueueTree | None = None
        self._inventory: Inventory | None = None
        self._books: Allocations | None = None
        self._synced = False
        self.scaling: SimScaling | None = None
        if provider is not None:
            provider.begin(self.world, start_s)
            self.scaling = SimScaling(self, provider, autoscaler)
        self.controller = SimController(self, decide)
        for spec in queues:
            self.record(self.tree.set_queue(spec, self.now_s))

    # ------------------------------------------------------------ the owners, started when they are needed

    @property
    def tree(self) -> QueueTree:
        """The queue owner's state; after a kill, read back from the journal."""
        if self._tree is None:
            self._tree, count = self.journal.read()
            assert count == len(self.history), (
                f"{count} events are in the journal, {len(self.history)} were acknowledged"
            )
            self._tree.renew_all(self.now_s)
            self.moves += 1
        return self._tree

    @property
    def inventory(self) -> Inventory:
        """The inventory; after a kill, observed again, with the cordons from the queue owner."""
        if self._inventory is None:
            self._inventory = Inventory(self._new_life())
            self._look(self._inventory)
            self._inventory.set_cordons(self.tree.cordons)
        return self._inventory

    @property
    def books(self) -> Allocations:
        """The allocator's books; after a kill, empty until they have been compared with the world."""
        if self._books is None:
            self._books = Allocations(self._new_life())
            self._synced = False
        return self._books

    @property
    def synced(self) -> bool:
        """Whether the books have been compared with the world since the allocator's last start."""
        return self._books is not None and self._synced

    def record(self, events: tuple[Event, ...]) -> None:
        """Journal first, then apply, a batch as a whole; then what follows by itself."""
        while events:
            tree = self.tree
            if self._tearing is not None:
                share, self._tearing = self._tearing, None
                self.journal.tear(events, share)
                if share >= 1:  # it is durable, and nobody has been told
                    self.history += events
                self.kill(Actor.QUEUES)
                raise ClusterError("the queue owner died while it wrote")
            self.journal.append(events)
            self.history += events
            for event in events:
                tree.apply(event)
                self.moves += not isinstance(event, Reported)
            events = tree.due(self.now_s)

    def _new_life(self) -> int:
        """A version above all of former lives, as the milliseconds of a clock are."""
        self._lives += 1
        return int(self.now_s * 1000) + self._lives * 1_000_000

    def kill(self, actor: Actor) -> None:
        """The process ends; its memory is gone. What it was doing ends with it."""
        match actor:
            case Actor.QUEUES:
                self._tree = None
            case Actor.INVENTORY:
                self._inventory = None
                if self.scaling is not None:
                    self.scaling.forget_all()
            case Actor.ALLOCATOR:
                self._books = None
                self._synced = False
            case Actor.CONTROLLER:
                self.controller.forget_all()
            case _:
                raise ValueError(f"{actor} is not an owner")
        if actor in self._stack:
            raise Died(actor)

    # ------------------------------------------------------------ calls

    def call(self, caller: Actor, callee: Actor, label: str, effect: Callable[[], T]) -> T:
        """One call, with whatever goes wrong at it. ClusterError: no answer came."""
        site = CallSite(len(self.sites), caller, callee, label, self.now_s)
        self.sites.append(site)
        fault = self.faults.at(site)
        self._outside(fault)
        if isinstance(fault, LoseRequest):
            raise ClusterError(f"{label}: request lost")
        if isinstance(fault, Late):
            self._late.send(self.now_s + fault.delay_s, callee, effect)
            raise ClusterError(f"{label}: no answer in time")
        self._stack.append(callee)
        try:
            if isinstance(fault, Kill) and not fault.after:
                self._kill_all(fault.actors)
            if isinstance(fault, Kill) and not fault.after and callee in fault.actors:
                raise ClusterError(f"{label}: {callee.value} died")
            self._tearing = fault.share if isinstance(fault, Tear) and callee is Actor.QUEUES else None
            answer = effect()
            if isinstance(fault, Twice):
                answer = effect()
            if isinstance(fault, Again):
                self._late.send(self.now_s + fault.delay_s, callee, effect)
            if label != "changes":  # reading changes nothing
                self.checks()
            if isinstance(fault, Kill) and fault.after:
                self._kill_all(fault.actors)
        except Died as death:
            if death.actor is not callee:
                raise
            raise ClusterError(f"{label}: {callee.value} died") from None
        finally:
            self._stack.pop()
            self._tearing = None
        if isinstance(fault, LoseReply):
            raise ClusterError(f"{label}: reply lost")
        return answer

    def _kill_all(self, actors: tuple[Actor, ...]) -> None:
        died: Died | None = None
        for actor in actors:
            try:
                self.kill(actor)
            except Died as death:
                # Of several on the stack, the outermost one's death ends all that is within.
                if died is None or self._stack.index(death.actor) < self._stack.index(died.actor):
                    died = death
        if died is not None:
            raise died

    def _outside(self, fault: Fault | None) -> None:
        """Faults that strike beside the call."""
        match fault:
            case Cancel(workload=workload):
                self.record(self.tree.cancel(workload, "cancelled by its owner", self.now_s))
            case LoseNode(node=node):
                self.world.lose_node(node)
            case LoseRunner(workload=workload):
                for key in sorted(self.attempts.runners):
                    if key[0] == workload:
                        self.attempts.lose_runner(key)
            case _:
                pass

    def as_actor(self, actor: Actor, work: Callable[[], None]) -> None:
        """Let an actor do something of its own accord; if it is killed in the middle, or gets no answer, it ends."""
        self._stack.append(actor)
        try:
            work()
        except Died as death:
            if death.actor is not actor:
                raise
        except ClusterError as error:
            self.refusals.append(f"{self.now_s:.1f} {actor.value}: {error}")
        finally:
            self._stack.pop()

    # ------------------------------------------------------------ users

    def submit(self, spec: WorkloadSpec, work: SimWork | None = None) -> None:
        """A user submits; accepted when this returns."""
        if work is not None:
            self.works[spec.id] = work
            self.attempts.works = self.works
        self.record(self.tree.submit(spec, self.now_s))

    def cancel(self, id: WorkloadId) -> None:
        """A user cancels."""
        self.record(self.tree.cancel(id, "cancelled by its owner", self.now_s))

    # ------------------------------------------------------------ the port

    def snapshot(self) -> Snapshot:
        """What the controller knows."""
        return self.controller.snapshot()

    def commit(self, plan: Plan) -> tuple[Outcome, ...]:
        """Carry out a plan through the owners."""
        return self.controller.commit(plan)

    # ------------------------------------------------------------ the allocator's own work

    def create_groups(self, workload: WorkloadId, attempt: int, surpluses: tuple[int, ...]) -> None:
        """Ask Ray for the groups of reserved seats."""
        for surplus in surpluses:
            try:
                if not self.books.creating(workload, attempt, surplus):
                    continue
            except StalePlanError as error:
                self.refusals.append(str(error))
                continue
            seats = self._seats(workload, attempt, surplus)
            name = group_name(self.instance, workload, attempt, surplus)
            bundles = tuple((m.node, bundle_of(m)) for m in seats)
            self.call(
                Actor.ALLOCATOR,
                Actor.RAY,
                "create_group",
                lambda name=name, bundles=bundles: self.world.create_group(name, bundles, self.now_s),  # type: ignore[misc]
            )

    def remove_groups(self, workload: WorkloadId, attempt: int, surpluses: tuple[int, ...]) -> None:
        """Release seats, remove their groups, and only then drop them from the books."""
        self.books.release(workload, attempt, surpluses)
        serve = self.tree.workloads[workload].spec.kind is Kind.SERVE
        for surplus in surpluses:
            # Serve names its groups for seats that it then may change: only the id says whose a group is.
            name = group_name(self.instance, workload, attempt, surplus) if not serve else ""
            ids = {m.group_id for m in self._seats(workload, attempt, surplus) if m.group_id}
            found = [g.group_id for g in self.world.groups.values() if g.name == name or g.group_id in ids]
            self._remove_from_world(sorted(found))
            self.books.removed(workload, attempt, surplus)

    def _remove_from_world(self, group_ids: Iterable[str]) -> None:
        for group_id in group_ids:
            self.call(
                Actor.ALLOCATOR,
                Actor.RAY,
                "remove_group",
                lambda group_id=group_id: self.world.remove_group(group_id),  # type: ignore[misc]
            )

    def _seats(self, workload: WorkloadId, attempt: int, surplus: int) -> tuple[Member, ...]:
        held = self.books.allocations.get((workload, attempt))
        return () if held is None else tuple(m for m in held.members if m.surplus == surplus)

    def _allocator_turn(self) -> None:
        """What the allocator does on its own: sync after a start, then follow what becomes of its groups."""
        if not self.synced:
            self._sync()
            return
        self._remove_from_world(leftovers(self.world.listing(), self.books.allocations, self.instance))
        for (workload, attempt), held in sorted(self.books.allocations.items()):
            for surplus in sorted({m.surplus for m in held.members}):
                self._follow_group(workload, attempt, surplus, held.deadline_s)

    def _follow_group(self, workload: WorkloadId, attempt: int, surplus: int, deadline_s: float) -> None:
        seats = self._seats(workload, attempt, surplus)
        if not seats:
            return
        group = self.world.named(group_name(self.instance, workload, attempt, surplus))
        phase = seats[0].phase
        serve = self.tree.workloads[workload].spec.kind is Kind.SERVE
        if group is not None and group.created and (phase is MemberPhase.CREATING or (serve and not seats[0].group_id)):
            if not serve or phase is MemberPhase.RESERVED:
                named = devices_of(group.bundles[0][1]) if serve else ()
                self.books.ready(workload, attempt, surplus, group.group_id, named)
        elif phase is MemberPhase.CREATING and self.now_s >= deadline_s:
            if group is not None:
                self.world.remove_group(group.group_id)
            self.books.fail(workload, attempt, surplus, "its placement group was not ready by its deadline")
        elif phase is MemberPhase.READY and seats[0].group_id not in self.world.groups and not serve:
            self.books.fail(workload, attempt, surplus, "its placement group was removed by somebody else")

    def _sync(self) -> None:
        """Rebuild the books from the world and the queue owner's records."""
        books = self.books  # this life's; the owner may be killed in the call below
        workloads = self.call(Actor.ALLOCATOR, Actor.QUEUES, "records", lambda: dict(self.tree.workloads))
        deadline_s = self.now_s + self.profile.start_deadline_s
        adoption = adopt_world(
            self.world.listing(), workloads, self.instance, self.now_s, deadline_s, self.inventory.nodes.values()
        )
        for allocation in adoption.adopt:
            books.adopt(allocation)
        self._remove_from_world(adoption.remove)
        self._synced = True

    # ------------------------------------------------------------ the inventory's own work

    def capacity(self) -> Capacity:
        """What the inventory knows of where nodes come from."""
        return self.scaling.capacity() if self.scaling is not None else Capacity()

    def change_group(self, change: GroupChange) -> None:
        """Carry out one change of a node group."""
        if self.scaling is None:
            raise StalePlanError(f"nobody provides group {change.group}")
        self.scaling.change(change)

    def _look(self, inventory: Inventory) -> None:
        """One look at Ray: the nodes, and what of them is in use by others. Nothing is said before the first."""
        inventory.observe(tuple(self.world.nodes.values()), self.now_s)
        used = self.world.used()
        held = {id: amount - self.world.foreign.get(id, Resources()) for id, amount in used.items()}
        inventory.observe_foreign(used, held, {})

    def _observe(self) -> None:
        """The nodes that Ray lists, what is in use on them, and the groups that they come from."""
        self._look(self.inventory)
        if self.scaling is not None:
            self.as_actor(Actor.INVENTORY, self.scaling.turn)

    # ------------------------------------------------------------ runners' and clients' calls

    def renew(self, workload: WorkloadId, attempt: int, runner: str = "") -> bool:
        """OwnerPort."""
        return self.call(
            Actor.RUNNER, Actor.QUEUES, "renew", lambda: self.tree.renew(workload, attempt, self.now_s, runner)
        )

    def report(self, workload: WorkloadId, attempt: int, report: AttemptReport) -> bool:
        """OwnerPort."""

        def effect() -> bool:
            try:
                self.record(self.tree.report(workload, attempt, report, self.now_s))
            except StalePlanError:
                return False
            return True

        return self.call(Actor.RUNNER, Actor.QUEUES, "report", effect)

    def _heartbeats(self) -> None:
        """Clients of leased gangs."""
        for id, workload in sorted(self.tree.workloads.items()):
            live = workload.state in LIVE and workload.spec.kind is Kind.GANG
            until_s = self.start_s + self.works.get(id, SimWork()).heartbeats_s
            if live and self.now_s < until_s and self.now_s >= workload.lease_renewed_s + self.profile.lease_s / 3:
                try:
                    self.renew(id, workload.attempt)
                except ClusterError as error:
                    self.refusals.append(str(error))

    # ------------------------------------------------------------ time

    def tick(self) -> None:
        """Move the clock on by one tick and let everybody do what is due; then one turn of the loop."""
        self.pass_time(self.tick_s)
        for actor in (Actor.INVENTORY, Actor.RUNNER, Actor.ALLOCATOR, Actor.CONTROLLER):
            self.act(actor)
        self.checks()

    def pass_time(self, seconds: float) -> None:
        """The clock moves on; what was due by then outside our actors happens."""
        self.now_s += seconds
        self._deliver_late()
        if self.scaling is not None:
            self.scaling.tick(self.now_s)
        self.world.tick(self.now_s)

    def act(self, actor: Actor) -> None:
        """One of the actors does of its own accord what is due for it; RUNNER: all runners and their work."""
        match actor:
            case Actor.INVENTORY:
                self._observe()
            case Actor.RUNNER:
                self.attempts.tick(self.now_s, self.now_s - self._worked_s, self)
                self._worked_s = self.now_s
                self._heartbeats()
            case Actor.ALLOCATOR:
                self.as_actor(Actor.ALLOCATOR, self._allocator_turn)
            case Actor.CONTROLLER:
                self.as_actor(Actor.CONTROLLER, self.controller.turn)
            case _:
                raise ValueError(f"{actor} does nothing of its own accord")

    def run(self, seconds: float) -> None:
        """So many seconds of ticks."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.tick()

    @property
    def messages_under_way(self) -> int:
        """How many late messages have not arrived yet."""
        return len(self._late)

    def _deliver_late(self) -> None:
        for _, callee, effect in self._late.due(self.now_s):
            self._stack.append(callee)
            try:
                effect()
            except (RayorchError, Died) as error:
                self.refusals.append(f"late message: {error}")
            finally:
                self._stack.pop()

    # ------------------------------------------------------------ what tests and checkers ask

    def views(self) -> dict[RunnerKey, RunnerView]:
        """Every runner that exists, as it would answer."""
        attempts = self.attempts
        return {key: view for key in sorted(attempts.runners) if (view := attempts.view(key)) is not None}

    def lose_node(self, node: NodeId) -> None:
        """A node dies between turns."""
        self.world.lose_node(node)

    def restart_head(self) -> None:
        """The head restarts without its state: all actors, groups and runners end, the journal stays."""
        self.world.restart_head()
        self.attempts.runners.clear()
        self.attempts.children.clear()
        for actor in (Actor.QUEUES, Actor.INVENTORY, Actor.ALLOCATOR, Actor.CONTROLLER):
            self.kill(actor)
