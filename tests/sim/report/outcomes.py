"""Outcomes by hand: what a run would say, where every number can be worked out on paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayorch.core.types import NodeId, Resources, State
from rayorch.sim.report.over_time import Steps
from rayorch.sim.trace.model import Ask, Trace, TraceJob
from rayorch.sim.trace.outcome import JobRecord, JobRun, Outcome, Series


def job(id: str, submit_s: float, duration_s: float, gpus: int, queue: str = "all") -> TraceJob:
    """A job of one-GPU members."""
    return TraceJob(id, submit_s, duration_s, Ask(gpus, Resources.of({"GPU": 1})), queue=queue)


def trace(*jobs: TraceJob, name: str = "by-hand") -> Trace:
    """In the order of submission."""
    return Trace(name, tuple(sorted(jobs, key=lambda one: one.submit_s)))


def record(one: TraceJob, *runs: tuple[float, float], ended: bool = True, lost_gpu_s: float = 0.0) -> JobRecord:
    """A job that held its GPUs from and to these times."""
    gpus = float(one.ask.members)
    held = tuple(JobRun(a, b, (NodeId("n1"),), gpus) for a, b in runs)
    return JobRecord(
        one.id,
        one.queue,
        one.user,
        one.name,
        gpus,
        one.submit_s,
        runs[0][0] if runs else None,
        runs[-1][1] if runs and ended else None,
        held,
        max(0, len(runs) - 1),
        lost_gpu_s,
        State.SUCCEEDED if runs and ended else State.RUNNING if runs else State.PENDING,
    )


def outcome(
    records: Sequence[JobRecord], capacity: float, profile: str = "default", seed: int = 0, end_s: float | None = None
) -> Outcome:
    """The run with its series, worked out from the records."""
    end = max([0.0, *(run.to_s for r in records for run in r.runs)]) if end_s is None else end_s
    held = Steps.of_changes(
        c for r in records for run in r.runs for c in ((run.from_s, run.gpus), (run.to_s, -run.gpus))
    )
    asked = [(r.submit_s, r.gpus, r.ended_s) for r in records]
    times = np.unique([0.0, end, *held.times_s, *(s for s, _, _ in asked)])
    allocated = np.array([sum(u.gpus for r in records for u in r.runs if u.from_s <= t < u.to_s) for t in times])
    waiting = np.array([[_waits(r, t) for r in records] for t in times])
    gpus = np.array([r.gpus for r in records])
    series = Series(times, allocated, np.full(len(times), capacity), waiting.sum(axis=1) * 1.0, waiting @ gpus)
    log = f"{profile}-{[(r.id, r.runs) for r in records]}"
    return Outcome("by-hand", profile, seed, tuple(records), series, 3 * len(records), len(times), 0.5, log)


def _waits(one: JobRecord, at_s: float) -> int:
    alive = one.submit_s <= at_s and (one.ended_s is None or at_s < one.ended_s)
    return int(alive and not any(run.from_s <= at_s < run.to_s for run in one.runs))
