"""The work that `policies_table` plays: five samples each of five kinds, none of them with anything in common.

    philly   jobs in a row of the trace as they came: nine in ten ask for one GPU
    gangs    jobs of the whole trace drawn in proportion to their GPUs, which come when those of a row came: half of the
             GPU-time is of gangs that are as large as a node or larger
    told     the same, and owners say how long their jobs take, on average the truth, off by half of it up or down
    elastic  Pollux' first five workloads on its own cluster, jobs of measured applications that run with other numbers
             of GPUs too, at the best batch for each; a change of size costs 30 s, as there
    openb    pods of Alibaba (list gpuspec33) in a row: parts of GPUs, priorities, GPU models that a third is locked to

Jobs of more than 8 hours or 16 GPUs (philly), 24 hours or 32 GPUs (the others) are left out, so that a short sample is
not the story of its one longest job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.las import MODELS, whole_trace
from benchmarks.played.traces import data_folder, nodes, shares, slice_of
from rayorch.core.types import GPU, UNIT, NodeSpec, QueueSpec
from rayorch.experiment.variants import without_too_large
from rayorch.sim.generators import at_load, gpus_of
from rayorch.sim.models import Misstatement, RestartCost, RestartModel, RuntimeModel, SimModels, stream
from rayorch.sim.readers import openb, pollux
from rayorch.sim.trace.model import Trace

GPUS_PER_NODE = 8
PHILLY = (12_000, 36_000, 52_000, 62_000, 68_000, 26_000, 72_000, 74_000)
OPENB = (500, 1700, 2900, 4100, 5300)
"""Where the samples begin: parts of the traces that have nothing in common."""

COSTLY = RestartModel(default=RestartCost(120.0, interval_s=1800.0, on_request=False))
"""Two minutes to start over, and what was done since the last checkpoint, half an hour apart, is lost."""

MACHINES = (("G2", 8, 3), ("T4", 2, 8), ("P100", 2, 4), ("V100M16", 8, 1), ("V100M32", 8, 1))
"""Of openb's nodes (model, GPUs, how many): 64 GPUs of the models that most of its pods ask for."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample at one load: the jobs, where they run, the quotas, and what happens there."""

    trace: Trace
    nodes: Sequence[NodeSpec]
    queues: Sequence[QueueSpec]
    models: SimModels
    seed: int

    @property
    def gpus(self) -> float:
        """Of all nodes."""
        return sum(node.total.units(GPU) for node in self.nodes) / UNIT

    def at(self, load: float) -> Sample:
        """At another offered load."""
        return replace(self, trace=at_load(self.trace, self.gpus, load))


KINDS = ("gangs", "philly", "openb", "told", "elastic")


def sample(kind: str, seed: int, count: int) -> Sample:
    """The `seed`th sample of a kind, of so many jobs (`elastic`: all that there are). ValueError for another kind."""
    if kind == "elastic":
        return _elastic(seed)
    if kind == "openb":
        return _openb(seed, count)
    if kind not in KINDS:
        raise ValueError(f"{kind} is none of {', '.join(KINDS)}")
    longest_s, largest, many = (8 * 3600.0, 16, 4) if kind == "philly" else (24 * 3600.0, 32, 8)
    trace = slice_of(_philly(longest_s, largest), PHILLY[seed], count)
    if kind != "philly":
        trace = _by_size(trace, _philly(longest_s, largest), seed)
    told = RuntimeModel(misstated=Misstatement(noise=0.5))
    runtime = told if kind == "told" else MODELS.runtime
    models = SimModels(runtime=runtime, restart=COSTLY)
    where = nodes(many, GPUS_PER_NODE)
    return Sample(trace, where, shares(trace, many * GPUS_PER_NODE), models, seed)


@cache
def _philly(longest_s: float, largest: float) -> Trace:
    whole = whole_trace()
    jobs = tuple(job for job in whole.jobs if 0 < job.duration_s <= longest_s and gpus_of(job) <= largest)
    return replace(whole, jobs=jobs)


def _by_size(when: Trace, what: Trace, seed: int) -> Trace:
    """The jobs of `what` drawn in proportion to their GPUs; they come when those of `when` do."""
    size = np.array([gpus_of(job) for job in what.jobs])
    drawn = stream(seed, "policies_table").choice(len(size), size=len(when.jobs), p=size / size.sum())
    jobs = tuple(
        replace(what.jobs[int(number)], id=f"{place:05}", submit_s=job.submit_s)
        for place, (number, job) in enumerate(zip(drawn, when.jobs, strict=True))
    )
    return replace(when, name=f"{what.name} by size {seed}", jobs=jobs)


@cache
def _pods() -> Trace:
    folder = data_folder() / "openb"
    whole = openb.read(folder / "openb_pod_list_gpuspec33.csv.gz", folder / "openb_node_list_gpu_node.csv.gz")
    # Those that failed there are played as if they had not: their work would count as lost.
    some = (job for job in whole.jobs if job.ask.gpu_units and 0 < job.duration_s <= 24 * 3600.0)
    jobs = [replace(job, status="") for job in some]
    return without_too_large(replace(whole, jobs=tuple(jobs)), _machines(whole))[0]


def _machines(trace: Trace) -> tuple[NodeSpec, ...]:
    found: list[NodeSpec] = []
    for model, gpus, many in MACHINES:
        alike = [node for node in trace.nodes if node.model == model and node.total.units(GPU) == gpus * UNIT]
        found += alike[:many]
    return tuple(found)


def _openb(seed: int, count: int) -> Sample:
    whole = _pods()
    trace = slice_of(whole, OPENB[seed], count)
    return Sample(trace, _machines(whole), (), SimModels(runtime=MODELS.runtime, restart=COSTLY), seed)


def _elastic(seed: int) -> Sample:
    file = data_folder() / "pollux" / "workloads" / f"workload-{seed + 1}.csv"
    trace = pollux.read(file, elastic=pollux.GOODPUT)
    models = SimModels(runtime=MODELS.runtime, restart=RestartModel(default=RestartCost(30.0)))
    return Sample(trace, nodes(16, pollux.GPUS_PER_NODE), (), models, seed)
