"""Shortest remaining time first: who will be done soonest, by its steps or by what is known of its kind.

Remaining time is the median of `core.forecast`. What nothing is known of comes after all others of its priority.
`gpu_key` counts it in GPU-seconds: who will have needed least of the cluster. Where the profile evicts by order, who
has less left takes the room of who has more; with estimates instead of declared steps that is a gamble.
"""

from __future__ import annotations

import math

from rayorch.core.forecast import Forecast
from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words, ranks
from rayorch.core.types import GPU, UNIT, Workload


def _words(workload: Workload, view: OrderView) -> str:
    left = view.once(forecast).remaining(workload)
    known = f"{left[0]:.0f} s" if left is not None else "not known"
    return f"by priority ({workload.spec.priority}), then by the time that is left ({known})"


@ranks(2)
@based_on(Basis.HISTORY)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    left = view.once(forecast).remaining(workload)
    return (-workload.spec.priority, math.inf if left is None else left[0], workload.submitted_s)


@ranks(2)
@based_on(Basis.HISTORY)
@in_words(_words)
def gpu_key(workload: Workload, view: OrderView) -> SortKey:
    """The same in GPU-seconds."""
    left = view.once(forecast).remaining(workload)
    gpus = workload.spec.least(GPU) / UNIT
    return (-workload.spec.priority, math.inf if left is None else left[0] * gpus, workload.submitted_s)


def forecast(view: OrderView) -> Forecast:
    """What is known at the time of the view; the same for all policies that ask."""
    return Forecast(view.history, view.now_s)
