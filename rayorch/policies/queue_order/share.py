"""Kueue's fair sharing: the queue whose dominant resource share would be least goes first, level by level.

The share: what the queue and those below it would hold beyond what they deserve, over what the tree above can lend, in
thousandths, the largest of all resources, divided by the weight; 0 within the queue's own share. After
sigs.k8s.io/kueue's fair sharing (KEP 1714).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rayorch.core.ordering import OrderView, QueueHead, SortKey, by_class
from rayorch.core.types import QueueId, QueueSpec, Resources
from rayorch.policies.queue_order.tree import along_path


@by_class
def key(head: QueueHead, view: OrderView) -> SortKey:
    """The smallest key goes first; then priority, and the head's own key."""
    return (*along_path(head.quota, head.queue, lambda spec: share_with(spec, head, view)), -head.priority)


def share_with(spec: QueueSpec, head: QueueHead, view: OrderView) -> float:
    """The queue's share with what the head asks for."""
    lendable = view.once(_lendable).get(spec.parent, Resources())
    would = head.quota.used(spec.id) + head.resources
    return weighted_share(would, spec.deserved, lendable, spec.weight)


def weighted_share(used: Resources, deserved: Resources, lendable: Resources, weight: float) -> float:
    """The dominant resource share [thousandths]; with weight 0 whoever borrows comes last of all."""
    over = {name: n - deserved.units(name) for name, n in used if n > deserved.units(name)}
    if not over:
        return 0.0
    if weight <= 0:
        return math.inf
    return (
        max((n * 1000 / lendable.units(name) for name, n in over.items() if lendable.units(name)), default=0) / weight
    )


def _lendable(view: OrderView) -> Mapping[QueueId | None, Resources]:
    """What can be had below each parent: at the top what all may lend; further down what the queue may hold at most."""
    children: dict[QueueId | None, list[QueueSpec]] = {}
    for spec in view.queues.values():
        children.setdefault(spec.parent, []).append(spec)
    top: dict[str, int] = {}
    for spec in children.get(None, []):
        for name, n in spec.deserved:
            lent = n if spec.lend_limit is None else min(n, spec.lend_limit.units(name))
            top[name] = top.get(name, 0) + lent
    found: dict[QueueId | None, Resources] = {None: Resources.of_units(top)}
    for id in sorted(children, key=lambda id: (id or "").count("/") if id else -1):
        if id is not None and id in view.queues:
            found[id] = _most(view.queues[id], found.get(view.queues[id].parent, Resources()))
    return found


def _most(spec: QueueSpec, above: Resources) -> Resources:
    """What a queue may hold at most, of what its parent may."""
    names = {name for name, _ in (*spec.deserved, *above)}
    most: dict[str, int] = {}
    for name in names:
        own = spec.deserved.units(name)
        borrowable = above.units(name) if spec.borrow_limit is None else own + spec.borrow_limit.units(name)
        most[name] = max(own, min(borrowable, max(own, above.units(name))))
    return Resources.of_units(most)
