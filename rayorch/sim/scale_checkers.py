"""The invariants of capacity as code: what may be asked of node groups, and what may be taken away.

15 a change is decided on what is known, within the group's limits, one at a time, never during a back-off
16 no node is asked for beyond what whole gangs need    17 no node goes that somebody needs
18 what is said about capacity is true                  19 at rest nothing is left over
20 nobody keeps free nodes that it can't use

The need is worked out here once more, from the snapshot and the plan alone: the waiting gangs are seated in their
order on what is free, on what has been ordered, and on what the plan adds. What can be left out without any gang
losing its place was too much; what can't be taken away without that was needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rayorch.core.capacity import Capacity, GroupName, GroupState, InstancePhase, NodeGroup, Provider
from rayorch.core.decisions import GangDemand, GroupChange, Plan, Reserve, Resize, Scale, Start, Stop, WaitReason
from rayorch.core.planning.claims import Shape, gang_of
from rayorch.core.planning.seats import Search, find
from rayorch.core.policy import SortKey
from rayorch.core.room import Room
from rayorch.core.slot import Slot
from rayorch.core.snapshot import Snapshot
from rayorch.core.topology import Domain, Topology
from rayorch.core.types import MODEL_LABEL, Allocation, NodeHealth, NodeId, NodeSpec, Resources, State, WorkloadId
from rayorch.sim.checkers import Violation, staying_members
from rayorch.sim.groups import Patch, Removal, node_of

Place = tuple[int, WorkloadId]
"""One waiting gang, or one seat more for a running one, by its place in the order of those that wait."""

SAYS_CAPACITY = {
    WaitReason.PROVISIONING,
    WaitReason.CAPACITY_REFUSED,
    WaitReason.CAPACITY_LIMIT,
    WaitReason.CAPACITY_BUSY,
    WaitReason.CAPACITY_UNKNOWN,
}

LONG_DRAIN_S = 300.0
"""A drain with a longer deadline is a person's, and no notice of a spot machine's end."""


def check_scale(snapshot: Snapshot, plan: Plan, idle_s: float) -> tuple[Violation, ...]:
    """All that can be judged from a snapshot and the plan that was made on it. `idle_s`: the profile's."""
    scale = next((d for d in plan.decisions if isinstance(d, Scale)), None)
    if scale is None or snapshot.capacity.provider is Provider.NONE:
        return ()
    view = _View.of(snapshot, plan, scale)
    return (
        *check_bounds(snapshot, scale),
        *check_growth(view),
        *check_shrink(view, idle_s),
        *check_capacity_waits(view),
        *check_room_is_used(view),
    )


def check_bounds(snapshot: Snapshot, scale: Scale) -> Iterator[Violation]:
    """15: each change alone, against its group as the snapshot shows it."""
    capacity = snapshot.capacity
    states = {state.group.name: state for state in capacity.groups}
    if scale.changes and not capacity.decides:
        yield Violation(15, "groups", f"changed although {capacity.error or 'they are not ours to change'}")
    names = [change.group for change in scale.changes]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield Violation(15, name, "is changed twice in one plan")
    for change in scale.changes:
        state = states.get(change.group)
        if state is None:
            yield Violation(15, change.group, "is changed and does not exist")
        else:
            for detail in _out_of_bounds(change, state, snapshot.now_s):
                yield Violation(15, change.group, detail)


