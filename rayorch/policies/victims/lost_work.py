"""Lost work: GPU-seconds since the last committed checkpoint, and what a restart costs on top.

The measure of Tiresias and Pollux' trace studies, with the checkpoint in place of the start. A workload that keeps no
checkpoints loses all since its start; an application that serves loses nothing but the restart.
"""

from __future__ import annotations

from rayorch.core.sharing import counted
from rayorch.core.types import UNIT, Allocation, Kind, Workload

RESTART_S = 30.0
"""What stopping and starting costs each GPU: imports, process groups, loading the checkpoint."""


def cost(workload: Workload, allocation: Allocation, now_s: float) -> float:
    """GPU-seconds lost by stopping it now. Work without GPUs costs the seconds alone."""
    units, each, bundle = 0, 0, None
    for member in allocation.members:
        if member.bundle is not bundle:  # members alike share theirs
            bundle = member.bundle
            each = counted(bundle).gpu_units
        units += each
    return (_unsaved_s(workload, now_s) + RESTART_S) * (units / UNIT or 1.0)


def _unsaved_s(workload: Workload, now_s: float) -> float:
    if workload.spec.kind is Kind.SERVE or workload.ready_s is None:
        return 0.0
    saved_s = workload.checkpoint.committed_s if workload.checkpoint is not None else workload.ready_s
    return max(0.0, now_s - max(saved_s, workload.ready_s))
