"""Dominant resource fairness, weighted, down the tree (Ghodsi 2011; hierarchical after Bhattacharya 2013).

A queue's share is the largest part that it uses of any resource of the cluster, over its weight; only `fair_resources`
count. The smallest share goes first, on each level among siblings; the gang is the unit, and one that does not fit is
passed over. Differs from H-DRF in that a parent's share is that of its children's usage together, not rescaled: where
siblings need different resources, the parent of both counts the larger part only.
"""

from __future__ import annotations

from rayorch.core.ordering import OrderView, QueueHead, SortKey, by_class
from rayorch.core.types import QueueSpec
from rayorch.policies.queue_order.tree import along_path


@by_class
def key(head: QueueHead, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return along_path(head.quota, head.queue, lambda spec: dominant_share(spec, head, view))


def dominant_share(spec: QueueSpec, head: QueueHead, view: OrderView) -> float:
    """The largest part of the cluster that the queue uses, over its weight."""
    used, cluster = head.quota.used(spec.id), view.cluster
    parts = (used.units(name) / cluster.units(name) for name in view.knobs.fair_resources if cluster.units(name))
    return max(parts, default=0.0) / max(1, spec.weight)
