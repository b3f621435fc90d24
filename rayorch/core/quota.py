"""The arithmetic of the queue tree: what each queue uses, and how much more it may take.

For every resource that a queue's `deserved` names (or its `borrow_limit`, for a queue that deserves nothing of it
and lives on what it borrows), the queue may use its deserved share and what it borrows.
It borrows up to `borrow_limit` from a pool: what its siblings lend (the unused part of their deserved share,
each at most its `lend_limit`) and what its parent may hold beyond its children's shares together, less what the
siblings and itself borrow already. The same holds at every ancestor. A resource that a queue doesn't name is not
limited by that queue. After Kueue's cohorts; differs in that a parent's `deserved` bounds its subtree (Kueue
adds it to the children's), and in that one's own deserved share is never refused because others have borrowed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rayorch.core.types import UNIT, QueueId, QueueSpec, Resources


@dataclass(frozen=True, slots=True)
class Shortage:
    """One resource that a queue may not take: at `queue` (itself or an ancestor), `need` exceeds `have`.

    `have` is what may still be taken there; `used` and `deserved` say how it came to that. All in stored units.
    """

    queue: QueueId
    resource: str
    need: int
    have: int
    used: int
    deserved: int


class Quota:
    """Usage per queue over one queue tree; charge and refund change it, copies are cheap.

    Usage is given per queue for its own workloads and counted at all ancestors, once each.
    """

    __slots__ = ("_children", "_headroom", "_paths", "_shares", "_specs", "_used")

    def __init__(
        self,
        specs: Mapping[QueueId, QueueSpec],
        children: Mapping[QueueId | None, tuple[QueueSpec, ...]],
        used: dict[QueueId, Resources],
    ) -> None:
        self._specs = specs
        self._children = children
        self._used = used
        self._paths: dict[QueueId, tuple[QueueSpec, ...]] = {}
        self._headroom: dict[tuple[QueueId, str], int | None] = {}
        self._shares: dict[QueueId, float] = {}

    @staticmethod
    def of(queues: Iterable[QueueSpec], usage: Mapping[QueueId, Resources]) -> Quota:
        """The tree with these workloads' usage per queue (queues that are not in the tree are ignored)."""
        specs = {spec.id: spec for spec in queues}
        children: dict[QueueId | None, list[QueueSpec]] = {}
        for spec in specs.values():
            children.setdefault(spec.parent, []).append(spec)
        quota = Quota(specs, {parent: tuple(group) for parent, group in children.items()}, {})
        for queue, amount in usage.items():
            quota.charge(queue, amount)
        return quota

    def copy(self) -> Quota:
        """A Quota of its own with the same usage."""
        twin = Quota(self._specs, self._children, dict(self._used))
        twin._paths = self._paths  # never changes once computed
        return twin

    def charge(self, queue: QueueId, amount: Resources) -> None:
        """Count `amount` as used by the queue and all its ancestors."""
        for spec in self.path(queue):
            self._used[spec.id] = self.used(spec.id) + amount
        self._headroom.clear()
        self._shares.clear()

    def refund(self, queue: QueueId, amount: Resources) -> None:
        """Undo a charge."""
        self.charge(queue, amount.times(-1))

    def used(self, queue: QueueId) -> Resources:
        """What the queue's subtree uses."""
        return self._used.get(queue, Resources())

    def path(self, queue: QueueId) -> tuple[QueueSpec, ...]:
        """The queue and its ancestors, innermost first."""
        if queue not in self._paths:
            found: list[QueueSpec] = []
            spec = self._specs.get(queue)
            while spec is not None:
                found.append(spec)
                spec = self._specs.get(spec.parent) if spec.parent is not None else None
            self._paths[queue] = tuple(found)
        return self._paths[queue]

    def headroom(self, queue: QueueId, resource: str) -> int | None:
        """How much more of a resource the queue may take now, all ancestors considered.

        In stored units, never negative; None: no queue on the path limits it.
        """
        key = (queue, resource)
        if key not in self._headroom:
            limits = [self._own_headroom(spec, resource) for spec in self.path(queue)]
            self._headroom[key] = min((n for n in limits if n is not None), default=None)
        return self._headroom[key]

    def shortages(self, queue: QueueId, amount: Resources) -> tuple[Shortage, ...]:
        """Every (queue on the path, resource) at which `amount` more is too much; empty when it may be taken."""
        if self.fits(queue, amount):
            return ()
        found: list[Shortage] = []
        for spec in self.path(queue):
            for name, n in amount:
                have = self._own_headroom(spec, name)
                if have is not None and n > have:
                    used = self.used(spec.id).units(name)
                    found.append(Shortage(spec.id, name, n, have, used, spec.deserved.units(name)))
        return tuple(found)

    def fits(self, queue: QueueId, amount: Resources) -> bool:
        """Whether the queue may take `amount` more."""
        for name, n in amount.items:
            room = self.headroom(queue, name)
            if room is not None and n > max(room, 0):
                return False
        return True

    def borrows(self, queue: QueueId, amount: Resources) -> bool:
        """Whether with `amount` more the queue, or one above it, would hold more than it deserves."""
        return any(
            n > 0 and self.used(spec.id).units(name) + n > spec.deserved.units(name)
            for spec in self.path(queue)
            for name, n in amount
            if _names(spec, name)
        )

    def capped(self, queue: QueueId, amount: Resources) -> bool:
        """Whether the queue's own borrow limit forbids `amount` more, whatever others use or lend."""
        spec = self._specs.get(queue)
        if spec is None or spec.borrow_limit is None:
            return False
        most, used = spec.deserved + spec.borrow_limit, self.used(queue)
        return any(n > 0 and _names(spec, name) and used.units(name) + n > most.units(name) for name, n in amount)

    def above_deserved(self, queue: QueueId, resources: Iterable[str]) -> bool:
        """Whether the queue itself (not its ancestors) holds more than it deserves of one of these resources."""
        spec = self._specs.get(queue)
        if spec is None:
            return False
        used = self.used(queue)
        return any(_names(spec, name) and used.units(name) > spec.deserved.units(name) for name in resources)

    def deserved(self, queue: QueueId) -> Resources:
        """The queue's share; nothing for a queue that does not exist."""
        spec = self._specs.get(queue)
        return spec.deserved if spec is not None else Resources()

    def deserves(self, queue: QueueId, resource: str) -> bool:
        """Whether the queue has a share of the resource that it can always get back."""
        return self.deserved(queue).units(resource) > 0

    def share(self, queue: QueueId) -> float:
        """The dominant share of a queue: the largest used/deserved over the resources that it names.

        Up to 1 it is plain; what is borrowed beyond counts divided by `weight`, so that of two borrowers the
        heavier goes first. 0 for a queue that names no resource.
        """
        spec = self._specs.get(queue)
        if spec is None or queue in self._shares:
            return self._shares.get(queue, 0.0)
        used = self.used(queue)
        names = {name for name, _ in spec.deserved} | {name for name, _ in spec.borrow_limit or ()}
        shares = (_share(spec, used.units(name), spec.deserved.units(name)) for name in names)
        self._shares[queue] = max(shares, default=0.0)
        return self._shares[queue]

    def divergence(self, one: QueueId, other: QueueId) -> tuple[QueueId, QueueId] | None:
        """The two siblings under which the queues lie, where their paths part; None when one lies in the other."""
        ours = [spec.id for spec in reversed(self.path(one))]
        theirs = [spec.id for spec in reversed(self.path(other))]
        for left, right in zip(ours, theirs, strict=False):
            if left != right:
                return left, right
        return None

    def _own_headroom(self, spec: QueueSpec, resource: str) -> int | None:
        """How much more the queue may take by its own limits and what its level can lend; None: it names no limit."""
        if not _names(spec, resource):
            return None
        used = self.used(spec.id).units(resource)
        deserved = spec.deserved.units(resource)
        borrowable = max(0, self._pool(spec, resource))
        if spec.borrow_limit is not None:
            borrowable = min(borrowable, max(0, spec.borrow_limit.units(resource) - max(0, used - deserved)))
        return max(0, deserved - used) + borrowable

    def _pool(self, spec: QueueSpec, resource: str) -> int:
        """What the queue may borrow beyond all that is borrowed at its level already.

        Negative: more is borrowed than is lent, because an owner has taken its share back.
        """
        lent = borrowed = 0
        for sibling in self._named_children(spec.parent, resource):
            spare = sibling.deserved.units(resource) - self.used(sibling.id).units(resource)
            borrowed += max(0, -spare)
            if sibling.id != spec.id and spare > 0:
                lent += spare if sibling.lend_limit is None else min(spare, sibling.lend_limit.units(resource))
        return lent - borrowed + self._undivided(spec.parent, resource)

    def _undivided(self, parent: QueueId | None, resource: str) -> int:
        """What the parent may hold beyond its children's shares; 0 at the top, or where nothing above limits it.

        Negative: the children's shares add up to more than the parent may hold.
        """
        headroom = self.headroom(parent, resource) if parent is not None else None
        if parent is None or headroom is None:
            return 0
        children = self._named_children(parent, resource)
        divided = sum(child.deserved.units(resource) for child in children)
        used_by_children = sum(self.used(child.id).units(resource) for child in children)
        return headroom + used_by_children - divided

    def _named_children(self, parent: QueueId | None, resource: str) -> list[QueueSpec]:
        return [child for child in self._children.get(parent, ()) if _names(child, resource)]


def _names(spec: QueueSpec, resource: str) -> bool:
    """Whether the queue limits the resource: it deserves some, or it names how much it may borrow."""
    if spec.deserved.units(resource):
        return True
    return spec.borrow_limit is not None and spec.borrow_limit.units(resource) > 0


def _share(spec: QueueSpec, used: int, deserved: int) -> float:
    if used <= deserved:
        return used / deserved if deserved else 0.0
    beyond = (used - deserved) / (deserved or UNIT)
    return (1.0 if deserved else 0.0) + beyond / max(1, spec.weight)
