"""What each queue of a tree may hold of one resource, and how usage of it adds up: the columns behind `Quota`.

Queues are numbered; a list has one entry per queue, and sums over siblings have one per parent (the last: the top).
What a queue keeps is never lent: its guarantee, and what is beyond its lend limit. So at every level above it is held
like usage, whether it is used or not (`reserved`); taking it up changes nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayorch.core.types import QueueId, QueueMode, QueueSpec

Marks = tuple[int, int, int]
"""How much more a queue may take before it reaches its own ceiling, before it or one above it borrows, and in all."""

ENDLESS = 2**63
"""More than any amount."""

TOP = -1
"""The parent of a queue without one; as an index it is the last entry of the sums per parent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """One resource in all queues. `None`: no such limit. `named`: shares and borrowing count, not only a ceiling.

    `ceiling`: the most that it may hold in any case: its hard cap, or its share and what it may borrow beyond.
    `keep`: what it never lends. `divided`: the shares of a parent's children together.
    """

    named: tuple[bool, ...]
    deserved: tuple[int, ...]
    borrow: tuple[int | None, ...]
    ceiling: tuple[int | None, ...]
    keep: tuple[int, ...]
    divided: tuple[int, ...]

    @staticmethod
    def of(specs: Sequence[QueueSpec], parents: Sequence[int], resource: str) -> Limits:
        """The limits that the queues set for the resource; one that is being deleted shares nothing any more."""
        own = [spec.deserved.units(resource) for spec in specs]
        borrow = tuple(None if s.borrow_limit is None else s.borrow_limit.units(resource) for s in specs)
        deserved = tuple(0 if s.mode is QueueMode.DELETING else n for s, n in zip(specs, own, strict=True))
        named = tuple(bool(n or most) for n, most in zip(own, borrow, strict=True))
        divided = [0] * (len(specs) + 1)
        for i, parent in enumerate(parents):
            if named[i]:
                divided[parent] += deserved[i]
        ceiling = tuple(_ceiling(s, resource, n, m) for s, n, m in zip(specs, own, borrow, strict=True))
        wish = [_wish(s, resource, n) for s, n in zip(specs, deserved, strict=True)]
        return Limits(named, deserved, borrow, ceiling, _kept(wish, deserved, named, parents), tuple(divided))


def _ceiling(spec: QueueSpec, resource: str, deserved: int, borrow: int | None) -> int | None:
    """`deserved` and `borrow` 0 or None: the queue lives on a hard cap alone, if it names the resource at all."""
    if resource in spec.denied:
        return 0
    cap = spec.hard_cap.units(resource) if spec.hard_cap is not None else 0
    shared = deserved + borrow if borrow is not None and (deserved or borrow) else None
    return min(cap, shared) if cap and shared is not None else cap or shared


def _wish(spec: QueueSpec, resource: str, deserved: int) -> int:
    """What the queue itself would never lend."""
    kept = spec.guaranteed.units(resource) if spec.guaranteed else 0
    if spec.lend_limit is not None:
        kept = max(kept, deserved - spec.lend_limit.units(resource))
    return min(kept, deserved)


def _kept(
    wish: list[int], deserved: tuple[int, ...], named: tuple[bool, ...], parents: Sequence[int]
) -> tuple[int, ...]:
    """What each queue keeps. Where children would keep more than their parent has, each keeps its part of that.

    Queues are numbered parents first.
    """
    if not any(wish):
        return (0,) * len(wish)
    floor = list(wish)
    below = [0] * len(wish)
    for i in reversed(range(len(wish))):
        floor[i] = max(wish[i], below[i])
        if named[i]:
            floor[i] = min(floor[i], deserved[i])
        if parents[i] != TOP:
            below[parents[i]] += floor[i]
    keep = list(wish)
    granted = list(floor)
    for i, parent in enumerate(parents):
        if parent != TOP and below[parent] > granted[parent]:
            granted[i] = floor[i] * granted[parent] // below[parent]
        keep[i] = min(keep[i], granted[i])
    return tuple(keep)


