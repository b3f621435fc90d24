"""What has changed between two snapshots, for objects of one kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from rayorch.core.rows import Rows, Table
from rayorch.core.types import NodeHealth, NodeSpec, Resources

K = TypeVar("K")
T = TypeVar("T")


class Tracked(Generic[K, T]):
    """What of the last snapshot's objects of one kind is gone, and what is new, in the next one.

    Where both are rows of one table, that is known; else all of them are compared, as objects.
    """

    def __init__(self) -> None:
        self._last: Sequence[T] = ()
        self._known: dict[int, T] | None = None  # the last by identity, made when it is needed
        self._table: Table[K, T] | None = None
        self._version = 0

    def take(self, items: Sequence[T], held: Mapping[K, T]) -> tuple[list[T], list[T]]:
        """(gone, come); what was replaced by another object is in both. `held`: what there was, by key."""
        if isinstance(items, Rows):
            return self._take_rows(items, held)
        if items is self._last:
            return [], []
        were = self._known
        if were is None or self._table is not None:
            before = self._last if self._table is None else tuple(held.values())
            were = dict(zip(map(id, before), before, strict=True))
        known = dict(zip(map(id, items), items, strict=True))
        left, new = were.keys() - known.keys(), known.keys() - were.keys()
        gone = [were[number] for number in filter(left.__contains__, were)] if left else []
        come = [known[number] for number in filter(new.__contains__, known)] if new else []
        self._last, self._known, self._table = items, known, None
        return gone, come

    def _take_rows(self, rows: Rows[K, T], held: Mapping[K, T]) -> tuple[list[T], list[T]]:
        changed = rows.changed_since(self._version) if rows.table is self._table else None
        self._last, self._known, self._table, self._version = (), None, rows.table, rows.version
        now = rows.table.by_key
        keys = changed if changed is not None else (*held, *(key for key in now if key not in held))
        gone: list[T] = []
        come: list[T] = []
        for key in keys:
            old, new = held.get(key), now.get(key)
            if old is not new:
                if old is not None:
                    gone.append(old)
                if new is not None:
                    come.append(new)
        return gone, come


def ideal(node: NodeSpec | None) -> NodeSpec | None:
    """The node without what changes while it could take the same things if nothing else ran; None for a lost one."""
    if node is None or node.health is NodeHealth.LOST:
        return None
    return replace(
        node,
        health=NodeHealth.OK,
        reason="",
        drain_deadline_s=None,
        foreign=Resources(),
        foreign_holders=(),
        foreign_devices=(),
        blocked_until_s=0.0,
        idle_since_s=None,
        device_note="",
    )
