"""Demand: as many replicas as the requests need, being answered and waiting ones together.

The rule of Ray Serve's own autoscaler (ongoing requests over the target per replica). When to give replicas back is
the planner's: it waits until the demand has been low for `Profile.scale_down_delay_s`.
"""

from __future__ import annotations

import math

from rayorch.core.types import Workload


def size(workload: Workload, now_s: float) -> int:
    """Replicas that the demand needs, between the role's minimum and maximum; 0 when it has no elastic role.

    Without any report the application keeps its minimum.
    """
    role = workload.spec.elastic_role
    if role is None:
        return 0
    demand = workload.demand
    if demand is None or demand.target_per_replica <= 0:
        return role.min_count
    needed = math.ceil((demand.ongoing + demand.queued) / demand.target_per_replica)
    return max(role.min_count, min(role.max_count, needed))
