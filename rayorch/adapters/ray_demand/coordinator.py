"""The coordinator actor itself. Importing this imports Ray Data, which takes most of a second."""

from __future__ import annotations

from typing import Any

import ray
from ray.autoscaler.v2.sdk import request_cluster_resources
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import _AutoscalingCoordinatorActor

Bundle = dict[str, float]
Selector = dict[str, str]


class GangCoordinator(_AutoscalingCoordinatorActor):
    """Ray's coordinator, with the gangs' bundles in every request."""

    def __init__(self) -> None:
        self._gang_bundles: list[Bundle] = []
        self._gang_selectors: list[Selector] = []
        self._sent: list[dict[str, Any]] | None = None
        super().__init__(send_resources_request=self._send_with_gangs)

    def _send_with_gangs(self, bundles: list[Bundle], label_selectors: list[Selector] | None = None) -> None:
        selectors = list(label_selectors) if label_selectors else [{} for _ in bundles]
        request = [
            {"resources": dict(resources), "label_selector": dict(selector)}
            for resources, selector in zip(
                [*bundles, *self._gang_bundles], [*selectors, *self._gang_selectors], strict=True
            )
        ]
        request_cluster_resources(ray.get_runtime_context().gcs_address, request)
        self._sent = request

    def set_gang_demand(self, bundles: list[Bundle], selectors: list[Selector]) -> bool:
        """Replace the gangs' part of the demand and send all of it; False when nothing changed."""
        with self._lock:
            if bundles == self._gang_bundles and selectors == self._gang_selectors and self._sent is not None:
                return False
            self._gang_bundles, self._gang_selectors = list(bundles), list(selectors)
            merge: Any = self._merge_and_send_requests
            merge()
            return True

    def sent_request(self) -> list[dict[str, Any]] | None:
        """What was last sent to Ray, for tests and `explain`; None before the first request."""
        return self._sent

    def holds_gangs(self) -> bool:
        """True: this is rayorch's coordinator, not Ray's own."""
        return True
