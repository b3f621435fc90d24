"""What a plan takes from running attempts: surplus seats, or all that they hold."""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.core.policy import SortKey
from rayorch.core.types import Member, Resources, Workload, WorkloadId


@dataclass(slots=True)
class Removal:
    """Surplus numbers that a running attempt gives up in this plan."""

    numbers: set[int]
    release_by_s: float
    beneficiary: WorkloadId | None
    reason: str
    cost_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that frees room: a surplus seat of a running attempt, or (`stops`) all that it holds.

    `cost_gpu_s`: the work that is lost. `price`: that, as it counts by the victim's priority.
    """

    victim: Workload
    members: tuple[Member, ...]
    stops: bool
    cost_gpu_s: float
    frees: Resources
    price: float

    @property
    def key(self) -> SortKey:
        """Cheapest first, then lower priority, then who started last, then the id."""
        number = max((m.surplus for m in self.members), default=0)
        return (self.price, self.victim.spec.priority, -(self.victim.started_s or 0.0), self.victim.id, -number)
