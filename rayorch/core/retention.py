"""How long ended workloads are remembered: for good would fill the owner's memory and every reader's copy.

While a workload is remembered, submitting it again is nothing new; afterwards its id is free, and the same submission
would run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayorch.core.types import Workload, WorkloadId

MOST_AT_ONCE = 10_000
"""Workloads that one event forgets: bounds its size in the journal."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Of the ended workloads, the newest `count` are remembered, but none for longer than `most_s`, and every one for
    `least_s`: who waits for a result must not find it gone because many others have ended since."""

    count: int = 10_000
    least_s: float = 3_600.0
    most_s: float = 7 * 86_400.0


DEFAULT_RETENTION = Retention()

ENTRY_RETENTION = Retention(count=1_000, least_s=60.0, most_s=3_600.0)
"""Ended entries of arrays, of which the array itself goes on to know state and exit code."""


def to_forget(workloads: Iterable[Workload], now_s: float, retention: Retention) -> tuple[WorkloadId, ...]:
    """The ended workloads that need not be remembered any more, the oldest first, at most MOST_AT_ONCE; O(n log n)."""
    ended: list[tuple[float, WorkloadId]] = []
    entries: list[tuple[float, WorkloadId]] = []
    for workload in workloads:
        if workload.state.terminal and workload.ended_s is not None:
            (ended if workload.spec.entry is None else entries).append((workload.ended_s, workload.id))
    found = _due(entries, now_s, ENTRY_RETENTION)[:MOST_AT_ONCE]
    return (*found, *_due(ended, now_s, retention)[: MOST_AT_ONCE - len(found)])


def _due(ended: list[tuple[float, WorkloadId]], now_s: float, retention: Retention) -> list[WorkloadId]:
    ended.sort()
    surplus = len(ended) - retention.count
    return [
        id
        for place, (ended_s, id) in enumerate(ended)
        if now_s - ended_s > retention.most_s or (place < surplus and now_s - ended_s > retention.least_s)
    ]
