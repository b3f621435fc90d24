"""The runs of an experiment: which there are, what each is played with, and playing one."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rayorch.core.policy import Profile
from rayorch.core.types import NodeSpec, QueueSpec
from rayorch.experiment.nodes import gpus_in
from rayorch.experiment.profiles import fingerprint
from rayorch.experiment.serves import Served, with_services
from rayorch.experiment.store import key_of, trace_digest
from rayorch.experiment.variants import Resample, resampled, without_too_large
from rayorch.sim.generators import at_load
from rayorch.sim.models import SimModels
from rayorch.sim.report.metrics import summarise
from rayorch.sim.report.summary import Summary
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.outcome import JobRecord, Progress
from rayorch.sim.trace.run import run
from rayorch.sim.trace.supply import Supply


@dataclass(frozen=True, slots=True)
class Inputs:
    """What all runs of an experiment share. `trace`: with what the cluster can't hold. `title`, `cluster`: in words.

    `resample`: how each seed gets a trace of its own. `per_job`: also keep what became of each job. `fragmentation`:
    measure it over time. `groups`: the nodes come and go as these do; `nodes` are then all that there may be.
    `served`: applications that serve beside the jobs.
    """

    trace: Trace
    title: str
    nodes: tuple[NodeSpec, ...]
    cluster: str
    queues: tuple[QueueSpec, ...] = ()
    models: SimModels = field(default_factory=SimModels)
    until_s: float | None = None
    resample: Resample = Resample.NONE
    per_job: bool = False
    fragmentation: bool = True
    groups: tuple[Supply, ...] = ()
    served: tuple[Served, ...] = ()


@dataclass(frozen=True, slots=True)
class Play:
    """One run: a profile, a load (None: as in the trace) and a seed. `key`: of everything that decides its result."""

    profile: Profile
    load: float | None
    seed: int
    key: str

    @property
    def name(self) -> str:
        """For people and files."""
        load = "" if self.load is None else f"-load{self.load:g}"
        return f"{self.profile.name}{load}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Played:
    """A finished run. `per_job`: what became of each job, as gzipped CSV, where that was asked for."""

    summary: Summary
    per_job: bytes | None = None


def plays_of(
    inputs: Inputs, profiles: Sequence[Profile], loads: Sequence[float | None], seeds: Sequence[int]
) -> tuple[Play, ...]:
    """All runs, profiles side by side first, so that what is finished at any moment can be compared."""
    shared = (
        trace_digest(inputs.trace),
        inputs.nodes,
        inputs.cluster,
        inputs.queues,
        inputs.models,
        inputs.until_s,
        inputs.resample,
        inputs.fragmentation,
        inputs.groups,
        inputs.served,
    )
    base = key_of(shared)
    prints = [fingerprint(profile) for profile in profiles]
    return tuple(
        Play(profile, load, seed, key_of((base, print_, load, seed)))
        for load in loads
        for seed in seeds
        for profile, print_ in zip(profiles, prints, strict=True)
    )


def play(inputs: Inputs, one: Play, on_progress: Callable[[Progress], None] | None = None) -> Played:
    """One run, from the trace to what is kept of it."""
    trace = replace(resampled(inputs.trace, inputs.resample, one.seed), refused=inputs.trace.refused)
    trace, too_large = without_too_large(trace, inputs.nodes)
    if one.load is not None:
        trace = at_load(trace, gpus_in(inputs.nodes), one.load)
    trace = with_services(trace, inputs.served, one.seed, inputs.until_s)
    outcome = run(
        trace,
        () if inputs.groups else inputs.nodes,
        one.profile,
        queues=inputs.queues,
        models=inputs.models,
        seed=one.seed,
        until_s=inputs.until_s,
        fragmentation=inputs.fragmentation,
        groups=inputs.groups,
        on_progress=on_progress,
    )
    found = summarise(
        outcome,
        trace,
        inputs.queues,
        load=one.load,
        title=inputs.title,
        cluster=inputs.cluster,
        too_large=too_large,
        stopped_at_s=inputs.until_s,
    )
    return Played(found, per_job_csv(outcome.records) if inputs.per_job else None)


PER_JOB = "id,queue,user,name,gpus,submit_s,started_s,ended_s,state,preemptions,lost_gpu_s,attempts,resizes"


def per_job_csv(records: Sequence[JobRecord]) -> bytes:
    """A line for each job, gzipped; empty where there is no such time."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PER_JOB.split(","))
    writer.writerows(_cells(records))
    return gzip.compress(text.getvalue().encode(), mtime=0)


def _cells(records: Sequence[JobRecord]) -> Iterator[tuple[object, ...]]:
    for r in records:
        times = ("" if t is None else f"{t:.3f}" for t in (r.submit_s, r.started_s, r.ended_s))
        yield (
            *(r.id, r.queue, r.user, r.name, f"{r.gpus:g}", *times),
            *(r.state.value, r.preemptions, f"{r.lost_gpu_s:.3f}", len(r.runs) - r.resizes, r.resizes),
        )
