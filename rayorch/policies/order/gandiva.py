"""Turns in slices of time: who has run longest gives way to who has waited longest (Gandiva, Xiao 2018).

Time goes in slices of `slice_s`, the same for everybody, so that those who are up for a change are so in one moment
and a large gang finds the room of several small ones. When a slice begins, work that waits since before it takes the
room of work of its priority and queue that has had its turn, the longest run first; until the next begins nobody is
stopped for it. So each gang is stopped by turns at most once a slice, and whoever waits longest has the first choice
of all that has had its turn. Nothing is stopped where nobody waits.

An attempt has had its turn when a slice begins and it has run for half of one by then, and for `RESTARTS` times what
its own start took, however long that is: turns never cost more than a small part of the time. Work that kept less
than half of the service that it was given when it was stopped before saves too little, and is left alone; so are
leases and Serve applications.

`owner_key` lets owners take turns in place of gangs: the first gang of each owner goes before the second of any, and
an owner's own gangs are its first in turn.

Differs from Gandiva, which suspends within 100 ms and takes slices of about a minute: a stop here is a checkpoint and a
new start, so slices are longer by a factor of ten. Weights of work are priorities, which go first in any order here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rayorch.core.ordering import Basis, OrderView, SortKey, based_on, in_words, ranks
from rayorch.core.service import eligible_s, gpus_held, run_s
from rayorch.core.types import LIVE, Kind, State, Workload, WorkloadId

RESTARTS = 5.0
"""How many times as long as its start took an attempt runs before it has had its turn."""
LEAST_KEPT = 0.5
"""Of the service that stopped attempts were given: what work keeps that may be stopped again for turns."""
HAIR = 1e-9
"""What comes this close to the beginning of a slice, in slices, has reached it."""

IN_TURN, WAITS, HAD_TURN, CAME = range(4)
"""The phases: runs its turn · waits since before this slice · has had its turn · waits since this slice began."""


def _words(workload: Workload, view: OrderView) -> str:
    slice_s = view.knobs.slice_s
    since = f"it has waited for {max(0.0, view.now_s - _since_s(workload)):.0f} s since it last ran"
    if _since_s(workload) >= begun_s(view.now_s, slice_s):
        left_s = begun_s(view.now_s, slice_s) + slice_s - view.now_s
        since = f"it takes nobody's room before the next slice begins, in {left_s:.0f} s"
    return f"by priority ({workload.spec.priority}), then by turns of {slice_s:.0f} s ({since})"


def _changes_s(workload: Workload, view: OrderView) -> float | None:
    """Phases change when a slice begins."""
    if workload.state not in LIVE:
        return None
    return begun_s(view.now_s, view.knobs.slice_s) + view.knobs.slice_s


def _rank(workload: Workload, view: OrderView) -> SortKey:
    at, by = _standing(workload, view)
    return (-workload.spec.priority, _group(at), at, by)


@ranks(3, _changes_s, takes_back=True, rank=_rank)
@based_on(Basis.WORKLOAD)
@in_words(_words)
def key(workload: Workload, view: OrderView) -> SortKey:
    """The smallest key goes first: who has waited longest, which stays so whatever slice it is."""
    return (-workload.spec.priority, _since_s(workload), workload.submitted_s)


@ranks(5, _changes_s, takes_back=True)
@based_on(Basis.TURN)
@in_words(_words)
def owner_key(workload: Workload, view: OrderView) -> SortKey:
    """The same with owners in turn, and each owner's gangs in turn among themselves."""
    at, by = _standing(workload, view)
    owner = view.once(_owners)[workload.spec.queue, workload.spec.owner]
    nth = owner.nth.get(workload.spec.id, 0) if at in (WAITS, HAD_TURN) else 0
    if at == WAITS and nth >= owner.running:
        return (-workload.spec.priority, WAITS, nth, IN_TURN, owner.since_s, workload.submitted_s)
    return (-workload.spec.priority, _group(at), nth, at, by, workload.submitted_s)


def _group(at: int) -> int:
    """Who waits and who has had its turn change places."""
    return WAITS if at == HAD_TURN else at


def _standing(workload: Workload, view: OrderView) -> tuple[int, float]:
    """(phase, less than that of whoever goes after it in the same phase)."""
    begun = begun_s(view.now_s, view.knobs.slice_s)
    at = phase(workload, begun, view.knobs.slice_s)
    if at == WAITS:
        return at, _since_s(workload) - begun
    return at, begun - (workload.started_s or 0.0) if at == HAD_TURN else 0.0


def begun_s(now_s: float, slice_s: float) -> float:
    """When the slice began that it is now."""
    return math.floor(now_s / slice_s + HAIR) * slice_s


def phase(workload: Workload, begun: float, slice_s: float) -> int:
    """Where work stands in a slice that began then."""
    if workload.state not in LIVE:
        return WAITS if _since_s(workload) < begun else CAME
    started_s, ready_s = workload.started_s, workload.ready_s
    if workload.state is not State.RUNNING or started_s is None or ready_s is None:
        return IN_TURN
    turn_s = max(slice_s / 2.0, RESTARTS * (ready_s - started_s))
    return HAD_TURN if begun - started_s >= turn_s and keeps(workload) else IN_TURN


def keeps(workload: Workload) -> bool:
    """Whether it can be stopped and go on: it trains or is a job, and what it had when it was stopped before, if it
    ever was, is for the most part saved."""
    if workload.spec.kind not in (Kind.TRAIN, Kind.JOB):
        return False
    kept_s = workload.progress_s if workload.resized_s is None else run_s(workload, workload.resized_s)
    return kept_s * (gpus_held(workload) or 1.0) >= LEAST_KEPT * workload.attained_gpu_s


def _since_s(workload: Workload) -> float:
    """Since when it waits for its next turn."""
    since_s = eligible_s(workload)
    return since_s if workload.requeued_s is None else max(since_s, workload.requeued_s)


@dataclass(slots=True)
class _Owner:
    """What one owner has in a queue. `nth`: of each gang, its place in the order in which they would go. `running`: how
    many run. `since_s`: when one of those that are left was last stopped; else when the first of them came."""

    nth: dict[WorkloadId, int] = field(default_factory=dict)
    running: int = 0
    since_s: float = 0.0


def _owners(view: OrderView) -> dict[tuple[str, str], _Owner]:
    lines: dict[tuple[str, str], list[Workload]] = {}
    for workload in view.work:
        lines.setdefault((workload.spec.queue, workload.spec.owner), []).append(workload)
    return {at: _owner(line, view) for at, line in lines.items()}


def _owner(line: list[Workload], view: OrderView) -> _Owner:
    ranked = sorted((-w.spec.priority, *_standing(w, view), w.submitted_s, w.sequence, w.spec.id) for w in line)
    stopped = [w.requeued_s for w in line if w.requeued_s is not None]
    return _Owner(
        {entry[-1]: nth for nth, entry in enumerate(ranked)},
        sum(w.state in LIVE for w in line),
        max(stopped) if stopped else min(w.submitted_s for w in line),
    )
