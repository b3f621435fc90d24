"""Priority, then age: the larger priority first, then who was submitted first, however often it was requeued."""

from __future__ import annotations

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on
from rayorch.core.types import Workload


@based_on(Basis.WORKLOAD)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (-workload.spec.priority, workload.submitted_s)
