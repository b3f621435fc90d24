"""How the members of a gang belong together: levels that they share, groups within groups, segments, joint gangs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """Levels (label keys such as "rack") that all members must, or should, share one value of.

    `balanced`: where more than one domain is needed, each takes as equal a part as can be.
    """

    required: str | None = None
    preferred: str | None = None
    balanced: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive members of a role, `size` at a time, share one domain of `level`.

    A role names them from the outermost inwards, at most three; each inner size divides the next outer one.
    `channel`: each segment gets an NVLink channel id that no other workload in its domain has.
    """

    size: int
    level: str
    channel: bool = False


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group of roles, or of groups, inside a gang, with its own minimum and its own topology.

    `parent`: the group that it lies in, empty for the gang itself. `min_children`: how many of its roles and groups
    must have their minimum for the group to have its own; None: all of them.
    """

    name: str
    parent: str = ""
    min_children: int | None = None
    topology: TopologyRequest = TopologyRequest()


@dataclass(frozen=True, slots=True)
class JointGang:
    """Several submissions that start together or not at all: those of one queue that name the same `name`.

    Nothing starts before `count` of them are there.
    """

    name: str
    count: int
