"""The controller of a simulated cluster: dated copies, the loop's turn, and each decision's way through the owners."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, assert_never

from rayorch.core.allocations import gang_of
from rayorch.core.cluster import Outcome
from rayorch.core.copies import Copies
from rayorch.core.decisions import Cordon, Decision, Plan, Reserve, Resize, Scale, Start, Stop, Watch
from rayorch.core.errors import ClusterError, RayorchError, StalePlanError
from rayorch.core.events import Event, NodeCordoned
from rayorch.core.policy import Profile
from rayorch.core.reconcile import (
    Action,
    BlockNodes,
    CreateGroups,
    DropReservation,
    EndAttempt,
    KillRunner,
    MarkReady,
    MarkReleasing,
    Rebind,
    RemoveGroups,
    Reseat,
    StartRunner,
    UpdateRunner,
    reconcile,
)
from rayorch.core.runners import RunnerKey, RunnerPhase, RunnerView
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    LIVE,
    MemberPhase,
)
from rayorch.sim.faults import Actor

if TYPE_CHECKING:
    from rayorch.sim.cluster import SimCluster

T = TypeVar("T")


class SimController:
    """Holds nothing that it can't fetch again: `forget_all` is what a kill does to it."""

    def __init__(self, cluster: SimCluster, decide: Callable[[Snapshot, Profile], Plan]) -> None:
        self._cluster = cluster
        self._decide = decide
        self.plans: list[tuple[Snapshot, Plan, tuple[Outcome, ...]]] = []
        self.actions: list[tuple[float, Action]] = []
        self.forget_all()

    def forget_all(self) -> None:
        """The process has died."""
        self.copies = Copies()
        self._synced = False
        self._cordons: tuple[NodeCordoned, ...] | None = None
        self.runners: dict[RunnerKey, RunnerView] = {}

    # ------------------------------------------------------------ the turn

    def turn(self) -> None:
        """See, decide, commit; then reconcile."""
        cluster = self._cluster
        seen = self.snapshot()
        plan = self._decide(seen, cluster.profile)
        outcomes = self.commit(plan)
        self.plans.append((seen, plan, outcomes))
        seen = self.snapshot()
        self._look_for_runners()
        for action in reconcile(seen, self.runners, cluster.profile):
            self.actions.append((cluster.now_s, action))
            self.execute(action)

    def snapshot(self) -> Snapshot:
        """Fetch what changed and join it."""
        cluster, before, renewals = self._cluster, self.copies.versions, self.copies.renewals
        queues = self._ask(Actor.QUEUES, "changes", lambda: cluster.tree.changes_since(before.queues, renewals))
        nodes, capacity = self._ask(
            Actor.INVENTORY,
            "changes",
            lambda: (cluster.inventory.changes_since(before.inventory), cluster.capacity()),
        )
        books, synced = self._ask(
            Actor.ALLOCATOR,
            "changes",
            lambda: (cluster.books.changes_since(before.allocations), cluster.synced),
        )
        known = self.copies
        known.take_queues(queues)
        known.take_nodes(nodes)
        known.take_books(books)
        known.capacity, self._synced = capacity, synced
        self._inform_inventory(queues.cordons)  # all is known now; what follows may fail
        self._keep_half_life()
        return known.joined(cluster.now_s, synced)

    def _keep_half_life(self) -> None:
        """The queue owner decays usage as the profile says, from when it hears of it."""
        cluster = self._cluster
        wanted_s = cluster.profile.ordering.usage_half_life_s
        if self.copies.history.half_life_s != wanted_s:
            self._ask(
                Actor.QUEUES, "half life", lambda: cluster.record(cluster.tree.set_half_life(wanted_s, cluster.now_s))
            )

    def _inform_inventory(self, cordons: tuple[NodeCordoned, ...]) -> None:
        cluster = self._cluster
        if cordons != self._cordons:
            self._ask(Actor.INVENTORY, "cordons", lambda: cluster.inventory.set_cordons({c.node: c for c in cordons}))
            self._cordons = cordons
        for id in self.copies.deserted() if self._synced else ():
            self._ask(Actor.INVENTORY, "forget", lambda id=id: cluster.inventory.forget(id))  # type: ignore[misc]

    def _look_for_runners(self) -> None:
        """Ask every runner that there is, or was, or should be, by its name."""
        cluster = self._cluster
        wanted = {(w.id, w.attempt) for w in self.copies.workloads.values() if w.state in LIVE}
        for key in sorted(wanted | set(self.runners) | set(cluster.attempts.runners)):
            view = cluster.attempts.view(key)
            if view is not None:
                self.runners[key] = view
            elif key in self.runners and key in wanted:
                known = self.runners[key]
                self.runners[key] = RunnerView(*key, RunnerPhase.GONE, grant=known.grant)
            else:
                self.runners.pop(key, None)

    # ------------------------------------------------------------ decisions

    def commit(self, plan: Plan) -> tuple[Outcome, ...]:
        """Each decision through the owners, in order; a refusal is an outcome."""
        outcomes: dict[int, Outcome] = {}
        for index, decision in enumerate(plan.decisions):
            if index in outcomes:
                continue
            joint = isinstance(decision, Start) and decision.partners
            if isinstance(decision, Start) and joint:
                places = {d.workload: n for n, d in enumerate(plan.decisions) if isinstance(d, Start)}
                numbers = [index, *(places[id] for id in decision.partners if id in places)]
                starts = [d for n in numbers if isinstance(d := plan.decisions[n], Start)]
                for number, outcome in zip(numbers, self._commit_joint(starts, plan.versions), strict=True):
                    outcomes[number] = outcome
            else:
                outcomes[index] = self._commit_one(decision, plan.versions)
        return tuple(outcomes[index] for index in sorted(outcomes))

    def _commit_joint(self, starts: list[Start], versions: Versions) -> list[Outcome]:
        """The starts of one joint gang: all of them or none."""
        cluster, reserved = self._cluster, list[Start]()
        try:
            for start in starts:
                self._reserve(start)
                reserved.append(start)
            first, *others = starts
            self._record(
                "commit_start",
                lambda: cluster.tree.commit_start(first, versions, cluster.now_s, tuple(others)),
            )
        except ClusterError:
            raise
        except RayorchError as error:
            for start in reserved:
                self.execute(DropReservation(start.workload, start.attempt))
            cluster.refusals.append(f"{cluster.now_s:.1f} Start: {error}")
            return [Outcome(start, False, str(error)) for start in starts]
        return [Outcome(start, True) for start in starts]

    def _commit_one(self, decision: Decision, versions: Versions) -> Outcome:
        cluster = self._cluster
        try:
            match decision:
                case Start():
                    self._start(decision, versions)
                case Stop():
                    self._record("commit_stop", lambda: cluster.tree.commit_stop(decision, cluster.now_s))
                case Resize():
                    self._resize(decision)
                case Watch():
                    self._record("commit_watch", lambda: cluster.tree.commit_watch(decision, cluster.now_s))
                case Cordon():
                    self._record(
                        "cordon", lambda: cluster.tree.cordon(decision.node, decision.reason, None, cluster.now_s)
                    )
                case Scale():
                    return self._scale(decision)
                case Reserve():
                    pass
                case _:
                    assert_never(decision)
        except ClusterError:
            raise
        except RayorchError as error:
            cluster.refusals.append(f"{cluster.now_s:.1f} {type(decision).__name__}: {error}")
            return Outcome(decision, False, str(error))
        return Outcome(decision, True)

    def _scale(self, scale: Scale) -> Outcome:
        """Each change of a node group on its own: one that is refused keeps no other back."""
        cluster = self._cluster
        if cluster.scaling is not None:
            cluster.scaling.demand(scale)
        refused = []
        for change in scale.changes:
            try:
                self._ask(Actor.INVENTORY, "change_group", lambda change=change: cluster.change_group(change))  # type: ignore[misc]
            except StalePlanError as error:
                refused.append(str(error))
                cluster.refusals.append(f"{cluster.now_s:.1f} Scale: {error}")
        return Outcome(scale, not refused, "; ".join(refused))

    def _reserve(self, start: Start) -> None:
        cluster = self._cluster
        spec = self.copies.workloads[start.workload].spec
        deadline_s = cluster.now_s + cluster.profile.start_deadline_s
        gang = gang_of(spec, start.members)

        def reserve() -> None:
            if not cluster.synced:
                raise ClusterError("the allocator is still comparing its books with the world")
            nodes = cluster.inventory.nodes.values()
            cluster.books.reserve(start.workload, start.attempt, start.members, nodes, cluster.now_s, deadline_s, gang)

        self._ask(Actor.ALLOCATOR, "reserve", reserve)

    def _start(self, start: Start, versions: Versions) -> None:
        cluster = self._cluster
        self._reserve(start)
        try:
            self._record("commit_start", lambda: cluster.tree.commit_start(start, versions, cluster.now_s))
        except ClusterError:
            raise
        except RayorchError:
            self.execute(DropReservation(start.workload, start.attempt))
            raise

    def _resize(self, resize: Resize) -> None:
        cluster = self._cluster
        held = self.copies.allocations.get((resize.workload, resize.attempt))
        members = held.members if held is not None else ()
        staying = tuple(m for m in members if m.surplus not in resize.remove and m.phase is not MemberPhase.RELEASING)
        deadline_s = cluster.now_s + cluster.profile.start_deadline_s

        def grow() -> None:
            if not cluster.synced:
                raise ClusterError("the allocator is still comparing its books with the world")
            nodes = cluster.inventory.nodes.values()
            cluster.books.grow(resize.workload, resize.attempt, resize.add, nodes, cluster.now_s, deadline_s)

        if resize.add:
            self._ask(Actor.ALLOCATOR, "grow", grow)
        try:
            self._record(
                "commit_resize",
                lambda: cluster.tree.commit_resize(resize, (*staying, *resize.add), cluster.now_s),
            )
        except ClusterError:
            raise
        except RayorchError:
            if resize.add:
                added = tuple(m.surplus for m in resize.add)
                self.execute(RemoveGroups(resize.workload, resize.attempt, added))
            raise

    # ------------------------------------------------------------ actions

    def execute(self, action: Action) -> None:
        """Carry out one action of the reconciliation. ClusterError when its owner doesn't answer."""
        cluster = self._cluster
        try:
            match action:
                case CreateGroups() | RemoveGroups() | DropReservation() | MarkReleasing() | Rebind():
                    self._ask(Actor.ALLOCATOR, type(action).__name__, lambda: self._allocator_effect(action))
                case Reseat(resize=resize, members=members):
                    self._record("reseat", lambda: cluster.tree.commit_resize(resize, members, cluster.now_s))
                case MarkReady(workload=workload, attempt=attempt):
                    self._record("ready", lambda: cluster.tree.ready(workload, attempt, cluster.now_s))
                case EndAttempt(event=event):
                    self._record("end_attempt", lambda: cluster.tree.end_attempt(event))
                case BlockNodes(nodes=nodes, until_s=until_s, reason=reason):
                    self._ask(Actor.INVENTORY, "block", lambda: cluster.inventory.block(nodes, until_s, reason))
                case StartRunner(workload=workload, grant=grant):
                    spec = self.copies.workloads[workload].spec
                    self._ask(Actor.RUNNER, "start", lambda: cluster.attempts.start(spec, grant, cluster.now_s))
                case UpdateRunner(grant=grant):
                    key = (action.workload, action.attempt)
                    self._ask(Actor.RUNNER, "update", lambda: cluster.attempts.update(key, grant))
                case KillRunner():
                    key = (action.workload, action.attempt)
                    self._ask(Actor.RUNNER, "kill", lambda: cluster.attempts.kill(key))
                case _:
                    assert_never(action)
        except ClusterError:
            raise
        except RayorchError as error:
            cluster.refusals.append(f"{cluster.now_s:.1f} {type(action).__name__}: {error}")

    def _allocator_effect(self, action: CreateGroups | RemoveGroups | DropReservation | MarkReleasing | Rebind) -> None:
        cluster = self._cluster
        key = (action.workload, action.attempt)
        if not cluster.synced:
            raise ClusterError("the allocator is still comparing its books with the world")
        match action:
            case CreateGroups(surpluses=surpluses):
                cluster.create_groups(*key, surpluses)
            case RemoveGroups(surpluses=surpluses):
                cluster.remove_groups(*key, surpluses)
            case DropReservation():
                held = cluster.books.allocations.get(key)
                if held is not None:
                    cluster.remove_groups(*key, tuple(sorted({m.surplus for m in held.members})))
            case MarkReleasing(surpluses=surpluses):
                cluster.books.release(*key, surpluses)
            case Rebind(in_use=in_use):
                cluster.books.rebind(*key, in_use)

    # ------------------------------------------------------------ calls

    def _ask(self, callee: Actor, label: str, effect: Callable[[], T]) -> T:
        return self._cluster.call(Actor.CONTROLLER, callee, label, effect)

    def _record(self, label: str, command: Callable[[], tuple[Event, ...]]) -> None:
        self._ask(Actor.QUEUES, label, lambda: self._cluster.record(command()))
