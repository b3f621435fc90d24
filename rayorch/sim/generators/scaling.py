"""The same jobs otherwise: at another load, a part of them, or whole weeks drawn with replacement.

What is changed says so in `Trace.source`. When jobs come otherwise than they did, when they started and ended in the
trace means nothing any more and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace

from rayorch.core.errors import SpecError
from rayorch.core.resources import UNIT
from rayorch.sim.models.streams import stream
from rayorch.sim.trace.model import Trace, TraceJob

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S


def gpus_of(job: TraceJob) -> float:
    """GPUs that a job asks for in all."""
    return job.ask.gpu_units / UNIT


def gpu_seconds(jobs: Iterable[TraceJob]) -> float:
    """What the jobs take in all. SpecError where one never ends."""
    total = math.fsum(gpus_of(job) * job.duration_s for job in jobs if job.ask.gpu_units)
    if math.isinf(total):
        raise SpecError("trace", "has jobs that never end, so that its load is not defined")
    return total


def offered_load(trace: Trace, capacity_gpus: float) -> float:
    """GPU-seconds that are asked for, over what the capacity gives from the first to the last submission.

    Infinite where all come at once.
    """
    _check_capacity(capacity_gpus)
    span_s = _span_s(trace)
    return math.inf if span_s == 0 else gpu_seconds(trace.jobs) / (capacity_gpus * span_s)


def at_load(trace: Trace, capacity_gpus: float, load: float) -> Trace:
    """The same jobs at another offered load: the times between submissions are all stretched by one factor.

    Run times and sizes stay. SpecError where all jobs come at once, and for a load that is not positive.
    """
    if not (math.isfinite(load) and load > 0):
        raise SpecError("load", f"must be positive, got {load!r}")
    now = offered_load(trace, capacity_gpus)
    if math.isinf(now) or now == 0:
        raise SpecError("trace", "has no load that could be changed: all jobs come at once, or none takes a GPU")
    factor = now / load
    start_s = trace.jobs[0].submit_s
    jobs = tuple(_at(job, (job.submit_s - start_s) * factor) for job in trace.jobs)
    source = f"{trace.source} at load {load:g} of {capacity_gpus:g} GPUs"
    return replace(trace, name=f"{trace.name} load {load:g}", jobs=jobs, source=source)


def first_jobs(trace: Trace, count: int) -> Trace:
    """The first `count` jobs, times as they are."""
    return replace(
        trace, name=f"{trace.name} first {count}", jobs=trace.jobs[:count], source=f"{trace.source} first {count} jobs"
    )


def window(trace: Trace, from_s: float, until_s: float) -> Trace:
    """The jobs that are submitted in [from_s, until_s), times from `from_s`. SpecError where there is none."""
    jobs = tuple(_moved(job, -from_s) for job in trace.jobs if from_s <= job.submit_s < until_s)
    if not jobs:
        raise SpecError("window", f"no job is submitted from {from_s:g} to {until_s:g} s")
    return replace(
        trace,
        name=f"{trace.name} {from_s:g} to {until_s:g} s",
        jobs=jobs,
        source=f"{trace.source} from {from_s:g} to {until_s:g} s",
    )


def of_queues(trace: Trace, queues: Collection[str]) -> Trace:
    """The jobs of these queues. SpecError where there is none."""
    jobs = tuple(job for job in trace.jobs if job.queue in queues)
    if not jobs:
        raise SpecError("queues", f"no job is of {', '.join(sorted(queues))}")
    kept = tuple(spec for spec in trace.queues if spec.id in queues)
    return replace(trace, jobs=jobs, queues=kept, source=f"{trace.source} queues {', '.join(sorted(queues))}")


def bootstrap(trace: Trace, seed: int, blocks: int | None = None, block_s: float = WEEK_S) -> Trace:
    """Whole weeks (or blocks of another length) drawn with replacement and put one after the other.

    What repeats within a week, and what bursts within one, is kept; that is what makes runs over seeds differ as weeks
    do. `blocks`: how many, None: as many as there are. The last block, which is not whole, is drawn like the others
    only if there is no whole one. Ids get the number of their block.
    """
    if not (math.isfinite(block_s) and block_s > 0):
        raise SpecError("block_s", f"must be positive, got {block_s!r}")
    if not trace.jobs:
        raise SpecError("trace", "has no job")
    first_s = trace.jobs[0].submit_s
    cut: dict[int, list[TraceJob]] = {}
    for job in trace.jobs:
        cut.setdefault(int((job.submit_s - first_s) // block_s), []).append(job)
    whole = max(1, int(_span_s(trace) // block_s))
    count = whole if blocks is None else blocks
    drawn = stream(seed, "bootstrap").integers(0, whole, size=count).tolist()
    jobs = [
        replace(_moved(job, (place - block) * block_s - first_s), id=f"{job.id}.{place}")
        for place, block in enumerate(drawn)
        for job in cut.get(block, ())
    ]
    source = f"{trace.source} bootstrap of {count} blocks of {block_s:g} s, seed {seed}"
    return replace(trace, name=f"{trace.name} bootstrap {seed}", jobs=tuple(jobs), source=source)


def _at(job: TraceJob, submit_s: float) -> TraceJob:
    return replace(job, submit_s=submit_s, started_s=None, ended_s=None)


def _moved(job: TraceJob, by_s: float) -> TraceJob:
    return replace(
        job,
        submit_s=job.submit_s + by_s,
        started_s=None if job.started_s is None else job.started_s + by_s,
        ended_s=None if job.ended_s is None else job.ended_s + by_s,
    )


def _span_s(trace: Trace) -> float:
    return trace.jobs[-1].submit_s - trace.jobs[0].submit_s if trace.jobs else 0.0


def _check_capacity(capacity_gpus: float) -> None:
    if not (math.isfinite(capacity_gpus) and capacity_gpus > 0):
        raise SpecError("capacity_gpus", f"must be positive, got {capacity_gpus!r}")
