"""Whom a turn must look at one by one. Everybody else is counted, or stands in a line behind others.

Each of these answers for a workload by itself, once for each version of it. Whoever adds a rule to stage 1 to 3 that
could find something for a workload says so here; a test plays the same worlds with everybody looked at.
"""

from __future__ import annotations

from rayorch.core.attempts import LOST_A_PART
from rayorch.core.policy import Profile
from rayorch.core.sharing import GPU_DEVICES
from rayorch.core.time_limits import limit_at_s
from rayorch.core.types import UNIT, Allocation, Kind, NodeHealth, NodeSpec, QueueMode, QueueSpec, State, Workload


def is_special(workload: Workload) -> bool:
    """Whether the gate in `admit.py` may find something for a pending workload by what it is itself, or it has rights
    of its own."""
    spec = workload.spec
    capped = spec.entry is not None and spec.entry.max_running is not None
    return (
        capped
        or bool(spec.reservation)
        or workload.node_losses > 0
        or spec.preemption_delay_s > 0
        or workload.not_before_s > 0
        or spec.begin_s is not None
        or bool(workload.unmet)
        or bool(workload.former)
        or spec.joint is not None
    )


def is_breaking(workload: Workload) -> bool:
    """Whether an attempt is being ended because it lost a part, so that what is left is the next one's."""
    return workload.state is State.STOPPING and workload.stop is not None and workload.stop.cause in LOST_A_PART


def is_short(workload: Workload) -> bool:
    """Whether a running workload has fewer members than its minimum."""
    return any(workload.members(role.name) < role.min_count for role in workload.spec.roles)


def may_ask(workload: Workload) -> bool:
    """Whether a workload that runs may ask for seats that it needs."""
    return workload.state is State.RUNNING and (workload.spec.kind is Kind.SERVE or is_short(workload))


def may_grow(workload: Workload) -> bool:
    """Whether a workload that runs may ever take surplus seats."""
    return workload.state is State.RUNNING and workload.spec.resizable and workload.spec.kind is not Kind.SERVE


def has_parts(allocation: Allocation) -> bool:
    """Whether its pace could depend on others, or says how fast its kind goes alone: parts of GPUs, or one GPU."""
    members = allocation.members
    parts = any(m.bundle.gpu_units % UNIT or m.bundle.units(GPU_DEVICES) for m in members)
    return parts or (len(members) == 1 and members[0].bundle.gpu_units == UNIT)


def quiet_until_s(workload: Workload, allocation: Allocation, profile: Profile) -> float:
    """Before that time stage 2 has nothing to do for a live attempt whose nodes and queues are in order."""
    if workload.state is not State.RUNNING or workload.cancel_requested:
        return float("-inf")
    if workload.ready_s is None or workload.started_s is None or allocation.failed or workload.spec.joint is not None:
        return float("-inf")
    lapses_s = max(workload.lease_renewed_s, workload.started_s) + profile.lease_s + profile.lease_margin_s
    limit_s = limit_at_s(workload)
    return lapses_s if limit_s is None else min(lapses_s, limit_s)


def troubles(node: NodeSpec | None) -> bool:
    """Whether a node (None: one that is gone) is such that attempts on it must be looked at."""
    return node is None or node.health in (NodeHealth.LOST, NodeHealth.DRAINING)


def disturbs(queue: QueueSpec) -> bool:
    """Whether all live attempts of a queue and those below it must be looked at."""
    return queue.mode is not QueueMode.OPEN or queue.budget is not None
