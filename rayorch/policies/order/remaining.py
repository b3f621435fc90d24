"""Shortest remaining time first: who will be done soonest, by its steps or by what is known of its kind.

Remaining time is the median of `core.forecast`. What nothing is known of comes after all others of its priority.
"""

from __future__ import annotations

import math

from rayorch.core.forecast import Forecast
from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.types import Workload


def _words(workload: Workload, view: OrderView) -> str:
    left = view.once(forecast).remaining(workload)
    known = f"{left[0]:.0f} s" if left is not None else "not known"
    return f"by priority ({workload.spec.priority}), then by the time that is left ({known})"


@based_on(Basis.HISTORY)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    left = view.once(forecast).remaining(workload)
    return (-workload.spec.priority, math.inf if left is None else left[0], workload.submitted_s)


def forecast(view: OrderView) -> Forecast:
    """What is known at the time of the view; the same for all policies that ask."""
    return Forecast(view.history, view.now_s)
