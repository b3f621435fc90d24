"""Reservations: room held in advance for a queue, from one time to another, repeated, or standing (hot spares).

A *window* is one occurrence. Who runs in a reservation names it in its spec; what it holds there counts for the
reservation, so that of `count` bundles only the others are still set aside. A standing one sets `count` aside whatever
is used: what is taken or lost is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass

from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.events import ReservationDeleted, ReservationSet
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import MAX_UNITS, QueueId, Resources, WorkloadSpec, total
from rayorch.core.wellformed import (
    check_accelerators,
    check_moment,
    check_resources,
    check_seconds,
    check_text,
    check_topology,
    check_whole,
)

MAX_COUNT = 100_000
MAX_OWNERS = 1_000
MAX_ID = 128
KEPT_S = 86_400.0
"""A reservation that is over is removed after this time."""


@dataclass(frozen=True, slots=True)
class Window:
    """One occurrence: from `start_s` until `end_s` (None: without end)."""

    start_s: float
    end_s: float | None

    def active(self, now_s: float) -> bool:
        """Whether it has begun and not ended."""
        return self.start_s <= now_s and (self.end_s is None or now_s < self.end_s)


@dataclass(frozen=True, slots=True)
class ReservationView:
    """How a reservation is, by the last plan. `window` None: it is over.

    `in_use`: bundles that work of it holds. `set_aside`: further ones that are held for it now. `missing`: what it
    lacks now, or would lack at its start by what is known today.
    """

    spec: ReservationSpec
    window: Window | None
    in_use: int = 0
    set_aside: int = 0
    missing: int = 0


def window_of(spec: ReservationSpec, now_s: float) -> Window | None:
    """The present window, else the next one; None when there is none any more."""
    if spec.end_s is None or spec.standing:
        return Window(spec.start_s, None)
    if spec.every_s is None:
        return Window(spec.start_s, spec.end_s) if now_s < spec.end_s else None
    length_s = spec.end_s - spec.start_s
    passed = max(0, math.floor((now_s - spec.start_s) / spec.every_s))
    start_s = spec.start_s + passed * spec.every_s
    if now_s >= start_s + length_s:
        start_s = spec.start_s + (passed + 1) * spec.every_s
    return Window(start_s, start_s + length_s)


def over_since_s(spec: ReservationSpec, now_s: float) -> float | None:
    """Since when a reservation has been over, None while it is not."""
    return spec.end_s if window_of(spec, now_s) is None else None


def bundles_in(held: Iterable[Resources], bundle: Resources) -> int:
    """How many bundles these amounts use up together."""
    used = total(held)
    return max((-(-used.units(name) // units) for name, units in bundle if units), default=0)


class ReservationBook:
    """All reservations by id; the queue tree's part that keeps them."""

    def __init__(self, specs: Iterable[ReservationSpec] = ()) -> None:
        self.specs = {spec.id: spec for spec in specs}

    @property
    def sorted(self) -> tuple[ReservationSpec, ...]:
        """By id."""
        return tuple(self.specs[id] for id in sorted(self.specs))

    def set(self, spec: ReservationSpec, queues: Container[QueueId], now_s: float) -> tuple[ReservationSet, ...]:
        """Hold room. SpecError; AdmissionError for an unknown queue, or one that would be over at once."""
        check_reservation(spec)
        if spec.queue not in queues:
            raise AdmissionError("queue", f"queue {spec.queue!r} does not exist")
        if self.specs.get(spec.id) == spec:
            return ()
        if window_of(spec, now_s) is None:
            raise AdmissionError("end_s", "lies in the past")
        return (ReservationSet(spec, now_s),)

    def delete(self, id: str, now_s: float) -> tuple[ReservationDeleted, ...]:
        """Hold it no longer; what runs in it goes on. AdmissionError for an unknown one."""
        if id not in self.specs:
            raise AdmissionError("id", f"there is no reservation {id!r}")
        return (ReservationDeleted(id, now_s),)

    def over(self, now_s: float) -> tuple[ReservationDeleted, ...]:
        """Those that have been over for long enough."""
        if not self.specs:
            return ()
        ends = {id: over_since_s(spec, now_s) for id, spec in self.specs.items()}
        return tuple(
            ReservationDeleted(id, now_s) for id, end_s in ends.items() if end_s is not None and now_s > end_s + KEPT_S
        )

    def apply(self, event: ReservationSet | ReservationDeleted) -> None:
        """Take in one event."""
        match event:
            case ReservationSet(spec=spec):
                self.specs[spec.id] = spec
            case ReservationDeleted(reservation=id):
                self.specs.pop(id, None)


