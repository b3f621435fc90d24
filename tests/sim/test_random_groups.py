"""Seeded random lives of a cluster whose nodes come and go by groups, while everything fails now and then.

All invariants are checked after every tick. At the end, with the faults over, every gang has ended or says truthfully
why it can't start; then nothing is left: no seat, no order, no node beyond the groups' minimum and spares.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rayorch.core.capacity import GroupName, InstancePhase, NodeGroup
from rayorch.core.decisions import WaitReason
from rayorch.core.policy import Profile
from rayorch.core.types import Kind, NodeId, Resources, State, TopologyRequest
from rayorch.policies.default import DEFAULT
from rayorch.sim.autoscaler import SimAutoscaler
from rayorch.sim.checked import CheckedCluster
from rayorch.sim.faults import OWNERS, RandomFaults
from rayorch.sim.groups import GroupPlay, SimProvider
from rayorch.sim.work import SimWork
from tests.build import gpus, node, queue, workload

SEEDS = 60
EVENTS = 120
GROUPS = 20
"""Seeds are tested in so many groups: a test each would cost more in the test runner than in the simulation."""

PROFILE = replace(
    DEFAULT,
    name="quick groups",
    node_idle_s=12.0,
    provision_s=15.0,
    provision_deadline_factor=2.5,
    group_backoff_s=8.0,
    group_backoff_max_s=32.0,
)
CANT = {WaitReason.CAPACITY_LIMIT, WaitReason.NEVER_FITS_NOW, WaitReason.QUOTA, WaitReason.TOPOLOGY}


def groups_of(rng: random.Random) -> dict[NodeGroup, GroupPlay]:
    """One to four groups of all kinds."""
    found = {}
    for name in "abcd"[: rng.randrange(1, 5)]:
        rack = rng.choice((None, "r1", "r2"))
        least, most = rng.choice((0, 0, 0, 1)), rng.randrange(2, 6)
        group = NodeGroup(
            name=GroupName(name),
            total=gpus(rng.choice((2, 4, 4)), 16),
            replicas=rng.choice((least, least, min(most, 2))),
            min_replicas=least,
            max_replicas=most,
            hosts=rng.choice((1, 1, 1, 2)),
            labels=(("rack", rack),) if rack else (),
            model=rng.choice(("H100", "A100")),
            spot=rng.random() < 0.3,
            spares=rng.choice((0, 0, 0, 1)),
            preference=rng.randrange(3),
        )
        found[group] = a_play(rng)
    return found


def a_play(rng: random.Random) -> GroupPlay:
    fastest_s = rng.choice((2.0, 5.0, 15.0))
    return GroupPlay(
        provision_s=(fastest_s, fastest_s * rng.choice((1.0, 1.5, 3.0))),
        stock=rng.choice((None, None, None, 0, 1, 3)),
        refuses=rng.choice(("", "", "", "", "exceeded quota")),
        fails=rng.choice((0, 0, 0, 0, 1, 2)),
        slow_share=rng.choice((0.0, 0.0, 0.2)),
        notice_s=rng.choice((5.0, 20.0)),
    )


def random_life(seed: int, rays: bool = False, profile: Profile = PROFILE) -> CheckedCluster:
    """A cluster after `EVENTS` random events, with everything in order again. `rays`: Ray's autoscaler decides."""
    rng = random.Random(seed)
    provider = SimProvider(groups_of(rng), seed)
    nodes = tuple(node(f"n{i}", gpu=2, rack=f"r{i}") for i in range(rng.choice((0, 1, 2))))
    queues = (queue("all"), queue("all/a", 8, 8), queue("all/b", 8, 16, weight=2))
    faults = RandomFaults(seed + 1, share=rng.choice((0.0, 0.003, 0.02)), until_s=1000.0 + EVENTS)
    sim = CheckedCluster(
        nodes,
        queues,
        faults=faults,
        profile=profile,
        at_calls=False,
        tick_s=1.0,
        provider=provider,
        autoscaler=SimAutoscaler(provider) if rays else None,
    )
    for _ in range(EVENTS):
        one_event(sim, provider, rng)
        sim.tick()
    for name in sorted(provider.groups):
        provider.play(name, GroupPlay(provision_s=(3.0, 5.0)))
    provider.hidden.clear()
    provider.out_of_reach(sim.now_s)
    provider.stale(sim.now_s)
    sim.world.foreign.clear()
    for where in sorted(sim.world.away):
        sim.world.return_node(where)
    for cordoned in sorted(sim.tree.cordons):
        sim.record(sim.tree.uncordon(cordoned, "done", sim.now_s))
    for live in sorted(sim.tree.workloads.values(), key=lambda w: w.id):
        if live.spec.kind in (Kind.SERVE, Kind.GANG) and not live.state.terminal:
            sim.cancel(live.id)
    return sim


