"""The allocator's sync from the world: books built again from the groups that exist and what was committed.

Called only after the queue owner has answered from its journal: an unknown group must be known to be unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rayorch.core.allocations import bind_seats, gang_of
from rayorch.core.bound_devices import seat_in
from rayorch.core.device_binding import devices_of, split_devices
from rayorch.core.reports import SeatInUse
from rayorch.core.room import Room
from rayorch.core.sharing import asks_of_ray
from rayorch.core.types import (
    LIVE,
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeHealth,
    NodeId,
    NodeSpec,
    Resources,
    State,
    Workload,
    WorkloadId,
    group_name,
)


@dataclass(frozen=True, slots=True)
class WorldGroup:
    """A placement group as the cluster lists it: (node, resources) per bundle, the node empty while unplaced.

    `created`: all its bundles are in place. A bundle of which Ray was asked for particular GPUs names them here too.
    """

    name: str
    group_id: str
    bundles: tuple[tuple[NodeId, Resources], ...]
    created: bool

    def node(self, index: int) -> NodeId | None:
        """Where a bundle is, None when it is not placed or there is none."""
        return self.bundles[index][0] or None if index < len(self.bundles) else None

    def devices(self, index: int) -> tuple[int, ...]:
        """The GPUs that a bundle names."""
        return devices_of(self.bundles[index][1]) if index < len(self.bundles) else ()

    def bundle(self, index: int) -> Resources:
        """What a bundle takes, without the names of its GPUs."""
        return split_devices(self.bundles[index][1])[0]


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
    nodes: Iterable[NodeSpec] = (),
) -> Adoption:
    """Compare the groups that exist with what the queue owner committed.

    Groups of the current attempt of a running or stopping workload are adopted, every other group that carries our
    prefix is removed. An attempt that has begun and whose gang is not whole in the world is not adopted: its
    remaining groups are removed, and reconciliation ends it.

    Seats without a group (a start that was under way, a replica that Serve is about to make) go on being reserved only
    if they fit on `nodes` beside everything that has a group, with `deadline_s` as the new deadline: their room may
    have been given back, and to others, just before the restart. Without `nodes` they are given up. A gang that loses
    seats so is not adopted; a surplus seat is taken out of the commitment by reconciliation.
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
    candidates: list[Allocation] = []
    for id, workload in sorted(workloads.items()):
        if _live(workload):
            allocation = _allocation(workload, found.get((id, workload.attempt), {}), now_s, deadline_s)
            if allocation is not None:
                candidates.append(allocation)
    known = {node.id: node for node in nodes}
    room = Room.of(map(_open, known.values()), [replace(a, members=_seated(a)) for a in candidates], now_s)
    adopt = [kept for a in candidates if (kept := _with_room(a, workloads[a.workload], known, room)) is not None]
    adopted = {(a.workload, a.attempt) for a in adopt}
    for attempt, ours in found.items():
        if attempt not in adopted:
            remove.extend(group.group_id for group in ours.values())
    return Adoption(tuple(adopt), tuple(sorted(remove)))


def _open(node: NodeSpec) -> NodeSpec:
    """The node as it is for seats that were committed before it was cordoned, drained or blocked."""
    health = NodeHealth.LOST if node.health is NodeHealth.LOST else NodeHealth.OK
    return replace(node, health=health, blocked_until_s=0.0)


def _seated(allocation: Allocation) -> tuple[Member, ...]:
    return tuple(m for m in allocation.members if m.group_id)


def _with_room(
    allocation: Allocation, workload: Workload, nodes: Mapping[NodeId, NodeSpec], room: Room
) -> Allocation | None:
    """Keep the seats without a group that still fit, and charge them; None when the gang is not whole then."""
    members: list[Member] = []
    for member in allocation.members:
        if member.group_id:
            members.append(member)
        elif room.fits(member.node, member.bundle):
            members.append(seat_in(member, nodes, room))
    counts = Counter(m.surplus for m in members)
    torn = {n for n, count in counts.items() if n not in allocation.gang and count != _count(allocation, n)}
    members = [m for m in members if m.surplus not in torn]  # what grew together stays together
    serve = workload.spec.kind is Kind.SERVE and workload.ready_s is not None
    lost = {m.surplus for m in allocation.members} - {m.surplus for m in members}
    split = any(len([m for m in members if m.surplus == n]) != _count(allocation, n) for n in allocation.gang)
    if not members or (not serve and (split or lost & set(allocation.gang))):
        return None
    return replace(allocation, members=tuple(members))


