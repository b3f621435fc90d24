"""What an attempt asks for next, and what it gives up first: the minimum comes first, surplus seats go first."""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.minimum import is_whole, minimums
from rayorch.core.planning.claims import Claim, by_number, removable
from rayorch.core.planning.growth import counts, growths, missing
from rayorch.core.types import Member, NodeId, Role, Workload, WorkloadSpec


def whole(spec: WorkloadSpec, members: tuple[Member, ...]) -> bool:
    """Whether the members make up the gang's minimum."""
    return is_whole(spec, counts(members))


def rank_of_size(spec: WorkloadSpec, members: tuple[Member, ...]) -> int:
    """Who goes first among equals: 0 below the minimum, 1 at it, 2 above it."""
    if not whole(spec, members):
        return 0
    return 1 + int(len(members) > min(sum(way.values()) for way in minimums(spec)))


def next_claims(workload: Workload, members: tuple[Member, ...], models: Mapping[NodeId, str]) -> list[Claim]:
    """What the attempt asks for next, given what it holds or will hold: one of these, the first to try first.

    First all that its minimum lacks, together; then further seats. Empty when it is at its largest.
    """
    lacking = missing(workload, members, models)
    if lacking is not None:
        return [lacking]
    if not workload.spec.resizable:
        return []
    return growths(workload, members, {role.name: role.max_count for role in workload.spec.roles}, models)


def surplus_to_give(spec: WorkloadSpec, members: tuple[Member, ...]) -> tuple[Member, ...]:
    """The seats that an attempt gives up first: of the role that is furthest beyond its minimum, those that came last.

    Empty when it has none to spare.
    """
    have = counts(members)
    order = {role.name: (_fullness(role, have.get(role.name, 0)), i) for i, role in enumerate(spec.roles)}
    able = by_number(removable(spec, members))
    return max(able, key=lambda seats: (order[seats[0].role], seats[0].surplus), default=())


def _fullness(role: Role, have: int) -> float:
    return have / max(1, role.min_count)
