"""How the members of a gang belong together: levels that they share, groups within groups, segments, joint gangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product

MAX_CHOICES = 16
"""In how many ways at most the children that a group must have are chosen; the first ones by declaration are tried."""


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
class Channel:
    """An NVLink (IMEX) channel of a domain, which is named with its level ("rack:z1/r3"); the number counts from 0."""

    domain: str
    number: int


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


def choices(roles: Sequence[tuple[str, str]], groups: Sequence[GroupSpec], of: str = "") -> tuple[frozenset[str], ...]:
    """The sets of roles, each of which makes up the minimum of a gang; the one to try first comes first.

    `roles`: (name, group that it lies in). `of`: of one group of it. There is one set unless some group needs only a
    part of its children; roles come before groups, both as declared.
    """
    if not of and all(group.min_children is None for group in groups):
        return (frozenset(name for name, _ in roles),)
    needed = next((group.min_children for group in groups if group.name == of), None)
    return tuple(dict.fromkeys(_sets(of, needed, roles, groups)))


def _sets(
    of: str, needed: int | None, roles: Sequence[tuple[str, str]], groups: Sequence[GroupSpec]
) -> list[frozenset[str]]:
    children = [[frozenset({name})] for name, group in roles if group == of]
    children += [_sets(group.name, group.min_children, roles, groups) for group in groups if group.parent == of]
    count = len(children) if needed is None else min(needed, len(children))
    ways = (frozenset[str]().union(*way) for chosen in combinations(children, count) for way in product(*chosen))
    return list(islice(ways, MAX_CHOICES))
