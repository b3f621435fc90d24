"""What holds for every plan, and for every sequence of plans that are carried out, whatever the cluster looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rayorch.core.decisions import Plan, Reserve, Resize, Scale, Start, Stop, WaitReason
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.core.quota import Quota
from rayorch.core.room import Room
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import (
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    State,
    StopCause,
    Workload,
    WorkloadId,
    total,
)
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, node, pending, queue, snapshot

TURN_S = 20.0


@dataclass
class World:
    """The smallest cluster that carries out plans: a start is up at once, a stop has taken effect a turn later."""

    nodes: Sequence[NodeSpec]
    queues: Sequence[QueueSpec]
    workloads: dict[WorkloadId, Workload]
    held: dict[WorkloadId, Allocation] = field(default_factory=dict)
    later: list[Workload] = field(default_factory=list)
    now_s: float = NOW
    evictions: list[tuple[WorkloadId, WorkloadId]] = field(default_factory=list)
    profile: Profile = DEFAULT

    def see(self) -> Snapshot:
        work = [
            (w, self.held[w.id]) if w.id in self.held else w for w in self.workloads.values() if not w.state.terminal
        ]
        return snapshot(self.nodes, work, self.queues, now_s=self.now_s)

    def turn(self) -> Plan:
        """Plan, check the plan, carry it out, and let a turn pass."""
        seen = self.see()
        made = plan(seen, self.profile)
        check(seen, made, self.profile)
        self.carry_out(made)
        return made

    def carry_out(self, made: Plan) -> None:
        """What was decided has happened, and a turn has passed."""
        for decision in made.decisions:
            match decision:
                case Start():
                    self._start(decision)
                case Stop():
                    self._stop(decision)
                case Resize():
                    self._resize(decision)
        self._pass()

    def submit(self) -> None:
        """What is still to come arrives."""
        self.workloads.update({w.id: w for w in self.later})

    def finish(self, index: int) -> None:
        """One of the running workloads ends by itself."""
        running = sorted(w.id for w in self.workloads.values() if w.state is State.RUNNING)
        if running:
            id = running[index % len(running)]
            self.workloads[id] = replace(self.workloads[id], state=State.SUCCEEDED)
            del self.held[id]

    def _start(self, start: Start) -> None:
        workload = self.workloads[start.workload]
        members = tuple(replace(m, phase=MemberPhase.READY) for m in start.members)
        gang = tuple(m.surplus for m in members[: workload.spec.roles[0].min_count])
        self.held[workload.id] = Allocation(workload.id, start.attempt, members, self.now_s, self.now_s + 30, "", gang)
        self.workloads[workload.id] = replace(
            workload,
            state=State.RUNNING,
            attempt=start.attempt,
            started_s=self.now_s,
            ready_s=self.now_s,
            size=(("worker", len(members)),),
        )

    def _stop(self, stop: Stop) -> None:
        workload = self.workloads[stop.workload]
        self.workloads[stop.workload] = replace(workload, state=State.STOPPING, stop=stop.order)
        if stop.order.beneficiary is not None:
            self.evictions.append((stop.order.beneficiary, stop.workload))

    def _resize(self, resize: Resize) -> None:
        held = self.held[resize.workload]
        members = [replace(m, phase=MemberPhase.RELEASING) if m.surplus in resize.remove else m for m in held.members]
        members += [replace(m, phase=MemberPhase.READY) for m in resize.add]
        self.held[resize.workload] = replace(held, members=tuple(members))
        self.workloads[resize.workload] = replace(
            self.workloads[resize.workload], resized_s=self.now_s, release_for=resize.beneficiary
        )

    def _pass(self) -> None:
        self.now_s += TURN_S
        for id, workload in sorted(self.workloads.items()):
            if workload.state is State.RUNNING:
                self.workloads[id] = replace(workload, lease_renewed_s=self.now_s)
                stay = tuple(m for m in self.held[id].members if m.phase is not MemberPhase.RELEASING)
                self.held[id] = replace(self.held[id], members=stay)
            elif workload.stop is not None and workload.stop.ordered_s < self.now_s - TURN_S * (len(id) % 2):
                # Some stops take two turns, so that plans see work that is stopping.
                self.workloads[id] = replace(
                    workload,
                    state=State.PENDING,
                    stop=None,
                    started_s=None,
                    requeued_s=self.now_s,
                    yielded_to=workload.stop.beneficiary,
                )
                del self.held[id]


def check(seen: Snapshot, made: Plan, profile: Profile = DEFAULT) -> None:
    """The properties of one plan."""
    again = plan(seen, profile)
    assert (made.decisions, made.waits, made.positions) == (again.decisions, again.waits, again.positions)
    starts = {d.workload: d for d in made.decisions if isinstance(d, Start)}
    waiting = {w.id for w in seen.workloads if w.state is State.PENDING}
    assert set(made.waits) == waiting - set(starts)
    assert all(made.waits.values())
    assert sorted(made.positions.values()) == list(range(1, len(made.positions) + 1))
    assert set(made.estimates) == set(made.waits)
    assert sum(isinstance(d, Scale) for d in made.decisions) == 1
    check_room(seen, made)
    check_gangs(seen, made)
    check_quota(seen, made)
    check_evictions(seen, made)


def check_room(seen: Snapshot, made: Plan) -> None:
    """All that is taken fits into what is free before anything is given back."""
    room = Room.of(seen.nodes, seen.allocations, seen.now_s)
    for member in added(made):
        assert room.fits(member.node, member.bundle)
        assert len(room.take(member.node, member.bundle)) == len(member.devices)


def check_gangs(seen: Snapshot, made: Plan) -> None:
    workloads = {w.id: w for w in seen.workloads}
    for decision in made.decisions:
        if isinstance(decision, Start):
            role = workloads[decision.workload].spec.roles[0]
            assert role.min_count <= len(decision.members) <= role.max_count
            assert len({m.index for m in decision.members}) == len(decision.members)
            numbers = [m.surplus for m in decision.members if m.surplus]
            assert len(set(numbers)) == len(numbers)
            base = [m.bundle_index for m in decision.members if m.surplus == 0]
            assert base == list(range(len(base)))
        if isinstance(decision, Resize):
            spec = workloads[decision.workload].spec
            held = next(a for a in seen.allocations if a.workload == decision.workload)
            keep = [m for m in held.members if m.phase is not MemberPhase.RELEASING]
            left = len(keep) - len(decision.remove) + len(decision.add)
            assert spec.roles[0].min_count <= left <= spec.roles[0].max_count
            assert {m.surplus for m in decision.add}.isdisjoint(m.surplus for m in held.members)
        if isinstance(decision, Start | Resize):
            rack = workloads[decision.workload].spec.topology.required
            members = decision.members if isinstance(decision, Start) else decision.add
            if rack is not None and isinstance(decision, Start):
                domains = {next(n for n in seen.nodes if n.id == m.node).domain(rack) for m in members}
                assert len(domains) == 1
    check_models(seen, made)


def check_models(seen: Snapshot, made: Plan) -> None:
    """A gang's GPUs are of one of the models that it names, what it holds and what it is promised included."""
    models = {n.id: n.model for n in seen.nodes}
    workloads = {w.id: w for w in seen.workloads}
    members = {a.workload: list(a.members) for a in seen.allocations if workloads[a.workload].state is State.RUNNING}
    for decision in made.decisions:
        match decision:
            case Start():
                members[decision.workload] = list(decision.members)
            case Resize():
                members[decision.workload] += decision.add
            case Reserve():
                members.setdefault(decision.workload, []).extend(decision.members)
    for id, seats in members.items():
        if workloads[id].spec.accelerators:
            used = {models[m.node] for m in seats if m.bundle.gpu_units}
            assert len(used) <= 1
            assert used <= set(workloads[id].spec.accelerators)


