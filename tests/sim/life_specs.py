"""Random submissions of all kinds for simulated lives, each with how its work behaves."""

from __future__ import annotations

import random

from rayorch.core.types import Kind, TopologyRequest, WorkloadSpec
from rayorch.sim.cluster import SimCluster
from rayorch.sim.work import SimWork
from tests.build import workload


def random_spec(rng: random.Random, id: str, sim: SimCluster) -> tuple[WorkloadSpec, SimWork]:
    """A submission that this cluster can take, now or when its nodes are back."""
    kind = rng.choice((Kind.TRAIN, Kind.TRAIN, Kind.TRAIN, Kind.JOB, Kind.SERVE, Kind.GANG))
    members = rng.choice((1, 1, 2, 3)) if kind is not Kind.SERVE else rng.choice((1, 2))
    most = members + rng.choice((0, 2)) if kind in (Kind.TRAIN, Kind.SERVE) else members
    gpu = rng.choice((0.5, 1, 1, 2)) if members < 3 else rng.choice((0.5, 1))
    topology = TopologyRequest(
        required=rng.choice((None, None, None, "rack")) if members * gpu <= 2 else None,
        preferred=rng.choice((None, None, "rack")),
    )
    spec = workload(
        id,
        members=members,
        most=most,
        gpu=gpu,
        queue=rng.choice(("all/a", "all/b")),
        kind=kind,
        priority=rng.choice((0, 0, 5)),
        preemptible=rng.random() < 0.85,
        max_retries=3,
        grace_s=rng.choice((2.0, 6.0)),
        min_runtime_s=rng.choice((0.0, 0.0, 8.0)),
        owner=rng.choice(("ann", "bob")),
        topology=topology,
    )
    now_s = sim.now_s - sim.start_s
    work = SimWork(
        steps=rng.randrange(3, 30),
        rate=rng.choice((0.3, 1.0)),
        checkpoint_every=rng.choice((3, 8)),
        fails_at=2 if rng.random() < 0.1 else None,
        failing_attempts=2,
        deaf=rng.random() < 0.1,
        demand=((0.0, 1), (now_s + 15, 4), (now_s + 40, 0)),
        heartbeats_s=now_s + 30,
    )
    return spec, work
