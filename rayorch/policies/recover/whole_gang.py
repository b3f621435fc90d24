"""Whole gang: with one member lost, the rest of a gang can only wait, so the attempt ends and starts again whole.

Serve's replicas are no gang in this sense: those that are left go on answering, and the lost ones are replaced.
"""

from __future__ import annotations

from rayorch.core.types import Allocation, Kind, StopCause, Workload


def recover(workload: Workload, allocation: Allocation, lost: tuple[str, ...], now_s: float) -> StopCause | None:
    """NODE_LOST to end the attempt, None to let what is left of it live."""
    survivors = any(member.node not in lost for member in allocation.members)
    if workload.spec.kind is Kind.SERVE and survivors:
        return None
    return StopCause.NODE_LOST
