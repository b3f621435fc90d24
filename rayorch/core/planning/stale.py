"""Gangs that have been below their minimum for too long: what is left can't work, so it gives its seats back."""

from __future__ import annotations

from rayorch.core.decisions import Stop
from rayorch.core.planning.asking import whole
from rayorch.core.planning.draft import Draft
from rayorch.core.types import Kind, State, StopCause, StopOrder


def retire(draft: Draft) -> None:
    """End every running gang whose grace is over; it waits in its old place for room for all of it."""
    grace_s = draft.facts.profile.eviction.stale_grace_s
    now_s = draft.facts.now_s
    for workload, _ in draft.facts.live():
        spec = workload.spec
        since_s = workload.short_since_s
        own_s = spec.stale_grace_s if spec.stale_grace_s is not None else grace_s
        if workload.state is not State.RUNNING or spec.kind is Kind.SERVE or since_s is None or own_s < 0:
            continue
        members = draft.standing(workload.id)
        if not members or whole(spec, members) or now_s - since_s < own_s:
            continue
        reason = f"it has been below its minimum for {now_s - since_s:.0f} s"
        order = StopOrder(StopCause.STALE, reason, now_s, now_s + spec.grace_s)
        draft.stop(Stop(workload.id, workload.attempt, order))