def _count(allocation: Allocation, number: int) -> int:
    return len([m for m in allocation.members if m.surplus == number])


def leftovers(groups: Iterable[WorldGroup], held: Iterable[tuple[WorkloadId, int]], instance: str) -> tuple[str, ...]:
    """Groups (hex ids) of attempts that hold nothing, to be removed. Only for books that are in step with the world.

    Seats are in the books before any group is made for them, so a group of an attempt that is not there was left
    behind: by Serve, say, which made a replica's group while its application was being ended.
    """
    known = set(held)
    keys = [(parse_group_name(instance, group.name), group.group_id) for group in groups]
    return tuple(sorted(group_id for key, group_id in keys if key is not None and key[:2] not in known))


def _live(workload: Workload) -> bool:
    return workload.state in LIVE


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
    if workload.spec.kind is Kind.SERVE:
        members = _replicas(workload, groups)
    else:
        members = [_member(m, groups.get(m.surplus)) for m in workload.placement]
        placed = {m.surplus for m in workload.placement}
        for number, group in sorted(groups.items()):
            if number not in placed:
                members += _leaving(workload, number, group)
    return Allocation(workload.id, workload.attempt, tuple(members), now_s, deadline_s, "", gang)


def _replicas(workload: Workload, groups: Mapping[int, WorldGroup]) -> list[Member]:
    """The seats of a Serve application with the groups that are on their nodes.

    The number in the name of a replica's group says nothing: Serve may have left another seat than that one. A group
    for which there is no seat is a seat of its own that is being given back.
    """
    there = {group.group_id: group for group in groups.values() if group.bundles and group.bundles[0][0]}
    seats = Allocation(workload.id, workload.attempt, workload.placement, 0.0, 0.0)
    by_bundle = {asks_of_ray(role.bundle, (0,)): role.name for role in reversed(workload.spec.roles)}
    first = workload.spec.roles[0].name
    in_use = tuple(
        SeatInUse(
            by_bundle.get(group.bundle(0), first),
            group.bundles[0][0],
            id,
            devices=group.devices(0),
            exact=bool(group.devices(0)),
        )
        for id, group in sorted(there.items())
    )
    members = list(bind_seats(seats, in_use))
    bound = {m.group_id for m in members}
    number = max((m.surplus for m in members), default=0)
    for id, group in sorted(there.items()):
        if id not in bound:
            number += 1
            members += _leaving(workload, number, group)
    return members


def _member(seat: Member, group: WorldGroup | None) -> Member:
    if group is None:
        return seat
    phase = MemberPhase.READY if group.created else MemberPhase.CREATING
    devices = group.devices(seat.bundle_index)
    node = group.node(seat.bundle_index) or seat.node
    return replace(seat, phase=phase, group_id=group.group_id, node=node, devices=devices, exact=bool(devices))


def _leaving(workload: Workload, number: int, group: WorldGroup) -> list[Member]:
    """Seats of a shrink that was under way, or of a growth that was never committed: still held, to be given back."""
    members = []
    for index, (node, _) in enumerate(group.bundles):
        bundle, devices = group.bundle(index), group.devices(index)
        fitting = [role.name for role in workload.spec.roles if asks_of_ray(role.bundle, (0,)) == bundle]
        role = fitting[0] if fitting else workload.spec.roles[0].name
        seat = Member(role, number, node, bundle, number, index, MemberPhase.RELEASING, group.group_id)
        members.append(replace(seat, devices=devices, exact=bool(devices)))
    return members
