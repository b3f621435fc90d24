"""Random submissions of all kinds for simulated lives, each with how its work behaves."""

from __future__ import annotations

import random
from dataclasses import replace

from rayorch.core.gang_shape import GroupSpec, JointGang, Segment
from rayorch.core.timing import After, ArraySpec, Dependency
from rayorch.core.types import UNIT, Device, Kind, NodeSpec, Resources, Role, TopologyRequest, WorkloadId, WorkloadSpec
from rayorch.sim.cluster import SimCluster
from rayorch.sim.work import SimWork
from tests.build import gpus, node, workload


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


def enriched(
    rng: random.Random, spec: WorkloadSpec, known: list[WorkloadId], instances: bool
) -> tuple[WorkloadSpec, ...]:
    """What is submitted in its place: as a rule the same, now and then an array, a gang with parts, a joint gang, …

    `known`: who was accepted before, so that something may depend on it. `instances`: there are MIG instances. All of
    what is answered is submitted at once.
    """
    roll = rng.random()
    runs_out = spec.kind in (Kind.TRAIN, Kind.JOB)
    small = replace(spec, roles=_of_members(spec, 1), topology=TopologyRequest(), resizable=False)
    if roll < 0.08 and runs_out:
        array = ArraySpec(rng.randrange(2, 5), rng.choice((None, 1, 2)), rng.randrange(2))
        return (replace(small, array=array),)
    if roll < 0.20 and known:
        kind = rng.choice((After.STARTED, After.OK, After.ANY, After.NOT_OK))
        return (replace(spec, after=(Dependency(kind, rng.choice(known)),)),)
    if roll < 0.27 and runs_out:
        count = rng.choice((2, 3))
        if small.roles[0].bundle.gpu_units > UNIT:
            count = 2  # the smallest of these clusters has four GPUs, and its queues deserve as many
        joint = JointGang(f"joint-{spec.id}", count)
        return tuple(
            replace(small, id=WorkloadId(f"{spec.id}{part}"), name=f"{spec.id}{part}", joint=joint)
            for part in "abc"[:count]
        )
    if roll < 0.33 and spec.kind is Kind.TRAIN:
        return (replace(spec, roles=_segmented(rng), topology=TopologyRequest(), resizable=False),)
    if roll < 0.39 and spec.kind is Kind.TRAIN:
        groups = (GroupSpec("one", "", None), GroupSpec("two", "", None, TopologyRequest(required="rack")))
        return (replace(spec, roles=_nested(rng), groups=groups, topology=TopologyRequest(), resizable=True),)
    if roll < 0.49 and runs_out and instances:
        bundle = Resources.of({rng.choice(("mig-1g.10gb", "mig-1g.10gb", "mig-3g.40gb")): 1})
        return (replace(small, roles=(replace(small.roles[0], bundle=bundle),)),)
    if roll < 0.56 and runs_out:
        return (replace(small, reservation="room"),)
    if roll < 0.62 and spec.kind is Kind.SERVE:
        return (replace(spec, stale_grace_s=rng.choice((5.0, 20.0))),)
    return (spec,)


def _of_members(spec: WorkloadSpec, count: int) -> tuple[Role, ...]:
    return (replace(spec.roles[0], min_count=count, max_count=count),)


def _segmented(rng: random.Random) -> tuple[Role, ...]:
    """Two members each share a rack."""
    count = rng.choice((2, 4))
    return (Role("worker", gpus(rng.choice((0.5, 1))), count, count, segments=(Segment(2, "rack"),)),)


def _nested(rng: random.Random) -> tuple[Role, ...]:
    """Two groups, the second of which lies in one rack and may grow."""
    return (
        Role("left", gpus(rng.choice((0.5, 1))), 1, 1, "one"),
        Role("right", gpus(0.5), 1, rng.choice((1, 3)), "two"),
    )


def cut(name: str, rack: str) -> NodeSpec:
    """A node with one GPU that is cut into three instances, and no whole one."""
    profiles = ("1g.10gb", "1g.10gb", "3g.40gb")
    devices = tuple(Device(i, uuid=f"MIG-{name}-{i}", mig_profile=p, pci=name) for i, p in enumerate(profiles))
    total = Resources.of({"CPU": 16, "mig-1g.10gb": 2, "mig-3g.40gb": 1})
    bare = node(name, 0, rack=rack)
    return replace(bare, total=total, devices=devices, exact=True, mig_mixed=True)