def _out_of_bounds(change: GroupChange, state: GroupState, now_s: float) -> Iterator[str]:
    group, back_off = state.group, state.back_off
    if change.from_replicas != group.replicas:
        yield f"is changed from {change.from_replicas} while it has {group.replicas}"
    if change.to_replicas == change.from_replicas:
        yield "is changed to what it is"
    if not change.reason:
        yield "is changed without a reason"
    if change.to_replicas > change.from_replicas:
        if change.to_replicas > group.max_replicas:
            yield f"grows to {change.to_replicas}, beyond its maximum of {group.max_replicas}"
        if state.order is not None or state.shrinks_to is not None:
            yield "grows while another change is open"
        if back_off is not None and now_s < back_off.until_s:
            yield f"grows {back_off.until_s - now_s:.1f} s before its back-off is over"
        if not change.beneficiaries and change.to_replicas > group.min_replicas:
            yield "grows for nobody"
        if not now_s < change.expected_s <= change.deadline_s:
            yield f"is expected at {change.expected_s:.1f}, given up at {change.deadline_s:.1f}, now {now_s:.1f}"
    elif change.to_replicas < group.min_replicas:
        yield f"shrinks to {change.to_replicas}, below its minimum of {group.min_replicas}"
    else:
        known = {i.name: i for i in group.instances}
        replicas = {known[name].replica for name in change.instances if name in known}
        whole = {i.name for i in group.instances if i.replica in replicas}
        if not set(change.instances) <= known.keys():
            yield f"is to lose {sorted(set(change.instances) - known.keys())}, which it does not have"
        if whole != set(change.instances):
            yield f"is to lose part of a replica: {change.instances}"
        unmade = change.from_replicas - len({i.replica for i in group.instances})  # promised, and not even a machine
        if not 0 <= change.from_replicas - change.to_replicas - len(replicas) <= max(0, unmade):
            yield f"names {len(replicas)} replicas and loses {change.from_replicas - change.to_replicas}"
        if {known[n].node for n in change.instances if n in known and known[n].node} != set(change.nodes):
            yield f"names {change.nodes}, which are not the nodes of {change.instances}"


# ---------------------------------------------------------------- the need, worked out again


