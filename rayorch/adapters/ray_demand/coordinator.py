"""The coordinator actor itself. Importing this imports Ray Data, which takes most of a second."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.autoscaler.v2.sdk import request_cluster_resources
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import _AutoscalingCoordinatorActor

Bundle = dict[str, float]
Selector = dict[str, str]


KEPT_S = 900.0
"""A demand that its instance has not repeated for so long is dropped: a controller that is gone wants nothing."""


@dataclass(frozen=True)
class _Demand:
    """What the gangs of one instance ask for, and when that was last said."""

    bundles: list[Bundle]
    selectors: list[Selector]
    said_s: float


class GangCoordinator(_AutoscalingCoordinatorActor):
    """Ray's coordinator, with the gangs' bundles in every request."""

    def __init__(self) -> None:
        self._gangs: dict[str, _Demand] = {}  # by instance: several may share a Ray cluster, and its one request
        self._sent: list[dict[str, Any]] | None = None
        super().__init__(send_resources_request=self._send_with_gangs)

    def _send_with_gangs(self, bundles: list[Bundle], label_selectors: list[Selector] | None = None) -> None:
        oldest_s = time.monotonic() - KEPT_S
        self._gangs = {name: gangs for name, gangs in self._gangs.items() if gangs.said_s >= oldest_s}
        asked = list(zip(bundles, label_selectors or [{} for _ in bundles], strict=True))
        for _, gangs in sorted(self._gangs.items()):
            asked += zip(gangs.bundles, gangs.selectors, strict=True)
        request = [{"resources": dict(amounts), "label_selector": dict(selector)} for amounts, selector in asked]
        request_cluster_resources(ray.get_runtime_context().gcs_address, request)
        self._sent = request

    def set_gang_demand(self, bundles: list[Bundle], selectors: list[Selector], instance: str = "main") -> bool:
        """Replace what one instance's gangs ask for, and send all of it; False when nothing changed."""
        with self._lock:
            before = self._gangs.get(instance)
            self._gangs[instance] = _Demand(list(bundles), list(selectors), time.monotonic())
            known = before is not None and (before.bundles, before.selectors) == (bundles, selectors)
            if known and self._sent is not None:
                return False
            merge: Any = self._merge_and_send_requests
            merge()
            return True

    def sent_request(self) -> list[dict[str, Any]] | None:
        """What was last sent to Ray, for tests and `explain`; None before the first request."""
        return self._sent

    def holds_gangs_by_instance(self) -> bool:
        """True: this is rayorch's coordinator, not Ray's own."""
        return True
