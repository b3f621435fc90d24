"""What is free on each node, on a private copy that a planner or an owner may charge and give back.

GPUs are counted device by device, the way Ray binds them: whole GPUs take wholly free devices, lowest index
first; a fraction takes one device, the one that it leaves with least. A sick device has no room. What is used
outside our grants is charged before anything else is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rayorch.core.slot import Slot
from rayorch.core.types import GPU, Allocation, Member, NodeHealth, NodeId, NodeSpec, Resources


class Room:
    """Free amounts per node. `copy` costs nothing, and the first change after it, in either of the two, one dictionary;
    a copy and its origin don't see each other's changes."""

    __slots__ = ("_before", "_free_gpu_units", "_nodes", "_shared", "_slots", "_usable")

    def __init__(self, nodes: Mapping[NodeId, NodeSpec], slots: dict[NodeId, Slot], usable: frozenset[NodeId]) -> None:
        self._nodes = nodes
        self._slots = slots
        self._shared = False  # whether a copy may read the same dictionary
        self._before: dict[NodeId, Slot] | None = None  # what was there before a loan, of nodes that changed since
        self._usable = usable
        self._free_gpu_units = sum(max(0, slots[node].gpu_units) for node in usable)

    @staticmethod
    def of(nodes: Iterable[NodeSpec], allocations: Iterable[Allocation], now_s: float) -> Room:
        """The room that all members (those that are leaving included) and foreign use leave.

        Lost nodes have none. A node that is cordoned, draining or blocked at `now_s` keeps its books but takes
        nothing new, and neither does an exact node while somebody uses GPUs of it without saying which: any of them may
        be in use. Members whose devices are not known are charged as Ray would bind them.
        """
        known = {node.id: node for node in nodes}
        room = Room(
            known,
            {node.id: Slot.empty(node) for node in known.values() if node.health is not NodeHealth.LOST},
            frozenset(node.id for node in known.values() if takes_new(node, now_s)),
        )
        members = [m for allocation in allocations for m in allocation.members]
        for member in sorted(members, key=lambda m: not m.devices):  # known devices first: the rest go around them
            room._charge(member.node, member.bundle, member.devices)
        for node in known.values():
            if node.foreign:
                room._charge_foreign(node)
        return room

    def settle(self, id: NodeId, node: NodeSpec | None, members: Iterable[Member], now_s: float) -> None:
        """A node is another one than before (None: gone), with these members on it: its books are made anew."""
        slots = self._own()
        before = self.gpu_units(id)
        nodes = dict(self._nodes) if not isinstance(self._nodes, dict) else self._nodes
        self._nodes = nodes
        slots.pop(id, None)
        nodes.pop(id, None)
        if node is not None:
            nodes[id] = node
            if node.health is not NodeHealth.LOST:
                alone = Room({id: node}, {id: Slot.empty(node)}, frozenset())
                for member in sorted(members, key=lambda m: not m.devices):
                    alone._charge(id, member.bundle, member.devices)
                if node.foreign:
                    alone._charge_foreign(node)
                slots[id] = alone._slots[id]
        usable = node is not None and takes_new(node, now_s)
        if usable != (id in self._usable):
            self._usable = self._usable | {id} if usable else self._usable - {id}
        self._free_gpu_units += self.gpu_units(id) - before

    def judge(self, id: NodeId, now_s: float) -> bool:
        """Whether the node takes new members may have changed with the time; answers whether it has."""
        usable = takes_new(self._nodes[id], now_s)
        if usable == (id in self._usable):
            return False
        before = self.gpu_units(id)
        self._usable = self._usable | {id} if usable else self._usable - {id}
        self._free_gpu_units += self.gpu_units(id) - before
        return True

    def book(self, member: Member) -> None:
        """Charge a member that holds its seat already."""
        self._charge(member.node, member.bundle, member.devices)

    def copy(self) -> Room:
        """A Room of its own with the same amounts."""
        twin = object.__new__(Room)
        self._shared = twin._shared = True
        twin._nodes, twin._slots, twin._usable = self._nodes, self._slots, self._usable
        twin._free_gpu_units = self._free_gpu_units
        twin._before = None
        return twin

    @property
    def free_gpu_units(self) -> int:
        """Free GPU units on all nodes that take new members."""
        return self._free_gpu_units

    def joined_by(self, nodes: Iterable[NodeSpec]) -> Room:
        """A copy with further nodes, which nothing is held on."""
        more = {node.id: node for node in nodes}
        slots = {**self._slots, **{id: Slot.empty(node) for id, node in more.items()}}
        return Room({**self._nodes, **more}, slots, self._usable | more.keys())

    def slot(self, node_id: NodeId) -> Slot:
        """What is free on a node that takes new members, device by device; KeyError for an unknown node."""
        return self._slots[node_id]

    @property
    def slots(self) -> Mapping[NodeId, Slot]:
        """The same of all nodes, and of those that take nothing new."""
        return self._slots

    @property
    def takers(self) -> frozenset[NodeId]:
        """The nodes that take new members."""
        return self._usable

    def usable(self, node_id: NodeId) -> bool:
        """Whether the node takes new members at all."""
        return node_id in self._usable

    def opened(self) -> Room:
        """A copy in which cordoned, draining and blocked nodes take new members, to see whether they are in the way."""
        return Room(self._nodes, dict(self._slots), frozenset(self._slots))

    def free(self, node_id: NodeId) -> Resources:
        """What is free on the node, whether or not it takes new members; the GPUs are those of healthy devices."""
        slot = self._slots.get(node_id)
        return slot.free if slot is not None else Resources()

    def gpu_units(self, node_id: NodeId) -> int:
        """Free GPU units on the node, all devices together; 0 where nothing new is taken, or too much is held."""
        return max(0, self._slots[node_id].gpu_units) if node_id in self._usable else 0

    def fits(self, node_id: NodeId, bundle: Resources) -> bool:
        """Whether the node would take the bundle now."""
        return node_id in self._usable and self._slots[node_id].fits(bundle)

    def pieces(self, node_id: NodeId, bundle: Resources) -> int:
        """How many such bundles the node would take now, one after the other."""
        return self._slots[node_id].pieces(bundle) if node_id in self._usable else 0

    def part(self, nodes: Iterable[NodeId]) -> Room:
        """A copy of these nodes only, for trials."""
        slots = {node: self._slots[node] for node in nodes if node in self._slots}
        return Room(self._nodes, slots, frozenset(node for node in slots if node in self._usable))

    def take(self, node_id: NodeId, bundle: Resources, wished: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Charge the bundle and answer the device indices that it gets, the one with the fraction last.

        `wished`: the devices that it gets if they are free. The caller has asked `fits`; a bundle that does not fit is
        a bug and raises ValueError.
        """
        if wished and self._slots[node_id].sick.isdisjoint(wished) and self.retake(node_id, bundle, wished):
            return wished
        if not self.fits(node_id, bundle):
            raise ValueError(f"{bundle.to_floats()} does not fit on node {node_id}")
        return self._charge(node_id, bundle, ())

    def retake(self, node_id: NodeId, bundle: Resources, devices: tuple[int, ...]) -> bool:
        """Charge the bundle to these very devices, as it was before it was given back; False: they are not free."""
        slot = self._slots.get(node_id)
        if slot is None or node_id not in self._usable:
            return False
        left = slot.minus(bundle, devices)
        if min((*left.left, *left.amounts.values()), default=0) < 0:
            return False
        self._put(node_id, slot, left)
        return True

    def give(self, node_id: NodeId, bundle: Resources, devices: tuple[int, ...]) -> None:
        """Give back what `take` (or a member of an allocation) was charged; a lost node has nothing to get back.

        Without devices (a member whose devices are not known) the fullest ones come free.
        """
        slot = self._slots.get(node_id)
        if slot is not None:
            self._put(node_id, slot, slot.minus(bundle.times(-1), devices or slot.fullest(bundle)))

    def _charge(self, node_id: NodeId, bundle: Resources, devices: tuple[int, ...]) -> tuple[int, ...]:
        slot = self._slots.get(node_id)
        if slot is None:
            return devices
        if devices:
            chosen, left = devices, slot.minus(bundle, devices)
        else:
            chosen, left = slot.taken(bundle)
        self._put(node_id, slot, left)
        return chosen

    def _charge_foreign(self, node: NodeSpec) -> None:
        rest = node.foreign
        for index, units in node.foreign_devices:
            named = Resources.of_units({GPU: min(units, rest.gpu_units)})
            self._charge(node.id, named, (index,))
            rest -= named
        self._charge(node.id, rest, ())

    @property
    def has_nodes(self) -> bool:
        """Whether it knows of any node."""
        return bool(self._nodes)

    def lend(self) -> Room:
        """Itself, to be changed by somebody until `reclaim`."""
        self._before = {}
        return self

    def before_loan(self) -> Room:
        """A copy as it was when it was lent."""
        twin = self.copy()
        for node, slot in (self._before or {}).items():
            twin._put(node, twin._slots[node], slot)
        return twin

    def reclaim(self) -> None:
        """It is as it was when it was lent, and no copy that was made of it is read any more."""
        before, self._before, self._shared = self._before, None, False
        for node, slot in before.items() if before else ():
            self._put(node, self._slots[node], slot)

    def _own(self) -> dict[NodeId, Slot]:
        if self._shared:
            self._slots, self._shared = dict(self._slots), False
        return self._slots

    def _put(self, node_id: NodeId, old: Slot, new: Slot) -> None:
        if self._before is not None:
            self._before.setdefault(node_id, old)
        self._own()[node_id] = new
        if node_id in self._usable:
            self._free_gpu_units += max(0, new.gpu_units) - max(0, old.gpu_units)


def bound(nodes: Iterable[NodeSpec], allocations: Iterable[Allocation], now_s: float) -> tuple[Allocation, ...]:
    """The same allocations with devices for every member: where they are not known, those that `Room.of` charges.

    What is then given back is what was charged, in whatever order members leave.
    """
    known = tuple(allocations)
    if all(m.devices or not m.bundle.gpu_units for allocation in known for m in allocation.members):
        return known
    sure = [replace(a, members=tuple(m for m in a.members if m.devices)) for a in known]
    room = Room.of((replace(node, foreign=Resources()) for node in nodes), sure, now_s)

    def bind(member: Member) -> Member:
        return member if member.devices else replace(member, devices=room._charge(member.node, member.bundle, ()))

    return tuple(replace(a, members=tuple(bind(m) for m in a.members)) for a in known)


def takes_new(node: NodeSpec, now_s: float) -> bool:
    """Whether anything new may go to the node."""
    return node.health is NodeHealth.OK and node.blocked_until_s <= now_s and not node.foreign_unnamed
