"""Whose turn it is, down the queue tree: on each level the queue that ranks first, in it the workload that goes first.

The same line turned around says who gives first: on each level the queue that ranks last, in it the workload that goes
last. After KAI's order of jobs by queues.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from rayorch.core.planning.entitlement import Entitlements
from rayorch.core.policy import SortKey
from rayorch.core.quota import Quota
from rayorch.core.types import QueueId, Resources, WorkloadId


@dataclass(frozen=True, slots=True)
class Entry:
    """A workload in the line: what it asks for (what it holds, in a line of victims), and its place in its queue."""

    id: WorkloadId
    queue: QueueId
    resources: Resources
    key: SortKey


@dataclass(frozen=True, slots=True)
class _Backwards:
    """A key that sorts the other way round."""

    key: SortKey

    def __lt__(self, other: _Backwards) -> bool:
        return other.key < self.key


@dataclass(slots=True)
class Line:
    """Entries by queue. `victims`: turned around; what has been taken from a queue then counts as gone already."""

    shares: Entitlements
    quota: Quota
    victims: bool = False
    _entries: dict[QueueId, list[tuple[SortKey | _Backwards, WorkloadId, Entry]]] = field(default_factory=dict)
    _children: dict[QueueId | None, set[QueueId]] = field(default_factory=dict)
    _ranks: dict[QueueId, tuple[SortKey, QueueId]] = field(default_factory=dict)
    _taken: dict[QueueId, Resources] = field(default_factory=dict)

    def push(self, entry: Entry) -> bool:
        """Add an entry; False for one of a queue that does not exist, or that has queues below it."""
        if entry.queue not in self.shares.specs:
            return False
        heap = self._entries.setdefault(entry.queue, [])
        heapq.heappush(heap, (_Backwards(entry.key) if self.victims else entry.key, entry.id, entry))
        queue: QueueId | None = entry.queue
        while queue is not None:
            parent = self.shares.specs[queue].parent
            parent = parent if parent in self.shares.specs else None
            self._children.setdefault(parent, set()).add(queue)
            queue = parent
        self._changed(entry.queue)
        return True

    def pop(self) -> Entry | None:
        """Whose turn it is; None when nobody is left."""
        if not self._children.get(None):
            return None
        queue = self._rank_below(None)[1]
        entry = heapq.heappop(self._entries[queue])[2]
        if self.victims:
            self._taken[queue] = self._taken.get(queue, Resources()) + entry.resources
        self._changed(queue)
        if not self._entries[queue]:
            self._leave(queue)
        return entry

    def refresh(self) -> None:
        """Usage has changed in more than the queue that was asked last."""
        self._ranks.clear()

    def _leave(self, queue: QueueId) -> None:
        del self._entries[queue]
        empty: QueueId | None = queue
        while empty is not None and not self._children.get(empty) and empty not in self._entries:
            parent = self.shares.specs[empty].parent
            parent = parent if parent in self.shares.specs else None
            self._children[parent].discard(empty)
            empty = parent

    def _changed(self, queue: QueueId) -> None:
        for spec in self.quota.path(queue):
            self._ranks.pop(spec.id, None)

    def _rank(self, queue: QueueId) -> tuple[SortKey, QueueId]:
        """The queue's rank among its siblings, and the leaf below it whose turn it is."""
        known = self._ranks.get(queue)
        if known is None:
            leaf = queue if queue in self._entries else self._rank_below(queue)[1]
            head = self._entries[leaf][0][2].resources
            if self.victims:
                gone = self._taken.get(leaf, Resources()) + head
                key = self.shares.rank(self.quota, queue, Resources(), gone)
            else:
                key = self.shares.rank(self.quota, queue, head, Resources())
            known = self._ranks[queue] = (key, leaf)
        return known

    def _rank_below(self, parent: QueueId | None) -> tuple[SortKey, QueueId]:
        ranks = (self._rank(child) for child in sorted(self._children[parent]))
        return max(ranks) if self.victims else min(ranks)
