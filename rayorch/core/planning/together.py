"""Joint gangs in a plan: one claim for all of its members that wait, so that they find seats together or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rayorch.core.decisions import Start, Wait, WaitReason
from rayorch.core.explain import UNBLOCKS
from rayorch.core.joint import JointKey, joint_key, lacking
from rayorch.core.planning.claims import Claim, Shape
from rayorch.core.planning.groups import Cell
from rayorch.core.types import Member, TopologyRequest, Workload, total


def running_members(running: Sequence[Workload]) -> Mapping[JointKey, list[Workload]]:
    """The live members of each joint gang."""
    found: dict[JointKey, list[Workload]] = {}
    for workload in running:
        if (key := joint_key(workload.spec)) is not None:
            found.setdefault(key, []).append(workload)
    return found


def joint_wait(claim: Claim, gates: Mapping[str, bool], members: Sequence[Workload]) -> Wait | None:
    """Why a member can't be looked at yet: others are not there, or wait for something else first.

    `gates`: for each member that waits, whether anything of its own keeps it back.
    """
    joint = claim.workload.spec.joint
    assert joint is not None, f"{claim.id} is in no joint gang"
    if (more := lacking(claim.workload, members)) > 0:
        there = len(members)
        detail = f"{there} of the {there + more} submissions of {joint.name} are there"
        return Wait(WaitReason.JOINT, detail, need=there + more, have=there, unit="submissions", unblocks=_UNBLOCKS)
    back = tuple(sorted(member.id for member in members if gates.get(member.id) and member.id != claim.id))
    if not back:
        return None
    detail = f"it starts together with {', '.join(back[:4])}, which can't start yet"
    return Wait(WaitReason.JOINT, detail, blockers=back[:4], unblocks=_UNBLOCKS)


_UNBLOCKS = UNBLOCKS[WaitReason.JOINT]


def together(claims: Sequence[Claim]) -> Claim:
    """All of these or none, on behalf of the first."""
    first = claims[0]
    if len(claims) == 1:
        return first
    layout = Cell(inside=tuple((_cell(claim), 1) for claim in claims))
    return replace(
        first,
        asks=tuple(ask for claim in claims for ask in claim.asks),
        shape=Shape(layout.bundles, TopologyRequest(), True, (), (), layout),
        resources=total(claim.resources for claim in claims),
        others=(),
        parts=tuple(claims),
    )


def _cell(claim: Claim) -> Cell:
    shape = claim.shape
    cell = shape.layout or Cell(shape.topology, shape.bundles)
    return replace(cell, accelerators=shape.accelerators)


def parts_of(claim: Claim, members: tuple[Member, ...]) -> list[tuple[Claim, tuple[Member, ...]]]:
    """Each gang of the claim with its seats."""
    found: list[tuple[Claim, tuple[Member, ...]]] = []
    first = 0
    for part in claim.parts or (claim,):
        found.append((part, members[first : first + len(part.asks)]))
        first += len(part.asks)
    return found


def starts_of(claim: Claim, members: tuple[Member, ...], reason: str, ends_s: float | None = None) -> list[Start]:
    """The start of each gang of the claim; those of a joint gang are committed in one."""
    ids = tuple(part.id for part in claim.parts)
    return [
        Start(part.id, part.attempt, ours, reason, ends_s=ends_s, partners=tuple(id for id in ids if id != part.id))
        for part, ours in parts_of(claim, members)
    ]
