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


def to_forget(workloads: Iterable[Workload], now_s: float, retention: Retention) -> tuple[WorkloadId, ...]:
    """The ended workloads that need not be remembered any more, the oldest first, at most MOST_AT_ONCE; O(n log n)."""
    ended = sorted((w.ended_s, w.id) for w in workloads if w.state.terminal and w.ended_s is not None)
    surplus = len(ended) - retention.count
    found = [
        id
        for place, (ended_s, id) in enumerate(ended)
        if now_s - ended_s > retention.most_s or (place < surplus and now_s - ended_s > retention.least_s)
    ]
    return tuple(found[:MOST_AT_ONCE])
