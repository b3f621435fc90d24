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
        self._runners: dict[WorkloadId, str] = {}

    def seen(self, workload: Workload, now_s: float) -> Workload:
        """The workload as it is after a sign of life."""
        self.count += 1
        self._renewed[workload.id] = self.count
        return changed(workload, lease_renewed_s=max(now_s, workload.lease_renewed_s))

    def is_the_runner(self, id: WorkloadId, runner: str) -> bool:
        """Whether this one speaks for the live attempt: the first that was heard of does, a second one never.

        A start that is asked for twice, or arrives long after it was sent, may make one after the first has died; the
        work of that may still run. Over a restart the first is forgotten.
        """
        return not runner or self._runners.setdefault(id, runner) == runner

    def forget(self, id: WorkloadId) -> None:
        """Its attempt is over."""
        self._renewed.pop(id, None)
        self._runners.pop(id, None)

    def since(self, count: int) -> Iterable[WorkloadId]:
        """Those that were seen after `count`; all of them when that is a count of another life."""
        after = count if count <= self.count else 0
        return (id for id, seen in self._renewed.items() if seen > after)

    def begin_anew(self, now_s: float) -> None:
        """Count on beyond any count of a former life."""
        self.count = max(self.count, int(now_s * 1000))
