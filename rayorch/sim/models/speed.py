"""How fast work goes where it lies, and with how many members: a gang on one node or on many, of two or of ten."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rayorch.core.errors import SpecError
from rayorch.core.types import UNIT
from rayorch.sim.models.measured import Application, packed
from rayorch.sim.trace.model import TraceJob

SERIAL = 0.05
"""The part of a step that more members do not shorten, where nothing was measured: 16 members are 9.1 times as fast."""


class SpeedModel(Protocol):
    """Work done in a second on these seats, where a second of the trace's duration is 1."""

    def rate(self, job: TraceJob, gpus_by_node: tuple[int, ...]) -> float:
        """`gpus_by_node`: GPUs on each node that it lies on, the nodes in order."""
        ...


@dataclass(frozen=True, slots=True)
class Amdahl:
    """n members are n / (1 + serial (n - 1)) times as fast as one (Amdahl 1967), wherever they lie."""

    serial: float = SERIAL

    def speedup(self, members: int) -> float:
        """Against one member."""
        return members / (1.0 + self.serial * (members - 1))

    def relative(self, members: int, asked: int) -> float:
        """Against as many as were asked for."""
        return 1.0 if members == asked else self.speedup(members) / self.speedup(asked)

    def rate(self, job: TraceJob, gpus_by_node: tuple[int, ...]) -> float:
        """See SpeedModel."""
        each = max(1, -(-job.ask.each.gpu_units // UNIT))
        return self.relative(max(1, round(sum(gpus_by_node) / each)), job.ask.members)


AMDAHL = Amdahl()


@dataclass(frozen=True, slots=True)
class TableSpeed:
    """Measured throughputs by a job's `name` and its GPUs, wherever they lie: ((GPUs, steps/s), …), rising.

    Between two measured sizes throughput lies on a straight line, beyond the last it stays. What is not there scales
    by `other`.
    """

    tables: Mapping[str, tuple[tuple[int, float], ...]]
    other: Amdahl = AMDAHL

    def rate(self, job: TraceJob, gpus_by_node: tuple[int, ...]) -> float:
        """See SpeedModel."""
        table = self.tables.get(job.name)
        if not table:
            return self.other.rate(job, gpus_by_node)
        return _between(table, sum(gpus_by_node)) / _between(table, asked_gpus(job))


def _between(table: tuple[tuple[int, float], ...], gpus: int) -> float:
    below = [point for point in table if point[0] <= gpus]
    above = [point for point in table if point[0] >= gpus]
    if not below:
        (first, speed), *_ = table
        return speed * gpus / first
    (x0, y0), (x1, y1) = below[-1], above[0] if above else below[-1]
    return y0 if x1 == x0 else y0 + (y1 - y0) * (gpus - x0) / (x1 - x0)


def asked_gpus(job: TraceJob) -> int:
    """Whole GPUs that a job asks for."""
    return -(-job.ask.gpu_units // UNIT)


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Measured step times by placement, against the gang as it was asked for, on as few nodes of `per_node` GPUs as
    there can be.

    `applications`, `batches`: by a job's `name` and by its id (else `TraceJob.batch`); what is not there is as fast
    anywhere, and scales by `other` where it is elastic. The batch stays, so that an epoch takes as many steps wherever
    the gang lies, and the ratio of two step times holds for all of it. With `adaptive` an elastic job takes, in each
    epoch, the trained batch size with which its placement makes most progress (goodput, Qiao 2021); its rate is that
    of the whole training.
    """

    applications: Mapping[str, Application]
    batches: Mapping[str, int]
    per_node: int = 4
    adaptive: bool = False
    other: Amdahl = AMDAHL
    _known: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False, compare=False)

    def rate(self, job: TraceJob, gpus_by_node: tuple[int, ...]) -> float:
        """See SpeedModel."""
        application, batch = self.applications.get(job.name), job.batch or self.batches.get(job.id)
        elastic = job.ask.elastic
        if application is None or batch is None:
            return self.other.rate(job, gpus_by_node) if elastic else 1.0
        asked = asked_gpus(job) if elastic else sum(gpus_by_node)
        where = tuple(sorted(gpus_by_node, reverse=True)) if elastic else gpus_by_node
        key = (job.name, batch, where, asked, elastic)
        if key not in self._known:
            reference = packed(asked, self.per_node)
            if not elastic:
                rate = application.rate(where, batch, 0) / application.rate(reference, batch, 0)
            elif self.adaptive:
                rate = application.duration_s(reference, batch) / self._best_s(application, where)
            else:
                rate = self._step_rate(application, where, batch) / application.rate(reference, batch, 0)
            self._known[key] = rate
        return self._known[key]

    def _step_rate(self, application: Application, where: tuple[int, ...], batch: int) -> float:
        """Where nothing near a placement was measured it is as fast as on as few nodes as there can be."""
        try:
            return application.rate(where, batch, 0)
        except SpecError:
            return application.rate(packed(sum(where), self.per_node), batch, 0)

    def _best_s(self, application: Application, where: tuple[int, ...]) -> float:
        best_s = application.best_s(where)
        return best_s if math.isfinite(best_s) else application.best_s(packed(sum(where), self.per_node))


def sizes_of(application: Application, asked: int, batch: int, adaptive: bool, per_node: int = 4) -> tuple[int, int]:
    """(fewest, most) GPUs with which an application was measured, all sizes between them included."""

    def able(gpus: int) -> bool:
        where = packed(gpus, per_node)
        if adaptive:
            return application.trains_on(where)
        try:
            return application.rate(where, batch, 0) > 0
        except SpecError:
            return False

    limit = max((replicas for _, replicas in application.grid), default=asked)
    low = high = asked
    while low > 1 and able(low - 1):
        low -= 1
    while high < limit and able(high + 1):
        high += 1
    return low, high
