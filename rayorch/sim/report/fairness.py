"""Who got what: finish-time fairness of jobs, and what queues held of what they were entitled to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rayorch.core.types import GPU, UNIT, QueueSpec, State
from rayorch.sim.report.over_time import Floats, Steps, parts
from rayorch.sim.trace.outcome import JobRecord, JobRun

GRID = 2_000
"""Equal parts of the makespan on which entitlements are worked out: they depend on who else asks at that moment."""


def jain(values: Sequence[float] | Floats) -> float | None:
    """Jain's index (Σx)² / (n Σx²): 1 when all are equal, 1/n when one has everything; None for nobody or all zero."""
    x = np.asarray(values, dtype=np.float64)
    squares = float(np.sum(x * x))
    return None if not len(x) or squares == 0.0 else float(np.sum(x)) ** 2 / (len(x) * squares)


def rhos(records: Iterable[JobRecord], durations_s: Mapping[str, float], capacity: float) -> Floats:
    """Finish-time fairness of the jobs that finished (those that need GPUs and time), in their order.

    rho = JCT / alone, `alone` the time with 1/N of the cluster to itself: its duration, stretched in proportion
    where it asks for more GPUs than that. N is the mean number of jobs that wait or run during its life (Mahajan 2020).
    """
    known = tuple(records)
    present = Steps.of_changes(
        change for r in known for change in ((r.submit_s, 1.0), *(() if r.ended_s is None else ((r.ended_s, -1.0),)))
    )
    ended = [
        (r.submit_s, r.ended_s, r.gpus, durations_s[r.id])
        for r in known
        if r.state is State.SUCCEEDED and r.ended_s is not None and r.gpus > 0 and durations_s[r.id] > 0
    ]
    if not ended or capacity <= 0:
        return np.zeros(0)
    submit_s, ended_s, gpus, duration_s = np.array(ended, dtype=np.float64).T
    life_s = ended_s - submit_s
    number = np.divide(
        present.area(ended_s) - present.area(submit_s), life_s, out=np.ones_like(life_s), where=life_s > 0
    )
    return np.asarray(life_s / (duration_s * np.maximum(1.0, gpus * number / capacity)))


@dataclass(frozen=True, slots=True)
class QueueShare:
    """One queue over the makespan.

    `deserved_gpus`: its quota; None: it has none, and is entitled to an equal part among those that ask. `held_gpu_h`,
    `asked_gpu_h`: GPU-hours that it held, and held or waited for. `entitled_gpu_h`: of what it asked for, what it was
    entitled to at that moment. `got`: of that, the part that it held at that moment; None: it was entitled to nothing.
    """

    queue: str
    jobs: int
    finished: int
    deserved_gpus: float | None
    held_gpu_h: float
    asked_gpu_h: float
    entitled_gpu_h: float
    got: float | None
    held_share: float
    jct_avg_s: float | None
    wait_avg_s: float | None


def by_queue(records: Iterable[JobRecord]) -> dict[str, list[JobRecord]]:
    """The jobs of each queue."""
    members: dict[str, list[JobRecord]] = {}
    for record in records:
        members.setdefault(record.queue, []).append(record)
    return members


def held_steps(records: Iterable[JobRecord]) -> Steps:
    """The GPUs that jobs hold."""
    return _while_held((run, run.gpus) for record in records for run in record.runs)


def asked_while_held(records: Iterable[JobRecord]) -> Steps:
    """The GPUs that jobs asked for, of those that hold some."""
    return _while_held((run, record.gpus) for record in records for run in record.runs)


def _while_held(counted: Iterable[tuple[JobRun, float]]) -> Steps:
    """So many GPUs for as long as each run held its seats."""
    return Steps.of_changes(change for run, n in counted for change in ((run.from_s, n), (run.to_s, -n)))


def asked_steps(records: Iterable[JobRecord], end_s: float) -> Steps:
    """The GPUs that jobs hold or wait for, from their submission to their end."""
    return Steps.of_changes(
        change
        for record in records
        for change in (
            (record.submit_s, record.gpus),
            (end_s if record.ended_s is None else record.ended_s, -record.gpus),
        )
    )


def queue_shares(
    records: Sequence[JobRecord], queues: Sequence[QueueSpec], capacity: float, end_s: float
) -> tuple[QueueShare, ...]:
    """Each queue that had jobs, by name.

    At a moment a queue is entitled to what it asks for up to its quota; where it has none, up to an equal part of the
    cluster among the queues that ask for something then. Worked out on `GRID` equal parts of the makespan.
    """
    members = by_queue(records)
    if not members:
        return ()
    start_s = min(record.submit_s for record in records)
    edges = parts(start_s, end_s, GRID)
    length_h = (end_s - start_s) / GRID / 3600.0
    names = sorted(members)
    held = np.array([held_steps(members[name]).means(edges) for name in names])
    asked = np.maximum(held, np.array([asked_steps(members[name], end_s).means(edges) for name in names]))
    asking = np.maximum(1, np.count_nonzero(asked > 0, axis=0))
    quotas = {str(spec.id): spec.deserved.units(GPU) / UNIT for spec in queues if spec.deserved.units(GPU)}
    total_held = float(held.sum())
    found = []
    for n, name in enumerate(names):
        limit = quotas[name] if name in quotas else capacity / asking
        entitled = np.minimum(asked[n], limit)
        entitled_sum = float(entitled.sum())
        jobs = members[name]
        found.append(
            QueueShare(
                name,
                len(jobs),
                sum(job.state is State.SUCCEEDED for job in jobs),
                quotas.get(name),
                float(held[n].sum()) * length_h,
                float(asked[n].sum()) * length_h,
                entitled_sum * length_h,
                float(np.minimum(held[n], entitled).sum()) / entitled_sum if entitled_sum > 0 else None,
                float(held[n].sum()) / total_held if total_held > 0 else 0.0,
                _mean([jct_s for job in jobs if (jct_s := job.jct_s) is not None]),
                _mean([wait_s for job in jobs if (wait_s := job.wait_s) is not None]),
            )
        )
    return tuple(found)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
