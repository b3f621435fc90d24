"""Which things changed after which version, for readers that keep a dated copy and ask for the news only."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")

GONE_KEPT = 10_000
"""Things that are gone are remembered up to this number; a reader that is further behind gets everything."""


class ChangeLog(Generic[K]):
    """Every key with the version of its last change. What is gone is forgotten in the end, so that it stays bounded."""

    def __init__(self, floor: int = 0, gone_kept: int = GONE_KEPT) -> None:
        """`floor`: nothing is known of what changed up to this version."""
        self._floor = floor
        self._newest = floor
        self._gone_kept = gone_kept
        self._changed: dict[K, int] = {}  # insertion order is order of change: the newest is last
        self._gone: OrderedDict[K, None] = OrderedDict()  # the same order; a dict is slow to say which is first

    def touch(self, key: K, version: int) -> None:
        """The thing is new or another one since `version`, which is not below that of any earlier call."""
        if key in self._gone:
            del self._gone[key]
        self._changed.pop(key, None)
        self._changed[key] = self._newest = version

    def drop(self, key: K, version: int) -> None:
        """The thing is gone since `version`."""
        self.touch(key, version)
        self._gone[key] = None
        while len(self._gone) > self._gone_kept:
            oldest, _ = self._gone.popitem(last=False)
            self._floor = max(self._floor, self._changed.pop(oldest))

    def since(self, version: int) -> tuple[K, ...] | None:
        """What changed after `version`, newest first; None when that is no longer known. O(changes)."""
        if version <= self._floor:
            return None
        if version >= self._newest:
            return ()
        found: list[K] = []
        for key, changed in reversed(self._changed.items()):
            if changed <= version:
                break
            found.append(key)
        return tuple(found)
