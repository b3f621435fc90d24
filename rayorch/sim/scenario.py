"""A scenario as data: a small cluster, what happens to it, and what must then be true. One JSON file each.

The files under tests/cases are such scenarios, and a report of a misbehaviour may bring one. Times are seconds since
the start; steps happen in the order of their times. `check` answers what is not as the file expects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.policy import Profile
from rayorch.core.types import (
    Device,
    Kind,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    TopologyRequest,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.policies.default import DEFAULT
from rayorch.sim.autoscaler import SimAutoscaler
from rayorch.sim.cluster import SimCluster
from rayorch.sim.faults import Actor
from rayorch.sim.groups import LEVELS, GroupPlay, SimProvider
from rayorch.sim.work import SimWork


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)


class NodeText(_Model):
    """A node that is there from the start and belongs to no group."""

    name: str
    gpu: int = 0
    cpu: float = 64
    labels: dict[str, str] = {}
    model: str = ""

    def to_core(self) -> NodeSpec:
        """The node."""
        return NodeSpec(
            id=NodeId(self.name),
            name=self.name,
            total=Resources.of({"GPU": self.gpu, "CPU": self.cpu}),
            devices=tuple(Device(i, self.model) for i in range(self.gpu)),
            labels=tuple(sorted(self.labels.items())),
            topology=tuple((level, self.labels[level]) for level in LEVELS if level in self.labels),
        )


class QueueText(_Model):
    """A queue; without `gpu` it has no limit."""

    name: str
    gpu: float | None = None
    borrow: float | None = None

    def to_core(self) -> QueueSpec:
        """The queue."""
        return QueueSpec(
            QueueId(self.name),
            deserved=Resources.of({"GPU": self.gpu}) if self.gpu is not None else Resources(),
            borrow_limit=Resources.of({"GPU": self.borrow}) if self.borrow is not None else None,
        )


class PlayText(_Model):
    """How a group behaves; see `GroupPlay`. What is not given stays as it is."""

    provision_s: tuple[float, float] | None = None
    stock: int | None = None
    refuses: str | None = None
    fails: int | None = None
    fail_reason: str | None = None
    slow_share: float | None = None
    slow_factor: float | None = None
    notice_s: float | None = None

    def over(self, play: GroupPlay) -> GroupPlay:
        """That play with what is given here."""
        return replace(play, **{key: getattr(self, key) for key in self.model_fields_set})


class GroupText(_Model):
    """A node group."""

    gpu: int = 8
    cpu: float = 64
    replicas: int = 0
    min: int = 0
    max: int = 10
    hosts: int = 1
    labels: dict[str, str] = {}
    model: str = ""
    spot: bool = False
    spares: int = 0
    idle_s: float | None = None
    preference: int = 0
    play: PlayText = PlayText()

    def to_core(self, name: str) -> NodeGroup:
        """The group."""
        return NodeGroup(
            name=GroupName(name),
            total=Resources.of({"GPU": self.gpu, "CPU": self.cpu}),
            replicas=self.replicas,
            min_replicas=self.min,
            max_replicas=self.max,
            hosts=self.hosts,
            labels=tuple(sorted(self.labels.items())),
            model=self.model,
            spot=self.spot,
            spares=self.spares,
            idle_s=self.idle_s,
            preference=self.preference,
        )


class RoleText(_Model):
    """Members of one shape."""

    members: int
    gpu: float = 0
    cpu: float = 0


class WorkloadText(_Model):
    """A submission and how its work behaves. `roles` instead of `members`, `gpu`, `cpu` where there are several."""

    id: str
    members: int = 1
    most: int | None = None
    gpu: float = 8
    cpu: float = 0
    roles: dict[str, RoleText] = {}
    queue: str = "q"
    kind: Kind = Kind.TRAIN
    priority: int = 0
    topology: str | None = None
    accelerators: tuple[str, ...] = ()
    grace_s: float = 10.0
    max_retries: int = 0
    steps: int = 60
    checkpoint_every: int = 10
    demand: tuple[tuple[float, int], ...] = ()

    def to_core(self) -> WorkloadSpec:
        """What is submitted."""
        most = self.most if self.most is not None else self.members
        one = Role("worker", Resources.of({"GPU": self.gpu, "CPU": self.cpu}), self.members, most)
        several = tuple(
            Role(name, Resources.of({"GPU": role.gpu, "CPU": role.cpu}), role.members, role.members)
            for name, role in sorted(self.roles.items())
        )
        return WorkloadSpec(
            id=WorkloadId(self.id),
            name=self.id,
            kind=self.kind,
            queue=QueueId(self.queue),
            roles=several or (one,),
            priority=self.priority,
            resizable=most > self.members,
            topology=TopologyRequest(required=self.topology),
            accelerators=self.accelerators,
            grace_s=self.grace_s,
            max_retries=self.max_retries,
        )

    def work(self) -> SimWork:
        """How it behaves; its steps are those of all members together."""
        return SimWork(steps=self.steps, checkpoint_every=self.checkpoint_every, demand=self.demand)


class Expect(_Model):
    """What must be true. Only what is named is looked at.

    `states`, `attempts`, `preemptions`, `failures`: of workloads. `waits`: reasons that must be among a workload's.
    `not_waits`: reasons that must not. `says`: text in the detail of one of its waits, or in its reason once it has
    ended. `on`: the group on whose nodes all its members are. `within`: the topology level of which all its members
    share one value. `replicas`, `nodes`: of groups, asked for and up. `machines`: of a group, ever made. `patches`:
    of ours to a group, at most. `ordered`: groups with an open order; `backed_off`: groups left alone.
    """

    states: dict[str, str] = {}
    attempts: dict[str, int] = {}
    preemptions: dict[str, int] = {}
    failures: dict[str, int] = {}
    waits: dict[str, list[str]] = {}
    not_waits: dict[str, list[str]] = {}
    says: dict[str, str] = {}
    on: dict[str, str] = {}
    within: dict[str, str] = {}
    replicas: dict[str, int] = {}
    nodes: dict[str, int] = {}
    machines: dict[str, int] = {}
    patches: dict[str, int] = {}
    ordered: list[str] | None = None
    backed_off: list[str] | None = None
    unknown: bool | None = None


class Step(_Model):
    """One thing that happens, `at` so many seconds.

    `play`, `edit`: a group behaves otherwise from now on; somebody changes its limits. `replicas`: somebody else
    writes the counts. `delete`, `take_back`, `lose`: a pod is deleted by hand, a spot machine gets its notice, a node
    dies. `outage_s`, `stale_s`: the provider can't be read, or shows what is true now, for so long. `kill`: an owner's
    process ends. `foreign`: GPUs used outside grants, per node. `queue`: a queue is changed. `hide`, `show`: a group is
    no longer listed, and is again.
    """

    at: float
    submit: WorkloadText | None = None
    cancel: str | None = None
    play: dict[str, PlayText] = {}
    edit: dict[str, GroupText] = {}
    replicas: dict[str, int] = {}
    delete: str | None = None
    take_back: str | None = None
    lose: str | None = None
    outage_s: float | None = None
    stale_s: float | None = None
    kill: Literal["queues", "inventory", "allocator", "controller"] | None = None
    foreign: dict[str, float] = {}
    queue: QueueText | None = None
    cordon: str | None = None
    uncordon: str | None = None
    hide: list[str] = []
    show: list[str] = []
    expect: Expect | None = None


class Timing(_Model):
    """The profile's knobs that a scenario sets; short, so that it is soon over."""

    node_idle_s: float = 30.0
    provision_s: float = 30.0
    provision_deadline_factor: float = 2.0
    group_backoff_s: float = 20.0
    group_backoff_max_s: float = 160.0
    start_deadline_s: float = 15.0
    block_node_s: float = 10.0
    grow_cooldown_s: float = 15.0
    preemption: bool = True


