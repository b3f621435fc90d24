"""Node groups, nodes and gangs, and a provider that obeys the replica counts; seeded, in simulated time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from rayorch.core.capacity import GroupName, Instance, InstancePhase, NodeGroup, Provider
from rayorch.core.decisions import GroupChange, Start
from rayorch.core.node_groups import GroupKnobs, NodeGroups
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
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
RACKS = 10
QUEUES = tuple(QueueSpec(QueueId(name)) for name in ("nlp", "speech", "vision"))
MODELS = {"H100": (8, 96), "A100": (8, 64), "L4": (4, 32), "": (0, 64)}
"""GPUs and CPUs of a node by its accelerator model."""

PROFILE: Profile = replace(DEFAULT, lease_s=1e9, node_idle_s=120.0)
"""The default policies; no runner renews a lease here, and an idle node goes after two minutes."""


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
    unused: int = 0
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
                self.unused += id in self.asked and self.replica_of[id] not in self.used

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
