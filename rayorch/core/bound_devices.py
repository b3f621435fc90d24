"""Which GPUs of its node a seat has: chosen where they can be chosen, else followed when it is seen what Ray bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rayorch.core.device_binding import device_resource, with_devices
from rayorch.core.reports import SeatInUse
from rayorch.core.room import Room
from rayorch.core.sharing import asks_of_ray, device_need, device_shares
from rayorch.core.types import UNIT, Allocation, Member, MemberPhase, NodeId, NodeSpec, Resources, WorkloadId

Key = tuple[WorkloadId, int]
"""A workload and its attempt."""


def devices_in(member: Member, node: NodeSpec | None, room: Room) -> tuple[tuple[int, ...], bool]:
    """The devices that the member gets in `room`, which is charged, and whether its group can name them; ValueError
    when it does not fit. `node`: its node.

    Where devices can be chosen it gets those that it was planned with, if they are still free.
    """
    exact = node is not None and node.exact
    devices = room.take(member.node, member.bundle, member.devices if exact else ())
    return devices, exact and bool(devices)


def seat_in(member: Member, nodes: Mapping[NodeId, NodeSpec], room: Room) -> Member:
    """The member with those devices."""
    devices, exact = devices_in(member, nodes.get(member.node), room)
    return replace(member, devices=devices, exact=exact)


def bundle_of(member: Member) -> Resources:
    """What the member's bundle asks of Ray: its GPUs by name where they were chosen."""
    if member.exact:
        return named(member.bundle, member.devices)
    return asks_of_ray(member.bundle, member.devices)


def named(bundle: Resources, devices: tuple[int, ...]) -> Resources:
    """What the bundle asks of Ray with these GPUs by name, or without when they are not as many as it takes."""
    need = device_need(bundle)
    asks = asks_of_ray(bundle, devices)
    if not need.shares:
        return with_devices(asks, devices) if len(devices) == -(-asks.gpu_units // UNIT) else asks
    if len(devices) != need.shares:
        return asks
    parts = dict(device_shares(bundle, devices))
    return asks + Resources.of_units({device_resource(device): units for device, units in parts.items()})


def merge_observed(known: tuple[SeatInUse, ...], news: tuple[SeatInUse, ...]) -> tuple[SeatInUse, ...]:
    """What is known of the devices of an attempt's seats after one more report; each process knows only its own."""
    found = {(seat.group_id, seat.bundle_index): seat for seat in known}
    for seat in news:
        old = found.get((seat.group_id, seat.bundle_index))
        if old is not None and old.node_id == seat.node_id:
            seat = replace(seat, devices=tuple(sorted({*old.devices, *seat.devices})))
        found[seat.group_id, seat.bundle_index] = seat
    return tuple(seat for _, seat in sorted(found.items()))


def news_of(allocation: Allocation, in_use: tuple[SeatInUse, ...]) -> tuple[tuple[Member, SeatInUse], ...]:
    """The members whose devices are others than the books have, with the places that say so.

    A seat of which only some devices have been seen says nothing yet, and one whose group names its devices has them.
    """
    seen = {(seat.group_id, seat.bundle_index): seat for seat in in_use}
    found = []
    for member in allocation.members:
        seat = seen.get((member.group_id, member.bundle_index)) if member.group_id and not member.exact else None
        if seat is None or seat.exact or seat.node_id != member.node or len(seat.devices) != _count(member):
            continue
        if set(seat.devices) != set(member.devices):
            found.append((member, seat))
    return tuple(found)


def observe_devices(held: Mapping[Key, Allocation], key: Key, in_use: tuple[SeatInUse, ...]) -> dict[Key, Allocation]:
    """The allocations that change when these places of `key`'s are seen.

    Ray keeps whole devices apart, so whoever was charged one that turns out to be this attempt's has one of those that
    this attempt was charged: the books had them the wrong way round. Devices that are shared are only noted.
    """
    books = dict(held)
    for member, seat in news_of(held[key], in_use):
        place = _at(member)
        charged = set(next(m.devices for m in books[key].members if _at(m) == place))
        if not _is_shared(member):
            taken = sorted(set(seat.devices) - charged)
            moved = dict(zip(taken, sorted(charged - set(seat.devices)), strict=False))
            books = {k: _moved(allocation, member.node, moved, _is_followed) for k, allocation in books.items()}
        members = tuple(replace(m, devices=seat.devices) if _at(m) == place else m for m in books[key].members)
        books[key] = replace(books[key], members=members)
    return {k: allocation for k, allocation in books.items() if allocation != held[k]}


def give_way(held: Mapping[Key, Allocation], before: Allocation, after: Allocation) -> dict[Key, Allocation]:
    """The allocations that change when `before` is `after`: its groups name GPUs that may be promised to others.

    A group that exists has what it names, so whoever is to name one of those and has no group yet gets one of those
    that the books gave to this attempt.
    """
    books = {**held, (after.workload, after.attempt): after}
    known = {_at(member): member for member in before.members}
    for member in after.members:
        old = known.get(_at(member))
        if old is None or old.node != member.node or not (member.exact and member.group_id) or _is_shared(member):
            continue
        taken = sorted(set(member.devices) - set(old.devices))
        moved = dict(zip(taken, sorted(set(old.devices) - set(member.devices)), strict=False))
        if moved:
            books = {k: _moved(allocation, member.node, moved, _is_only_named) for k, allocation in books.items()}
    return {k: allocation for k, allocation in books.items() if allocation is not held.get(k)}


def _moved(allocation: Allocation, node: NodeId, moved: Mapping[int, int], may: Callable[[Member], bool]) -> Allocation:
    members = tuple(
        replace(m, devices=tuple(sorted(moved.get(d, d) for d in m.devices)))
        if m.node == node and may(m) and not _is_shared(m) and moved.keys() & set(m.devices)
        else m
        for m in allocation.members
    )
    return allocation if members == allocation.members else replace(allocation, members=members)


def _is_followed(member: Member) -> bool:
    return not member.exact


def _is_only_named(member: Member) -> bool:
    return member.exact and not member.group_id and member.phase is MemberPhase.RESERVED


def _at(member: Member) -> tuple[int, int]:
    return member.surplus, member.bundle_index


def _is_shared(member: Member) -> bool:
    return bool(member.bundle.gpu_units % UNIT or device_need(member.bundle).shares)


def _count(member: Member) -> int:
    need = device_need(member.bundle)
    return need.shares or -(-asks_of_ray(member.bundle, member.devices).gpu_units // UNIT)
