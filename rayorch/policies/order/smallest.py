"""Smallest first: who asks for the fewest GPUs, the oldest of them.

Small work starts soonest, and large gangs only when nothing smaller waits: a baseline to compare with (Tiresias' sjf),
not an order to live with.
"""

from __future__ import annotations

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words, ranks
from rayorch.core.types import GPU, UNIT, Workload


def _words(workload: Workload, view: OrderView) -> str:
    return f"by priority ({workload.spec.priority}), then by size ({workload.spec.least(GPU) / UNIT:g} GPUs)"


@ranks(2)
@based_on(Basis.WORKLOAD)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first."""
    return (-workload.spec.priority, workload.spec.least(GPU), workload.submitted_s)