@dataclass(frozen=True, slots=True)
class _View:
    """What a plan leaves: free room, what is closed for whom, who waits for room in which order.

    `coming`: nodes that have been ordered. `added`: the replicas that the plan adds, each with its nodes.
    """

    snapshot: Snapshot
    plan: Plan
    scale: Scale
    room_nodes: tuple[NodeSpec, ...]
    closed: dict[NodeId, WorkloadId]
    gangs: tuple[tuple[WorkloadId, Shape], ...]
    coming: tuple[NodeSpec, ...]
    added: tuple[tuple[GroupName, tuple[NodeSpec, ...]], ...]

    @staticmethod
    def of(snapshot: Snapshot, plan: Plan, scale: Scale) -> _View:
        """Index a snapshot and its plan."""
        closed = {
            m.node: d.workload
            for d in plan.decisions
            if isinstance(d, Reserve) and not d.from_release and not d.kept
            for m in d.members
        }
        cancelled: dict[GroupName, int] = {}
        added: list[tuple[GroupName, tuple[NodeSpec, ...]]] = []
        groups = {state.group.name: state.group for state in snapshot.capacity.groups}
        for change in scale.changes:
            group = groups.get(change.group)
            if group is None:
                continue
            if not change.nodes:
                cancelled[change.group] = max(0, change.from_replicas - change.to_replicas)
            for number in range(change.to_replicas - change.from_replicas):
                made = [node_of(group, f"{group.name}-added{number}-{host}") for host in range(group.hosts)]
                added.append((group.name, tuple(made)))
        coming = [
            node
            for state in snapshot.capacity.groups
            for node in _coming(snapshot, state, cancelled.get(state.group.name, 0))
        ]
        return _View(
            snapshot,
            plan,
            scale,
            snapshot.nodes,
            closed,
            tuple((demand.workload, _shape(snapshot, demand)) for demand in scale.wanted),
            tuple(coming),
            tuple(added),
        )

    def lost_without(
        self, before: frozenset[Place], extra: Iterable[NodeSpec], without: frozenset[NodeId]
    ) -> frozenset[Place]:
        """Those of `before` for whom there is no place without these nodes.

        Seats are taken gang by gang, each where it likes best, which may leave none for a later one although there are
        enough for all: those that find none choose first then, until all of `before` are seated or nothing changes.
        """
        extra, first = tuple(extra), frozenset[Place]()
        lost = found = before - self.seated(extra, without)
        while found and not found <= first:
            first |= found
            found = before - self.seated(extra, without, first)
        return lost if found else found

    def seated(
        self,
        extra: Iterable[NodeSpec],
        without: frozenset[NodeId] = frozenset(),
        first: frozenset[Place] = frozenset(),
    ) -> frozenset[Place]:
        """The waiting gangs that find a place, each whole, in their order: on what is free and on `extra` nodes.

        Those in `first` go before all others.
        """
        extra = tuple(extra)
        nodes = (*(n for n in self.room_nodes if n.id not in without), *extra)
        staying = tuple(staying_members(self.snapshot, self.plan))  # what is leaving is as good as gone
        books = Allocation(WorkloadId(""), 0, staying, 0.0, 0.0)
        room = Room.of(nodes, (books,), self.snapshot.now_s)
        waiting = {id for id, _ in self.gangs}  # what is kept for one of these it takes itself
        for decision in self.plan.decisions:
            members = decision.members if isinstance(decision, Start) else ()
            members = decision.add if isinstance(decision, Resize) else members
            if isinstance(decision, Reserve) and (decision.from_release or decision.kept):
                members = decision.members if decision.from_release or decision.workload not in waiting else ()
            for member in members:
                if room.fits(member.node, member.bundle):
                    room.take(member.node, member.bundle)
        topology = Topology.of(nodes)
        added = frozenset(node.id for node in self.all_added)
        coming = {node.id: 1 for node in extra}
        order = self.plan.positions
        found = set()
        turns = [((n, id) not in first, self.turn(id), n) for n, (id, _) in enumerate(self.gangs)]
        for _, _, place in sorted(turns):
            id, shape = self.gangs[place]
            bundles = [bundle for bundle, count in shape.bundles for _ in range(count)]
            # A head's nodes are closed; who was promised a seat there before it held them keeps that.
            behind = order.get(id, 0) if self.turn(id) == 0 else len(order) + 1
            closed = frozenset(n for n, holder in self.closed.items() if holder != id and order.get(holder, 0) < behind)
            mine = {c.group for c in self.scale.changes if id in c.beneficiaries}
            new = coming | {n.id: 2 if group in mine else 3 for group, nodes in self.added for n in nodes}
            places = None
            shuts = [closed | added, closed]  # of several models one that needs nothing added goes first
            if self.turn(id) == 0:  # who is promised seats may have been promised them before a head held the nodes
                shuts = [closed | added, added, closed]
            for shut in shuts:
                places = places or find(shape.loose, _search(room, topology, shut, new, shape.gpu_units))
            if places is not None:
                found.add((place, id))
                for bundle, node in zip(bundles, places, strict=True):
                    room.take(node, bundle)
        return frozenset(found)

    def turn(self, id: WorkloadId) -> int:
        """Who has a place on what exists or is coming keeps it; then come those whom the plan adds nodes for."""
        if any(
            id in change.beneficiaries for change in self.scale.changes if change.to_replicas > change.from_replicas
        ):
            return 1
        waits = self.plan.waits.get(id)
        return 0 if waits is None or WaitReason.PROVISIONING in {wait.reason for wait in waits} else 2

    @property
    def all_added(self) -> tuple[NodeSpec, ...]:
        """Every node that the plan adds."""
        return tuple(node for _, nodes in self.added for node in nodes)


def _coming(snapshot: Snapshot, state: GroupState, cancelled: int) -> Iterator[NodeSpec]:
    """Nodes that the group's count promises and that are not there: they are on their way, whoever asked for them.

    What a provider is taking away of its own accord it replaces. A group that is backed off promises nothing, nor does
    what was given up.
    """
    group, now_s = state.group, snapshot.now_s
    if state.back_off is not None and now_s < state.back_off.until_s:
        return
    leaving = {i.name for i in group.instances if i.phase is InstancePhase.LEAVING}
    leaving |= {
        n.instance
        for n in snapshot.nodes
        if group.spot and n.health is NodeHealth.DRAINING and (n.drain_deadline_s or now_s) < now_s + LONG_DRAIN_S
    }
    there = [n for n in snapshot.nodes if n.group == group.name and n.health is not NodeHealth.LOST]
    staying = sum(n.instance not in leaving for n in there)
    failed = state.given_up
    if state.order is None:  # while one is open, what failed may be replaced
        failed = max(failed, sum(i.phase is InstancePhase.FAILED for i in group.instances))
    target = (group.replicas if state.shrinks_to is None else state.shrinks_to) - cancelled
    if state.order is not None and state.shrinks_to is None:  # its patch may be on its way still
        target = max(target, state.order.to_replicas - cancelled)
    for number in range(target * group.hosts - staying - failed):
        yield node_of(group, f"{group.name}-coming{number}")