def one_event(sim: CheckedCluster, provider: SimProvider, rng: random.Random) -> None:
    live = [w for w in sim.tree.workloads.values() if not w.state.terminal]
    up = sorted(sim.world.nodes)
    machines = sorted(m.name for m in provider.machines.values() if m.phase is not InstancePhase.LEAVING)
    names = sorted(provider.groups)
    roll = rng.random()
    if roll < 0.30 and len(live) < 10:
        submit(sim, rng)
    elif roll < 0.36 and live:
        sim.cancel(rng.choice(live).id)
    elif roll < 0.39 and up:
        sim.world.lose_node(rng.choice(up))
    elif roll < 0.42 and machines:
        provider.delete(rng.choice(machines), sim.now_s)
    elif roll < 0.45 and machines:
        provider.notice(rng.choice(machines), sim.now_s)
    elif roll < 0.50:
        provider.play(rng.choice(names), a_play(rng))
    elif roll < 0.53:
        name = rng.choice(names)
        provider.set_replicas(name, rng.randrange(provider.groups[name].max_replicas + 1), sim.now_s)
    elif roll < 0.55:
        name = rng.choice(names)
        group = provider.groups[name]
        provider.edit(replace(group, max_replicas=max(group.min_replicas, rng.randrange(1, 6))))
    elif roll < 0.58:
        provider.out_of_reach(sim.now_s + rng.choice((3, 20)))
    elif roll < 0.61:
        provider.stale(sim.now_s + rng.choice((2, 6)))
    elif roll < 0.64:
        sim.kill(rng.choice(OWNERS))
    elif roll < 0.645:
        sim.restart_head()
    elif roll < 0.67 and up:
        sim.record(sim.tree.cordon(rng.choice(up), "maintenance", None, sim.now_s))
    elif roll < 0.70:
        for cordoned in sorted(sim.tree.cordons):
            sim.record(sim.tree.uncordon(cordoned, "done", sim.now_s))
    elif roll < 0.72 and up:
        where = rng.choice(up)
        free = (sim.world.nodes[where].total - sim.world.used()[where]).floor_zero()
        sim.world.foreign[where] = Resources.of({"GPU": 1}) if free.gpu_units >= 10_000 else Resources()
    elif roll < 0.75:
        sim.world.foreign.clear()
    elif roll < 0.76:
        provider.hidden ^= {rng.choice(names)}


def submit(sim: CheckedCluster, rng: random.Random) -> None:
    number = len(sim.tree.workloads)
    kind = rng.choice((Kind.TRAIN, Kind.TRAIN, Kind.TRAIN, Kind.JOB, Kind.SERVE, Kind.GANG))
    members = rng.choice((1, 2, 3, 4)) if kind is not Kind.SERVE else 1
    spec = workload(
        f"w{number}",
        members=members,
        most=members + rng.choice((0, 2)) if kind in (Kind.TRAIN, Kind.SERVE) else members,
        gpu=rng.choice((0.5, 1, 2, 2, 4)),
        queue=rng.choice(("all/a", "all/b")),
        kind=kind,
        priority=rng.choice((0, 0, 5)),
        max_retries=3,
        grace_s=rng.choice((3.0, 10.0)),
        topology=TopologyRequest(required=rng.choice((None, None, "rack"))),
        accelerators=rng.choice(((), (), ("H100",), ("H100", "A100"))),
    )
    now_s = sim.now_s - sim.start_s
    work = SimWork(
        steps=rng.randrange(10, 60),
        checkpoint_every=rng.choice((5, 10)),
        deaf=rng.random() < 0.1,
        demand=((0.0, 1), (now_s + 20, 4), (now_s + 50, 0)),
        heartbeats_s=now_s + 40,
    )
    sim.submit(spec, work)