class Column:
    """Usage of one resource in all queues, with the sums that make a question cost O(depth) and a charge too.

    `inner`: what a queue holds itself and what its children reserve. `reserved`: that, or what it keeps if that is
    more. Per parent: `lent`, what its children leave of their shares; `borrowed`, what they hold beyond them; `held`,
    what they reserve. `rooms`, `_marks`: answers that hold until the next charge.
    """

    __slots__ = (
        "_bare",
        "_marks",
        "borrowed",
        "held",
        "inner",
        "lent",
        "limits",
        "parents",
        "reserved",
        "rooms",
        "used",
    )

    def __init__(self, limits: Limits, parents: Sequence[int]) -> None:
        count = len(parents)
        self.limits, self.parents = limits, parents
        self.used = [0] * count
        self.inner = [0] * count
        self.reserved = [0] * count
        self.lent = [0] * (count + 1)
        self.borrowed = [0] * (count + 1)
        self.held = [0] * (count + 1)
        self.rooms: dict[int, int | None] = {}
        self._marks: dict[int, Marks] = {}
        self._bare = not any(limits.named) and all(ceiling is None for ceiling in limits.ceiling)
        for i in range(count):
            if limits.named[i]:
                self.lent[parents[i]] += limits.deserved[i]
        if any(limits.keep):
            for i in range(count):
                self._rise(i, max(0, limits.keep[i] - self.reserved[i]))

    def copy(self) -> Column:
        """A column of its own."""
        twin = object.__new__(Column)
        twin.limits, twin.parents, twin._bare = self.limits, self.parents, self._bare
        twin.used, twin.inner, twin.reserved = self.used.copy(), self.inner.copy(), self.reserved.copy()
        twin.lent, twin.borrowed, twin.held = self.lent.copy(), self.borrowed.copy(), self.held.copy()
        twin.rooms, twin._marks = {}, {}
        return twin

    def charge(self, queue: int, amount: int) -> None:
        """Count the amount (negative: give it back) at the queue and all above it."""
        self.rooms.clear()
        self._marks.clear()
        node = queue
        while node != TOP:
            self.used[node] += amount
            node = self.parents[node]
        if self._bare:
            return  # nobody limits it: that it is used is all there is to know
        self.inner[queue] += amount
        self._rise(queue, max(self.limits.keep[queue], self.inner[queue]) - self.reserved[queue])

    def _rise(self, node: int, rise: int) -> None:
        """What the queue reserves grows, and with it what its parents hold."""
        while node != TOP and rise:
            self._rise_here(node, rise)
            node = self.parents[node]
            if node != TOP:
                self.inner[node] += rise
                rise = max(self.limits.keep[node], self.inner[node]) - self.reserved[node]

    def _rise_here(self, node: int, rise: int) -> None:
        old = self.reserved[node]
        self.reserved[node] = new = old + rise
        if self.limits.named[node]:
            level, deserved = self.parents[node], self.limits.deserved[node]
            self.held[level] += rise
            self.lent[level] += max(0, deserved - new) - max(0, deserved - old)
            self.borrowed[level] += max(0, new - deserved) - max(0, old - deserved)

    def room(self, path: Sequence[int]) -> int | None:
        """How much more the first queue of the path may take; negative where it holds too much; None: no limit.

        `path`: the queue and all above it, innermost first.
        """
        queue = path[0]
        if queue not in self.rooms:
            room: int | None = None
            bare: int | None = None  # by ceilings alone, which count what is used
            for node in reversed(path):
                own = self.own_room(node, _least(room, bare))
                room = _least(room, own)
                if room is not None:
                    room += self.reserved[node] - self.inner[node]
                ceiling = self.limits.ceiling[node]
                if ceiling is not None:
                    bare = _least(bare, ceiling - self.used[node])
            self.rooms[queue] = _least(room, bare)
        return self.rooms[queue]

    def levels(self, path: Sequence[int]) -> list[tuple[int | None, int | None]]:
        """For each queue of the path: how much more the first one may take by that one's share, and by its ceiling."""
        found: list[tuple[int | None, int | None]] = []
        slack = 0
        for depth, node in enumerate(path):
            own = self.own_room(node, self.room(path[depth + 1 :]) if depth + 1 < len(path) else None)
            slack += self.reserved[node] - self.inner[node]
            ceiling = self.limits.ceiling[node]
            found.append((None if own is None else slack + own, None if ceiling is None else ceiling - self.used[node]))
        return found

    def marks(self, path: Sequence[int]) -> Marks:
        """Up to where the first queue of the path may go; found once, so that a question is a comparison."""
        queue = path[0]
        known = self._marks.get(queue)
        if known is None:
            ceiling = self.limits.ceiling[queue]
            own = ENDLESS if ceiling is None else ceiling - self.used[queue]
            share, slack = ENDLESS, 0
            for node in path:
                slack += self.reserved[node] - self.inner[node]
                if self.limits.named[node]:
                    share = min(share, slack + max(0, self.limits.deserved[node] - self.reserved[node]))
            room = self.room(path)
            known = self._marks[queue] = (own, share, ENDLESS if room is None else room)
        return known

    def borrowing_level(self, path: Sequence[int], amount: int) -> int:
        """The place on the path of the uppermost of them, -1 where there is none."""
        found = -1
        for level, node in enumerate(path):
            amount -= self.reserved[node] - self.inner[node]
            if amount <= 0:
                break
            if self.limits.named[node] and self.reserved[node] + amount > self.limits.deserved[node]:
                found = level
        return found

    def own_room(self, node: int, above: int | None) -> int | None:
        """How much more the queue may reserve by its own limits and what its level lends; None: it sets no limit.

        `above`: how much more its parent may take.
        """
        limits, reserved = self.limits, self.reserved[node]
        ceiling = limits.ceiling[node]
        if not limits.named[node]:
            return None if ceiling is None else max(0, ceiling - reserved)
        deserved, borrow = limits.deserved[node], limits.borrow[node]
        unused = max(0, deserved - reserved)
        parent = self.parents[node]
        pool = self.lent[parent] - unused - self.borrowed[parent]
        if parent != TOP and above is not None:
            pool += above + self.held[parent] - limits.divided[parent]  # what is no child's share
        if borrow is not None:
            pool = min(pool, borrow - max(0, reserved - deserved))
        own = unused + max(0, pool)
        return own if ceiling is None else max(0, min(own, ceiling - reserved))


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def numbered(queues: Mapping[QueueId, QueueSpec]) -> tuple[tuple[QueueSpec, ...], tuple[int, ...]]:
    """The queues, parents first, and each one's parent by number; TOP where there is none (or it is not known)."""
    order = sorted(queues.values(), key=lambda spec: (spec.id.count("/"), spec.id))
    index = {spec.id: i for i, spec in enumerate(order)}
    parents = [index.get(spec.parent, TOP) if spec.parent is not None else TOP for spec in order]
    return tuple(order), tuple(parents)