class MakeCluster(Protocol):
    """What makes the cluster: `SimCluster` itself, or a test's that checks at every step."""

    def __call__(
        self,
        nodes: tuple[NodeSpec, ...],
        queues: tuple[QueueSpec, ...],
        *,
        profile: Profile,
        tick_s: float,
        provider: SimProvider,
        autoscaler: SimAutoscaler | None,
    ) -> SimCluster:
        """A cluster at rest."""
        ...


class Scenario(_Model):
    """A whole file. `about`: what happens and what is right, in a sentence. `cases`: where it was seen.

    `counts_are`: "ours" to change, or "ray's", whose autoscaler hears our demand. `end`: what must be true when
    everything has ended and the groups had time to come to rest, within `limit_s`.
    """

    about: str
    cases: list[str]
    nodes: list[NodeText] = []
    queues: list[QueueText] = [QueueText(name="q")]
    groups: dict[str, GroupText]
    counts_are: Literal["ours", "ray's"] = "ours"
    timing: Timing = Timing()
    tick_s: float = 1.0
    seed: int = 0
    steps: list[Step]
    limit_s: float = 900.0
    end: Expect = Field(default_factory=Expect)

    @staticmethod
    def read(path: Path) -> Scenario:
        """The scenario in a file; ValueError (pydantic's) with the path of the field that is wrong."""
        return Scenario.model_validate_json(path.read_text(encoding="utf-8"))

    def cluster(self, make: MakeCluster) -> SimCluster:
        """The cluster before anything has happened."""
        groups = {text.to_core(name): text.play.over(GroupPlay()) for name, text in self.groups.items()}
        provider = SimProvider(groups, self.seed)
        return make(
            tuple(node.to_core() for node in self.nodes),
            tuple(queue.to_core() for queue in self.queues),
            profile=replace(DEFAULT, name="scenario", **self.timing.model_dump()),
            tick_s=self.tick_s,
            provider=provider,
            autoscaler=SimAutoscaler(provider) if self.counts_are == "ray's" else None,
        )

    def play(self, cluster: SimCluster) -> Iterator[tuple[Step, list[str]]]:
        """Let the steps happen; answers each with what is not as it expects."""
        for step in sorted(self.steps, key=lambda s: s.at):
            while cluster.now_s < cluster.start_s + step.at:
                cluster.tick()
            happen(cluster, step)
            yield step, check(cluster, step.expect) if step.expect is not None else []