def _shape(snapshot: Snapshot, demand: GangDemand) -> Shape:
    """What a demand needs: the gang's own shape, or that of a seat more for one that runs."""
    workload = next(w for w in snapshot.workloads if w.id == demand.workload)
    if workload.state is State.PENDING:
        return gang_of(workload.spec).shape
    bundles = tuple((bundle, 1) for bundle in demand.bundles)
    staying = {node.id for node in snapshot.nodes if node.health in (NodeHealth.OK, NodeHealth.CORDONED)}
    held = {m.node for a in snapshot.allocations if a.workload == workload.id for m in a.members}
    near = tuple(sorted(held & staying))
    models = tuple(value for label, value in demand.selector if label == MODEL_LABEL)  # that of the seats it has
    return Shape(bundles, demand.topology, False, near if demand.topology.required is not None else (), models)


def _search(room: Room, topology: Topology, closed: frozenset[NodeId], new: Mapping[NodeId, int], need: int) -> Search:
    """What exists first, then what is on its way (`new` 1), what is added for it (2), and for others (3)."""

    def known_first(bundle: Resources, node: NodeId, slot: Slot) -> SortKey:
        return (new.get(node, 0), slot.gpu_units)

    def least_added(domain: Domain) -> SortKey:
        free = [0, 0, 0, 0]
        for node in domain.nodes:
            if node not in closed:
                free[new.get(node, 0)] += room.gpu_units(node)
        return (max(0, need - free[0] - free[1]), max(0, need - free[0]), sum(free))

    return Search((room,), topology, known_first, least_added, closed)


# ---------------------------------------------------------------- growth and shrink


def check_growth(view: _View) -> Iterator[Violation]:
    """16: for gangs that wait for nothing but room, and not one replica more than they need."""
    wanted = {demand.workload for demand in view.scale.wanted}
    growths = [c for c in view.scale.changes if c.to_replicas > c.from_replicas]
    for change in growths:
        for id in change.beneficiaries:
            if id not in wanted:
                yield Violation(16, change.group, f"grows for {id}, which does not wait for room alone")
    if not view.added:
        return
    served = view.seated((*view.coming, *view.all_added))
    mins = {state.group.name: state.group.min_replicas for state in view.snapshot.capacity.groups}
    for change in growths:
        lost = sorted(set(change.beneficiaries) - {id for _, id in served})
        if lost:
            yield Violation(16, change.group, f"grows for {lost}, which find no place even so")
        if change.to_replicas <= mins[change.group]:
            continue
        to_minimum = any(not other.beneficiaries for other in growths)
        if to_minimum or any(view.turn(id) == 0 for id, _ in view.gangs):
            # Where others are promised seats on what is coming, which ones is not in the plan: a bound has to do.
            most = sum(_alone(view, change.group, id) for id in change.beneficiaries)
            if change.to_replicas - max(change.from_replicas, mins[change.group]) > most:
                yield Violation(16, change.group, f"grows to {change.to_replicas}, more than its gangs need alone")
            continue
        one = next(i for i, (name, _) in enumerate(view.added) if name == change.group)
        fewer = [node for i, (_, nodes) in enumerate(view.added) if i != one for node in nodes]
        if served <= view.seated((*view.coming, *fewer)):
            yield Violation(16, change.group, f"grows to {change.to_replicas}, and one less serves the same gangs")


