"""How much of its demand an application could answer, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rayorch.core.types import UNIT
from rayorch.sim.report.over_time import Floats, Steps
from rayorch.sim.trace.outcome import ReplicaRun, ServiceRecord


@dataclass(frozen=True, slots=True)
class ServiceShare:
    """One application over the makespan.

    `attainment`: requests that its replicas could take at once over those that there were, both over time; None: none
    were. `met`: the part of the time in which they could take all. `replicas_avg`, `gpu_h`: what it held. `stops`: how
    often all of it was stopped. `refused`: why, at the door.
    """

    service: str
    queue: str
    attainment: float | None
    met: float | None
    replicas_avg: float
    gpu_h: float
    stops: int
    refused: str


def answering(runs: Sequence[ReplicaRun], start_s: float) -> Steps:
    """Replicas that answer: those that have been there for `start_s`; the newest go first."""
    changes: list[tuple[float, float]] = []
    births: list[float] = []

    def trim(count: int, at_s: float) -> None:
        while len(births) > count:
            born_s = births.pop()
            if at_s > born_s + start_s:
                changes.extend(((born_s + start_s, 1.0), (at_s, -1.0)))

    for n, run in enumerate(runs):
        if n and run.from_s > runs[n - 1].to_s:
            trim(0, runs[n - 1].to_s)
        trim(run.replicas, run.from_s)
        births += [run.from_s] * (run.replicas - len(births))
    if runs:
        trim(0, runs[-1].to_s)
    return Steps.of_changes(changes)


def share_of(record: ServiceRecord, from_s: float, to_s: float) -> ServiceShare:
    """What became of one, from the first submission to the last end."""
    service = record.service
    able, wanted = capacity_of(record), demand_of(record)
    edges = np.unique(np.clip(np.concatenate([[from_s, to_s], able.times_s, wanted.times_s]), from_s, to_s))
    lengths = np.diff(edges)
    asked, could = wanted.means(edges), able.means(edges)
    total = float((asked * lengths).sum())
    answered = float((np.minimum(asked, could) * lengths).sum())
    busy_s = float(lengths[asked > 0].sum())
    met_s = float(lengths[(asked > 0) & (could >= asked - 1e-9)].sum())
    held_s = sum(max(0.0, min(run.to_s, to_s) - max(run.from_s, from_s)) * run.replicas for run in record.runs)
    return ServiceShare(
        service.id,
        service.queue,
        answered / total if total > 0 else None,
        met_s / busy_s if busy_s > 0 else None,
        held_s / (to_s - from_s) if to_s > from_s else 0.0,
        held_s * service.each.gpu_units / UNIT / 3600.0,
        record.stops,
        record.refused,
    )


def demand_of(record: ServiceRecord) -> Steps:
    """Its requests at once."""
    times, values = np.array(record.service.demand, dtype=np.float64).reshape(-1, 2).T
    return Steps(times, values)


def capacity_of(record: ServiceRecord) -> Steps:
    """The requests that the replicas which answer can take at once."""
    able = answering(record.runs, record.service.start_s)
    return Steps(able.times_s, able.values * record.service.target)


def gpus_held(record: ServiceRecord) -> Steps:
    """The GPUs that its replicas hold."""
    each = record.service.each.gpu_units / UNIT
    return Steps.of_changes(
        change
        for run in record.runs
        for change in ((run.from_s, run.replicas * each), (run.to_s, -run.replicas * each))
    )


def over_time(records: Sequence[ServiceRecord], edges: Floats) -> tuple[Floats, Floats]:
    """(requests at once, what the replicas could take) of all applications together, by equal parts of time."""
    wanted = sum((demand_of(record).means(edges) for record in records), np.zeros(len(edges) - 1))
    able = sum((capacity_of(record).means(edges) for record in records), np.zeros(len(edges) - 1))
    return wanted, able


def attainment(records: Sequence[ServiceRecord], from_s: float, to_s: float) -> float | None:
    """Of all applications together."""
    total = answered = 0.0
    for record in records:
        asked = demand_of(record).mean(from_s, to_s) * (to_s - from_s)
        share = share_of(record, from_s, to_s).attainment
        total += asked
        answered += asked * (share or 0.0)
    return answered / total if total > 0 else None
