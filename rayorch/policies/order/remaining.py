"""Shortest remaining time first: who will be done soonest, by its steps or by what is known of its kind.

Remaining time is the median of `core.forecast`. What nothing is known of comes after all others of its priority.
"""

from __future__ import annotations

import math

from rayorch.core.forecast import Forecast
from rayorch.core.ordering import Basis, OrderView, SortKey, based_on
from rayorch.core.types import Workload


@based_on(Basis.HISTORY)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    left = view.once(forecast).remaining(workload)
    return (-workload.spec.priority, math.inf if left is None else left[0], workload.submitted_s)


def forecast(view: OrderView) -> Forecast:
    """What is known at the time of the view; the same for all policies that ask."""
    return Forecast(view.history, view.now_s)
