"""Earliest deadline first, within a priority; what has no deadline comes last, the oldest first.

What can't meet its deadline any more, even if it started at once, goes behind all that still can: run first, it would
only make others late as well (overloaded EDF's domino effect). The door refuses what can't make it from the
beginning (`core.deadlines`).
"""

from __future__ import annotations

import math

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.types import Workload
from rayorch.policies.order.remaining import forecast


def _words(workload: Workload, view: OrderView) -> str:
    deadline_s = workload.spec.deadline_s
    known = "it has none" if deadline_s is None else f"in {deadline_s - view.now_s:.0f} s"
    late_ = ", which it would miss" if late(workload, view) else ""
    return f"by priority ({workload.spec.priority}), then by deadline ({known}{late_})"


@based_on(Basis.TURN)
@in_words(_words)
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
