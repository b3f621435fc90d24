"""The quota tree once more, with lists and loops only: every question is answered from the list of what is held.

How much a queue may take is not computed but tried, one unit after the other. Slow, and only for small trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rayorch.core.types import QueueId, QueueMode, QueueSpec, Resources

Held = tuple[QueueId, Resources, str, int]
"""(queue, amount, owner, attempts)."""


@dataclass
class ReferenceQuota:
    """`held`: all that was charged and not refunded."""

    specs: list[QueueSpec]
    countables: Resources = Resources()
    held: list[Held] = field(default_factory=list)

    def with_more(self, queue: QueueId, amount: Resources, owner: str = "", attempts: int = 0) -> ReferenceQuota:
        return ReferenceQuota(self.specs, self.countables, [*self.held, (queue, amount, owner, attempts)])

    # ------------------------------------------------------------ the tree

    def spec(self, queue: QueueId) -> QueueSpec:
        return next(spec for spec in self.specs if spec.id == queue)

    def children(self, queue: QueueId | None) -> list[QueueSpec]:
        return [spec for spec in self.specs if spec.parent == queue]

    def path(self, queue: QueueId) -> list[QueueSpec]:
        spec = self.spec(queue)
        return [spec] if spec.parent is None else [spec, *self.path(spec.parent)]

    # ------------------------------------------------------------ one resource

    def used(self, queue: QueueId, name: str) -> int:
        inside = [amount for q, amount, _, _ in self.held if q == queue or q.startswith(f"{queue}/")]
        return sum(amount.units(name) for amount in inside)

    def deserved(self, spec: QueueSpec, name: str) -> int:
        return 0 if spec.mode is QueueMode.DELETING else spec.deserved.units(name)

    def named(self, spec: QueueSpec, name: str) -> bool:
        return bool(spec.deserved.units(name) or (spec.borrow_limit is not None and spec.borrow_limit.units(name)))

    def ceiling(self, spec: QueueSpec, name: str) -> int | None:
        found = [spec.hard_cap.units(name)] if spec.hard_cap is not None and spec.hard_cap.units(name) else []
        if self.named(spec, name) and spec.borrow_limit is not None:
            found.append(spec.deserved.units(name) + spec.borrow_limit.units(name))
        return min(found, default=None)

    def floor(self, spec: QueueSpec, name: str) -> int:
        """What the queue and those below it would keep of it, each its own wish."""
        mine = max(self.wish(spec, name), sum(self.floor(child, name) for child in self.children(spec.id)))
        return min(mine, self.deserved(spec, name)) if self.named(spec, name) else mine

    def wish(self, spec: QueueSpec, name: str) -> int:
        deserved = self.deserved(spec, name)
        unlent = deserved - spec.lend_limit.units(name) if spec.lend_limit is not None else 0
        return min(deserved, max(spec.guaranteed.units(name), unlent))

    def granted(self, spec: QueueSpec, name: str) -> int:
        """That, cut where the siblings together want more than their parent has."""
        if spec.parent is None:
            return self.floor(spec, name)
        have, want = (
            self.granted(self.spec(spec.parent), name),
            sum(self.floor(child, name) for child in self.children(spec.parent)),
        )
        mine = self.floor(spec, name)
        return mine if want <= have else mine * have // want

    def reserved(self, spec: QueueSpec, name: str) -> int:
        direct = sum(amount.units(name) for q, amount, _, _ in self.held if q == spec.id)
        inner = direct + sum(self.reserved(child, name) for child in self.children(spec.id))
        return max(inner, min(self.wish(spec, name), self.granted(spec, name)))

    # ------------------------------------------------------------ may it be taken

    def fits(self, queue: QueueId, amount: Resources, owner: str = "", attempts: int = 0) -> bool:
        if any(not self.fits_one(queue, name, units) for name, units in amount):
            return False
        after = self.with_more(queue, amount, owner, attempts)
        return all(after.users_within(spec, owner, amount, attempts) for spec in self.path(queue))

    def fits_one(self, queue: QueueId, name: str, units: int) -> bool:
        there = self.countables.units(name)
        drawn = sum(amount.units(name) for _, amount, _, _ in self.held)
        return (not there or drawn + units <= there) and self.tree_allows(queue, name, units)

    def tree_allows(self, queue: QueueId, name: str, units: int) -> bool:
        after = self.with_more(queue, Resources.of_units({name: units}))
        return all(self.level_allows(spec, name, after) for spec in self.path(queue))

    def level_allows(self, spec: QueueSpec, name: str, after: ReferenceQuota) -> bool:
        ceiling, reserved = self.ceiling(spec, name), after.reserved(spec, name)
        if ceiling is not None and after.used(spec.id, name) > ceiling:
            return False
        if reserved <= self.reserved(spec, name):
            return True  # it takes up what was kept for it
        if ceiling is not None and reserved > ceiling:
            return False
        deserved = self.deserved(spec, name)
        if not self.named(spec, name) or reserved <= deserved:
            return True
        if spec.borrow_limit is not None and reserved - deserved > spec.borrow_limit.units(name):
            return False
        siblings = [child for child in self.children(spec.parent) if self.named(child, name)]
        lent = sum(max(0, self.deserved(s, name) - after.reserved(s, name)) for s in siblings if s.id != spec.id)
        borrowed = sum(max(0, after.reserved(s, name) - self.deserved(s, name)) for s in siblings)
        return borrowed <= lent + after.undivided(spec.parent, name, siblings)

    def undivided(self, parent: QueueId | None, name: str, children: list[QueueSpec]) -> int:
        """What the children may hold together beyond their shares, where something above limits it."""
        if parent is None or not self.limited(parent, name):
            return 0
        room = self.most(lambda units: self.tree_allows(parent, name, units))
        return room + sum(self.reserved(s, name) for s in children) - sum(self.deserved(s, name) for s in children)

    def limited(self, queue: QueueId, name: str) -> bool:
        return any(self.named(s, name) or self.ceiling(s, name) is not None for s in self.path(queue))

    def headroom(self, queue: QueueId, name: str) -> int | None:
        if not self.limited(queue, name) and not self.countables.units(name):
            return None
        return self.most(lambda units: self.fits_one(queue, name, units))

    def most(self, allows: Callable[[int], bool]) -> int:
        units = 0
        while allows(units + 1):
            units += 1
        return units

    def users_within(self, spec: QueueSpec, owner: str, amount: Resources, attempts: int) -> bool:
        limits, inside = spec.per_user, [h for h in self.held if h[0] == spec.id or h[0].startswith(f"{spec.id}/")]
        mine = [held for held in inside if held[2] == owner]
        if attempts and limits.max_running is not None and sum(n for *_, n in mine) > limits.max_running:
            return False
        held = {name: sum(a.units(name) for _, a, _, _ in mine) for name, _ in limits.resources}
        return all(held[name] <= most or not amount.units(name) for name, most in limits.resources)
