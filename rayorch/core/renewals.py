"""Signs of life of attempts: in memory only, and told to readers apart from what is journalled."""

from __future__ import annotations

from collections.abc import Iterable

from rayorch.core.types import Workload, WorkloadId
from rayorch.core.values import changed


class Renewals:
    """Which live attempts were heard of, and in which order. `count` never goes back, also over restarts."""

    def __init__(self) -> None:
        self.count = 0
        self._renewed: dict[WorkloadId, int] = {}

    def seen(self, workload: Workload, now_s: float) -> Workload:
        """The workload as it is after a sign of life."""
        self.count += 1
        self._renewed[workload.id] = self.count
        return changed(workload, lease_renewed_s=max(now_s, workload.lease_renewed_s))

    def forget(self, id: WorkloadId) -> None:
        """Its attempt is over."""
        self._renewed.pop(id, None)

    def since(self, count: int) -> Iterable[WorkloadId]:
        """Those that were seen after `count`; all of them when that is a count of another life."""
        after = count if count <= self.count else 0
        return (id for id, seen in self._renewed.items() if seen > after)

    def begin_anew(self, now_s: float) -> None:
        """Count on beyond any count of a former life."""
        self.count = max(self.count, int(now_s * 1000))
