"""What would happen if: the planner run on a changed copy of a snapshot. Nothing is decided and nobody is told.

`would` says what a submission would do, victims included. `smallest_changes` says which changes of a waiting workload
would let it start. `start_interval` says when it should start by itself. Each what-if is a whole turn of the planner
over the workload and those that go before it; who stands behind it can't change its lot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from rayorch.core.decisions import Plan, Reserve, Resize, Start, Stop, Wait
from rayorch.core.forecast import Forecast
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import NodeId, Role, State, TopologyRequest, Workload, WorkloadId, WorkloadSpec


class Lot(StrEnum):
    """What becomes of a workload in a turn."""

    STARTS = "starts"
    STARTS_AFTER_EVICTIONS = "starts after evictions"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class Victim:
    """Who gives up what for it: all seats (`stopped`), or `seats` surplus ones. `cost_gpu_s`: work that is lost."""

    workload: WorkloadId
    stopped: bool
    seats: int
    cost_gpu_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Interval:
    """When a workload should start [s since the epoch]: by half of what was learned, and almost surely."""

    likely_s: float
    late_s: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a submission would do. `seats`: members by node, where it starts or what is reserved for it.

    `delayed`: who would start in the same turn without it, and does not with it. `reason`: the planner's own words.
    `start`: None where it is not known, or where it starts now.
    """

    workload: WorkloadId
    lot: Lot
    seats: tuple[tuple[NodeId, int], ...] = ()
    victims: tuple[Victim, ...] = ()
    delayed: tuple[WorkloadId, ...] = ()
    waits: tuple[Wait, ...] = ()
    position: int | None = None
    start: Interval | None = None
    reason: str = ""


class ChangeKind(StrEnum):
    """What could be changed, from what costs the user least."""

    NOTHING = "wait"  # it starts by itself, by the estimate
    PREFER = "prefer the level"
    LEVEL = "require a wider level"
    ACCELERATOR = "allow another accelerator"
    MEMBERS = "ask for fewer members"
    PRIORITY = "raise the priority"


@dataclass(frozen=True, slots=True)
class Change:
    """One change after which the workload would start in this turn, and what that would cost others."""

    kind: ChangeKind
    detail: str
    victims: tuple[Victim, ...] = ()
    start: Interval | None = None


# ---------------------------------------------------------------- a submission


def would(snapshot: Snapshot, profile: Profile, spec: WorkloadSpec) -> Outlook:
    """What submitting `spec` now would do. One that is there already under this id is replaced."""
    others = tuple(w for w in snapshot.workloads if w.id != spec.id)
    before = plan(replace(snapshot, workloads=others), profile)
    newcomer = Workload(spec, State.PENDING, snapshot.now_s)
    world = replace(snapshot, workloads=_sorted((*others, newcomer)))
    after = plan(world, profile)
    found = forecast(after, spec.id)
    delayed = sorted(_starting(before) - _starting(after))
    start = start_interval(world, profile, spec.id) if found.lot is Lot.WAITS else None
    return replace(found, delayed=tuple(delayed), start=start)


def forecast(decided: Plan, id: WorkloadId) -> Outlook:
    """What a plan means for one workload: the seats that it gets, who makes room for it, why it waits."""
    victims = tuple(_victims(decided, id))
    for decision in decided.decisions:
        if isinstance(decision, Start) and decision.workload == id:
            return Outlook(id, Lot.STARTS, _by_node(decision), victims, reason=decision.reason)
    for decision in decided.decisions:
        if isinstance(decision, Reserve) and decision.workload == id and victims:
            seats = _by_node(decision)
            waits, position = decided.waits.get(id, ()), decided.positions.get(id)
            return Outlook(id, Lot.STARTS_AFTER_EVICTIONS, seats, victims, (), waits, position, None, decision.reason)
    return Outlook(id, Lot.WAITS, waits=decided.waits.get(id, ()), position=decided.positions.get(id))


def _victims(decided: Plan, id: WorkloadId) -> Iterator[Victim]:
    for decision in decided.decisions:
        if isinstance(decision, Stop) and decision.order.beneficiary == id:
            yield Victim(decision.workload, True, 0, decision.cost_gpu_s, decision.order.reason)
        elif isinstance(decision, Resize) and decision.remove and decision.beneficiary == id:
            yield Victim(decision.workload, False, len(decision.remove), decision.cost_gpu_s, decision.reason)


