"""First in, first out, whatever the priority; the place in the queue survives every requeue."""

from __future__ import annotations

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.types import Workload


def _words(workload: Workload, view: OrderView) -> str:
    return "by age alone"


@based_on(Basis.WORKLOAD)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (workload.submitted_s,)
