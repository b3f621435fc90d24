"""Looks now and then for work that came past the queues, and says so once for each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rayorch.actors.names import NAMESPACE
from rayorch.adapters.ray_groups import PREFIX, group_rows
from rayorch.adapters.ray_jobs_seen import BypassFinder
from rayorch.core.bypass import Bypass, in_words
from rayorch.core.errors import ClusterError

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Ray answers with all its actors and jobs: that often is often enough for people."""


class BypassWatch:
    """Called in every turn of the controller; most of the time it does nothing. `seen` is at most PERIOD_S old."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._finder = BypassFinder(NAMESPACE)
        self._clock = clock
        self._looked_s = float("-inf")
        self.seen: tuple[Bypass, ...] = ()

    def tick(self) -> None:
        """Look again once in PERIOD_S. What can't be read stays as it was seen the last time."""
        if self._clock() - self._looked_s < PERIOD_S:
            return
        self._looked_s = self._clock()
        try:
            groups = frozenset(str(row["placement_group_id"]) for row in group_rows(PREFIX))
            found = self._finder.find(groups)
        except ClusterError as error:
            log.warning("work past the queues is not known: %s", error)
            return
        known = {bypass.id for bypass in self.seen}
        for bypass in found:
            if bypass.id not in known:
                log.warning("%s", in_words(bypass))
        self.seen = found
