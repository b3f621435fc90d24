"""Volcano's proportion: who uses the smallest part of what water-filling would give its queue goes first.

What a queue is due: the cluster divided by weight among the queues that ask, level by level; who asks for less than
its part leaves the rest to the others, in rounds until nobody does. Queues of higher `surplus_priority` come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rayorch.core.ordering import OrderView, QueueHead, SortKey, by_class
from rayorch.core.types import LIVE, QueueId, QueueSpec, Workload, total
from rayorch.policies.queue_order.tree import along_path

Amounts = dict[str, float]


@dataclass(frozen=True, slots=True)
class Part:
    """A queue that asks for so much of a resource, and its weight."""

    asked: float
    weight: float


@by_class
def key(head: QueueHead, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    first = -view.queues[head.queue].surplus_priority if head.queue in view.queues else 0
    return (first, *along_path(head.quota, head.queue, lambda spec: used_part(spec, head, view)))


def used_part(spec: QueueSpec, head: QueueHead, view: OrderView) -> float:
    """The largest part that the queue uses of what it is due of a resource."""
    due = view.once(dues).get(spec.id, {})
    used = head.quota.used(spec.id)
    return max((used.units(name) / due[name] for name in view.knobs.fair_resources if due.get(name)), default=0.0)


def dues(view: OrderView) -> Mapping[QueueId, Amounts]:
    """What each queue is due of each resource, in stored units. O(workloads)."""
    asked = _asked(view)
    children: dict[QueueId | None, list[QueueSpec]] = {}
    for spec in view.queues.values():
        children.setdefault(spec.parent, []).append(spec)
    found: dict[QueueId, Amounts] = {id: {} for id in view.queues}
    for name in view.knobs.fair_resources:
        levels: list[tuple[QueueId | None, float]] = [(None, float(view.cluster.units(name)))]
        while levels:
            parent, amount = levels.pop()
            specs = children.get(parent, [])
            parts = [Part(asked.get(spec.id, {}).get(name, 0.0), spec.weight) for spec in specs]
            for spec, due in zip(specs, water_fill(amount, parts), strict=True):
                found[spec.id][name] = due
                levels.append((spec.id, due))
    return found


def water_fill(amount: float, parts: list[Part]) -> list[float]:
    """Divide an amount by weight, nobody more than it asks for. O(parts²) at worst."""
    given = [0.0] * len(parts)
    open_parts = [n for n, part in enumerate(parts) if part.asked > 0 and part.weight > 0]
    while open_parts and amount > 0:
        weights = sum(parts[n].weight for n in open_parts)
        full = [n for n in open_parts if parts[n].asked <= amount * parts[n].weight / weights]
        if not full:
            for n in open_parts:
                given[n] = amount * parts[n].weight / weights
            break
        for n in full:
            given[n] = parts[n].asked
        amount -= sum(given[n] for n in full)
        open_parts = [n for n in open_parts if n not in full]
    return given


def _asked(view: OrderView) -> dict[QueueId, Amounts]:
    """What each queue, with those below it, holds and waits for."""
    found: dict[QueueId, Amounts] = {}
    for workload in view.work:
        amounts = _holds_or_asks(workload)
        at: str = workload.spec.queue
        while at:
            own = found.setdefault(QueueId(at), {})
            for name, n in amounts:
                own[name] = own.get(name, 0.0) + n
            at = at.rpartition("/")[0]
    return found


def _holds_or_asks(workload: Workload) -> tuple[tuple[str, int], ...]:
    held = workload.state in LIVE
    return (total(member.bundle for member in workload.placement) if held else workload.spec.min_resources).items