def _by_node(decision: Start | Reserve) -> tuple[tuple[NodeId, int], ...]:
    counts: dict[NodeId, int] = {}
    for member in decision.members:
        counts[member.node] = counts.get(member.node, 0) + 1
    return tuple(sorted(counts.items()))


def _starting(decided: Plan) -> set[WorkloadId]:
    return {d.workload for d in decided.decisions if isinstance(d, Start)}


# ---------------------------------------------------------------- the smallest change


def smallest_changes(snapshot: Snapshot, profile: Profile, decided: Plan, id: WorkloadId) -> tuple[Change, ...]:
    """Every single change of a waiting workload after which it would start, the mildest kind first.

    `decided`: the plan of this snapshot. Empty for a workload that does not wait, and where no single change helps.
    """
    workload = next((w for w in snapshot.workloads if w.id == id and w.state is State.PENDING), None)
    if workload is None or id in _starting(decided):
        return ()
    world = _ahead_of(snapshot, decided, id)
    found: list[Change] = []
    start = start_interval(world, profile, id)
    if start is not None:
        wait_s = max(0.0, start.likely_s - snapshot.now_s)
        found.append(Change(ChangeKind.NOTHING, f"it should start by itself in {wait_s:.0f} s", start=start))
    for kind, detail, spec in _single_changes(workload.spec, world):
        lot = _lot_of(world, profile, replace(workload, spec=spec))
        if lot.lot is not Lot.WAITS:
            found.append(Change(kind, detail, lot.victims))
    found += _fewer_members(world, profile, workload)
    found += _higher_priority(world, profile, workload)
    return tuple(found)


def _lot_of(world: Snapshot, profile: Profile, workload: Workload) -> Outlook:
    """What becomes of it in this world when it is as given."""
    others = tuple(w for w in world.workloads if w.id != workload.id)
    return forecast(plan(replace(world, workloads=_sorted((*others, workload))), profile), workload.id)


def _single_changes(spec: WorkloadSpec, world: Snapshot) -> Iterator[tuple[ChangeKind, str, WorkloadSpec]]:
    """Looser topology and further accelerator models, one at a time."""
    topology = spec.topology
    if topology.required is not None:
        for level in _wider_levels(world, topology.required):
            looser = replace(topology, required=level)
            yield ChangeKind.LEVEL, f"require {level} in place of {topology.required}", replace(spec, topology=looser)
        wish = TopologyRequest(None, topology.required, topology.balanced)
        yield ChangeKind.PREFER, f"prefer {topology.required} in place of requiring it", replace(spec, topology=wish)
    if spec.accelerators:
        for model in sorted({node.model for node in world.nodes if node.model} - set(spec.accelerators)):
            yield (
                ChangeKind.ACCELERATOR,
                f"allow {model} beside {', '.join(spec.accelerators)}",
                replace(spec, accelerators=(*spec.accelerators, model)),
            )


def _wider_levels(world: Snapshot, level: str) -> list[str]:
    """The levels outside a level, the nearest first, as the nodes name them."""
    for node in world.nodes:
        names = [name for name, _ in node.topology]
        if level in names:
            return list(reversed(names[: names.index(level)]))
        if level == "node" and names:
            return list(reversed(names))
    return []


def _fewer_members(world: Snapshot, profile: Profile, workload: Workload) -> list[Change]:
    """The most members of its largest role with which it starts now, found by bisection; [] when one is too many."""
    spec = workload.spec
    role = max(spec.roles, key=lambda r: (r.min_count * (r.bundle.gpu_units or 1), r.min_count), default=None)
    if role is None or role.min_count < 2:
        return []
    known: dict[int, Outlook] = {}

    def starts(count: int) -> bool:
        known[count] = _lot_of(world, profile, replace(workload, spec=_with_members(spec, role, count)))
        return known[count].lot is not Lot.WAITS

    if not starts(1):
        return []
    least, most = 1, role.min_count  # starts with `least`, does not with `most`
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if starts(middle) else (least, middle)
    return [
        Change(ChangeKind.MEMBERS, f"{least} of role {role.name} in place of {role.min_count}", known[least].victims)
    ]


