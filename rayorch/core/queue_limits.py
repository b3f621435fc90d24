"""What a queue says beside its shares: whether its work may start, what each owner may hold, and what it may spend."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rayorch.core.resources import Resources


class QueueMode(StrEnum):
    """Whether a queue's work may start, and whether what runs may stay."""

    OPEN = "open"
    HOLD = "hold"  # nothing of it starts; what runs goes on
    DRAIN = "drain"  # nothing of it starts; what runs is stopped and requeued
    DELETING = "deleting"  # it takes nothing new, shares nothing any more and goes when its last workload has ended


@dataclass(frozen=True, slots=True)
class UserLimits:
    """What each owner may hold in a queue and below it, and how many workloads may run and wait; None: no limit."""

    resources: Resources = Resources()  # a resource that is not named is not limited
    max_running: int | None = None
    max_pending: int | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """GPU-hours that a queue and those below it may use in each period; what runs when it is spent is drained or stays.

    `period_s` None: once and for all. `from_s`: when the first period begins. `drain`: stop what runs when it is spent.
    """

    gpu_hours: float
    period_s: float | None = None
    from_s: float = 0.0
    drain: bool = False
