"""Reasons not to look at a waiting workload yet that lie in time and in others: when it may begin, and after whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

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


def beyond_caps(
    special: Mapping[WorkloadId, Workload],
    workloads: Mapping[WorkloadId, Workload],
    held: Iterable[WorkloadId],
    now_s: float,
) -> dict[WorkloadId, tuple[Wait, ...]]:
    """The waiting entries that may not start now because as many of their array run as may; the lowest indices may.

    `special`: those that wait and have something to be looked at. `held`: the live attempts. One that can't start
    anyway (back-off, begin) takes no other one's place.
    """
    lines: dict[WorkloadId, list[tuple[int, WorkloadId, int]]] = {}
    for id, workload in special.items():
        entry = workload.spec.entry
        if entry is not None and entry.max_running is not None and _may_begin(workload, now_s):
            lines.setdefault(entry.array, []).append((entry.index, id, entry.max_running))
    if not lines:
        return {}
    entries = (workloads[id].spec.entry for id in held)
    live = Counter(entry.array for entry in entries if entry is not None)
    found: dict[WorkloadId, tuple[Wait, ...]] = {}
    for array, line in lines.items():
        for place, (_, id, most) in enumerate(sorted(line)):
            if place >= most - live[array]:
                detail = f"{live[array]} entries of array {array} run, and {most} may at a time"
                found[id] = (wait(WaitReason.ARRAY_LIMIT, detail, most, "entries"),)
    return found


def _may_begin(workload: Workload, now_s: float) -> bool:
    begin_s = workload.spec.begin_s
    return now_s >= workload.not_before_s and (begin_s is None or now_s >= begin_s)


def array_wait(record: Workload, now_s: float) -> tuple[Wait, ...]:
    """Why an array as a whole has not ended: what it waits for before any entry is looked at, or how far they are."""
    gate = timing_gate(record, now_s)
    if gate or record.progress is None:
        return tuple(gate)
    progress = record.progress
    total = progress.waiting + progress.running + progress.succeeded + progress.failed + progress.cancelled
    detail = f"of {total} entries {progress.running} run, {progress.waiting} wait, {progress.succeeded} succeeded"
    detail += f", {progress.failed} failed" if progress.failed else ""
    detail += f", {progress.cancelled} were cancelled" if progress.cancelled else ""
    return (wait(WaitReason.ARRAY, detail, progress.waiting, "entries"),)
