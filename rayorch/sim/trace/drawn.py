"""What the trace and the models say of each job of a run: what is submitted, how much work it is, how fast it goes."""

from __future__ import annotations

import numpy as np

from rayorch.core.types import UNIT, Kind, Member, NodeId, QueueId, Role, WorkloadId, WorkloadSpec
from rayorch.core.values import changed
from rayorch.sim.models import SimModels, stream
from rayorch.sim.models.failures import FaultKind
from rayorch.sim.models.restart import RestartCost
from rayorch.sim.trace.jobs import RunningJob
from rayorch.sim.trace.model import Trace, TraceJob

MANY = 1_000
"""Retries of work that fails for no reason of its own."""


class Drawn:
    """See the module. Run times are drawn for all jobs at once, so that no decision moves a draw."""

    def __init__(self, trace: Trace, models: SimModels, seed: int) -> None:
        self._models = models
        self._speed = models.speed if models.speed is not None else trace.speed
        self._seed = seed
        self._costs: dict[str, RestartCost] = {}
        self._like: dict[tuple[int, str], WorkloadSpec] = {}  # what all jobs of one ask in one queue have in common
        laws = models.failures.laws
        self._cut_off = any(law.kind is FaultKind.LINK and law.ends_work for law in laws)
        durations = np.array([job.duration_s for job in trace.jobs], dtype=np.float64)
        self._times = models.runtime.draw(durations, stream(seed, "run times"))

    def job(self, job: TraceJob, index: int) -> RunningJob:
        """The trace's job of that number, as it comes."""
        cost, work_s = self._cost(job.name), float(self._times.actual_s[index])
        if cost.checkpoint_s:
            work_s *= cost.stretch(self.mtbf_s(job))
        return RunningJob(job, index, work_s, job.ask.gpu_units / UNIT, cost)

    def spec(self, job: TraceJob, index: int) -> WorkloadSpec:
        """What its owner submits."""
        ask = job.ask
        like = self._like.get((id(ask), job.queue))
        if like is None:
            roles = (Role("worker", ask.each, ask.fewest, ask.largest),)
            like = WorkloadSpec(
                id=WorkloadId(""),
                name="",
                kind=Kind.TRAIN,
                queue=QueueId(job.queue),
                roles=roles,
                resizable=ask.elastic,
                topology=ask.topology,
                accelerators=ask.models,
            )
            self._like[id(ask), job.queue] = like  # the trace keeps its asks
        return changed(
            like,
            id=job.id,
            name=job.name,
            priority=job.priority,
            owner=job.user,
            expected_s=self._times.told(index),
            total_steps=job.steps,
            # A gang that loses its network crashes, which counts as its own failure: its owner lets it try again.
            max_retries=MANY if self._cut_off and job.status != "failed" else 0,
        )

    def mtbf_s(self, job: TraceJob) -> float:
        """Mean time between the failures that end it."""
        return self._models.failures.mtbf_s(job.ask.members, job.ask.gpu_units // UNIT)

    def restart_s(self, job: RunningJob, attempt: int) -> float:
        """How long an attempt after the first holds its seats before it works."""
        if not job.cost.restart_s and not job.cost.sigma:
            return 0.0
        return self._models.restart.draw(job.job.name, stream(self._seed, "restarts", job.id, attempt))

    def resize_s(self, job: RunningJob, attempt: int) -> float:
        """How long an attempt does not work when its seats change: its checkpoint, and what a restart takes."""
        cost = job.cost
        saves_s = cost.checkpoint_s if cost.on_request else 0.0
        if not cost.restart_s and not cost.sigma:
            return saves_s
        named = stream(self._seed, "resizes", job.id, attempt, job.resizes)
        return saves_s + self._models.restart.draw(job.job.name, named)

    def speed(self, job: RunningJob, members: tuple[Member, ...]) -> float:
        """Work done in a second on these seats, where all nodes are well."""
        if self._speed is None:
            ask = job.job.ask
            return self._models.scaling.relative(len(members), ask.members) if ask.elastic else 1.0
        units: dict[NodeId, int] = {}
        for member in members:
            units[member.node] = units.get(member.node, 0) + member.bundle.gpu_units
        return self._speed.rate(job.job, tuple(-(-units[node] // UNIT) for node in sorted(units)))

    def _cost(self, name: str) -> RestartCost:
        cost = self._costs.get(name)
        if cost is None:
            cost = self._costs[name] = self._models.restart.of(name)
        return cost
