"""Priority, then age: the larger priority first, then who was submitted first, however often it was requeued."""

from __future__ import annotations

from rayorch.core.policy import SortKey
from rayorch.core.types import Workload


def key(workload: Workload, now_s: float) -> SortKey:
    """The smallest key goes first."""
    return (-workload.spec.priority, workload.submitted_s)
