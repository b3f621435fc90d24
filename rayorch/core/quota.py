"""The arithmetic of the queue tree: what each queue uses, and how much more it may take.

For every resource that a queue's `deserved` names (or its `borrow_limit`, for a queue that deserves nothing of it
and lives on what it borrows), the queue may use its deserved share and what it borrows.
It borrows up to `borrow_limit` from a pool: what its siblings lend (the unused part of their deserved share,
each at most its `lend_limit`, and never what is `guaranteed`) and what its parent may hold beyond its children's
shares together, less what the siblings and itself borrow already. The same holds at every ancestor. `hard_cap` bounds
what is held in any case. A resource that a queue doesn't name is not limited by that queue. After Kueue's cohorts;
differs in that a parent's `deserved` bounds its subtree (Kueue adds it to the children's), and in that one's own
deserved share is never refused because others have borrowed it.

Beside the tree: what each owner may hold in a queue (`per_user`), and what the cluster has in all of countables.
A charge, a refund and a question cost O(depth) per resource (`quota_limits.Column`); docs/queues.md has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rayorch.core.quota_limits import Column
from rayorch.core.quota_tree import QuotaTree as QuotaTree
from rayorch.core.types import UNIT, QueueId, QueueSpec, Resources

Limited = tuple[tuple[str, int], ...]
"""Those items of an amount that matter to a tree."""

CLUSTER = QueueId("")
"""Where a shortage of countables of the whole cluster lies."""

ATTEMPTS = "running workloads"
"""What a shortage names when an owner runs as many as it may."""


class LimitKind(StrEnum):
    """Which limit a shortage is of."""

    SHARE = "share"  # its deserved share and what it may borrow
    CAP = "hard_cap"
    USER = "per_user"
    CLUSTER = "countables"


@dataclass(frozen=True, slots=True)
class Shortage:
    """One resource that a queue may not take: at `queue` (itself or an ancestor), `need` exceeds `have`.

    `have` is what may still be taken there; `used` and `deserved` say how it came to that. All in stored units.
    `kind`: which limit it is; of `SHARE` the limit is `deserved` and what is lent, of all others it is `limit`.
    `owner`: whose use counts, where the limit is per user.
    """

    queue: QueueId
    resource: str
    need: int
    have: int
    used: int
    deserved: int
    kind: LimitKind = LimitKind.SHARE
    limit: int = 0
    owner: str = ""


class Quota:
    """Usage per queue over one queue tree; charge and refund change it, copies are cheap.

    Usage is given per queue for its own workloads and counted at all ancestors, once each.
    """

    __slots__ = ("_columns", "_countables", "_drawn", "_nodes", "_own", "_shares", "_tree", "_users")

    def __init__(self, tree: QuotaTree, countables: Resources = Resources()) -> None:
        self._tree = tree
        self._columns: dict[str, Column] = {}
        self._own: set[str] = set()  # columns that no copy shares
        self._nodes: dict[QueueId, tuple[int, ...]] = {}
        self._shares: dict[QueueId, float] = {}
        self._users: dict[tuple[int, str], tuple[int, Resources]] = {}
        self._countables = dict(countables.items)
        self._drawn: dict[str, int] = {}

    @staticmethod
    def of(
        queues: Iterable[QueueSpec], usage: Mapping[QueueId, Resources], countables: Resources = Resources()
    ) -> Quota:
        """The tree with these workloads' usage per queue (queues that are not in the tree are ignored)."""
        quota = Quota(QuotaTree(queues), countables)
        for queue, amount in usage.items():
            quota.charge(queue, amount)
        return quota

    def copy(self) -> Quota:
        """A Quota of its own with the same usage. What neither changes afterwards is shared."""
        twin = object.__new__(Quota)
        twin._tree, twin._nodes = self._tree, self._nodes
        twin._columns, twin._shares = self._columns.copy(), self._shares.copy()
        twin._users, twin._drawn, twin._countables = self._users.copy(), self._drawn.copy(), self._countables
        self._own, twin._own = set(), set()
        return twin

    # ------------------------------------------------------------ changes

    def charge(self, queue: QueueId, amount: Resources, owner: str = "", attempts: int = 0) -> None:
        """Count `amount` as used by the queue and all its ancestors, and `attempts` more running ones of the owner."""
        path = self._path(queue)
        for name, n in amount.items:
            if name in self._countables:
                self._drawn[name] = self._drawn.get(name, 0) + n
            if path:
                self._owned(name).charge(path[0], n)
        for node in path:
            self._shares.pop(self._tree.order[node].id, None)
            if node in self._tree.users:
                count, held = self._users.get((node, owner), (0, Resources()))
                self._users[node, owner] = (count + attempts, held + amount)

    def refund(self, queue: QueueId, amount: Resources, owner: str = "", attempts: int = 0) -> None:
        """Undo a charge."""
        self.charge(queue, amount.times(-1), owner, -attempts)

    # ------------------------------------------------------------ what is used

    def used(self, queue: QueueId) -> Resources:
        """What the queue's subtree uses."""
        node = self._tree.index.get(queue)
        if node is None:
            return Resources()
        return Resources.of_units({name: column.used[node] for name, column in self._columns.items()})

    def used_of(self, queue: QueueId, resource: str) -> int:
        """What the queue's subtree uses of one resource, in stored units."""
        node, column = self._tree.index.get(queue), self._columns.get(resource)
        return 0 if node is None or column is None else column.used[node]

    def used_by(self, queue: QueueId, owner: str) -> tuple[int, Resources]:
        """What an owner runs and holds in the queue's subtree; kept only for queues that limit users."""
        return self._users.get((self._tree.index.get(queue, -1), owner), (0, Resources()))

    # ------------------------------------------------------------ what may be taken

    def headroom(self, queue: QueueId, resource: str) -> int | None:
        """How much more of a resource the queue may take now, all ancestors considered.

        In stored units, never negative; None: no queue on the path limits it.
        """
        path = self._path(queue)
        room = self._column(resource).room(path) if path else None
        if resource in self._countables:
            left = self._countables[resource] - self._drawn.get(resource, 0)
            room = left if room is None else min(room, left)
        return None if room is None else max(0, room)

    def fits(self, queue: QueueId, amount: Resources, owner: str = "", attempts: int = 0) -> bool:
        """Whether the queue may take `amount` more, for this owner."""
        path = self._path(queue)
        for name, n in amount.items:
            if path:
                column = self._columns.get(name) or self._tree.blank(name)
                room = column.rooms[path[0]] if path[0] in column.rooms else column.room(path)
                if room is not None and n > room and n > 0:
                    return False
            if name in self._countables and n > max(0, self._countables[name] - self._drawn.get(name, 0)):
                return False
        return not self._tree.users or not self._user_shortages(queue, amount, owner, attempts)

    def limited(self, amount: Resources) -> Limited:
        """The part of an amount that some queue of the tree limits or has a share of."""
        return tuple(item for item in amount.items if item[1] > 0 and self._tree.limits(item[0]))

    def that_counts(self, amount: Resources) -> Resources:
        """The part of an amount on which answers depend: what queues, users or countables limit. For books that nobody
        asks what is in use."""
        if self._tree.users or self._countables:
            return amount
        known = self._tree.parts.get(amount)
        if known is None:
            known = self._tree.parts[amount] = Resources(self.limited(amount))
        return known

    def standing(self, queue: QueueId, limited: Limited) -> tuple[bool, bool, bool]:
        """Of an amount more of which this is the `limited` part: whether the queue is `capped` for it, whether it
        `borrows` with it, and whether it fits into the tree. Limits on users and countables are not asked."""
        path = self._path(queue)
        if not path:
            return False, False, True
        capped, borrows, fits = False, False, True
        for name, n in limited:
            if n > 0:
                own, share, room = (self._columns.get(name) or self._tree.blank(name)).marks(path)
                capped = capped or n > own
                borrows = borrows or n > share
                fits = fits and n <= room
        return capped, borrows, fits

    def shortages(self, queue: QueueId, amount: Resources, owner: str = "", attempts: int = 0) -> tuple[Shortage, ...]:
        """Every (queue on the path, resource) at which `amount` more is too much; empty when it may be taken."""
        if self.fits(queue, amount, owner, attempts):
            return ()
        found: list[Shortage] = []
        path = self._path(queue)
        levels = {name: self._column(name).levels(path) for name, _ in amount}
        for depth, node in enumerate(path):
            spec = self._tree.order[node]
            for name, n in amount:
                found += _short(spec, self._column(name), node, name, n, levels[name][depth])
        found += self._user_shortages(queue, amount, owner, attempts)
        for name, n in amount:
            if name in self._countables:
                used, limit = self._drawn.get(name, 0), self._countables[name]
                if n > limit - used:
                    have = max(0, limit - used)
                    found.append(Shortage(CLUSTER, name, n, have, used, 0, LimitKind.CLUSTER, limit))
        return tuple(found)

    def limits_users(self, queue: QueueId) -> bool:
        """Whether the queue, or one above it, limits what each owner holds or runs."""
        return bool(self._tree.users) and any(node in self._tree.users for node in self._path(queue))

    def limits_more(self, queue: QueueId) -> bool:
        """Whether there are limits on users above the queue, or countables at all."""
        return bool(self._countables) or self.limits_users(queue)

    def limits_models(self, queue: QueueId) -> bool:
        """Whether the queue, or one above it, limits GPUs of some model by name."""
        return bool(self._tree.by_model) and any(node in self._tree.by_model for node in self._path(queue))

    def _user_shortages(self, queue: QueueId, amount: Resources, owner: str, attempts: int) -> list[Shortage]:
        found: list[Shortage] = []
        for node in self._path(queue):
            limits = self._tree.users.get(node)
            if limits is None:
                continue
            id = self._tree.order[node].id
            count, held = self._users.get((node, owner), (0, Resources()))
            if limits.max_running is not None and attempts > max(0, limits.max_running - count):
                most, now = limits.max_running * UNIT, count * UNIT
                have = max(0, most - now)
                found.append(Shortage(id, ATTEMPTS, attempts * UNIT, have, now, 0, LimitKind.USER, most, owner))
            for name, limit in limits.resources:
                need, used = amount.units(name), held.units(name)
                if need > max(0, limit - used):
                    have = max(0, limit - used)
                    found.append(Shortage(id, name, need, have, used, 0, LimitKind.USER, limit, owner))
        return found

    # ------------------------------------------------------------ who borrows, and how much

    def borrows(self, queue: QueueId, amount: Resources) -> bool:
        """Whether with `amount` more the queue, or one above it, would hold more than it deserves.

        What a queue takes up of its guarantee was reserved for it before, so it makes nobody above it borrow.
        """
        return self.standing(queue, amount.items)[1]

    def surplus_priority(self, queue: QueueId, amount: Resources) -> int:
        """The `surplus_priority` of who borrows then: the uppermost of the path that would hold more than its share."""
        if not self._tree.ranked:
            return 0
        path = self._path(queue)
        level = max((self._column(name).borrowing_level(path, n) for name, n in amount if n > 0), default=-1)
        return self._tree.order[path[level]].surplus_priority if level >= 0 else 0

    def capped(self, queue: QueueId, amount: Resources) -> bool:
        """Whether the queue's own borrow limit or hard cap forbids `amount` more, whatever others use or lend."""
        return self.standing(queue, amount.items)[0]

    def above_deserved(self, queue: QueueId, resources: Iterable[str]) -> bool:
        """Whether the queue itself (not its ancestors) holds more than it deserves of one of these resources."""
        node = self._tree.index.get(queue)
        if node is None:
            return False
        columns = (self._column(name) for name in resources)
        return any(c.limits.named[node] and c.used[node] > c.limits.deserved[node] for c in columns)

    def deserved(self, queue: QueueId) -> Resources:
        """The queue's share; nothing for a queue that does not exist."""
        spec = self._tree.specs.get(queue)
        return spec.deserved if spec is not None else Resources()

    def deserves(self, queue: QueueId, resource: str) -> bool:
        """Whether the queue has a share of the resource that it can always get back."""
        return self.deserved(queue).units(resource) > 0

    def share(self, queue: QueueId) -> float:
        """The dominant share of a queue: the largest used/deserved over the resources that it names.

        Up to 1 it is plain; what is borrowed beyond counts divided by `weight`, so that of two borrowers the
        heavier goes first. 0 for a queue that names no resource.
        """
        spec = self._tree.specs.get(queue)
        if spec is None or queue in self._shares:
            return self._shares.get(queue, 0.0)
        shares = (_share(spec, self.used_of(queue, n), spec.deserved.units(n)) for n in self._tree.named(queue))
        self._shares[queue] = max(shares, default=0.0)
        return self._shares[queue]

    # ------------------------------------------------------------ the tree

    def path(self, queue: QueueId) -> tuple[QueueSpec, ...]:
        """The queue and its ancestors, innermost first."""
        return self._tree.path(queue)

    def min_runtime(self, queue: QueueId) -> QueueSpec | None:
        """The nearest queue of the path that says for how long what runs is left alone, None where none does."""
        return self._tree.min_runtime(queue)

    def divergence(self, one: QueueId, other: QueueId) -> tuple[QueueId, QueueId] | None:
        """The two siblings under which the queues lie, where their paths part; None when one lies in the other."""
        for left, right in zip(self._tree.down_to(one), self._tree.down_to(other), strict=False):
            if left != right:
                return left, right
        return None

    def _path(self, queue: QueueId) -> tuple[int, ...]:
        found = self._nodes.get(queue)
        if found is None:
            found = self._nodes[queue] = self._tree.nodes(queue)
        return found

    def _column(self, resource: str) -> Column:
        return self._columns.get(resource) or self._tree.blank(resource)

    def _owned(self, resource: str) -> Column:
        if resource not in self._own:
            self._columns[resource] = self._column(resource).copy()
            self._own.add(resource)
        return self._columns[resource]


def _short(
    spec: QueueSpec, column: Column, node: int, name: str, need: int, have: tuple[int | None, int | None]
) -> list[Shortage]:
    """The shortage at one queue of the path, if there is one; `have`: by its share, and by its ceiling."""
    _, bare = have
    used, deserved = column.used[node], spec.deserved.units(name)
    cap = spec.hard_cap.units(name) if spec.hard_cap is not None else 0
    if bare is not None and need > bare and (name in spec.denied or (cap and used + bare == cap)):
        return [Shortage(spec.id, name, need, max(0, bare), used, deserved, LimitKind.CAP, cap)]
    least = min((room for room in have if room is not None), default=None)
    if least is None or need <= least:
        return []
    return [Shortage(spec.id, name, need, max(0, least), used, deserved)]


def _share(spec: QueueSpec, used: int, deserved: int) -> float:
    if used <= deserved:
        return used / deserved if deserved else 0.0
    beyond = (used - deserved) / (deserved or UNIT)
    return (1.0 if deserved else 0.0) + beyond / max(1, spec.weight)
