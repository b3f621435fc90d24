"""Who starts in which order, once more, with lists and loops only: for a cluster on which room never lacks.

After each start all waiting gangs are looked at anew; of each queue the first one that has not been passed over, and
of these the one whose queue goes first. Quota is asked of the naive reference (`reference_quota.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from rayorch.core.types import UNIT, QueueId, QueueSpec, Resources, WorkloadSpec
from tests.core.reference_quota import ReferenceQuota

GPU = "GPU"


@dataclass(frozen=True)
class Waiting:
    """A gang in the order of its acceptance: `number`."""

    spec: WorkloadSpec
    submitted_s: float
    number: int

    @property
    def asks(self) -> Resources:
        return _gpus(self.spec.min_resources)


def starts(queues: list[QueueSpec], held: list[tuple[QueueId, Resources]], waiting: list[Waiting]) -> list[str]:
    """The ids of those that start, the first one first."""
    whole = [_in_gpus(spec) for spec in queues]
    quota = ReferenceQuota(whole, held=[(queue, _gpus(amount), "", 1) for queue, amount in held])
    left, order = list(waiting), []
    while left:
        heads = [min(mine, key=own_key) for spec in queues if (mine := [w for w in left if w.spec.queue == spec.id])]
        first = min(heads, key=lambda head: (queue_key(quota, head), own_key(head)))
        left.remove(first)
        if quota.fits(first.spec.queue, first.asks, "", 1):
            quota = quota.with_more(first.spec.queue, first.asks, "", 1)
            order.append(str(first.spec.id))
    return order


def own_key(waiting: Waiting) -> tuple[object, ...]:
    """The more important first, then the older one, then who was accepted first."""
    return (-waiting.spec.priority, waiting.submitted_s, waiting.number, waiting.spec.id)


def queue_key(quota: ReferenceQuota, head: Waiting) -> tuple[object, ...]:
    """Who stays within what its queue and all above it deserve, then the more important, then the smaller share."""
    borrows = any(
        used(quota, spec) + head.asks.units(GPU) > spec.deserved.units(GPU)
        for spec in quota.path(head.spec.queue)
        if quota.named(spec, GPU)
    )
    could = quota.fits(head.spec.queue, head.asks, "", 1)
    return (int(borrows and could), -head.spec.priority, share(quota, quota.spec(head.spec.queue)))


def share(quota: ReferenceQuota, spec: QueueSpec) -> Fraction:
    """Used of deserved; of what is beyond, the part that its weight gives."""
    if not quota.named(spec, GPU):
        return Fraction(0)
    have, deserved = used(quota, spec), spec.deserved.units(GPU)
    if have <= deserved:
        return Fraction(have, deserved) if deserved else Fraction(0)
    beyond = Fraction(have - deserved, deserved or 1) / max(1, spec.weight)
    return (1 if deserved else 0) + beyond


def used(quota: ReferenceQuota, spec: QueueSpec) -> int:
    return quota.used(spec.id, GPU)


def _gpus(amount: Resources) -> Resources:
    """Whole GPUs as the units to count in: the reference of quotas tries one unit after the other."""
    return Resources.of_units({GPU: amount.units(GPU) // UNIT})


def _in_gpus(spec: QueueSpec) -> QueueSpec:
    borrow = None if spec.borrow_limit is None else _gpus(spec.borrow_limit)
    return replace(spec, deserved=_gpus(spec.deserved), borrow_limit=borrow)
