"""The allocator's sync from the world: books built again from the groups that exist and what was committed.

Called only after the queue owner has answered from its journal: an unknown group must be known to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rayorch.core.allocations import gang_of
from rayorch.core.types import (
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    Resources,
    State,
    Workload,
    WorkloadId,
    group_name,
)


@dataclass(frozen=True, slots=True)
class WorldGroup:
    """A placement group as the cluster lists it: (node, resources) per bundle, the node empty while unplaced.

    `created`: all its bundles are in place.
    """

    name: str
    group_id: str
    bundles: tuple[tuple[NodeId, Resources], ...]
    created: bool


@dataclass(frozen=True, slots=True)
class Adoption:
    """What to take over and which groups (hex ids) to remove."""

    adopt: tuple[Allocation, ...]
    remove: tuple[str, ...]


def parse_group_name(instance: str, name: str) -> tuple[WorkloadId, int, int] | None:
    """(workload, attempt, surplus) of a group of this instance, None for any other name."""
    parts = name.split("/")
    if len(parts) not in (4, 5) or parts[:2] != ["rayorch", instance]:
        return None
    tail = parts[4] if len(parts) == 5 else "+0"
    if not parts[3].isdecimal() or not tail.startswith("+") or not tail[1:].isdecimal():
        return None
    key = (WorkloadId(parts[2]), int(parts[3]), int(tail[1:]))
    return key if group_name(instance, *key) == name else None


def adopt_world(
    groups: Iterable[WorldGroup],
    workloads: Mapping[WorkloadId, Workload],
    instance: str,
    now_s: float,
    deadline_s: float,
) -> Adoption:
    """Compare the groups that exist with what the queue owner committed.

    Groups of the current attempt of a running or stopping workload are adopted, every other group that carries our
    prefix is removed. An attempt that has begun and whose gang is not whole in the world is not adopted: its
    remaining groups are removed, and reconciliation ends it. One that had not begun goes on being started, with
    `deadline_s` as the new deadline of its groups.
    """
    found: dict[tuple[WorkloadId, int], dict[int, WorldGroup]] = {}
    remove: list[str] = []
    for group in sorted(groups, key=lambda g: (g.name, not g.created, g.group_id)):
        key = parse_group_name(instance, group.name)
        if key is None:
            continue
        workload = workloads.get(key[0])
        ours = found.setdefault(key[:2], {})
        if workload is None or not _live(workload) or workload.attempt != key[1] or key[2] in ours:
            remove.append(group.group_id)  # unknown, of a former attempt, or a second one of the same name
        else:
            ours[key[2]] = group
    adopt: list[Allocation] = []
    for id, workload in sorted(workloads.items()):
        if not _live(workload):
            continue
        ours = found.get((id, workload.attempt), {})
        allocation = _allocation(workload, ours, now_s, deadline_s)
        if allocation is None:
            remove.extend(group.group_id for group in ours.values())
        else:
            adopt.append(allocation)
    return Adoption(tuple(adopt), tuple(sorted(remove)))


def _live(workload: Workload) -> bool:
    return workload.state in (State.RUNNING, State.STOPPING)


def _allocation(
    workload: Workload, groups: Mapping[int, WorldGroup], now_s: float, deadline_s: float
) -> Allocation | None:
    """The attempt's books, None when its gang is gone and with it the attempt."""
    gang = gang_of(workload.spec, workload.placement)
    begun = workload.ready_s is not None or workload.state is State.STOPPING
    # Serve makes and names its groups itself, and replaces replicas: only without any it is gone.
    whole = bool(groups) if workload.spec.kind is Kind.SERVE else all(number in groups for number in gang)
    if begun and not whole:
        return None
    members = [_member(m, groups.get(m.surplus)) for m in workload.placement]
    placed = {m.surplus for m in workload.placement}
    for number, group in sorted(groups.items()):
        if number not in placed:
            members += _leaving(workload, number, group)
    return Allocation(workload.id, workload.attempt, tuple(members), now_s, deadline_s, "", gang)


def _member(seat: Member, group: WorldGroup | None) -> Member:
    if group is None:
        return seat
    phase = MemberPhase.READY if group.created else MemberPhase.CREATING
    node = group.bundles[seat.bundle_index][0] if seat.bundle_index < len(group.bundles) else seat.node
    if node in ("", seat.node):
        return replace(seat, phase=phase, group_id=group.group_id)
    return replace(seat, phase=phase, group_id=group.group_id, node=node, devices=())


def _leaving(workload: Workload, number: int, group: WorldGroup) -> list[Member]:
    """Seats of a shrink that was under way, or of a growth that was never committed: still held, to be given back."""
    members = []
    for index, (node, bundle) in enumerate(group.bundles):
        fitting = [role.name for role in workload.spec.roles if role.bundle == bundle]
        role = fitting[0] if fitting else workload.spec.roles[0].name
        members.append(Member(role, number, node, bundle, number, index, MemberPhase.RELEASING, group.group_id))
    return members
