"""The parts of a document that say how the members of a gang belong together."""

from __future__ import annotations

from typing import Annotated, TypedDict

from pydantic import Field

from rayorch.config.devices import Sharing
from rayorch.config.fields import Amounts, Countables, Items, Model, Name, Workers
from rayorch.core.types import CPU, GroupSpec, JointGang, Segment, TopologyRequest

Size = Annotated[int, Field(ge=1, le=100_000)]


class Topology(Model):
    """Levels that all members must, or should, share one domain of.

    `balanced`: where one domain does not take all of them, those that are used take equal parts.
    """

    require: Name | None = None
    prefer: Name | None = None
    balanced: bool = False

    def to_core(self) -> TopologyRequest:
        """In core's words."""
        return TopologyRequest(self.require, self.prefer, self.balanced)


class SegmentBody(Model):
    """`size` consecutive members share one domain of `level`; `channel`: and an NVLink channel of their own."""

    size: Size
    level: Name
    channel: bool = False

    def to_core(self) -> Segment:
        """In core's words."""
        return Segment(self.size, self.level, self.channel)


class Members(Model):
    """Members of one role: `workers` 2 or [2, 4], `resources` of each. `segments`: from the outermost inwards.

    `sharing`: as of a Gang.
    """

    name: Name
    workers: Workers
    resources: Amounts = Field(default_factory=lambda: {CPU: 1.0})
    sharing: Sharing | None = None
    countables: Countables = Field(default_factory=dict)
    group: Name | None = None
    segments: Items[SegmentBody] = ()


class Group(Model):
    """Roles, or groups, that keep to levels of their own. `min_children`: how many of them must start; else all."""

    name: Name
    parent: Name | None = None
    min_children: Size | None = None
    topology: Topology = Topology()

    def to_core(self) -> GroupSpec:
        """In core's words."""
        return GroupSpec(self.name, self.parent or "", self.min_children, self.topology.to_core())


class Joint(Model):
    """Submissions of one queue that name the same `name` start together, not before `count` of them are there."""

    name: Name
    count: Annotated[int, Field(ge=2, le=1000)]

    def to_core(self) -> JointGang:
        """In core's words."""
        return JointGang(self.name, self.count)


class GangBody(Model):
    """What a Workload says of its gang beyond one role of equal members.

    `roles`, in place of `gang`: members of several shapes, each of which may lie in one of the `groups`.
    """

    topology: Topology = Topology()
    roles: Items[Members] = ()
    groups: Items[Group] = ()
    joint: Joint | None = None


class GangFields(TypedDict):
    """Fields of a WorkloadSpec."""

    topology: TopologyRequest
    groups: tuple[GroupSpec, ...]
    joint: JointGang | None


def gang_fields(body: GangBody) -> GangFields:
    """The fields of the workload, the roles excepted."""
    return GangFields(
        topology=body.topology.to_core(),
        groups=tuple(group.to_core() for group in body.groups),
        joint=body.joint.to_core() if body.joint is not None else None,
    )