# ---------------------------------------------------------------- the door


def check_reservation(spec: ReservationSpec) -> None:
    """SpecError with the path of the first field that can't be right."""
    if not isinstance(spec, ReservationSpec):
        raise SpecError("", f"must be a ReservationSpec, got {type(spec).__name__}")
    for field in ("id", "queue"):
        check_text(getattr(spec, field), field)
    if not spec.id or len(spec.id) > MAX_ID or "/" in spec.id or spec.id != spec.id.strip():
        raise SpecError("id", f"must have 1 to {MAX_ID} characters, no slash and no space around, got {spec.id!r}")
    check_whole(spec.count, "count")
    if not 1 <= spec.count <= MAX_COUNT:
        raise SpecError("count", f"must be from 1 to {MAX_COUNT}, got {spec.count}")
    check_resources(spec.bundle, "bundle")
    if not spec.bundle or any(units < 0 or units * spec.count > MAX_UNITS for _, units in spec.bundle):
        raise SpecError("bundle", f"must ask for something that can be counted, got {spec.bundle!r}")
    check_accelerators(spec.accelerators, "accelerators")
    check_topology(spec.topology, "topology")
    if not isinstance(spec.standing, bool):
        raise SpecError("standing", f"must be true or false, got {spec.standing!r}")
    if not isinstance(spec.owners, tuple) or len(spec.owners) > MAX_OWNERS:
        raise SpecError("owners", f"must be a tuple of at most {MAX_OWNERS} names")
    for n, owner in enumerate(spec.owners):
        check_text(owner, f"owners[{n}]")
    _check_times(spec)


def _check_times(spec: ReservationSpec) -> None:
    check_moment(spec.start_s, "start_s")
    if spec.standing:
        if spec.end_s is not None or spec.every_s is not None:
            raise SpecError("standing", "goes on without end: it has neither an end nor a period")
        return
    if spec.end_s is None:
        raise SpecError("end_s", "is needed, unless it is standing")
    check_moment(spec.end_s, "end_s")
    if spec.end_s <= spec.start_s:
        raise SpecError("end_s", "must be after the start")
    if spec.every_s is not None:
        check_seconds(spec.every_s, "every_s")
        if spec.every_s < spec.end_s - spec.start_s:
            raise SpecError("every_s", "must not be shorter than one occurrence")


def check_use(spec: WorkloadSpec, reservation: ReservationSpec | None, now_s: float) -> None:
    """AdmissionError when the workload could never run in the reservation that it names."""
    if reservation is None:
        raise AdmissionError("reservation", f"there is no reservation {spec.reservation!r}")
    refusal = not_for(spec.queue, spec.owner, reservation)
    if refusal:
        raise AdmissionError("reservation", refusal)
    if window_of(reservation, now_s) is None:
        raise AdmissionError("reservation", f"reservation {spec.reservation!r} is over")
    room = reservation.bundle.times(reservation.count)
    for name, units in spec.min_resources:
        if units > room.units(name):
            raise AdmissionError("reservation", f"the gang's minimum needs more {name} than {reservation.id} holds")


def not_for(queue: QueueId, owner: str, reservation: ReservationSpec) -> str:
    """Why work of the queue and owner may not use a reservation; empty when it may."""
    if queue != reservation.queue and not queue.startswith(f"{reservation.queue}/"):
        return f"reservation {reservation.id!r} is for queue {reservation.queue}"
    if reservation.owners and owner not in reservation.owners:
        return f"reservation {reservation.id!r} is for {', '.join(reservation.owners[:5])}"
    return ""
