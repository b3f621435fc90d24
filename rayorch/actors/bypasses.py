"""Looks now and then for work that came past the queues, and says so once for each, with the RayJob that it is of."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rayorch.actors.names import NAMESPACE
from rayorch.adapters.ray_groups import PREFIX, group_rows
from rayorch.adapters.ray_jobs_seen import BypassFinder
from rayorch.core.bypass import Bypass, in_words, of_ray_job
from rayorch.core.errors import ClusterError

if TYPE_CHECKING:
    from rayorch.adapters.kuberay import KubeRaySettings

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Ray answers with all its actors and jobs: that often is often enough for people."""

Work = Callable[[], None]
RayJobs = Callable[[], Mapping[str, str]]
"""Name of each RayJob by its submission id; ClusterError when Kubernetes does not say."""


def in_background(work: Work) -> None:
    """In a thread that dies with the process."""
    threading.Thread(target=work, name="bypasses", daemon=True).start()


def ray_jobs_of(kuberay: KubeRaySettings) -> RayJobs:
    """Those of one RayCluster."""
    from rayorch.adapters.kuberay import KubeRayClient  # only where there is one

    return KubeRayClient(kuberay).ray_jobs


class BypassWatch:
    """Called in every turn of the controller, which it never holds up: it looks in a thread of its own, one look at a
    time. `seen` is what the last look saw. `ray_jobs`: None where there is no Kubernetes to ask."""

    def __init__(
        self,
        ray_jobs: RayJobs | None = None,
        clock: Callable[[], float] = time.monotonic,
        run: Callable[[Work], None] = in_background,
    ) -> None:
        self._finder = BypassFinder(NAMESPACE)
        self._ray_jobs = ray_jobs
        self._names: dict[str, str] = {}  # RayJob by bypass, empty where it is of none
        self._clock = clock
        self._run = run
        self._looked_s = float("-inf")
        self._looking = False
        self.seen: tuple[Bypass, ...] = ()

    def tick(self) -> None:
        """Look again once in PERIOD_S, counted from the end of the last look."""
        if self._looking or self._clock() - self._looked_s < PERIOD_S:
            return
        self._looking = True
        self._run(self._look)

    def _look(self) -> None:
        """What can't be read stays as it was seen the last time."""
        try:
            groups = frozenset(str(row["placement_group_id"]) for row in group_rows(PREFIX))
            self._take(self._named(self._finder.find(groups)))
        except ClusterError as error:
            log.warning("work past the queues is not known: %s", error)
        except Exception:
            log.exception("looking for work past the queues failed")
        finally:
            self._looked_s = self._clock()
            self._looking = False

    def _named(self, found: tuple[Bypass, ...]) -> tuple[Bypass, ...]:
        """With their RayJobs. Kubernetes is asked only when there is a bypass that it was not asked about before."""
        if self._ray_jobs is not None and any(bypass.id not in self._names for bypass in found):
            try:
                names = self._ray_jobs()
                self._names = {bypass.id: names.get(bypass.id, "") for bypass in found}
            except ClusterError as error:
                log.info("which RayJobs came past the queues is not known: %s", error)
        return tuple(of_ray_job(bypass, self._names.get(bypass.id, "")) for bypass in found)

    def _take(self, found: tuple[Bypass, ...]) -> None:
        known = {bypass.id for bypass in self.seen}
        for bypass in found:
            if bypass.id not in known:
                log.warning("%s", in_words(bypass))
        self.seen = found
