"""Parts of the queue owner's commands: what each lets happen on a stage, and which of it concerns the controller."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rayorch.actors.durable_tree import Stage
from rayorch.core.cron import Moment
from rayorch.core.decisions import Stop
from rayorch.core.errors import RayorchError, StalePlanError
from rayorch.core.events import AttemptEnded, Event, Forgotten, HalfLifeSet, Reported
from rayorch.core.reports import CheckpointCommitted, StepReported, WorkersStarted
from rayorch.core.requests import ACCEPTED, AttemptRef, ReportRequest, StartRequest, SubmitResult, refusal
from rayorch.core.types import WorkloadSpec

log = logging.getLogger(__name__)


def fired(cron: str, moments: tuple[Moment, ...], stage: Stage) -> tuple[Event, ...]:
    """What follows from a cron's moments, one after the other; the last events are left to the caller."""
    events = stage.tree.look_at_cron(cron, moments, stage.now_s)
    while events:
        stage.take(events)
        stage.settle()
        events = stage.tree.look_at_cron(cron, moments, stage.now_s)
    return ()


def admit(stage: Stage, spec: WorkloadSpec, tell: bool) -> SubmitResult:
    """What becomes of one submission; `tell`: with the workload as it is then."""
    try:
        stage.take(stage.tree.submit(spec, stage.now_s))
    except RayorchError as error:
        if stage.broken:
            raise
        return SubmitResult(spec.id, refusal(error))
    return SubmitResult(spec.id, ACCEPTED, stage.tree.workloads[spec.id] if tell else None)


def start(request: StartRequest, stage: Stage) -> tuple[Event, ...]:
    """An attempt, or those of a joint gang, begin."""
    return stage.tree.commit_start(request.start, request.versions, stage.now_s, request.partners)


def stop(decision: Stop, stage: Stage) -> tuple[Event, ...]:
    """An attempt is to end."""
    return stage.tree.commit_stop(decision, stage.now_s)


def ready(attempt: AttemptRef, stage: Stage) -> tuple[Event, ...]:
    """The work of an attempt has begun."""
    return stage.tree.ready(attempt.workload, attempt.attempt, stage.now_s)


def end(ended: AttemptEnded, stage: Stage) -> tuple[Event, ...]:
    """An attempt is over."""
    return stage.tree.end_attempt(ended)


def reported(stage: Stage, request: ReportRequest) -> tuple[Event, ...]:
    """What an attempt says of itself."""
    return stage.tree.report(request.workload, request.attempt, request.report, stage.now_s)


def still_true(stage: Stage, held: Iterable[ReportRequest]) -> tuple[Event, ...]:
    """The events of reports that were held back, without those whose attempt is over."""
    events: list[Event] = []
    for request in held:
        try:
            events += reported(stage, request)
        except StalePlanError as error:
            log.info("a held report came too late: %s", error)
    return tuple(events)


def matters(event: Event) -> bool:
    """Whether the controller could do something because of it."""
    match event:
        case Reported(report=StepReported() | CheckpointCommitted() | WorkersStarted()) | Forgotten() | HalfLifeSet():
            return False
        case _:
            return True
