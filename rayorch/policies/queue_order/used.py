"""Decayed usage across queues: who has used least for its weight lately goes first, level by level.

What is held, and what this plan has given so far, counts as used for `usage_penalty_s` more.
"""

from __future__ import annotations

from collections.abc import Mapping

from rayorch.core.ordering import OrderView, QueueHead, SortKey, by_class
from rayorch.core.types import UNIT, QueueId, QueueSpec
from rayorch.policies.order.fair_tree import used_by
from rayorch.policies.queue_order.tree import along_path


@by_class
def key(head: QueueHead, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return along_path(head.quota, head.queue, lambda spec: weighted_usage(spec, head, view))


def weighted_usage(spec: QueueSpec, head: QueueHead, view: OrderView) -> float:
    """GPU-seconds that the queue, and those below it, have used lately, over its weight."""
    penalty = head.quota.used(spec.id).gpu_units / UNIT * view.knobs.usage_penalty_s
    return (view.once(_below).get(spec.id, 0.0) + penalty) / max(1, spec.weight)


def _below(view: OrderView) -> Mapping[QueueId, float]:
    """What each queue has used, with those below it. O(accounts)."""
    found: dict[QueueId, float] = {}
    for account in view.history.accounts:
        used, at = used_by(view, account), str(account[0])
        while at:
            found[QueueId(at)] = found.get(QueueId(at), 0.0) + used
            at = at.rpartition("/")[0]
    return found