def happen(cluster: SimCluster, step: Step) -> None:
    """One step's event."""
    scaling = cluster.scaling
    assert scaling is not None, "a scenario's cluster has a provider"
    provider, now_s = scaling.provider, cluster.now_s
    if step.queue is not None:
        cluster.record(cluster.tree.set_queue(step.queue.to_core(), now_s))
    if step.submit is not None:
        cluster.submit(step.submit.to_core(), step.submit.work())
    if step.cancel is not None:
        cluster.cancel(WorkloadId(step.cancel))
    for name, play in step.play.items():
        provider.play(GroupName(name), play.over(provider.plays[GroupName(name)]))
    for name, group in step.edit.items():
        provider.edit(group.to_core(name))
    for name, count in step.replicas.items():
        provider.set_replicas(GroupName(name), count, now_s)
    if step.delete is not None:
        provider.delete(step.delete, now_s)
    if step.take_back is not None:
        provider.notice(step.take_back, now_s)
    if step.lose is not None:
        cluster.lose_node(NodeId(step.lose))
    if step.outage_s is not None:
        provider.out_of_reach(now_s + step.outage_s)
    if step.stale_s is not None:
        provider.stale(now_s + step.stale_s)
    if step.kill is not None:
        cluster.kill(Actor(step.kill))
    if step.cordon is not None:
        cluster.record(cluster.tree.cordon(NodeId(step.cordon), "maintenance", None, now_s))
    if step.uncordon is not None:
        cluster.record(cluster.tree.uncordon(NodeId(step.uncordon), "done", now_s))
    provider.hidden |= {GroupName(name) for name in step.hide}
    provider.hidden -= {GroupName(name) for name in step.show}
    for node, amount in step.foreign.items():
        cluster.world.foreign[NodeId(node)] = Resources.of({"GPU": amount})


