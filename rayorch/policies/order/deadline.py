"""Earliest deadline first, within a priority; what has no deadline comes last, the oldest first.

What can't meet its deadline any more, even if it started at once, goes behind all that still can: run first, it would
only make others late as well (overloaded EDF's domino effect). The door refuses what can't make it from the
beginning (`core.deadlines`).
"""

from __future__ import annotations

import math

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on
from rayorch.core.types import Workload
from rayorch.policies.order.remaining import forecast


@based_on(Basis.TURN)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    deadline_s = workload.spec.deadline_s
    if deadline_s is None:
        return (-workload.spec.priority, 1, math.inf, workload.submitted_s)
    return (-workload.spec.priority, 2 if late(workload, view) else 0, deadline_s, workload.submitted_s)


def late(workload: Workload, view: OrderView) -> bool:
    """Whether it would miss its deadline if it started now, by the median of its remaining time."""
    deadline_s = workload.spec.deadline_s
    if deadline_s is None:
        return False
    left = view.once(forecast).remaining(workload)
    return view.now_s + (left[0] if left is not None else 0.0) > deadline_s
