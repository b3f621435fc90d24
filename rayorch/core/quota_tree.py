"""The queues of a tree, their paths and their limits: what `Quota` asks and what does not change while usage does."""

from __future__ import annotations

from collections.abc import Iterable

from rayorch.core.quota_limits import Column, Limits, numbered
from rayorch.core.types import MODEL_PREFIX, QueueId, QueueSpec, Resources, UserLimits


class QuotaTree:
    """What does not change while usage does: the queues, their paths and their limits. Shared by all copies."""

    __slots__ = (
        "_blank",
        "_down",
        "_limited",
        "_named",
        "_paths",
        "_settles",
        "by_model",
        "index",
        "order",
        "parents",
        "parts",
        "ranked",
        "specs",
        "users",
    )

    def __init__(self, queues: Iterable[QueueSpec]) -> None:
        self.specs = {spec.id: spec for spec in queues}
        self.order, self.parents = numbered(self.specs)
        self.index = {spec.id: i for i, spec in enumerate(self.order)}
        self.users = {i: spec.per_user for i, spec in enumerate(self.order) if _limits_users(spec.per_user)}
        self.by_model = frozenset(i for i, spec in enumerate(self.order) if _limits_models(spec))
        self.ranked = any(spec.surplus_priority for spec in self.order)
        self._paths: dict[QueueId, tuple[QueueSpec, ...]] = {}
        self._blank: dict[str, Column] = {}
        self._named: dict[QueueId, tuple[str, ...]] = {}
        self._limited: dict[str, bool] = {}
        self.parts: dict[Resources, Resources] = {}
        self._settles = any(spec.min_runtime_s > 0 for spec in self.order)
        self._down: dict[QueueId, tuple[QueueId, ...]] = {}

    def path(self, queue: QueueId) -> tuple[QueueSpec, ...]:
        """The queue and its ancestors, innermost first."""
        found = self._paths.get(queue)
        if found is None:
            found = tuple(self.order[node] for node in self.nodes(queue))
            self._paths[queue] = found
        return found

    def min_runtime(self, queue: QueueId) -> QueueSpec | None:
        """The nearest queue of the path with a `min_runtime_s`."""
        if not self._settles:
            return None
        return next((spec for spec in self.path(queue) if spec.min_runtime_s > 0), None)

    def down_to(self, queue: QueueId) -> tuple[QueueId, ...]:
        """The ids of the same, outermost first."""
        found = self._down.get(queue)
        if found is None:
            found = self._down[queue] = tuple(spec.id for spec in reversed(self.path(queue)))
        return found

    def nodes(self, queue: QueueId) -> tuple[int, ...]:
        """The same by number."""
        found: list[int] = []
        node = self.index.get(queue, -1)
        while node >= 0:
            found.append(node)
            node = self.parents[node]
        return tuple(found)

    def blank(self, resource: str) -> Column:
        """The column of a resource with nothing in use; not to be changed."""
        if resource not in self._blank:
            self._blank[resource] = Column(Limits.of(self.order, self.parents, resource), self.parents)
        return self._blank[resource]

    def limits(self, resource: str) -> bool:
        """Whether any queue limits the resource or has a share of it."""
        known = self._limited.get(resource)
        if known is None:
            limits = self.blank(resource).limits
            known = any(limits.named) or any(ceiling is not None for ceiling in limits.ceiling)
            self._limited[resource] = known
        return known

    def named(self, queue: QueueId) -> tuple[str, ...]:
        """The resources that the queue has a share of, or may borrow."""
        if queue not in self._named:
            spec = self.specs[queue]
            both = {name for name, _ in spec.deserved} | {name for name, _ in spec.borrow_limit or ()}
            self._named[queue] = tuple(sorted(both))
        return self._named[queue]


def _limits_users(limits: UserLimits) -> bool:
    return bool(limits.resources) or limits.max_running is not None


def _limits_models(spec: QueueSpec) -> bool:
    limits = (spec.deserved, spec.borrow_limit, spec.hard_cap, spec.per_user.resources)
    named = [name for amount in limits for name, _ in amount or ()]
    return any(name.startswith(MODEL_PREFIX) for name in (*named, *spec.denied))
