"""The documents of reservations and of what is submitted again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from rayorch.config.calendar import check_schedule
from rayorch.config.documents import WorkloadBody, WorkloadDocument, WorkloadMetadata
from rayorch.config.fields import Accelerators, Amounts, Duration, Items, Model, Name, QueuePath, Version, resources
from rayorch.config.gangs import Topology
from rayorch.config.timing import Moment
from rayorch.core.cron import Concurrency, CronSpec, Missed
from rayorch.core.errors import SpecError
from rayorch.core.reservations import MAX_COUNT, check_reservation
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import QueueId


class CalendarMetadata(Model):
    """Its name, and the queue that it is for."""

    name: Name
    queue: QueuePath


class ReservationBody(Model):
    """`count` bundles of `resources`, from `start` until `end` or for `duration`, repeated `every` so often.

    `standing`: without end; what is used or lost is replaced. Without a start it begins at once. `owners`: who may use
    it, empty: everyone of the queue.
    """

    count: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    resources: Amounts
    start: Moment = 0.0
    end: Moment | None = None
    duration: Duration | None = None
    every: Duration | None = None
    standing: bool = False
    owners: Items[str] = ()
    topology: Topology = Topology()
    accelerators: Accelerators = ()


class ReservationDocument(Model):
    """Room that is held in advance."""

    api_version: Version
    kind: Literal["Reservation"]
    metadata: CalendarMetadata
    spec: ReservationBody

    def to_core(self) -> ReservationSpec:
        """In core's words; SpecError for what can't be right on any cluster."""
        body, end_s = self.spec, self.spec.end
        if body.duration is not None:
            if end_s is not None:
                raise SpecError("spec.duration", "and end say the same twice")
            end_s = body.start + body.duration
        spec = ReservationSpec(
            id=self.metadata.name,
            queue=QueueId(self.metadata.queue),
            bundle=resources(body.resources, "spec.resources"),
            count=body.count,
            start_s=body.start,
            end_s=end_s,
            standing=body.standing,
            owners=body.owners,
            topology=body.topology.to_core(),
            accelerators=body.accelerators,
            every_s=body.every,
        )
        try:
            check_reservation(spec)
        except SpecError as error:
            raise SpecError(_FIELDS.get(error.field, f"spec.{error.field}"), error.message) from error
        return spec


_FIELDS: Mapping[str, str] = {
    "id": "metadata.name",
    "bundle": "spec.resources",
    "start_s": "spec.start",
    "end_s": "spec.end",
    "every_s": "spec.every",
}


class CronBody(Model):
    """`schedule`: five cron fields in `time_zone`. `workload`: as the spec of a Workload.

    `concurrency`: what becomes of a moment while earlier work has not ended; `missed`: of moments at which nobody could
    submit; a moment that is more than `late_after` ago is one.
    """

    schedule: str
    time_zone: str = "UTC"
    concurrency: Literal["allow", "forbid", "replace"] = "forbid"
    missed: Literal["skip", "once", "all"] = "once"
    late_after: Duration = 60.0
    suspended: bool = False
    workload: WorkloadBody


class CronDocument(Model):
    """A workload that is submitted again and again."""

    api_version: Version
    kind: Literal["Cron"]
    metadata: WorkloadMetadata
    spec: CronBody

    def to_core(self, owner: str = "") -> CronSpec:
        """In core's words; SpecError for what can't be right on any cluster."""
        body = self.spec
        try:
            check_schedule(body.schedule, body.time_zone)
        except SpecError as error:
            field = "spec.timeZone" if error.field == "time_zone" else "spec.schedule"
            raise SpecError(field, error.message) from error
        template = WorkloadDocument(
            api_version="rayorch/v1", kind="Workload", metadata=self.metadata, spec=body.workload
        )
        try:
            spec = template.to_core(owner)
        except SpecError as error:
            raise SpecError(error.field.replace("spec.", "spec.workload.", 1), error.message) from error
        return CronSpec(
            id=self.metadata.id or self.metadata.name,
            schedule=body.schedule,
            template=spec,
            time_zone=body.time_zone,
            concurrency=Concurrency(body.concurrency),
            missed=Missed(body.missed),
            late_s=body.late_after,
            suspended=body.suspended,
        )
