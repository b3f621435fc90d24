"""Costs of victims that grow with the time alone, so that they need not be worked out anew for everybody who runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rayorch.core.marks import AnyPolicy, marked
from rayorch.core.types import Allocation, Workload


@dataclass(frozen=True, slots=True)
class Rate:
    """A cost that follows from the time: `each` for every second since `since_s`, and for `fixed_s` more.

    `since_s` is infinite where nothing is lost as time goes on.
    """

    since_s: float
    fixed_s: float
    each: float

    def at(self, now_s: float) -> float:
        """The cost then."""
        return (max(0.0, now_s - self.since_s) + self.fixed_s) * self.each


RateOf = Callable[[Workload, Allocation], Rate]


def growing(rate: RateOf) -> Callable[[AnyPolicy], AnyPolicy]:
    """Mark a victim policy whose cost is that of this rate at any time, for as long as the workload is the same."""
    return marked(rate=rate)


def rate_of(policy: Callable[..., float]) -> RateOf | None:
    """The rate of a victim policy; None where it is to be asked for each moment."""
    rate: RateOf | None = getattr(policy, "rate", None)
    return rate
