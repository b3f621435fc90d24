"""Parts of the queue owner's commands: what each lets happen on a stage, and which of it concerns the controller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from rayorch.actors.durable_tree import Stage
from rayorch.core.cron import Moment
from rayorch.core.decisions import Stop, Watch
from rayorch.core.errors import ClusterError, RayorchError, StalePlanError
from rayorch.core.events import AttemptEnded, Event, Forgotten, HalfLifeSet, Reported
from rayorch.core.reports import CheckpointCommitted, StepReported, WorkersStarted
from rayorch.core.requests import ACCEPTED, AttemptRef, Reply, ReportRequest, StartRequest, SubmitResult, refusal
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


def alone(stage: Stage, step: Callable[[Stage], None]) -> Reply:
    """Do one of several on a stage. Whatever goes wrong with it, a defect too, is its own answer and no other's.

    What comes after an event that could not be applied is refused, and what came before it has happened.
    """
    try:
        if stage.broken:
            raise ClusterError("not accepted: the tree is built anew first; ask again")
        step(stage)
    except RayorchError as error:
        return refusal(error)
    except Exception as error:
        log.exception("one of several commands failed")
        return refusal(ClusterError(f"not accepted: {type(error).__name__}: {error}"))
    return ACCEPTED


def admit(stage: Stage, spec: WorkloadSpec, tell: bool) -> SubmitResult:
    """What becomes of one submission; `tell`: with the workload as it is then."""
    reply = alone(stage, lambda stage: stage.take(stage.tree.submit(spec, stage.now_s)))
    return SubmitResult(spec.id, reply, stage.tree.workloads[spec.id] if tell and reply.accepted else None)


def start(request: StartRequest, stage: Stage) -> tuple[Event, ...]:
    """An attempt, or those of a joint gang, begin."""
    return stage.tree.commit_start(request.start, request.versions, stage.now_s, request.partners)


def stop(decision: Stop, stage: Stage) -> tuple[Event, ...]:
    """An attempt is to end."""
    return stage.tree.commit_stop(decision, stage.now_s)


def watch(decision: Watch, stage: Stage) -> tuple[Event, ...]:
    """Others share a GPU with an attempt now."""
    return stage.tree.commit_watch(decision, stage.now_s)


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
