"""YuniKorn's fair sorting: the highest priority first, then the queue that uses the smallest part of what it deserves.

The part is the largest of all resources, level by level among siblings; of a resource that the queue deserves nothing
of, its part of the cluster counts.
"""

from __future__ import annotations

from rayorch.core.ordering import OrderView, QueueHead, SortKey, by_class
from rayorch.core.types import QueueSpec
from rayorch.policies.queue_order.tree import along_path


@by_class
def key(head: QueueHead, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (-head.priority, *along_path(head.quota, head.queue, lambda spec: used_part(spec, head, view)))


def used_part(spec: QueueSpec, head: QueueHead, view: OrderView) -> float:
    """The largest part that the queue uses of what it deserves, or of the cluster where it deserves nothing."""
    used, cluster = head.quota.used(spec.id), view.cluster
    parts: list[float] = []
    for name in view.knobs.fair_resources:
        whole = spec.deserved.units(name) or cluster.units(name)
        if whole:
            parts.append(used.units(name) / whole)
    return max(parts, default=0.0)
