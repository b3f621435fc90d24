"""How long a workload may run in all, and what of its attempts counts.

`wall_limit_s` counts the time from the commit of each attempt. Of an attempt that the cluster ended (a preemption, a
lost node) only what its last checkpoint saved counts: work that is lost to others and done again is not the owner's
to pay for. An attempt that ended by itself counts whole. After Kueue's maximum execution time, which counts all of it;
Slurm's limit begins anew with every requeue.
"""

from __future__ import annotations

from rayorch.core.types import StopCause, Workload

THE_WORKLOADS_OWN = (None, StopCause.TIME_LIMIT, StopCause.CANCELLED)
"""Causes of an end after which the whole attempt counts."""


def counted_s(workload: Workload, cause: StopCause | None, at_s: float) -> float:
    """What of its live attempt counts as run when that ends at `at_s` for this cause."""
    if workload.started_s is None:
        return 0.0
    until_s = workload.started_s
    if cause in THE_WORKLOADS_OWN:
        until_s = at_s
    elif workload.checkpoint is not None and workload.checkpoint.attempt == workload.attempt:
        until_s = min(workload.checkpoint.committed_s, at_s)
    return max(0.0, until_s - workload.started_s)


def limit_at_s(workload: Workload) -> float | None:
    """When the live attempt has used up the limit; None without a limit or an attempt."""
    limit_s = workload.spec.wall_limit_s
    if limit_s is None or workload.started_s is None:
        return None
    return workload.started_s + max(0.0, limit_s - workload.ran_s)


def longest_s(workload: Workload) -> float | None:
    """The longest that an attempt which starts now may hold its seats; None: nothing bounds it."""
    limit_s = workload.spec.wall_limit_s
    return None if limit_s is None else max(0.0, limit_s - workload.ran_s) + workload.spec.grace_s


def used_up(workload: Workload, cause: StopCause | None, at_s: float) -> bool:
    """Whether nothing of the limit is left for another attempt once the live one has ended at `at_s`."""
    limit_s = workload.spec.wall_limit_s
    return limit_s is not None and workload.ran_s + counted_s(workload, cause, at_s) >= limit_s
