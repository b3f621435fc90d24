"""What is free on each node by the allocator's books, kept from reservation to reservation.

The books of a node with many small seats would else be made anew for each further one. Kept is only what does not
depend on the order in which members came: nodes without foreign use whose members' devices are all known. `Room.of`
gives the same; a test plays random books both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rayorch.core.room import Room, takes_new
from rayorch.core.sharing import uses_devices
from rayorch.core.slot import Slot
from rayorch.core.types import Allocation, Member, NodeHealth, NodeId, NodeSpec


class SlotBooks:
    """Told of every change of the members; asked for the room on some nodes."""

    def __init__(self) -> None:
        self._kept: dict[NodeId, tuple[NodeSpec, Slot]] = {}

    def room(
        self, nodes: Mapping[NodeId, NodeSpec], now_s: float, held_on: Callable[[NodeId], Sequence[Allocation]]
    ) -> Room:
        """The room on these nodes. `held_on`: what holds something on a node; asked where nothing is kept."""
        slots: dict[NodeId, Slot] = {}
        for id, node in nodes.items():
            if node.health is NodeHealth.LOST:
                continue
            kept = self._kept.get(id)
            if kept is not None and kept[0] is node:
                slots[id] = kept[1]
                continue
            held = held_on(id)
            slots[id] = slot = Room.of((node,), held, now_s).slot(id)
            if not node.foreign and all(_sure(m) for a in held for m in a.members if m.node == id):
                self._kept[id] = (node, slot)
        return Room(nodes, slots, frozenset(id for id in slots if takes_new(nodes[id], now_s)))

    def change(self, before: Iterable[Member], after: Iterable[Member]) -> None:
        """An allocation had these members and has those."""
        gone, come = tuple(before), tuple(after)
        if gone and come and list(map(_place, gone)) == list(map(_place, come)):
            return
        for members, sign in ((gone, -1), (come, 1)):
            for member in members:
                kept = self._kept.get(member.node)
                if kept is None:
                    continue
                if _sure(member):
                    self._kept[member.node] = (kept[0], _after(kept[1], member, sign))
                else:
                    del self._kept[member.node]


def _after(slot: Slot, member: Member, sign: int) -> Slot:
    """The slot with the member charged (1) or given back (-1). Its room was asked just before: that answer is kept."""
    known = slot.known_taken(member.bundle) if sign > 0 else None
    if known is not None and known[0] == member.devices:
        return known[1]
    return slot.minus(member.bundle.times(sign), member.devices)


def _place(member: Member) -> tuple[object, ...]:
    return (member.node, member.bundle, member.devices)


def _sure(member: Member) -> bool:
    """Whether it is known which devices it has, or it has none."""
    return bool(member.devices) or not uses_devices(member.bundle)
