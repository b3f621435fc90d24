"""What a scenario's file says of nodes, queues, node groups and workloads, and core's values from it."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rayorch.core.capacity import GroupName, NodeGroup
from rayorch.core.types import (
    MODEL_LABEL,
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
from rayorch.sim.groups import LEVELS, GroupPlay
from rayorch.sim.plain import fields_of, value_of
from rayorch.sim.work import SimWork


class Text(BaseModel):
    """Base of all parts of a file: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)


class OpenText(Text):
    """A part that also takes any field of the core value it stands for, by that field's name."""

    more: dict[str, object] = Field(default_factory=dict, exclude=True)
    own: ClassVar[frozenset[str]] = frozenset({"id", "name", "bundle", "min_count", "max_count"})
    """Fields of the core value that are said in another way here."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        names = {field.name for field in dataclasses.fields(cls.core())} - set(cls.model_fields) - cls.own
        more = {key: value for key, value in data.items() if key in names}
        if not more:
            return data
        return {**{key: value for key, value in data.items() if key not in names}, "more": more}

    @classmethod
    def core(cls) -> type:
        """The dataclass of core whose fields are taken."""
        raise NotImplementedError


class NodeText(Text):
    """A node that is there from the start and belongs to no group; with `count`, so many of them: n0, n1, …

    `topology`: its domains, from the outermost level inwards (labels called zone, block or rack are domains, too).
    `resources`: what else it has. `memory_gib`: of each GPU. `exact`: each GPU can be chosen.
    """

    name: str
    count: int | None = None
    gpu: int = 0
    cpu: float = 64
    labels: dict[str, str] = {}
    topology: dict[str, str] = {}
    resources: dict[str, float] = {}
    model: str = ""
    memory_gib: float = 0.0
    exact: bool = False

    def names(self) -> tuple[str, ...]:
        """The names of all the nodes that it stands for."""
        return (self.name,) if self.count is None else tuple(f"{self.name}{n}" for n in range(self.count))

    def to_core(self) -> tuple[NodeSpec, ...]:
        """The nodes."""
        levels = {level: self.labels[level] for level in LEVELS if level in self.labels} | self.topology
        labels = self.labels | ({MODEL_LABEL: self.model} if self.model else {})
        one = NodeSpec(
            id=NodeId(self.name),
            name=self.name,
            total=Resources.of({"GPU": self.gpu, "CPU": self.cpu, **self.resources}),
            devices=tuple(Device(i, self.model, memory_bytes=round(self.memory_gib * 2**30)) for i in range(self.gpu)),
            labels=tuple(sorted(labels.items())),
            topology=tuple(levels.items()),
            exact=self.exact,
        )
        return tuple(replace(one, id=NodeId(name), name=name) for name in self.names())


class QueueText(OpenText):
    """A queue; without `gpu` (what it deserves) it has no limit. Any field of `core.types.QueueSpec` may be given, too;
    where amounts are meant, a number counts GPUs."""

    name: str
    gpu: float | None = None
    borrow: float | None = None

    @classmethod
    def core(cls) -> type:
        """QueueSpec."""
        return QueueSpec

    def to_core(self) -> QueueSpec:
        """The queue. SpecError for a field that can't be read."""
        return QueueSpec(
            QueueId(self.name),
            **{  # type: ignore[arg-type]  # by name and annotation
                "deserved": Resources.of({"GPU": self.gpu}) if self.gpu is not None else Resources(),
                "borrow_limit": Resources.of({"GPU": self.borrow}) if self.borrow is not None else None,
                **fields_of(QueueSpec, self.more),
            },
        )


class PlayText(Text):
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


class GroupText(Text):
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


class RoleText(OpenText):
    """Members of one shape; any field of `core.types.Role` may be given, too."""

    members: int
    most: int | None = None
    gpu: float = 0
    cpu: float = 0
    resources: dict[str, float] = {}

    @classmethod
    def core(cls) -> type:
        """Role."""
        return Role

    def to_core(self, name: str) -> Role:
        """The role."""
        bundle = Resources.of({"GPU": self.gpu, "CPU": self.cpu, **self.resources})
        most = self.members if self.most is None else self.most
        return Role(name, bundle, self.members, most, **fields_of(Role, self.more))  # type: ignore[arg-type]


class WorkText(Text):
    """How a workload's work behaves once it runs; see `SimWork`. What is not given stays as it is."""

    steps: int | None = None
    rate: float | None = None
    start_s: float | None = None
    checkpoint_every: int | None = None
    checkpoint_s: float | None = None
    fails_at: int | None = None
    failing_attempts: int | None = None
    deaf: bool | None = None
    demand: tuple[tuple[float, int], ...] | None = None
    heartbeats_s: float | None = None

    def over(self, work: SimWork) -> SimWork:
        """That work with what is given here."""
        return replace(work, **{key: getattr(self, key) for key in self.model_fields_set})


class WorkloadText(OpenText):
    """A submission and how its work behaves. `roles` instead of `members`, `gpu`, `cpu` where there are several. Any
    field of `core.types.WorkloadSpec` may be given, too."""

    id: str
    members: int = 1
    most: int | None = None
    gpu: float = 8
    cpu: float = 0
    resources: dict[str, float] = {}
    roles: dict[str, RoleText] = {}
    queue: str = "q"
    kind: Kind = Kind.TRAIN
    priority: int = 0
    topology: str | dict[str, object] | None = None
    accelerators: tuple[str, ...] = ()
    grace_s: float = 10.0
    max_retries: int = 0
    steps: int = 60
    checkpoint_every: int = 10
    demand: tuple[tuple[float, int], ...] = ()
    work: WorkText = WorkText()

    @classmethod
    def core(cls) -> type:
        """WorkloadSpec."""
        return WorkloadSpec

    def to_core(self) -> WorkloadSpec:
        """What is submitted. SpecError for a field that can't be read."""
        roles = tuple(role.to_core(name) for name, role in self.roles.items())
        if not roles:
            one = RoleText(members=self.members, most=self.most, gpu=self.gpu, cpu=self.cpu, resources=self.resources)
            roles = (one.to_core("worker"),)
        levels = {"required": self.topology} if isinstance(self.topology, str) else self.topology or {}
        return WorkloadSpec(
            id=WorkloadId(self.id),
            queue=QueueId(self.queue),
            roles=roles,
            **{  # type: ignore[arg-type]  # by name and annotation
                "name": self.id,
                "kind": self.kind,
                "priority": self.priority,
                "resizable": any(role.max_count > role.min_count for role in roles),
                "topology": value_of(TopologyRequest, levels, "topology"),
                "accelerators": self.accelerators,
                "grace_s": self.grace_s,
                "max_retries": self.max_retries,
                **fields_of(WorkloadSpec, self.more),
            },
        )

    def to_work(self) -> SimWork:
        """How it behaves; its steps are those of all members together."""
        work = SimWork(steps=self.steps, checkpoint_every=self.checkpoint_every, demand=self.demand)
        return self.work.over(work)


class Timing(Text):
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
