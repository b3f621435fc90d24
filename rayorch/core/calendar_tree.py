"""The part of the queue tree that keeps reservations and crons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rayorch.core.admission import check_workload
from rayorch.core.cron import (
    MAX_CRONS,
    MOST_KEPT,
    Concurrency,
    Cron,
    CronSpec,
    Moment,
    check_cron,
    chosen,
    still_alive,
    workload_of,
)
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.events import CronDeleted, CronLooked, CronSet, Event
from rayorch.core.reservations import ReservationBook
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import QueueId, QueueSpec, Workload, WorkloadId, WorkloadSpec


class CalendarTree:
    """A base of the queue tree, which says how a workload is submitted and cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self._reservations = ReservationBook()
        self._crons: dict[str, Cron] = {}

    @property
    def queues(self) -> Mapping[QueueId, QueueSpec]:
        """All queues by path."""
        raise NotImplementedError

    @property
    def workloads(self) -> Mapping[WorkloadId, Workload]:
        """All workloads."""
        raise NotImplementedError

    def submit(self, spec: WorkloadSpec, now_s: float) -> tuple[Event, ...]:
        """Accept a workload."""
        raise NotImplementedError

    def cancel(self, id: WorkloadId, reason: str, now_s: float) -> tuple[Event, ...]:
        """End a workload."""
        raise NotImplementedError

    @property
    def reservations(self) -> tuple[ReservationSpec, ...]:
        """All reservations by id."""
        return self._reservations.sorted

    @property
    def crons(self) -> Mapping[str, Cron]:
        """All crons by id."""
        return self._crons

    def set_reservation(self, spec: ReservationSpec, now_s: float) -> tuple[Event, ...]:
        """Hold room in advance, or change what is held. SpecError, AdmissionError."""
        return self._reservations.set(spec, self.queues, now_s)

    def delete_reservation(self, id: str, now_s: float) -> tuple[Event, ...]:
        """Hold it no longer; what runs in it goes on. AdmissionError for an unknown one."""
        return self._reservations.delete(id, now_s)

    def set_cron(self, spec: CronSpec, now_s: float) -> tuple[Event, ...]:
        """Submit by a schedule from now on, or otherwise than before. SpecError, AdmissionError."""
        check_cron(spec, self.queues)
        sample = workload_of(spec, Moment(now_s, "20000101T0000Z"))
        try:
            check_workload(sample)
        except SpecError as error:
            raise SpecError(f"template.{error.field}", error.message) from error
        known = self._crons.get(spec.id)
        if known is None and len(self._crons) >= MAX_CRONS:
            raise AdmissionError("id", f"there are {MAX_CRONS} crons already")
        return () if known is not None and known.spec == spec else (CronSet(spec, now_s),)

    def delete_cron(self, id: str, now_s: float) -> tuple[Event, ...]:
        """Submit no more of it; what was submitted goes on. AdmissionError for an unknown one."""
        if id not in self._crons:
            raise AdmissionError("id", f"there is no cron {id!r}")
        return (CronDeleted(id, now_s),)

    def look_at_cron(self, id: str, moments: tuple[Moment, ...], now_s: float) -> tuple[Event, ...]:
        """What follows from these moments of a cron, all that have come since the last look up to now; one by one.

        Call it again with the events applied until nothing follows. () for an unknown cron.
        """
        cron = self._crons.get(id)
        due = tuple(m for m in moments if cron is not None and m.at_s > cron.looked_s)
        if cron is None or not due:
            return ()
        firing = chosen(cron, due, now_s)
        if not firing.moments:
            note = "suspended" if cron.spec.suspended else f"{firing.left_out} moments were missed"
            return (CronLooked(id, due[-1].at_s, None, 0, firing.left_out, 0, note, now_s),)
        return self._fire(cron, firing.moments[0], firing.left_out, now_s)

    def _fire(self, cron: Cron, moment: Moment, left_out: int, now_s: float) -> tuple[Event, ...]:
        spec, alive = workload_of(cron.spec, moment), still_alive(cron, self.workloads)
        if alive and cron.spec.concurrency is Concurrency.FORBID:
            note = f"{moment.label} was skipped: {alive[-1]} has not ended"
            return (CronLooked(cron.spec.id, moment.at_s, None, 1, left_out, 0, note, now_s),)
        ends: tuple[Event, ...] = ()
        if cron.spec.concurrency is Concurrency.REPLACE:
            reason = f"its cron submits {spec.id} in its place"
            ends = tuple(event for id in alive for event in self.cancel(id, reason, now_s))
        try:
            accepted = self.submit(spec, now_s)
        except (SpecError, AdmissionError) as error:
            note = f"{moment.label} was refused: {error}"
            return (*ends, CronLooked(cron.spec.id, moment.at_s, None, 0, left_out, 1, note, now_s))
        looked = CronLooked(cron.spec.id, moment.at_s, spec.id, 0, left_out, 0, "", now_s)
        return (*ends, *accepted, looked)

    def _apply_cron(self, event: CronSet | CronDeleted | CronLooked) -> None:
        match event:
            case CronSet(spec=spec, at_s=at_s):
                known = self._crons.get(spec.id)
                self._crons[spec.id] = Cron(spec, at_s) if known is None else replace(known, spec=spec)
            case CronDeleted(cron=id):
                self._crons.pop(id, None)
            case CronLooked(cron=id):
                self._crons[id] = self._looked(self._crons[id], event)

    def _looked(self, cron: Cron, event: CronLooked) -> Cron:
        alive = still_alive(cron, self.workloads)
        submitted = event.workload is not None
        return replace(
            cron,
            looked_s=max(cron.looked_s, event.until_s),
            alive=(*alive, event.workload)[-MOST_KEPT:] if event.workload is not None else alive,
            last=event.workload if submitted else cron.last,
            last_s=event.until_s if submitted else cron.last_s,
            submitted=cron.submitted + submitted,
            skipped=cron.skipped + event.skipped,
            missed=cron.missed + event.missed,
            refused=cron.refused + event.refused,
            note=event.note or cron.note,
        )
