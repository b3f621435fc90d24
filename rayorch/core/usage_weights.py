"""Weights that fall with what was used lately: KAI's time-based fair share.

Of siblings with weights w and usage u, both as parts (the weight of all siblings' weights, the usage of what the
cluster could have given in the time that counts), a queue's weight becomes max(0, w + k (w - u)): k 0 leaves the
weights alone, and the larger it is, the more is paid back to those who got less than their part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from rayorch.core.history import History
from rayorch.core.types import QueueId, QueueSpec

SCALE = 1_000_000
"""A part of 1 as a whole weight."""


def weighted_by_usage(
    queues: Iterable[QueueSpec], history: History, now_s: float, cluster_gpus: float, k: float
) -> tuple[QueueSpec, ...]:
    """The same queues with the weights that divide the surplus now. O(queues + accounts)."""
    specs = tuple(queues)
    if k <= 0:
        return specs
    used = used_below(history, now_s)
    siblings: dict[QueueId | None, int] = {}
    for spec in specs:
        siblings[spec.parent] = siblings.get(spec.parent, 0) + spec.weight
    whole = _could_have_given(history, cluster_gpus, sum(n for id, n in used.items() if "/" not in id))
    found = []
    for spec in specs:
        part = spec.weight / siblings[spec.parent] if siblings[spec.parent] else 0.0
        usage = used.get(spec.id, 0.0) / whole if whole > 0 else 0.0
        found.append(replace(spec, weight=round(max(0.0, part + k * (part - usage)) * SCALE)))
    return tuple(found)


def used_below(history: History, now_s: float) -> dict[QueueId, float]:
    """GPU-seconds that each queue, with those below it, has used, decayed. O(accounts)."""
    found: dict[QueueId, float] = {}
    for account in history.accounts.values():
        gpu_s, _ = account.used(now_s, history.half_life_s)
        at: str = account.queue
        while at:
            found[QueueId(at)] = found.get(QueueId(at), 0.0) + gpu_s
            at = at.rpartition("/")[0]
    return found


def _could_have_given(history: History, cluster_gpus: float, all_used: float) -> float:
    """GPU-seconds of a cluster in use for ever, decayed; without decay, what was used in all."""
    return cluster_gpus * history.half_life_s / math.log(2) if history.half_life_s > 0 else all_used
