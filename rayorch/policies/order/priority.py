"""Priority, then age: the larger priority first, then who was submitted first, however often it was requeued."""

from __future__ import annotations

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words
from rayorch.core.types import Workload


def _words(workload: Workload, view: OrderView) -> str:
    return f"by priority ({workload.spec.priority}), then by age"


@based_on(Basis.WORKLOAD)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (-workload.spec.priority, workload.submitted_s)
