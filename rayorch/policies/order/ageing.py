"""Priority with ageing: each hour of waiting is worth `points_per_hour` of priority.

Who waits rises as fast as everybody else who waits, so that the order of two never changes and the key holds: work of
lower priority goes first if it was submitted earlier by the difference over `points_per_hour`, and never starves.
"""

from __future__ import annotations

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.service import eligible_s
from rayorch.core.types import Workload


def _words(workload: Workload, view: OrderView) -> str:
    hours = max(0.0, view.now_s - eligible_s(workload)) / 3600.0
    points = workload.spec.priority + view.knobs.points_per_hour * hours
    return f"by {points:.1f} points: priority {workload.spec.priority}, and {hours:.1f} h of waiting"


@based_on(Basis.WORKLOAD)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    points = view.knobs.points_per_hour * eligible_s(workload) / 3600.0
    return (points - workload.spec.priority, workload.submitted_s)
