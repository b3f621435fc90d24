"""Random worlds of shares, memory, several devices and instances: planner, owner and checkers agree at every step."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.allocations import Allocations
from rayorch.core.bound_devices import bundle_of
from rayorch.core.decisions import Start
from rayorch.core.planner import plan
from rayorch.core.room import Room
from rayorch.core.sharing import MIB
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    Device,
    NodeSpec,
    Resources,
    Role,
    State,
    Workload,
    WorkloadId,
    WorkloadSpec,
    charge_of,
    total,
)
from rayorch.policies.default import DEFAULT
from rayorch.sim.checkers import check_devices, check_groups_fit
from tests.build import node, queue, workload

LIMIT = 30_000
"""GPU units that the queue may hold."""


def sized(name: str, gpus: int, mib: int, exact: bool) -> NodeSpec:
    devices = tuple(Device(i, uuid=f"GPU-{name}-{i}", memory_bytes=mib * MIB) for i in range(gpus))
    return replace(node(name, gpus, cpu=64), devices=devices, exact=exact)


def cut(name: str, profiles: tuple[str, ...]) -> NodeSpec:
    devices = tuple(Device(i, uuid=f"MIG-{i}", mig_profile=p, pci=f"p{i % 2}") for i, p in enumerate(profiles))
    counts = {f"mig-{p}": profiles.count(p) for p in set(profiles)}
    total_ = Resources.of({"CPU": 64, **counts})
    return replace(node(name, 0), total=total_, devices=devices, exact=True, mig_mixed=True)


worlds = st.tuples(
    st.integers(1, 4), st.sampled_from([97, 1000, 81_559]), st.booleans(), st.integers(1, 3), st.sampled_from([0, 500])
).map(
    lambda w: (
        sized("a", w[0], w[1], w[2]),
        sized("b", w[3], w[4], True),
        cut("c", ("1g.10gb", "1g.10gb", "3g.40gb")),
    )
)
bundles = st.one_of(
    st.integers(1, 10_000).map(lambda n: Resources.of_units({"GPU": n})),
    st.integers(1, 2).map(lambda n: Resources.of({"GPU": n})),
    st.integers(1, 600).map(lambda n: Resources.of({"gpu-memory-mib": n})),
    st.integers(1, 300).map(lambda n: Resources.of({"gpu-memory-mib": 2 * n, "gpu-devices": 2})),
    st.integers(1, 9_999).map(lambda n: Resources.of_units({"GPU": 2 * n, "gpu-devices": 20_000})),
    st.sampled_from(["1g.10gb", "3g.40gb", "2g.20gb"]).map(lambda p: Resources.of({f"mig-{p}": 1})),
)
moves = st.lists(st.one_of(st.tuples(bundles, st.integers(1, 3)), st.integers(0, 9)), min_size=1, max_size=14)


@settings(deadline=None, max_examples=60)
@given(nodes=worlds, steps=moves)
def test_what_is_planned_is_taken_by_the_owner_and_no_device_is_above_its_capacity(
    nodes: tuple[NodeSpec, ...], steps: list[tuple[Resources, int] | int]
) -> None:
    books = Allocations()
    waiting: dict[WorkloadId, WorkloadSpec] = {}
    running: dict[WorkloadId, Workload] = {}
    limited = replace(queue("q"), hard_cap=Resources.of_units({"GPU": LIMIT}))
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            spec = replace(workload(f"w{number:02}"), roles=(Role("worker", step[0], step[1], step[1]),))
            waiting[spec.id] = spec
        elif running:
            gone = sorted(running)[step % len(running)]
            del running[gone]
            books.release(gone, 1, None)
            books.removed(gone, 1, 0)
        pending = [Workload(spec, State.PENDING, float(n)) for n, spec in enumerate(waiting.values())]
        known = tuple(sorted([*pending, *running.values()], key=lambda w: w.id))
        held = tuple(a for _, a in sorted(books.allocations.items()))
        made = plan(Snapshot(Versions(), float(number), (limited,), known, nodes, held), DEFAULT)
        for start in [d for d in made.decisions if isinstance(d, Start)]:
            books.reserve(start.workload, 1, start.members, nodes, 0.0, 30.0)  # raises when it does not fit
            spec = waiting.pop(start.workload)
            running[spec.id] = Workload(
                spec, State.RUNNING, 0.0, 1, (("worker", len(start.members)),), 0.0, 0.0,
                lease_renewed_s=float(number), placement=start.members,
            )  # fmt: skip
        for id in waiting:
            assert made.waits[id], "whoever waits has a reason"
        _check(nodes, books)
    room = Room.of(nodes, books.allocations.values(), 0.0)
    for allocation in books.allocations.values():
        for member in allocation.members:
            room.give(member.node, member.bundle, member.devices)
    idle = Room.of(nodes, (), 0.0)
    assert all(room.slot(n.id).left == idle.slot(n.id).left and room.free(n.id) == idle.free(n.id) for n in nodes)


def _check(nodes: tuple[NodeSpec, ...], books: Allocations) -> None:
    held = tuple(a for _, a in sorted(books.allocations.items()))
    members = [m for a in held for m in a.members]
    seen = Snapshot(Versions(), 0.0, (), (), nodes, held)
    assert check_devices(seen) == ()
    assert check_groups_fit(seen, ()) == ()
    assert charge_of(members).gpu_units <= LIMIT
    for spec in nodes:
        slot = Room.of(nodes, held, 0.0).slot(spec.id)
        assert min(slot.left) >= 0
        asked = total(bundle_of(m) for m in members if m.node == spec.id)  # of Ray, its GPUs by name
        named = {name: n for name, n in asked if name.startswith("gpu")}
        assert all(n <= 10_000 for n in named.values())
        assert asked.gpu_units <= spec.ray_total.gpu_units
