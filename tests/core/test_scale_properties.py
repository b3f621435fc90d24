"""What holds for every room of node groups, as orders come, fail or are refused, gangs come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rayorch.core.capacity import GroupName, Instance, InstancePhase, NodeGroup, Provider
from rayorch.core.codec import decode, encode
from rayorch.core.decisions import GroupChange, Plan, Reserve, Scale, Start, WaitReason
from rayorch.core.node_groups import GroupKnobs, NodeGroups
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.core.quota import Quota
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import (
    Allocation,
    MemberPhase,
    NodeId,
    NodeSpec,
    QueueSpec,
    Resources,
    Role,
    State,
    Workload,
    WorkloadId,
    total,
)
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, gpus, node, pending, queue, snapshot

TURN_S = 30.0
PROFILE: Profile = replace(DEFAULT, lease_s=1e9, node_idle_s=60.0, provision_s=60.0, group_backoff_s=60.0)
MODELS = ("H100", "A100")


@dataclass
class Room:
    """The smallest provider: what is asked for comes a turn later, unless the group is out of stock."""

    groups: dict[GroupName, NodeGroup]
    workloads: dict[WorkloadId, Workload]
    queues: Sequence[QueueSpec]
    dry: set[GroupName]
    nodes: dict[NodeId, NodeSpec] = field(default_factory=dict)
    held: dict[WorkloadId, Allocation] = field(default_factory=dict)
    now_s: float = NOW
    made: int = 0
    books: NodeGroups = field(default_factory=lambda: NodeGroups(Provider.OURS, GroupKnobs.of(PROFILE)))

    def see(self) -> Snapshot:
        self.books.observe(
            tuple(self.groups[name] for name in sorted(self.groups)), self.now_s, nodes=self.nodes.values()
        )
        work = [(w, self.held[w.id]) if w.id in self.held else w for w in self.workloads.values()]
        seen = snapshot(self.nodes.values(), work, self.queues, now_s=self.now_s)
        return replace(seen, capacity=self.books.capacity())

    def turn(self) -> Plan:
        """Plan, check the plan, carry it out, and let a turn pass."""
        seen = self.see()
        made = plan(seen, PROFILE)
        check(seen, made)
        for decision in made.decisions:
            match decision:
                case Start():
                    self._start(decision)
                case Scale():
                    for change in decision.changes:
                        self.books.order(change, self.now_s)
                        self._patch(change)
        self._pass()
        return made

    def finish(self, index: int) -> None:
        """One of the running gangs ends."""
        running = sorted(self.held)
        if running:
            id = running[index % len(running)]
            for member in self.held.pop(id).members:
                self.nodes[member.node] = replace(self.nodes[member.node], idle_since_s=self.now_s)
            del self.workloads[id]

    def cancel(self, index: int) -> None:
        """One of the waiting gangs is withdrawn."""
        waiting = sorted(id for id in self.workloads if id not in self.held)
        if waiting:
            del self.workloads[waiting[index % len(waiting)]]

    def _start(self, start: Start) -> None:
        members = tuple(replace(m, phase=MemberPhase.READY) for m in start.members)
        workload = self.workloads[start.workload]
        self.held[workload.id] = Allocation(workload.id, start.attempt, members, self.now_s, self.now_s + 30)
        size = tuple((role.name, role.min_count) for role in workload.spec.roles)
        self.workloads[workload.id] = replace(
            workload, state=State.RUNNING, attempt=start.attempt, started_s=self.now_s, ready_s=self.now_s, size=size
        )
        for member in members:
            self.nodes[member.node] = replace(self.nodes[member.node], idle_since_s=None)

    def _patch(self, change: GroupChange) -> None:
        group, gone = self.groups[change.group], set(change.instances)
        left = tuple(i for i in group.instances if i.name not in gone)
        self.groups[change.group] = replace(group, replicas=change.to_replicas, instances=left)
        for name in sorted(gone):
            self.nodes.pop(NodeId(name), None)

    def _pass(self) -> None:
        self.now_s += TURN_S
        for name, group in sorted(self.groups.items()):
            come = name not in self.dry
            machines = [self._come(group, i) if come and not i.node else i for i in group.instances]
            for _ in range(group.replicas - len(machines) // group.hosts):
                self.made += 1
                names = [f"{name}-{self.made}-{host}" for host in range(group.hosts)]
                machines += [Instance(n, names[0], InstancePhase.PENDING, self.now_s) for n in names]
            self.groups[name] = replace(group, instances=tuple(machines))

    def _come(self, group: NodeGroup, machine: Instance) -> Instance:
        id = NodeId(machine.name)
        made = node(machine.name, group.total.gpu_units // 10_000, group.label("rack"), cpu=32, model=group.model)
        self.nodes[id] = replace(made, group=group.name, instance=machine.name, idle_since_s=self.now_s)
        return replace(machine, phase=InstancePhase.RUNNING, node=id, ready_s=self.now_s)


def check(seen: Snapshot, made: Plan) -> None:
    """The properties of one plan."""
    assert decode(encode(seen)) == seen
    again = plan(seen, PROFILE)
    assert (made.decisions, made.waits, made.estimates) == (again.decisions, again.waits, again.estimates)
    scale = next(d for d in made.decisions if isinstance(d, Scale))
    states = {state.group.name: state for state in seen.capacity.groups}
    assert len({c.group for c in scale.changes}) == len(scale.changes)
    needed = {m.node for a in seen.allocations for m in a.members}
    needed |= {m.node for d in made.decisions if isinstance(d, Start | Reserve) for m in d.members}
    within = {demand.workload for demand in scale.wanted}
    for change in scale.changes:
        state, group = states[change.group], states[change.group].group
        assert group.min_replicas <= change.to_replicas <= group.max_replicas
        assert change.from_replicas == group.replicas != change.to_replicas
        if change.to_replicas > change.from_replicas:
            assert state.order is None
            assert state.back_off is None or state.back_off.until_s <= seen.now_s
            assert change.beneficiaries or change.to_replicas <= group.min_replicas
            assert set(change.beneficiaries) <= within
            for id in change.beneficiaries:
                assert WaitReason.PROVISIONING in {w.reason for w in made.waits[id]}
                assert made.estimates[id] is not None
        else:
            assert not needed & set(change.nodes)
            assert len(change.instances) == (change.from_replicas - change.to_replicas) * group.hosts
    check_quota(seen, made, scale)


def check_quota(seen: Snapshot, made: Plan, scale: Scale) -> None:
    """What runs, starts and newly asks for nodes is within quota together, in order.

    A gang that waits for nodes which were ordered before keeps them on quota that it borrows, also when the lender's
    own gang, which goes first, asks for nodes meanwhile.
    """
    asking = {id for change in scale.changes for id in change.beneficiaries}
    usage = {q.id: Resources() for q in seen.queues}
    known = {w.id: w for w in seen.workloads}
    for allocation in seen.allocations:
        usage[known[allocation.workload].spec.queue] += allocation.held
    for start in (d for d in made.decisions if isinstance(d, Start)):
        usage[known[start.workload].spec.queue] += total(m.bundle for m in start.members)
    quota = Quota.of(seen.queues, usage)
    for demand in scale.wanted:
        amount = total(demand.bundles)
        promised = WaitReason.PROVISIONING in {w.reason for w in made.waits.get(demand.workload, ())}
        assert quota.fits(known[demand.workload].spec.queue, amount) or (promised and demand.workload not in asking)
        quota.charge(known[demand.workload].spec.queue, amount)


@st.composite
def rooms(draw: st.DrawFn) -> Room:
    groups = {}
    for i in range(draw(st.integers(1, 4))):
        name = GroupName(f"g{i}")
        hosts = draw(st.sampled_from((1, 1, 2)))
        model = draw(st.sampled_from(MODELS))
        rack = draw(st.sampled_from(("", "r1", "r2")))
        least = draw(st.sampled_from((0, 0, 1)))
        groups[name] = NodeGroup(
            name,
            gpus(draw(st.sampled_from((2, 4, 4))), CPU=32),
            least,
            least,
            max_replicas=draw(st.integers(1, 5)),
            hosts=hosts,
            labels=(("rack", rack),) if rack else (),
            model=model,
            preference=draw(st.integers(0, 1)),
            spares=draw(st.sampled_from((0, 0, 1))),
        )
    work = {}
    for i in range(draw(st.integers(0, 7))):
        id = f"w{i}"
        members, gpu = draw(st.integers(1, 5)), draw(st.sampled_from((0.5, 1, 2, 4)))
        roles: tuple[Role, ...] = (Role("worker", gpus(gpu, CPU=4), members, members),)
        if draw(st.booleans()):
            roles = (*roles, Role("driver", Resources.of({"CPU": draw(st.sampled_from((4, 20)))}), 1, 1))
        workload = pending(
            id,
            roles=roles,
            submitted_s=float(i),
            queue=draw(st.sampled_from(("q", "r"))),
            rack=draw(st.sampled_from(("", "", "required"))),
            accelerators=draw(st.sampled_from(((), MODELS, ("A100",)))),
            preemptible=False,
        )
        work[workload.id] = workload
    queues = [queue("q", draw(st.sampled_from((8, 40)))), queue("r", draw(st.sampled_from((8, 40))))]
    dry = {name for name in groups if draw(st.integers(0, 4)) == 0}
    return Room(groups, work, queues, dry)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    room=rooms(), events=st.lists(st.tuples(st.sampled_from(("pass", "pass", "finish", "cancel")), st.integers(0, 9)))
)
def test_capacity_follows_whole_gangs_and_everything_comes_to_rest(room: Room, events: list[tuple[str, int]]) -> None:
    for what, index in events:
        if what == "finish":
            room.finish(index)
        elif what == "cancel":
            room.cancel(index)
        room.turn()
    room.dry.clear()
    for _ in range(60):  # back-offs end; every gang that can ever run does, one after the other
        room.turn()
        room.finish(0)
    last = room.turn()
    event("some wait" if last.waits else "all have run")
    could = {w.reason for waits in last.waits.values() for w in waits if w.reason is WaitReason.PROVISIONING}
    assert not could, "nodes are on their way for ever"
    for group in room.groups.values():
        kept = max(group.min_replicas, min(group.spares, group.replicas))
        assert group.replicas <= kept, f"{group.name} keeps {group.replicas}"
