"""The parts of a Workload document that ask something of time: limits, begin, retries, dependencies, arrays."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, TypedDict

from pydantic import BeforeValidator, Field

from rayorch.config.fields import Duration, Items, Model
from rayorch.config.profile import Knob
from rayorch.core.errors import SpecError
from rayorch.core.ids import WorkloadId
from rayorch.core.timing import After, ArraySpec, Dependency, RetryRule
from rayorch.core.timing_checks import MAX_ENTRIES, MAX_RETRIES

_ARRAY = re.compile(r"([0-9]{1,10})-([0-9]{1,10})(?:%([0-9]{1,6}))?\Z")


def moment_s(value: object) -> float:
    """Seconds since the epoch of 2026-12-01T09:00:00+01:00 (or …Z), or of a number; ValueError for anything else.

    A time without an offset is refused: whose clock it is on nobody knows.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12:
        return float(value)
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
        if found is not None and found.tzinfo is not None:
            return found.timestamp()
    raise ValueError(f"must be a time with its offset such as 2026-12-01T09:00:00+01:00, got {str(value)[:60]!r}")


def _array(value: object) -> object:
    """100 entries; "0-99" or "1-100%20" as Slurm has it; or a mapping."""
    if isinstance(value, bool):
        raise ValueError("must be a number of entries, or first-last%most")
    if isinstance(value, int):
        return {"count": value}
    if isinstance(value, str):
        found = _ARRAY.match(value)
        if found is None:
            raise ValueError(f"must be a number of entries, or first-last%most such as 0-99%20, got {value[:60]!r}")
        first, last, most = int(found[1]), int(found[2]), found[3]
        if last < first:
            raise ValueError(f"the last entry ({last}) is before the first ({first})")
        return {"first": first, "count": last - first + 1, "maxRunning": int(most) if most else None}
    return value


def _after(value: object) -> object:
    """afterok:prep, or afterok:prep:fetch for both; singleton."""
    if not isinstance(value, str):
        raise ValueError(f"must be such as afterok:prep, or singleton, got {str(value)[:60]!r}")
    kind, *others = value.split(":")
    if kind not in tuple(After):
        raise ValueError(f"must begin with one of {', '.join(After)}, got {kind[:60]!r}")
    if (kind == After.SINGLETON) != (not others) or not all(others):
        raise ValueError("singleton names no other workload, every other kind names at least one: afterok:prep")
    return value


class BackfillSection(Model):
    """The `backfill` section of the Cluster document: `core.policy.BackfillKnobs`; what is left out is the preset's."""

    hold: bool | None = None
    heads: Annotated[int, Field(ge=0, le=100_000)] | None = None
    most_looks: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    most_tries: Annotated[int, Field(ge=0, le=100_000)] | None = None
    lend: bool | None = None

    def to_knobs(self) -> dict[str, Knob]:
        """By the field names of BackfillKnobs."""
        found: dict[str, Knob] = self.model_dump(exclude_none=True)
        return found


class ReservationsSection(Model):
    """The `reservations` section of the Cluster document: how long before its start one begins to hold nodes."""

    lead: Duration | None = None

    def to_knobs(self) -> dict[str, float]:
        """By the field names of ReservationKnobs."""
        return {} if self.lead is None else {"lead_s": self.lead}


Moment = Annotated[float, BeforeValidator(moment_s)]
"""Seconds since the epoch; written 2026-12-01T09:00:00+01:00."""
AfterText = Annotated[str, BeforeValidator(_after)]
Count = Annotated[int, Field(ge=0, le=MAX_RETRIES)]


class Rule(Model):
    """`exit_codes` empty: all. `backoff`: before the first of these retries, doubled each time."""

    exit_codes: Items[int] = ()
    max: Count = 0
    backoff: Duration | None = None


class Retry(Model):
    """How many failures of its own are retried; `rules` by exit code, the first that names it counts.

    `max_requeues`: how often it goes back to its queue for what is not its own fault; without it, always.
    """

    max: Annotated[int, Field(ge=0, le=1000)] = 0
    rules: Items[Rule] = ()
    max_requeues: Count | None = None


class Array(Model):
    """`count` entries from `first` on, of which at most `max_running` run at a time."""

    count: Annotated[int, Field(ge=1, le=MAX_ENTRIES)]
    max_running: Annotated[int, Field(ge=1)] | None = None
    first: Annotated[int, Field(ge=0)] = 0


class TimingBody(Model):
    """`wall_limit`: it is stopped for good after running that long. `expected`: how long its owner thinks that it runs.

    `begin`: it does not start before. `deadline`: it must have ended by then. `total_steps`: how many steps it has
    to do. `after`: what must have happened to others first (afterok:prep).
    """

    wall_limit: Duration | None = None
    expected: Duration | None = None
    begin: Moment | None = None
    deadline: Moment | None = None
    total_steps: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    after: Items[AfterText] = ()
    retry: Retry = Retry()
    array: Annotated[Array | None, BeforeValidator(_array)] = None
    reservation: str = ""


class Timing(TypedDict):
    """The fields of a WorkloadSpec that a document's times become."""

    max_retries: int
    wall_limit_s: float | None
    expected_s: float | None
    begin_s: float | None
    deadline_s: float | None
    total_steps: int | None
    array: ArraySpec | None
    after: tuple[Dependency, ...]
    retries: tuple[RetryRule, ...]
    max_requeues: int | None
    reservation: str


def timing_of(body: TimingBody) -> Timing:
    """In core's words; SpecError for what can't be right on any cluster."""
    if body.wall_limit == 0:
        raise SpecError("spec.wallLimit", "must not be zero: it could never run")
    retry, array = body.retry, body.array
    return {
        "max_retries": retry.max,
        "wall_limit_s": body.wall_limit,
        "expected_s": body.expected,
        "begin_s": body.begin,
        "deadline_s": body.deadline,
        "total_steps": body.total_steps,
        "array": ArraySpec(array.count, array.max_running, array.first) if array is not None else None,
        "after": tuple(dependency for text in body.after for dependency in dependencies_of(text)),
        "retries": tuple(RetryRule(rule.exit_codes, rule.max, rule.backoff) for rule in retry.rules),
        "max_requeues": retry.max_requeues,
        "reservation": body.reservation,
    }


def dependencies_of(text: str) -> tuple[Dependency, ...]:
    """What afterok:prep:fetch asks for, one for each workload that it names."""
    kind, *others = text.split(":")
    if not others:
        return (Dependency(After(kind)),)
    return tuple(Dependency(After(kind), WorkloadId(other)) for other in others)