def _alone(view: _View, name: GroupName, id: WorkloadId) -> int:
    """How many replicas of the group take all that a gang asks for, if it uses nothing else."""
    group = next(state.group for state in view.snapshot.capacity.groups if state.group.name == name)
    left: list[Resources] = []
    bundles = [b for gang, shape in view.gangs if gang == id for b, n in shape.bundles for _ in range(n)]
    for bundle in sorted(bundles, key=lambda b: -b.gpu_units):
        place = next((i for i, free in enumerate(left) if bundle.fits_in(free)), None)
        if place is not None:
            left[place] -= bundle
        elif bundle.fits_in(group.total):
            left.append(group.total - bundle)
    return -(-len(left) // group.hosts)


def check_shrink(view: _View, idle_s: float) -> Iterator[Violation]:
    """17: what goes holds nothing, has been idle for long enough, is no spare, and no waiting gang needs it."""
    snapshot = view.snapshot
    nodes = {node.id: node for node in snapshot.nodes}
    groups = {state.group.name: state.group for state in snapshot.capacity.groups}
    held = {m.node for a in snapshot.allocations for m in a.members}
    for decision in view.plan.decisions:
        held |= {m.node for m in decision.members} if isinstance(decision, Start | Reserve) else set()
        held |= {m.node for m in decision.add} if isinstance(decision, Resize) else set()
    for change in view.scale.changes:
        group = groups.get(change.group)
        if group is None or change.to_replicas > change.from_replicas:
            continue
        after_s = group.idle_s if group.idle_s is not None else idle_s
        for id in change.nodes:
            for detail in _must_stay(nodes.get(id), id in held, snapshot.now_s, after_s):
                yield Violation(17, id, f"is to go although it {detail}")
        if change.nodes and _idle_left(group, change, nodes, held) < min(group.spares, _running(group)):
            yield Violation(17, change.group, f"would keep fewer than {group.spares} spares")
        extra = (*view.coming, *view.all_added)
        before = view.seated((*extra, *_cancelled(view, change, group)))
        lost = view.lost_without(before, extra, frozenset(change.nodes))
        if lost:
            yield Violation(
                17, change.group, f"is to lose {change.instances}, which {sorted(id for _, id in lost)} need"
            )


def _must_stay(node: NodeSpec | None, held: bool, now_s: float, after_s: float) -> Iterator[str]:
    if node is None or node.health is NodeHealth.LOST:
        return
    if held:
        yield "is held or reserved"
    if node.foreign:
        yield "is used outside our grants"
    if node.health is NodeHealth.DRAINING:
        yield "is draining already"
    if node.idle_since_s is None:
        yield "is in use"
    elif now_s - node.idle_since_s < after_s:
        yield f"has been idle for {now_s - node.idle_since_s:.1f} of {after_s:.1f} s only"


def _running(group: NodeGroup) -> int:
    return len({i.replica for i in group.instances if i.phase is InstancePhase.RUNNING})


def _idle_left(group: NodeGroup, change: GroupChange, nodes: dict[NodeId, NodeSpec], held: set[NodeId]) -> int:
    """Whole idle replicas that stay."""
    count = 0
    for replica in sorted({i.replica for i in group.instances}):
        ours = [i for i in group.instances if i.replica == replica]
        up = all(i.phase is InstancePhase.RUNNING and i.node in nodes and i.node not in held for i in ours)
        count += up and not any(i.name in change.instances for i in ours)
    return count


def _cancelled(view: _View, change: GroupChange, group: NodeGroup) -> list[NodeSpec]:
    """The nodes that would have come but for this change: those of an open order that it cancels."""
    state = next(s for s in view.snapshot.capacity.groups if s.group.name == group.name)
    if change.nodes or state.order is None:
        return []
    count = (change.from_replicas - change.to_replicas) * group.hosts
    return [node_of(group, f"{group.name}-cancelled{i}") for i in range(count)]


# ---------------------------------------------------------------- what is said about it


def check_capacity_waits(view: _View) -> Iterator[Violation]:
    """18: who waits for nodes says so, and says nothing else about capacity than what is so."""
    snapshot, plan = view.snapshot, view.plan
    states = snapshot.capacity.groups
    growing = {id for c in view.scale.changes if c.to_replicas > c.from_replicas for id in c.beneficiaries}
    on_their_way = bool(view.coming) or any(s.order is not None for s in states)
    now_s = snapshot.now_s
    true = {
        WaitReason.PROVISIONING: on_their_way or bool(growing),
        WaitReason.CAPACITY_REFUSED: any(s.back_off and s.back_off.until_s > now_s for s in states),
        WaitReason.CAPACITY_UNKNOWN: bool(snapshot.capacity.error),
    }
    for id, waits in sorted(plan.waits.items()):
        reasons = {wait.reason for wait in waits}
        for reason, holds in true.items():
            if reason in reasons and not holds:
                yield Violation(18, id, f"says {reason}, which is not so")
        if id in growing and (WaitReason.PROVISIONING not in reasons or plan.estimates.get(id) is None):
            yield Violation(18, id, f"nodes are ordered for it, but it says {sorted(reasons)}")
    if snapshot.capacity.provider is not Provider.OURS:
        return
    for id, shape in view.gangs:
        reasons = {wait.reason for wait in plan.waits.get(id, ())}
        if not reasons:
            continue  # a seat more for one that runs
        if snapshot.capacity.error and WaitReason.CAPACITY_UNKNOWN not in reasons:
            yield Violation(18, id, "waits for nodes whose provider can't be read, and does not say so")
        elif not reasons & SAYS_CAPACITY and any(_could_take(state.group, shape) for state in states):
            yield Violation(18, id, f"says nothing of the groups that could take it, only {sorted(reasons)}")


def _could_take(group: NodeGroup, shape: Shape) -> bool:
    """Whether a node of the group could take one of the largest pieces."""
    level = shape.topology.required
    fits = max((b for b, _ in shape.bundles), key=lambda b: b.gpu_units, default=Resources()).fits_in(group.total)
    model = not shape.accelerators or group.model in shape.accelerators
    return fits and model and (level is None or level == "node" or group.label(level) is not None)


def check_room_is_used(view: _View) -> Iterator[Violation]:
    """20: nobody keeps free nodes that it can't use: whoever fits on what is free starts.

    Judged when nothing is held, promised or being freed: then free is free.
    """
    plan, snapshot = view.plan, view.snapshot
    stopping = any(isinstance(d, Stop | Reserve) or (isinstance(d, Resize) and d.remove) for d in plan.decisions)
    promised = any(w.reason is WaitReason.PROVISIONING for waits in plan.waits.values() for w in waits)
    held = sum(len(a.members) for a in snapshot.allocations)
    if stopping or promised or held != len(staying_members(snapshot, plan)) or not snapshot.synced:
        return
    for _, id in sorted(view.seated(())):
        if id in plan.waits:
            yield Violation(20, id, "would fit on what is free, and does not start")


# ---------------------------------------------------------------- the provider's own history


def check_patches(patches: Iterable[Patch], removals: Iterable[Removal]) -> tuple[Violation, ...]:
    """17: nothing that holds a placement group went because we named it; 15: what we asked for makes sense at all."""
    found = []
    for patch in patches:
        if patch.ours and (patch.to_replicas < 0 or patch.to_replicas == patch.from_replicas):
            found.append(Violation(15, patch.group, f"was patched from {patch.from_replicas} to {patch.to_replicas}"))
        if patch.ours and patch.to_replicas < patch.from_replicas and not patch.instances:
            found.append(Violation(17, patch.group, "was shrunk without naming who goes: the operator chooses"))
    found += [Violation(17, r.instance, f"was taken from {r.busy}") for r in removals if r.named and r.busy]
    return tuple(found)


def check_groups_at_rest(groups: Iterable[NodeGroup], capacity: Capacity) -> tuple[Violation, ...]:
    """19: when nothing waits and nothing runs, each group has its minimum or its spares, and nothing is under way."""
    found = []
    for group in groups:
        if group.replicas != max(group.min_replicas, min(group.spares, group.replicas)):
            found.append(Violation(19, group.name, f"still has {group.replicas} replicas"))
        up = [i for i in group.instances if i.phase is InstancePhase.RUNNING]
        if len(up) != group.replicas * group.hosts or len(up) != len(group.instances):
            shown = [(i.name, i.phase.value) for i in group.instances]
            found.append(Violation(19, group.name, f"has {shown} for {group.replicas} replicas"))
    for state in capacity.groups:
        if state.order is not None or state.shrinks_to is not None:
            found.append(Violation(19, state.group.name, f"something is under way: {state.order or state.shrinks_to}"))
    return tuple(found)
