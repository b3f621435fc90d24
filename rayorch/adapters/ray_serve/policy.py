"""The autoscaling policy of deployments that need a grant: demand out, grant in.

Serve pickles this module by value, so it holds no state and imports ours only inside the methods.
"""

from __future__ import annotations

import math
from typing import Any

POLICY_PATH = "rayorch.adapters.ray_serve.policy:GrantPolicy"
ROUNDING = 1e-6


class GrantPolicy:
    """Runs in Serve's controller ten times a second and never waits.

    Its construction, at deployment and again when Serve's controller has restarted, is what makes the controller
    follow the grants of the attempt's runner.
    """

    def __init__(
        self, app: str, deployment: str, role: str, runner: str, namespace: str, lease_s: float, gang_size: int = 1
    ) -> None:
        from rayorch.adapters.ray_serve.table import TABLE

        self._deployment = (app, deployment)
        self._gang_size = gang_size
        TABLE.watch(app, deployment, role, runner, namespace, lease_s)

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas that the grant allows; the present target while no grant is known."""
        from rayorch.adapters.ray_serve.table import TABLE

        app, deployment = self._deployment
        # Averages over a moment, so not whole; rounded up as a sum, so that a request is not counted twice.
        requests = math.ceil(context.total_num_requests - ROUNDING)
        queued = min(requests, math.ceil(context.total_queued_requests - ROUNDING))
        per_replica = float(context.config.get_target_ongoing_requests())
        TABLE.note_demand(app, deployment, requests - queued, queued, per_replica)
        target = TABLE.target(app, deployment, self._gang_size)
        return (context.target_num_replicas if target is None else target), {}