def check_quota(seen: Snapshot, made: Plan) -> None:
    """Every start and growth was within what its queue may take at that moment."""
    queues = {w.id: w.spec.queue for w in seen.workloads}
    usage: dict[QueueId, Resources] = {}
    for allocation in seen.allocations:
        queue_id = queues[allocation.workload]
        usage[queue_id] = usage.get(queue_id, Resources()) + allocation.held
    quota = Quota.of(seen.queues, usage)
    more: dict[WorkloadId, Resources] = {}
    for decision in made.decisions:
        if isinstance(decision, Start):
            more[decision.workload] = total(m.bundle for m in decision.members)
        if isinstance(decision, Resize) and decision.add:
            more[decision.workload] = total(m.bundle for m in decision.add)
    for id, amount in more.items():
        quota.charge(queues[id], amount)
    for spec in seen.queues:
        if spec.borrow_limit is not None and any(queues[id].startswith(spec.id) for id in more):
            for name, deserved in spec.deserved:
                assert quota.used(spec.id).units(name) <= max(
                    deserved + spec.borrow_limit.units(name), usage.get(spec.id, Resources()).units(name)
                )


def check_evictions(seen: Snapshot, made: Plan) -> None:
    """Whoever loses something loses it to a named beneficiary with a place, and is not more than it needs."""
    workloads = {w.id: w for w in seen.workloads}
    promised = {d.workload for d in made.decisions if isinstance(d, Reserve) and d.from_release}
    for decision in made.decisions:
        if isinstance(decision, Stop) and decision.order.cause in (StopCause.PREEMPTED, StopCause.RECLAIMED):
            victim = workloads[decision.workload]
            assert decision.order.beneficiary in promised
            assert victim.state is State.RUNNING
            assert victim.spec.preemptible
            if decision.order.cause is StopCause.PREEMPTED:
                assert workloads[decision.order.beneficiary].spec.priority > victim.spec.priority
        if isinstance(decision, Resize) and decision.beneficiary is not None:
            assert decision.beneficiary in promised
    check_minimal(seen, made)


