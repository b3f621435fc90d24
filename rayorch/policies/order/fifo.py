"""First in, first out, whatever the priority; the place in the queue survives every requeue."""

from __future__ import annotations

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on
from rayorch.core.types import Workload


@based_on(Basis.WORKLOAD)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (workload.submitted_s,)