# ---------------------------------------------------------------- what must be true


def check(cluster: SimCluster, expect: Expect) -> list[str]:
    """What is not as it should be."""
    return [*_check_workloads(cluster, expect), *_check_waits(cluster, expect), *_check_groups(cluster, expect)]


def _check_workloads(cluster: SimCluster, expect: Expect) -> Iterator[str]:
    known = cluster.tree.workloads
    counts: dict[str, Mapping[str, int]] = {
        "attempt": expect.attempts,
        "preemptions": expect.preemptions,
        "failures": expect.failures,
    }
    for id, state in expect.states.items():
        found = known[WorkloadId(id)].state
        if found != state:
            yield f"{id} is {found}, not {state}"
    for field, wanted in counts.items():
        for id, number in wanted.items():
            have = getattr(known[WorkloadId(id)], field)
            if have != number:
                yield f"{field} of {id} is {have}, not {number}"
    nodes = cluster.inventory.nodes
    for id, group in expect.on.items():
        places = {nodes[m.node].group for m in known[WorkloadId(id)].placement}
        if places != {group}:
            yield f"{id} is on nodes of {sorted(places)}, not {group}"
    for id, level in expect.within.items():
        values = {str(nodes[m.node].domain(level)) for m in known[WorkloadId(id)].placement}
        if len(values) != 1:
            yield f"{id} is in {level} {sorted(values)}, not in one"


def _check_waits(cluster: SimCluster, expect: Expect) -> Iterator[str]:
    plan = cluster.controller.plans[-1][1] if cluster.controller.plans else None
    for id in sorted({*expect.waits, *expect.not_waits, *expect.says}):
        waits = plan.waits.get(WorkloadId(id), ()) if plan is not None else ()
        reasons = [wait.reason.value for wait in waits]
        details = [wait.detail for wait in waits] or [cluster.tree.workloads[WorkloadId(id)].reason]
        missing = [r for r in expect.waits.get(id, []) if r not in reasons]
        if missing:
            yield f"{id} waits for {reasons}, {missing} not among them: {details}"
        wrong = [r for r in expect.not_waits.get(id, []) if r in reasons]
        if wrong:
            yield f"{id} waits for {wrong}: {details}"
        text = expect.says.get(id, "")
        if not any(text in detail for detail in details):
            yield f"{id} says {details}, not {text!r}"


def _check_groups(cluster: SimCluster, expect: Expect) -> Iterator[str]:
    scaling = cluster.scaling
    assert scaling is not None, "a scenario's cluster has a provider"
    provider = scaling.provider
    capacity = scaling.capacity()
    up = [node.group for node in cluster.world.nodes.values()]
    made = {name: provider.made(name) for name in provider.groups}
    patches = [patch.group for patch in provider.patches if patch.ours]
    for name, count in expect.replicas.items():
        have = provider.groups[GroupName(name)].replicas
        if have != count:
            yield f"{name} has {have} replicas, not {count}"
    for name, count in expect.nodes.items():
        if up.count(name) != count:
            yield f"{name} has {up.count(name)} nodes, not {count}"
    for name, count in expect.machines.items():
        if made[GroupName(name)] != count:
            yield f"{made[GroupName(name)]} machines of {name} were made, not {count}"
    for name, count in expect.patches.items():
        if patches.count(GroupName(name)) > count:
            yield f"{name} was patched {patches.count(GroupName(name))} times, more than {count}"
    ordered = [s.group.name for s in capacity.groups if s.order is not None]
    if expect.ordered is not None and ordered != sorted(expect.ordered):
        yield f"orders are open in {ordered}, not in {expect.ordered}"
    backed_off = [s.group.name for s in capacity.groups if s.back_off and s.back_off.until_s > cluster.now_s]
    if expect.backed_off is not None and backed_off != sorted(expect.backed_off):
        yield f"{backed_off} are backed off, not {expect.backed_off}"
    if expect.unknown is not None and bool(capacity.error) != expect.unknown:
        yield f"the capacity's error is {capacity.error!r}"
