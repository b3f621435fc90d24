"""Priority with ageing: each hour of waiting is worth `points_per_hour` of priority.

Who waits rises as fast as everybody else who waits, so that the order of two never changes and the key holds: work of
lower priority goes first if it was submitted earlier by the difference over `points_per_hour`, and never starves.
"""

from __future__ import annotations

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on
from rayorch.core.service import eligible_s
from rayorch.core.types import Workload


@based_on(Basis.WORKLOAD)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    points = view.knobs.points_per_hour * eligible_s(workload) / 3600.0
    return (points - workload.spec.priority, workload.submitted_s)
