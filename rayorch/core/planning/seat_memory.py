"""The part of the planner's memory that is about room: the nodes, and the seats on them, of the last snapshot."""

from __future__ import annotations

from rayorch.core.planning.attention import troubles
from rayorch.core.room import Room, bound
from rayorch.core.types import Allocation, NodeId, NodeSpec, WorkloadId

Key = tuple[WorkloadId, int]
"""A workload and its attempt."""


class SeatMemory:
    """A base of `Memory`. `room`: what is free; `idle`: the same with nothing held; `dirty`: the nodes where either has
    changed since the indexes were told."""

    def forget(self) -> None:
        """Begin anew."""
        self.nodes: dict[NodeId, NodeSpec] = {}
        self.room = Room.of((), (), 0.0)
        self.idle = Room.of((), (), 0.0)
        self.dirty: set[NodeId] = set()
        self._known: dict[Key, Allocation] = {}  # as the allocator says
        self._bound: dict[Key, Allocation] = {}  # with devices for every member
        self._attempts: dict[WorkloadId, tuple[int, ...]] = {}
        self._on_node: dict[NodeId, set[Key]] = {}
        self._unbound: set[Key] = set()
        self._blocked: set[NodeId] = set()
        self._foreign: set[NodeId] = set()
        self._troubled: set[NodeId] = set()  # nodes that were such when they, or what is on them, changed

    def _settle(self, id: NodeId, node: NodeSpec | None, now_s: float) -> None:
        members = [m for key in sorted(self._on_node.get(id, ())) for m in self._bound[key].members if m.node == id]
        self.room.settle(id, node, members, now_s)

    def _take_blocked(self, now_s: float) -> None:
        """Nodes that are blocked for a time are open again after it."""
        for id in sorted(self._blocked):
            if self.room.judge(id, now_s):
                self.idle.judge(id, now_s)
                self.dirty.add(id)
            if self.nodes[id].blocked_until_s <= now_s:
                self._blocked.discard(id)

    def _bind(self, now_s: float) -> set[WorkloadId]:
        """Devices for members whose devices are not known, as `room.bound` gives them to all on their nodes."""
        nodes = {m.node for key in self._unbound for m in self._known[key].members if not m.devices}
        keys = {key for node in nodes for key in self._on_node.get(node, ())} | self._unbound
        ordered = sorted(keys)
        there = [self.nodes[node] for node in sorted(nodes) if node in self.nodes]
        made = bound(there, [self._known[key] for key in ordered], now_s)
        changed: set[WorkloadId] = set()
        for key, allocation in zip(ordered, made, strict=True):
            if self._bound.get(key) != allocation:
                self._rebook(key, allocation)
                changed.add(key[0])
        return changed

    def _rebook(self, key: Key, allocation: Allocation | None) -> None:
        """Other seats are held under this key (None: none any more): change the room."""
        old = self._bound.pop(key, None)
        if old is allocation:
            if allocation is not None:
                self._bound[key] = allocation
            return
        for member in old.members if old is not None else ():
            self.room.give(member.node, member.bundle, member.devices)
            self._on_node[member.node].discard(key)
            self._touch(member.node)
        if allocation is None:
            self._unbound.discard(key)
            left = tuple(a for a in self._attempts[key[0]] if a != key[1])
            self._attempts[key[0]] = left
            if not left:
                del self._attempts[key[0]]
            return
        self._bound[key] = allocation
        self._attempts[key[0]] = tuple(sorted({*self._attempts.get(key[0], ()), key[1]}))
        for member in allocation.members:
            self.room.book(member)
            self._on_node.setdefault(member.node, set()).add(key)
            self._touch(member.node)
            if troubles(self.nodes.get(member.node)):
                self._troubled.add(member.node)

    def _touch(self, id: NodeId) -> None:
        self.dirty.add(id)
        node = self.nodes.get(id)
        if node is not None and node.foreign:
            self._foreign.add(id)

    def _settle_foreign(self, now_s: float) -> None:
        """Foreign use lies on the devices that our members leave it."""
        for id in sorted(self._foreign):
            self._settle(id, self.nodes.get(id), now_s)
        self._foreign.clear()
