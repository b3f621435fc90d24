"""Cron: a workload that is submitted again and again, at the times of a schedule in a time zone.

When a schedule is due is calendar arithmetic, which is not done here: the owner is told the moments that have come
since it last looked, and decides which of them become submissions. A moment that was missed (the owner was down, or was
told late) is left out, made up for once, or made up for one by one; work of an earlier moment that has not ended runs
beside the new one, keeps it out, or is cancelled for it. After Kubernetes' CronJob; differs in that all missed moments
may be made up for, and that each submission's id names its moment, so that none can run twice.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.types import QueueId, Workload, WorkloadId, WorkloadSpec
from rayorch.core.wellformed import check_seconds, check_text

MAX_ID = 100
"""The moment comes after it in each workload's id."""
MOST_MADE_UP = 100
"""Missed moments that are made up for at one look; further ones are left out."""
MOST_KEPT = 1_000
"""Workloads of a cron that are looked at for whether they have ended."""
MAX_CRONS = 10_000


class Concurrency(StrEnum):
    """What becomes of a moment while work of an earlier one has not ended."""

    ALLOW = "allow"  # both run
    FORBID = "forbid"  # the moment is skipped
    REPLACE = "replace"  # the earlier work is cancelled


class Missed(StrEnum):
    """What becomes of moments at which nobody could submit."""

    SKIP = "skip"  # nothing
    ONCE = "once"  # the last of them is made up for
    ALL = "all"  # each of them is, in order


@dataclass(frozen=True, slots=True)
class CronSpec:
    """Submit `template` at every moment of `schedule` (five cron fields) in `time_zone` (IANA's name).

    The ids of the workloads are this one's and the moment's. `late_s`: a moment that is longer ago than that counts as
    missed. `suspended`: moments pass and nothing is submitted.
    """

    id: str
    schedule: str
    template: WorkloadSpec
    time_zone: str = "UTC"
    concurrency: Concurrency = Concurrency.FORBID
    missed: Missed = Missed.ONCE
    late_s: float = 60.0
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """One time of a schedule, and its name as part of an id."""

    at_s: float
    label: str


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron with what has come of it. `looked_s`: moments up to this time are over with.

    `alive`: its workloads that had not ended at the last look. `last`, `last_s`: what was submitted last, for which
    moment. `submitted`, `skipped`, `missed`, `refused`: how many moments became what. `note`: why the last one that was
    not submitted was not.
    """

    spec: CronSpec
    looked_s: float
    alive: tuple[WorkloadId, ...] = ()
    last: WorkloadId | None = None
    last_s: float | None = None
    submitted: int = 0
    skipped: int = 0
    missed: int = 0
    refused: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class CronView:
    """A cron and when it is due next; None while it is suspended."""

    cron: Cron
    next_s: float | None


@dataclass(frozen=True, slots=True)
class Firing:
    """The moments that are to become submissions, in order; `left_out`: how many are missed for good."""

    moments: tuple[Moment, ...]
    left_out: int = 0


def chosen(cron: Cron, moments: tuple[Moment, ...], now_s: float) -> Firing:
    """Which of the moments since the last look are to become submissions."""
    spec = cron.spec
    if spec.suspended:
        return Firing((), len(moments))
    late = tuple(m for m in moments if now_s - m.at_s > spec.late_s)
    timely = moments[len(late) :]
    made_up: tuple[Moment, ...] = ()
    if spec.missed is Missed.ALL:
        made_up = late[-MOST_MADE_UP:]
    elif spec.missed is Missed.ONCE and not timely:
        made_up = late[-1:]
    return Firing((*made_up, *timely), len(late) - len(made_up))


def workload_of(spec: CronSpec, moment: Moment) -> WorkloadSpec:
    """What is submitted for a moment."""
    return replace(spec.template, id=WorkloadId(f"{spec.id}-{moment.label}"))


def still_alive(cron: Cron, known: Mapping[WorkloadId, Workload]) -> tuple[WorkloadId, ...]:
    """Its workloads that have not ended."""
    found = ((id, known.get(id)) for id in cron.alive)
    return tuple(id for id, workload in found if workload is not None and not workload.state.terminal)


# ---------------------------------------------------------------- the door


def check_cron(spec: CronSpec, queues: Container[QueueId]) -> None:
    """SpecError or AdmissionError with the field; the schedule itself is checked by who can read it."""
    if not isinstance(spec, CronSpec):
        raise SpecError("", f"must be a CronSpec, got {type(spec).__name__}")
    for field in ("id", "schedule", "time_zone"):
        check_text(getattr(spec, field), field)
    if not spec.id or len(spec.id.encode()) > MAX_ID or "/" in spec.id or spec.id != spec.id.strip():
        raise SpecError("id", f"must have 1 to {MAX_ID} bytes, no slash and no space around, got {spec.id!r}")
    if not isinstance(spec.concurrency, Concurrency) or not isinstance(spec.missed, Missed):
        raise SpecError("concurrency", f"and missed must be words of theirs, got {spec.concurrency!r}, {spec.missed!r}")
    check_seconds(spec.late_s, "late_s")
    if not isinstance(spec.suspended, bool):
        raise SpecError("suspended", f"must be true or false, got {spec.suspended!r}")
    if not isinstance(spec.template, WorkloadSpec):
        raise SpecError("template", f"must be a WorkloadSpec, got {spec.template!r}")
    for field in ("begin_s", "deadline_s"):
        if getattr(spec.template, field) is not None:
            raise SpecError(f"template.{field}", "is one moment, and the template is for all of them")
    if spec.template.queue not in queues:
        raise AdmissionError("template.queue", f"queue {spec.template.queue!r} does not exist")