def _with_members(spec: WorkloadSpec, role: Role, count: int) -> WorkloadSpec:
    fewer = replace(role, min_count=count, segments=())
    return replace(spec, roles=tuple(fewer if r.name == role.name else r for r in spec.roles))


def _higher_priority(world: Snapshot, profile: Profile, workload: Workload) -> list[Change]:
    """The least priority above its own with which it starts, among those that make a difference."""
    own, queue = workload.spec.priority, workload.spec.queue
    limits = {spec.id: spec.max_priority for spec in world.queues}
    most = limits.get(queue, own)
    steps = sorted({w.spec.priority + 1 for w in world.workloads if w.spec.priority >= own and w.id != workload.id})
    steps = [step for step in steps if own < step <= most]
    best: Change | None = None
    low, high = 0, len(steps) - 1
    while low <= high:  # whom a priority beats, a higher one beats too
        middle = (low + high) // 2
        raised = replace(workload, spec=replace(workload.spec, priority=steps[middle]))
        found = _lot_of(world, profile, raised)
        if found.lot is Lot.WAITS:
            low = middle + 1
        else:
            best = Change(ChangeKind.PRIORITY, f"priority {steps[middle]} in place of {own}", found.victims)
            high = middle - 1
    return [best] if best is not None else []


# ---------------------------------------------------------------- when it starts


def start_interval(snapshot: Snapshot, profile: Profile, id: WorkloadId) -> Interval | None:
    """When a waiting workload should start as running work ends; None where too little is known of what runs.

    The first moment at which, with all gone that should have ended by then and everyone ahead of it started first, a
    turn of the planner would start it. Those ahead that would have ended again by then still count as running, so that
    it is rather late than early.
    """
    known = Forecast(snapshot.history, snapshot.now_s)
    likely = _first_start(snapshot, profile, id, _ends(snapshot, known, 0))
    if likely is None:
        return None
    late = _first_start(snapshot, profile, id, _ends(snapshot, known, 1))
    return Interval(likely, max(likely, late if late is not None else likely))


def _ends(snapshot: Snapshot, known: Forecast, which: int) -> list[tuple[float, WorkloadId]]:
    """When each running workload should end, the first first; those of which nothing is known never do."""
    found: list[tuple[float, WorkloadId]] = []
    for workload in snapshot.workloads:
        if workload.state is State.STOPPING and workload.stop is not None:
            found.append((max(snapshot.now_s, workload.stop.deadline_s), workload.id))
        elif workload.state is State.RUNNING and (left := known.remaining(workload)) is not None:
            found.append((snapshot.now_s + left[which], workload.id))
    return sorted(found)


def _first_start(
    snapshot: Snapshot, profile: Profile, id: WorkloadId, ends: list[tuple[float, WorkloadId]]
) -> float | None:
    """Bisection over the ends: what starts with less gone starts with more gone too."""
    own = next((w for w in snapshot.workloads if w.id == id), None)
    if own is None:
        return None
    moments = sorted({snapshot.now_s, *(end_s for end_s, _ in ends), max(own.not_before_s, snapshot.now_s)})
    if not _starts_at(snapshot, profile, id, ends, moments[-1]):
        return None
    low, high = -1, len(moments) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _starts_at(snapshot, profile, id, ends, moments[middle]) else (middle, high)
    return moments[high]


def _starts_at(
    snapshot: Snapshot, profile: Profile, id: WorkloadId, ends: list[tuple[float, WorkloadId]], at_s: float
) -> bool:
    gone = {other for end_s, other in ends if end_s <= at_s}
    then = replace(
        snapshot,
        now_s=at_s,
        workloads=tuple(w for w in snapshot.workloads if w.id not in gone),
        allocations=tuple(a for a in snapshot.allocations if a.workload not in gone),
    )
    return id in _starting(plan(then, profile))


def _ahead_of(snapshot: Snapshot, decided: Plan, id: WorkloadId) -> Snapshot:
    """The snapshot without those that wait behind the workload."""
    own = decided.positions.get(id)
    if own is None:
        return snapshot
    kept = tuple(
        w
        for w in snapshot.workloads
        if w.state is not State.PENDING or decided.positions.get(w.id, 0) <= own or w.id == id
    )
    return replace(snapshot, workloads=kept)


def _sorted(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    return tuple(sorted(workloads, key=lambda w: w.id))