def end_of(sim: CheckedCluster) -> None:
    """Let everything end that can; what can't says so, and is cancelled; then all comes to rest."""
    end_s = sim.now_s + 900.0
    while sim.now_s < end_s and any(not w.state.terminal for w in sim.tree.workloads.values()):
        sim.tick()
    waiting = [w.id for w in sim.tree.workloads.values() if not w.state.terminal]
    for id in waiting:
        assert sim.tree.workloads[id].state is State.PENDING, sim.story(f"{id} does not end")
        reasons = {wait.reason for wait in sim.controller.plans[-1][1].waits[id]}
        assert reasons & CANT, sim.story(f"{id} could start, and waits for {sorted(reasons)}")
        sim.cancel(id)
    sim.run_to_rest()


@pytest.mark.parametrize("part", range(GROUPS))
def test_capacity_follows_the_gangs_whatever_happens(part: int) -> None:
    for seed in range(part, SEEDS, GROUPS):
        try:
            end_of(random_life(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_where_rays_autoscaler_decides_no_count_is_ever_patched() -> None:
    for seed in range(8):
        try:
            sim = random_life(seed, rays=True)
            end_s = sim.now_s + 300.0
            while sim.now_s < end_s and any(not w.state.terminal for w in sim.tree.workloads.values()):
                sim.tick()
            for live in [w for w in sim.tree.workloads.values() if not w.state.terminal]:
                sim.cancel(live.id)
            sim.run_to_quiet()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert sim.scaling is not None and sim.scaling.autoscaler is not None
        assert not [patch for patch in sim.scaling.provider.patches if patch.ours], f"seed {seed}"
        assert sim.scaling.autoscaler.requests, f"seed {seed}"
        assert any(w.state is State.SUCCEEDED for w in sim.tree.workloads.values()), f"seed {seed}"


def test_the_same_seed_gives_the_same_journal_and_patches() -> None:
    first, second = random_life(7), random_life(7)
    assert first.scaling is not None and second.scaling is not None
    assert first.history == second.history
    assert first.scaling.provider.patches == second.scaling.provider.patches


def test_foreign_use_in_these_lives_is_real() -> None:
    """The lives must meet what they are about: growth, shrink, refusals, failures, notices, foreign use, unknown."""
    seen: set[str] = set()
    for seed in range(12):
        sim = random_life(seed)
        assert sim.scaling is not None
        provider = sim.scaling.provider
        ours = [p for p in provider.patches if p.ours]
        seen |= {"growth" for p in ours if p.to_replicas > p.from_replicas}
        seen |= {"shrink" for p in ours if p.to_replicas < p.from_replicas}
        seen |= {"others" for p in provider.patches if not p.ours}
        seen |= {r.reason for r in provider.removals}
        for snapshot, plan, _ in sim.controller.plans:
            seen |= {"unknown"} if snapshot.capacity.error else set()
            seen |= {"foreign"} if any(n.foreign for n in snapshot.nodes) else set()
            seen |= {"back-off"} if any(s.back_off for s in snapshot.capacity.groups) else set()
            seen |= {wait.reason.value for waits in plan.waits.values() for wait in waits}
    wanted = {"growth", "shrink", "others", "unknown", "foreign", "back-off", "deleted by hand", "named by a patch"}
    wanted |= {"spot machine taken back", "chosen by the operator", "Provisioning", "CapacityRefused", "CapacityLimit"}
    assert wanted <= seen, wanted - seen


def test_ids_of_nodes_are_those_of_their_machines() -> None:
    sim = random_life(3)
    for id, spec in sim.world.nodes.items():
        assert not spec.instance or id.split("~")[0] == NodeId(spec.instance)
