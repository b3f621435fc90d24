"""The same small trace through the cluster with actors, messages and ticks, and through the one without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.events import Started
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.core.types import Kind, QueueId, QueueSpec, Role, WorkloadId, WorkloadSpec
from rayorch.policies.default import DEFAULT
from rayorch.sim.cluster import SimCluster
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.run import run
from rayorch.sim.work import SimWork
from tests.sim.trace.worlds import FIFO, job, nodes, trace

TICK_S = 1.0
JOBS = trace(
    job("a", 0, 40, gpus=6),
    job("b", 4, 90, gpus=8),
    job("c", 10, 25, gpus=4, members=2),
    job("d", 11, 25, gpus=2),
    job("e", 12, 70, gpus=1, members=5),
    job("f", 37, 12, gpus=8, priority=4),
    job("g", 38, 20, gpus=3),
    job("h", 80, 15, gpus=8, members=2),
)


def by_ticks(made: Trace, profile: Profile) -> list[str]:
    """Who starts, in order, where the clock moves by ticks and every decision goes from actor to actor."""
    sim = SimCluster(nodes(2), (QueueSpec(QueueId("all")),), profile, plan, tick_s=TICK_S)
    begun_s = sim.now_s
    for entry in made.jobs:
        while sim.now_s < begun_s + entry.submit_s:
            sim.tick()
        spec = WorkloadSpec(
            id=WorkloadId(entry.id),
            name=entry.name,
            kind=Kind.TRAIN,
            queue=QueueId(entry.queue),
            roles=(Role("worker", entry.ask.each, entry.ask.members, entry.ask.members),),
            priority=entry.priority,
            expected_s=entry.duration_s,
        )
        sim.submit(spec, SimWork(int(entry.duration_s), 1 / entry.ask.members, start_s=0.0, checkpoint_every=1))
    sim.run(250.0)
    return [event.workload for event in sim.history if isinstance(event, Started)]


@pytest.mark.parametrize("profile", (FIFO, DEFAULT), ids=lambda profile: profile.name)
def test_the_same_jobs_start_in_the_same_order(profile: Profile) -> None:
    patient = replace(profile, lease_s=30.0)

    outcome = run(JOBS, nodes(2), patient)

    starts = sorted((ran.from_s, record.id) for record in outcome.records for ran in record.runs)
    ticked = by_ticks(JOBS, patient)
    assert [id for _, id in starts] == ticked
    assert len(starts) >= len(JOBS.jobs)
