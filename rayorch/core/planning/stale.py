"""Gangs that have been below their minimum for too long: what is left can't work, so it gives its seats back.

Since when that is so is in the journal: the change of seats that took an attempt below its minimum sets
`Workload.short_since_s`, the one that makes it whole again clears it. Until then it asks for
what it lacks; two that each lack what the other has left do not hold each other longer than this.
"""

from __future__ import annotations

from rayorch.core.decisions import Stop
from rayorch.core.minimum import is_stale
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.growth import counts
from rayorch.core.types import State, StopCause, StopOrder


def retire(draft: Draft) -> None:
    """End every running gang whose grace is over; it waits in its old place for room for all of it."""
    grace_s = draft.facts.profile.eviction.stale_grace_s
    now_s = draft.facts.now_s
    for id in draft.facts.asking:  # whoever lacks a part of its minimum is among these
        workload = draft.facts.workloads[id]
        spec = workload.spec
        since_s = workload.short_since_s
        own_s = spec.stale_grace_s if spec.stale_grace_s is not None else grace_s
        if workload.state is not State.RUNNING or since_s is None or own_s < 0 or now_s - since_s < own_s:
            continue
        members = draft.standing(id)
        if not members or not is_stale(spec, counts(members)):
            continue
        reason = f"it has been below its minimum for {now_s - since_s:.0f} s"
        order = StopOrder(StopCause.STALE, reason, now_s, now_s + spec.grace_s)
        draft.stop(Stop(workload.id, workload.attempt, order))
