"""Reasons not to look at a waiting workload yet that lie in time and in others: when it may begin, and after whom."""

from __future__ import annotations

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.dependencies import waits_text
from rayorch.core.explain import UNBLOCKS
from rayorch.core.types import Workload, WorkloadId

MAX_BLOCKERS = 5
"""How many of those that are waited for are named."""


def timing_gate(workload: Workload, now_s: float) -> list[Wait]:
    """The reasons, empty when there are none; O(1) for a workload without such wishes."""
    begin_s, unmet = workload.spec.begin_s, workload.unmet
    if begin_s is None and not unmet:
        return []
    found: list[Wait] = []
    if begin_s is not None and now_s < begin_s:
        left_s = begin_s - now_s
        found.append(wait(WaitReason.BEGIN_TIME, f"it begins in {left_s:.0f} s at the earliest", left_s, "s"))
    if unmet:
        others = tuple(d.workload for d in unmet if d.workload is not None)
        found.append(wait(WaitReason.DEPENDENCY, waits_text(unmet), len(unmet), "workloads", others[:MAX_BLOCKERS]))
    return found


def wait(reason: WaitReason, detail: str, need: float, unit: str, blockers: tuple[WorkloadId, ...] = ()) -> Wait:
    """One such reason, with what ends it."""
    return Wait(reason, detail, need=need, unit=unit, blockers=blockers, unblocks=UNBLOCKS[reason])
