"""A scale decision in a large room, and what comes of it: no cluster, simulated time, the planner itself.

50 node groups in ten racks (three GPU models and CPU nodes; some of their replicas are several nodes), 2,000 nodes
nine tenths of which are busy, 500 waiting gangs of mixed sizes, models and topology. First one decision is timed: stage
8 alone, on a draft that stages 1 to 7 have just made. Then provisioning is played: nodes come after one to three
minutes, gangs run and end, idle nodes go, until every gang has run and every node is gone.

    decision_ms        stage 8 on the first snapshot, the median of the repeats
    plan_ms            the whole plan beside it
    patches_per_change replica patches (one for each accepted GroupChange, growth, shrink or cancellation) / nodes that
                       came or went
    excess_nodes       nodes asked for beyond need: at each growth one replica of each changed group is left out, and
                       where a plain seating of the waiting gangs on explicit nodes still serves every gang that the
                       plan serves, that replica was too much; and nodes that were made and never used at all
    unjudged_replicas  of `asked_replicas`: those of growths that the plain seating can't follow (it is too plain)
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field, replace

from benchmarks.harness import arguments, report, say
from rayorch.core.capacity import GroupName, Instance, InstancePhase, NodeGroup, Provider
from rayorch.core.decisions import GroupChange, Plan, Reserve, Resize, Scale, Start, WaitReason
from rayorch.core.node_groups import GroupKnobs, NodeGroups
from rayorch.core.planner import plan, seated
from rayorch.core.planning.scale import scale
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    CPU,
    MODEL_LABEL,
    UNIT,
    Allocation,
    Device,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    State,
    TopologyRequest,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.policies.default import DEFAULT

SEED = 20_260
START_S = 1_000.0
TURN_S = 30.0
MOST_TURNS = 2_000
RACKS = 10
QUEUES = tuple(QueueSpec(QueueId(name)) for name in ("nlp", "speech", "vision"))
MODELS = {"H100": (8, 96), "A100": (8, 64), "L4": (4, 32), "": (0, 64)}
"""GPUs and CPUs of a node by its accelerator model."""

PROFILE: Profile = replace(DEFAULT, lease_s=1e9, node_idle_s=120.0)
"""The default policies; no runner renews a lease here, and an idle node goes after two minutes."""


# ---------------------------------------------------------------- the room


def make_groups(count: int, nodes: int, rng: random.Random) -> list[NodeGroup]:
    """Groups that have `nodes` nodes together, and may have half as many more."""
    groups = []
    for i in range(count):
        model = list(MODELS)[i % 4] if i % 8 != 7 else "H100"
        gpu, cpu = MODELS[model]
        hosts = rng.choice((1, 1, 1, 2, 4)) if model in ("H100", "A100") else 1
        replicas = nodes // count // hosts
        labels = {"rack": f"r{i % RACKS}"} | ({MODEL_LABEL: model} if model else {})
        groups.append(
            NodeGroup(
                name=GroupName(f"g{i:02d}"),
                total=Resources.of({"GPU": gpu, "CPU": cpu}),
                replicas=replicas,
                max_replicas=replicas + max(1, replicas // 2),
                hosts=hosts,
                labels=tuple(sorted(labels.items())),
                model=model,
                preference=rng.choice((0, 0, 1)),
            )
        )
    return groups


def make_gang(i: int, rng: random.Random) -> WorkloadSpec:
    """One gang: 1 to 32 workers of whole GPUs, some with a driver, a model or two, or one rack for all."""
    gpu = rng.choice((1, 2, 4, 4, 8, 8, 8))
    members = rng.choice((1, 2, 2, 4, 4, 8, 16, 32)) if gpu == 8 else rng.choice((2, 3, 4, 8, 16))
    wished: tuple[tuple[str, ...], ...] = ((), ("H100",), ("H100", "A100"), ("A100",))
    if gpu <= 4:
        wished = (*wished, ("L4",), ("L4", "A100"))
    roles: tuple[Role, ...] = (Role("worker", Resources.of({"GPU": gpu, "CPU": gpu * 4}), members, members),)
    if rng.random() < 0.25:
        roles = (*roles, Role("driver", Resources.of({"CPU": rng.choice((4, 16, 48))}), 1, 1))
    required = "rack" if rng.random() < 0.25 and members * gpu <= 64 else None
    return WorkloadSpec(
        id=WorkloadId(f"w{i:04d}"),
        name=f"w{i:04d}",
        kind=Kind.TRAIN,
        queue=rng.choice(QUEUES).id,
        roles=roles,
        topology=TopologyRequest(required=required),
        accelerators=rng.choice(wished),
        priority=rng.choice((0, 0, 5)),
        preemptible=False,
    )


@dataclass
class Room:
    """Nodes, gangs and groups, and the provider that obeys the counts."""

    rng: random.Random
    groups: dict[GroupName, NodeGroup]
    now_s: float = START_S
    nodes: dict[NodeId, NodeSpec] = field(default_factory=dict)
    workloads: dict[WorkloadId, Workload] = field(default_factory=dict)
    held: dict[WorkloadId, Allocation] = field(default_factory=dict)
    ends: dict[WorkloadId, float] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)  # when a pending machine becomes a node
    replica_of: dict[NodeId, str] = field(default_factory=dict)
    asked: set[NodeId] = field(default_factory=set)  # nodes that were made on demand
    used: set[str] = field(default_factory=set)  # replicas that a gang has had a seat on
    made: int = 0
    patches: int = 0
    changed: int = 0
    excess: int = 0
    unjudged: int = 0
    asked_replicas: int = 0
    books: NodeGroups = field(default_factory=lambda: NodeGroups(Provider.OURS, GroupKnobs.of(PROFILE)))

    @staticmethod
    def of(groups: int, nodes: int, gangs: int) -> Room:
        """The room at its start: busy for nine tenths, with all gangs waiting."""
        rng = random.Random(SEED)
        room = Room(rng, {group.name: group for group in make_groups(groups, nodes, rng)})
        for name in sorted(room.groups):
            room._make_machines(name)
            for instance in room.groups[name].instances:
                room._become_node(name, instance)
        room._fill()
        for i in range(gangs):
            spec = make_gang(i, rng)
            room.workloads[spec.id] = Workload(spec, State.PENDING, START_S - gangs + i)
        return room

    def _fill(self) -> None:
        """Work of one member each on nine tenths of the nodes, whole nodes or a part of them."""
        for i, node in enumerate(sorted(self.nodes.values(), key=lambda n: n.id)):
            gpu = node.total.gpu_units // UNIT
            if not gpu or self.rng.random() < 0.1:
                continue
            part = gpu if self.rng.random() < 0.8 else self.rng.randrange(1, gpu)
            bundle = Resources.of({"GPU": part, "CPU": part * 4})
            role = Role("worker", bundle, 1, 1)
            id = WorkloadId(f"x{i:04d}")
            spec = WorkloadSpec(id, id, Kind.TRAIN, self.rng.choice(QUEUES).id, (role,), preemptible=False)
            self.workloads[id] = Workload(spec, State.PENDING, 0.0)
            self.start(Start(id, 1, (Member("worker", 0, node.id, bundle),), "it ran before"))

    # ------------------------------------------------------------ what happens

    def start(self, start: Start) -> None:
        """A gang runs from now on."""
        members = tuple(replace(m, phase=MemberPhase.READY) for m in start.members)
        workload = self.workloads[start.workload]
        self.workloads[start.workload] = replace(
            workload,
            state=State.RUNNING,
            attempt=start.attempt,
            started_s=self.now_s,
            ready_s=self.now_s,
            size=tuple((role.name, role.min_count) for role in workload.spec.roles),
            placement=members,
        )
        self.held[start.workload] = Allocation(start.workload, start.attempt, members, self.now_s, self.now_s + 30)
        self.ends[start.workload] = self.now_s + self.rng.uniform(60, 600)
        for member in members:
            self.used.add(self.replica_of[member.node])
            self.nodes[member.node] = replace(self.nodes[member.node], idle_since_s=None)

    def pass_time(self) -> None:
        """One turn later: work ends, machines are made and become nodes."""
        self.now_s += TURN_S
        for id in sorted(id for id, end_s in self.ends.items() if end_s <= self.now_s):
            del self.ends[id]
            left = {m.node for m in self.held.pop(id).members}
            busy = {m.node for a in self.held.values() for m in a.members}
            for node in sorted(left - busy):
                self.nodes[node] = replace(self.nodes[node], idle_since_s=self.now_s)
            del self.workloads[id]
        for name in sorted(self.groups):
            self._make_machines(name)
            for instance in self.groups[name].instances:
                if instance.phase is InstancePhase.PENDING and self.due[instance.name] <= self.now_s:
                    self._become_node(name, instance)
                    self.asked.add(NodeId(instance.name))
                    self.changed += 1

    def _make_machines(self, name: GroupName) -> None:
        group = self.groups[name]
        instances = list(group.instances)
        for _ in range(group.replicas - len(instances) // group.hosts):
            self.made += 1
            replica = f"{name}-{self.made}"
            for host in range(group.hosts):
                instances.append(Instance(f"{replica}-{host}", replica, InstancePhase.PENDING, self.now_s))
                self.due[instances[-1].name] = self.now_s + self.rng.uniform(60, 180)
        self.groups[name] = replace(group, instances=tuple(instances))

    def _become_node(self, name: GroupName, instance: Instance) -> None:
        group, id = self.groups[name], NodeId(instance.name)
        gpu = group.total.gpu_units // UNIT
        self.nodes[id] = NodeSpec(
            id=id,
            name=instance.name,
            total=group.total,
            devices=tuple(Device(index, group.model) for index in range(gpu)),
            labels=group.labels,
            topology=(("rack", group.label("rack") or ""),),
            group=name,
            instance=instance.name,
            idle_since_s=self.now_s,
        )
        self.replica_of[id] = instance.replica
        came = replace(instance, phase=InstancePhase.RUNNING, ready_s=self.now_s, node=id)
        self.groups[name] = replace(group, instances=tuple(came if i == instance else i for i in group.instances))

    def apply(self, change: GroupChange) -> None:
        """Carry out one change: one patch."""
        self.books.order(change, self.now_s)
        self.patches += 1
        self.asked_replicas += max(0, change.to_replicas - change.from_replicas)
        group = self.groups[change.group]
        gone = set(change.instances)
        self.groups[change.group] = replace(
            group,
            replicas=change.to_replicas,
            instances=tuple(i for i in group.instances if i.name not in gone),
        )
        for name in sorted(gone):
            id = NodeId(name)
            if self.nodes.pop(id, None) is not None:
                self.changed += 1
                self.excess += id in self.asked and self.replica_of[id] not in self.used

    # ------------------------------------------------------------ what is seen

    def snapshot(self) -> Snapshot:
        """What is known now."""
        groups = tuple(self.groups[name] for name in sorted(self.groups))
        self.books.observe(groups, self.now_s, nodes=self.nodes.values())
        return Snapshot(
            versions=Versions(1, 1, 1),
            now_s=self.now_s,
            queues=QUEUES,
            workloads=tuple(self.workloads[id] for id in sorted(self.workloads)),
            nodes=tuple(self.nodes[id] for id in sorted(self.nodes)),
            allocations=tuple(self.held[id] for id in sorted(self.held)),
            capacity=self.books.capacity(),
        )

    @property
    def at_rest(self) -> bool:
        """Nothing waits, runs, or exists any more."""
        return not self.workloads and not self.nodes and not any(g.replicas for g in self.groups.values())


# ---------------------------------------------------------------- the need, by plain seating


@dataclass
class Plain:
    """One explicit node: what is free on it, in whole GPUs and CPUs, and for which head of a queue it is held.

    `tier`: 0 there, 1 on its way, 2 asked for in this plan; `shares`: how many of its group's new nodes are for whom.
    """

    group: str
    rack: str
    model: str
    gpu: int
    cpu: int
    tier: int
    whole_gpus: int = 0
    held_for: str = ""
    shares: tuple[tuple[WorkloadId, int], ...] = ()


def plain_room(room: Room, snapshot: Snapshot, made: Plan) -> list[Plain]:
    """Every node that is there and what the plan leaves free on it, then those that are on their way."""
    free = {node.id: (node.total.gpu_units // UNIT, node.total.units(CPU) // UNIT) for node in snapshot.nodes}
    members = [m for allocation in snapshot.allocations for m in allocation.members]
    for decision in made.decisions:
        members += decision.members if isinstance(decision, Start) else ()
        members += decision.add if isinstance(decision, Resize) else ()
    for member in members:
        gpu, cpu = free[member.node]
        free[member.node] = (gpu - member.bundle.gpu_units // UNIT, cpu - member.bundle.units(CPU) // UNIT)
    heads = [d for d in made.decisions if isinstance(d, Reserve) and not d.from_release]
    held = {member.node: head.workload for head in heads for member in head.members}
    found = [
        Plain(node.group, node.topology[0][1], node.model, *free[node.id], 0, 0, held.get(node.id, ""))
        for node in snapshot.nodes
    ]
    for name, group in sorted(room.groups.items()):
        there = sum(node.group == name for node in snapshot.nodes)
        order = next(s.order for s in snapshot.capacity.groups if s.group.name == name)
        shares = order.shares if order is not None else ()
        found += plain_nodes(group, group.replicas * group.hosts - there, 1, shares)
    return found


def plain_nodes(group: NodeGroup, count: int, tier: int, shares: tuple[tuple[WorkloadId, int], ...]) -> list[Plain]:
    """New nodes of a group."""
    gpu, cpu = group.total.gpu_units // UNIT, group.total.units(CPU) // UNIT
    rack = group.label("rack") or ""
    return [Plain(group.name, rack, group.model, gpu, cpu, tier, gpu, "", shares) for _ in range(max(0, count))]


def seat_plainly(spec: WorkloadSpec, nodes: list[Plain], sign: int) -> bool:
    """Seat a gang whole, on what is there first, the fullest node first; in the rack where it needs fewest new nodes.

    Models in their order, each first without new nodes. Nowhere: nothing is taken. `sign`: 1 for small leftovers first,
    -1 for large ones.
    """
    nodes = [node for node in nodes if node.held_for in ("", spec.id)]
    racks = sorted({n.rack for n in nodes}) if spec.topology.required else [""]
    for most_tier in (1, 2):
        for model in spec.accelerators or ("",):
            found = []
            for rack in racks:
                allowed = [n for n in nodes if n.tier <= most_tier and (not rack or n.rack == rack)]
                taken: list[tuple[Plain, int, int]] = []
                whole = all(_seat_role(role, model, allowed, taken, spec.id, sign) for role in spec.roles)
                for node, gpu, cpu in taken:  # a look only, until the best rack is known
                    node.gpu += gpu
                    node.cpu += cpu
                if whole:
                    new = {id(node): node.whole_gpus for node, _, _ in taken if node.tier == 2}
                    free = sum(node.gpu for node in allowed if node.tier < 2)
                    found.append((sum(new.values()), len(new), free, rack, taken))
            if found:
                for node, gpu, cpu in min(found, key=lambda option: option[:4])[-1]:
                    node.gpu -= gpu
                    node.cpu -= cpu
                return True
    return False


def _seat_role(
    role: Role, model: str, nodes: list[Plain], taken: list[tuple[Plain, int, int]], gang: WorkloadId, sign: int
) -> bool:
    gpu, cpu = role.bundle.gpu_units // UNIT, role.bundle.units(CPU) // UNIT
    left = role.min_count
    able = [n for n in nodes if n.gpu >= gpu and n.cpu >= cpu and (not gpu or not model or n.model == model)]
    able.sort(key=lambda n: (n.tier, sign * n.gpu, n.cpu))
    promised: dict[str, int] = {}
    own: list[Plain] = []
    rest: list[Plain] = []
    for node in able:  # as many nodes of each group as it was promised, the fullest first, before those of others
        share = dict(node.shares).get(gang, 0) if node.tier else len(able)
        promised[node.group] = promised.get(node.group, 0) + (1 if node.tier else 0)
        (own if promised[node.group] <= share else rest).append(node)
    for node in (*own, *rest):
        fits = min(left, node.cpu // cpu if cpu else left, node.gpu // gpu if gpu else left)
        if fits:
            node.gpu -= fits * gpu
            node.cpu -= fits * cpu
            taken.append((node, fits * gpu, fits * cpu))
            left -= fits
        if not left:
            return True
    return False


def too_many(room: Room, snapshot: Snapshot, made: Plan) -> tuple[int, int]:
    """How many nodes of this plan's growths could be left out, one replica of a group at a time, and how many
    replicas could not be judged because plain seating serves fewer gangs than the plan even with all of them."""
    decision = next(d for d in made.decisions if isinstance(d, Scale))
    growths = [c for c in decision.changes if c.to_replicas > c.from_replicas]
    if not growths:
        return 0, 0
    promised = {id for id, waits in made.waits.items() if any(w.reason is WaitReason.PROVISIONING for w in waits)}
    specs = [room.workloads[demand.workload].spec for demand in decision.wanted if demand.workload in promised]

    def serves(without: GroupName | None) -> bool:
        """Whether plain seating serves all that the plan serves, small nodes first or large ones first."""
        for sign in (1, -1):
            nodes = plain_room(room, snapshot, made)
            for change in growths:
                group = room.groups[change.group]
                count = change.to_replicas - change.from_replicas - (1 if change.group == without else 0)
                nodes += plain_nodes(group, count * group.hosts, 2, change.shares)
            if all(seat_plainly(spec, nodes, sign) for spec in specs):
                return True
        return False

    if not serves(None):
        return 0, sum(change.to_replicas - change.from_replicas for change in growths)
    found = 0
    for change in growths:
        if serves(change.group):
            say(f"{room.now_s:.0f} s: {change.group} could do with {change.to_replicas - 1}, not {change.to_replicas}")
            found += room.groups[change.group].hosts
    return found, 0


# ---------------------------------------------------------------- measuring


def decision_ms(snapshot: Snapshot, repeats: int) -> tuple[float, float]:
    """Stage 8 alone and the whole plan, the medians of the repeats."""
    alone, whole = [], []
    for _ in range(repeats):
        draft = seated(snapshot, PROFILE)
        began = time.perf_counter()
        scale(draft)
        alone.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        plan(snapshot, PROFILE)
        whole.append((time.perf_counter() - began) * 1000)
    return statistics.median(alone), statistics.median(whole)


def play(room: Room) -> int:
    """Plan and carry out until everything has run and gone; answers the turns. RuntimeError when it does not end."""
    for turn in range(MOST_TURNS):
        snapshot = room.snapshot()
        made = plan(snapshot, PROFILE)
        excess, unjudged = too_many(room, snapshot, made)
        room.excess += excess
        room.unjudged += unjudged
        for decision in made.decisions:
            match decision:
                case Start():
                    room.start(decision)
                case Scale():
                    for change in decision.changes:
                        room.apply(change)
        if room.at_rest:
            return turn
        if turn % 20 == 0:
            waiting = sum(w.state is State.PENDING for w in room.workloads.values())
            say(f"{room.now_s:.0f} s: {waiting} wait, {len(room.ends)} run on {len(room.nodes)} nodes")
        room.pass_time()
    raise RuntimeError(f"{len(room.workloads)} gangs and {len(room.nodes)} nodes are left after {MOST_TURNS} turns")


def measure(groups: int, nodes: int, gangs: int, repeats: int) -> dict[str, float]:
    """The figures of one room."""
    room = Room.of(groups, nodes, gangs)
    alone_ms, whole_ms = decision_ms(room.snapshot(), repeats)
    say(f"a decision takes {alone_ms:.1f} ms, the whole plan {whole_ms:.1f} ms")
    turns = play(room)
    say(f"{turns} turns, {room.patches} patches for {room.changed} nodes that came or went")
    return {
        "decision_ms": alone_ms,
        "patches_per_change": room.patches / max(1, room.changed),
        "excess_nodes": float(room.excess),
        "plan_ms": whole_ms,
        "unjudged_replicas": float(room.unjudged),
        "asked_replicas": float(room.asked_replicas),
        "patches": float(room.patches),
        "node_changes": float(room.changed),
    }


def main() -> int:
    """Run and report."""
    given = arguments(
        "scale",
        {"groups": 12, "nodes": 120, "gangs": 40, "repeats": 3},
        {"groups": 50, "nodes": 2000, "gangs": 500, "repeats": 9},
    )
    return report("scale", measure(given.groups, given.nodes, given.gangs, given.repeats), given.check)


if __name__ == "__main__":
    raise SystemExit(main())
