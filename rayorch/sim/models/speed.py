"""How fast work goes where it lies: the same gang on one node or on many, beside what the trace says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rayorch.sim.models.measured import Application, packed
from rayorch.sim.trace.model import TraceJob


class SpeedModel(Protocol):
    """Work done in a second on these seats, where a second of the trace's duration is 1."""

    def rate(self, job: TraceJob, gpus_by_node: tuple[int, ...]) -> float:
        """`gpus_by_node`: GPUs on each node that it lies on, the nodes in order."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Measured step times by placement, against the gang on as few nodes of `per_node` GPUs as there can be.

    `applications`, `batches`: by a job's `name` and by its id; what is not there is as fast anywhere. The batch stays,
    so that an epoch takes as many steps wherever the gang lies, and the ratio of two step times holds for all of it.
    """

    applications: Mapping[str, Application]
    batches: Mapping[str, int]
    per_node: int = 4
    _known: dict[tuple[str, int, tuple[int, ...]], float] = field(default_factory=dict, repr=False, compare=False)

    def rate(self, job: TraceJob, gpus_by_node: tuple[int, ...]) -> float:
        """See SpeedModel."""
        application, batch = self.applications.get(job.name), self.batches.get(job.id)
        if application is None or batch is None:
            return 1.0
        key = (job.name, batch, gpus_by_node)
        if key not in self._known:
            reference = packed(sum(gpus_by_node), self.per_node)
            self._known[key] = application.rate(gpus_by_node, batch, 0) / application.rate(reference, batch, 0)
        return self._known[key]