def check_minimal(seen: Snapshot, made: Plan) -> None:
    """With one beneficiary: were any one of its victims kept, its promised seats would not be free."""
    stops = [d for d in made.decisions if isinstance(d, Stop)]
    shrinks = [d for d in made.decisions if isinstance(d, Resize) and d.remove]
    if len(stops) < 2 or shrinks or any(d.order.beneficiary != stops[0].order.beneficiary for d in stops):
        return
    if any(not isinstance(d, Stop | Scale | Reserve) for d in made.decisions) or len(made.decisions) != len(stops) + 2:
        return
    for kept in stops:
        room = Room.of(seen.nodes, seen.allocations, seen.now_s)
        for stop in stops:
            held = next(a for a in seen.allocations if a.workload == stop.workload)
            if stop is not kept:
                for m in held.members:
                    room.give(m.node, m.bundle, m.devices)
        workload = next(w for w in seen.workloads if w.id == kept.order.beneficiary)
        if workload.state is State.PENDING and workload.spec.topology.required is None:
            bundle, count = workload.spec.roles[0].bundle, workload.spec.roles[0].min_count
            fitting: dict[str, int] = {}
            for place in seen.nodes:
                kind = place.model if workload.spec.accelerators else ""
                while room.fits(place.id, bundle):
                    room.take(place.id, bundle)
                    fitting[kind] = fitting.get(kind, 0) + 1
            most = max(fitting.get(kind, 0) for kind in workload.spec.accelerators or ("",))
            assert most < count or quota_needs(seen, workload)


def quota_needs(seen: Snapshot, workload: Workload) -> bool:
    """Whether victims may have been stopped for quota, not for room."""
    return any(spec.borrow_limit is not None or spec.deserved for spec in seen.queues)


def added(made: Plan) -> list[Member]:
    """All seats that the plan takes now, in order."""
    found: list[Member] = []
    for decision in made.decisions:
        if isinstance(decision, Start):
            found += decision.members
        if isinstance(decision, Resize):
            found += decision.add
    return found


# ---------------------------------------------------------------- worlds

small_queues = st.sampled_from(
    [
        (queue("q"), queue("r")),
        (queue("q", 4), queue("r", 4)),
        (queue("q", 2, borrow=2), queue("r", 6, lend=1)),
        (queue("p", 8, borrow=0), queue("q", 4), queue("r", 0, borrow=3)),
    ]
)


models = st.sampled_from(["H100", "H100", "A100", ""])


@st.composite
def worlds(draw: st.DrawFn) -> World:
    nodes = [
        node(f"n{i}", draw(st.integers(1, 4)), rack=f"r{draw(st.integers(0, 1))}", model=draw(models))
        for i in range(draw(st.integers(1, 3)))
    ]
    workloads = []
    early = draw(st.integers(0, 5))
    for i in range(early + draw(st.integers(1, 6))):
        least = draw(st.integers(1, 3))
        workloads.append(
            pending(
                f"w{i}" + "x" * draw(st.integers(0, 1)),
                (least, least + draw(st.integers(0, 2))),
                gpu=draw(st.sampled_from([0.5, 1, 2])),
                queue=draw(st.sampled_from(["q", "r"])),
                priority=draw(st.integers(0, 1) if i < early else st.integers(0, 3)),
                kind=draw(st.sampled_from([Kind.TRAIN, Kind.TRAIN, Kind.SERVE])),
                rack=draw(st.sampled_from(["", "", "preferred", "required"])),
                accelerators=draw(st.sampled_from([(), (), ("H100",), ("H100", "A100"), ("A100", "H100")])),
                preemptible=draw(st.sampled_from([True, True, False])),
                submitted_s=float(draw(st.integers(0, 3))),
            )
        )
    first = {w.id: w for w in workloads[:early]}
    return World(nodes, draw(small_queues), first, later=workloads[early:])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.lists(st.integers(0, 5), max_size=4))
def test_every_plan_of_a_sequence_keeps_the_invariants(world: World, finishes: list[int]) -> None:
    world.turn()
    world.submit()
    for index in finishes:
        world.turn()
        world.turn()
        world.finish(index)
    world.turn()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_evictions_stop(world: World) -> None:
    """With nothing new submitted, no two workloads evict each other in turn, and in the end nobody evicts anyone."""
    world.turn()
    world.submit()
    for _ in range(14):
        world.turn()
    event(f"evictions: {min(len(world.evictions), 3)}")
    before = len(world.evictions)
    for _ in range(4):
        world.turn()
    assert len(world.evictions) == before
    assert not {(b, a) for a, b in world.evictions} & set(world.evictions)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_whoever_waits_has_a_reason_that_is_true(world: World) -> None:
    """Who is told that resources lack can't be placed in what is left, and nobody is told of quota in vain."""
    world.turn()
    world.submit()
    seen = world.see()
    made = plan(seen, DEFAULT)
    room = Room.of(seen.nodes, seen.allocations, seen.now_s)
    free = sum(room.gpu_units(n.id) for n in seen.nodes)
    for id, waits in made.waits.items():
        workload = next(w for w in seen.workloads if w.id == id)
        for wait in waits:
            assert wait.detail
            assert wait.unblocks
            if wait.reason is WaitReason.RESOURCES and wait.unit == "GPU":
                assert wait.need * 10_000 == workload.spec.min_resources.gpu_units
                assert wait.have * 10_000 <= free
                assert wait.have < wait.need
