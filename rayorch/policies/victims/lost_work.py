"""Lost work: GPU-seconds since the last committed checkpoint, and what a restart costs on top.

The measure of Tiresias and Pollux' trace studies, with the checkpoint in place of the start. A workload that keeps no
checkpoints loses all since its start; an application that serves loses nothing but the restart.
"""

from __future__ import annotations

from math import inf

from rayorch.core.lost_time import Rate, growing
from rayorch.core.sharing import counted
from rayorch.core.types import UNIT, Allocation, Kind, Workload

RESTART_S = 30.0
"""What stopping and starting costs each GPU: imports, process groups, loading the checkpoint."""


def rate(workload: Workload, allocation: Allocation) -> Rate:
    """How the cost grows from its last checkpoint on."""
    units, each, bundle = 0, 0, None
    for member in allocation.members:
        if member.bundle is not bundle:  # members alike share theirs
            bundle = member.bundle
            each = counted(bundle).gpu_units
        units += each
    return Rate(_saved_s(workload), RESTART_S, units / UNIT or 1.0)


@growing(rate)
def cost(workload: Workload, allocation: Allocation, now_s: float) -> float:
    """GPU-seconds lost by stopping it now. Work without GPUs costs the seconds alone."""
    return rate(workload, allocation).at(now_s)


def _saved_s(workload: Workload) -> float:
    """Up to when nothing would be lost; infinite where nothing is at any time."""
    if workload.spec.kind is Kind.SERVE or workload.ready_s is None:
        return inf
    saved_s = workload.checkpoint.committed_s if workload.checkpoint is not None else workload.ready_s
    return max(saved_s, workload.ready_s)
