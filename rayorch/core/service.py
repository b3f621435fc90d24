"""What a workload has had so far: GPU-seconds that it held, and seconds of its work that are done and saved."""

from __future__ import annotations

from collections.abc import Iterable

from rayorch.core.sharing import counted
from rayorch.core.types import LIVE, UNIT, Kind, Member, Resources, Workload, total


def eligible_s(workload: Workload) -> float:
    """Since when it has been waiting for its turn: whoever asked to begin later has not waited before that."""
    begin_s = workload.spec.begin_s
    return workload.submitted_s if begin_s is None else max(workload.submitted_s, begin_s)


def held(members: Iterable[Member]) -> Resources:
    """What seats count for as use, as quota and ledger count it: a MIG instance is a part of a GPU."""
    return counted(total([member.bundle for member in members]))


def gpus_held(workload: Workload) -> float:
    """GPUs of the current attempt's seats."""
    return held(workload.placement).gpu_units / UNIT


def attained_gpu_s(workload: Workload, now_s: float) -> float:
    """GPU-seconds held by all attempts together, saved or lost: the attained service of Tiresias (Gu 2019)."""
    since_s = held_since_s(workload)
    if since_s is None:
        return workload.attained_gpu_s
    return workload.attained_gpu_s + max(0.0, now_s - since_s) * gpus_held(workload)


def held_since_s(workload: Workload) -> float | None:
    """Since when the current attempt holds what it holds; None when it holds nothing."""
    if workload.state not in LIVE or workload.started_s is None:
        return None
    return workload.started_s if workload.resized_s is None else workload.resized_s


def run_s(workload: Workload, now_s: float) -> float:
    """Seconds of work that count: those saved by former attempts, and all of the current one's."""
    if workload.state not in LIVE or workload.ready_s is None:
        return workload.progress_s
    return workload.progress_s + max(0.0, now_s - workload.ready_s)


def saved_s(workload: Workload, now_s: float) -> float:
    """What of `run_s` is left when the current attempt ends now without having finished.

    Work up to the last checkpoint that this attempt committed; a leased gang has nothing that could be saved.
    """
    checkpoint = workload.checkpoint
    if workload.spec.kind is Kind.GANG or checkpoint is None:
        return 0.0
    if checkpoint.attempt != workload.attempt or workload.ready_s is None:
        return workload.progress_s
    return workload.progress_s + max(0.0, min(checkpoint.committed_s, now_s) - workload.ready_s)
