"""Ranks along the topology: members that are near each other have ranks that follow each other.

Collectives talk mostly to neighbours in rank, so neighbours in rank should be neighbours in the network. A role in
segments is ranked by index, because its segments are runs of indices and lie in one domain each; every other role by
the domains that its seats were in when they were taken. That is part of the commitment, so the ranks of an attempt
change only when its members do.
"""

from __future__ import annotations

from collections.abc import Iterable

from rayorch.core.types import Member, WorkloadSpec

RankKey = tuple[tuple[str, ...], str, int, int, int]


def ranks(spec: WorkloadSpec, members: Iterable[Member]) -> dict[tuple[int, int], int]:
    """The rank of each member among those of its role, from 0; by its (surplus, bundle_index)."""
    found: dict[tuple[int, int], int] = {}
    counts: dict[str, int] = {}
    segmented = {role.name for role in spec.roles if role.segments}
    for member in sorted(members, key=lambda m: (m.role, _key(m, m.role in segmented))):
        found[member.surplus, member.bundle_index] = counts.get(member.role, 0)
        counts[member.role] = found[member.surplus, member.bundle_index] + 1
    return found


def _key(member: Member, segmented: bool) -> RankKey:
    if segmented:
        return ((), "", member.index, 0, 0)
    return (tuple(member.path.split("/")), member.node, member.surplus, member.bundle_index, member.index)
