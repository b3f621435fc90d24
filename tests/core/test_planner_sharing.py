"""Parts of GPUs through the planner: seats, quota by what the seat came to, and why they wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.adoption import WorldGroup, adopt_world
from rayorch.core.allocations import Allocations
from rayorch.core.bound_devices import bundle_of
from rayorch.core.decisions import Plan, Start, WaitReason
from rayorch.core.errors import StalePlanError
from rayorch.core.planner import plan
from rayorch.core.room import Room
from rayorch.core.runners import grant_for
from rayorch.core.sharing import MIB
from rayorch.core.snapshot import Snapshot, Versions
from rayorch.core.types import (
    Allocation,
    Device,
    Member,
    MemberPhase,
    NodeSpec,
    QueueSpec,
    Resources,
    Role,
    State,
    Workload,
    WorkloadId,
    WorkloadSpec,
    group_name,
)
from rayorch.policies.default import DEFAULT
from tests.build import node, queue, workload
from tests.core.test_planner_scale import changes, group, of_group, world
from tests.scenes import NOW, running


def sized(name: str, mib: int, gpus: int = 2, exact: bool = True) -> NodeSpec:
    devices = tuple(Device(i, uuid=f"GPU-{name}-{i}", memory_bytes=mib * MIB) for i in range(gpus))
    return replace(node(name, gpus), devices=devices, exact=exact)


def cut(name: str, *profiles: str, exact: bool = True) -> NodeSpec:
    devices = tuple(Device(i, uuid=f"MIG-{i}", mig_profile=p) for i, p in enumerate(profiles))
    total = Resources.of({"CPU": 16, **{f"mig-{p}": profiles.count(p) for p in profiles}})
    return replace(node(name, 0), total=total, devices=devices, exact=exact, mig_mixed=True)


def asking(id: str, count: int = 1, **amounts: float) -> WorkloadSpec:
    bundle = Resources.of({name.replace("_", "-"): n for name, n in amounts.items()})
    return replace(workload(id), roles=(Role("worker", bundle, count, count),))


def mig(id: str, profile: str, count: int = 1) -> WorkloadSpec:
    return replace(workload(id), roles=(Role("worker", Resources.of({f"mig-{profile}": 1}), count, count),))


def planned(
    nodes: list[NodeSpec],
    *specs: WorkloadSpec,
    queues: tuple[QueueSpec, ...] = (queue("q"),),
    held: tuple[Allocation, ...] = (),
) -> Plan:
    waiting = tuple(Workload(s, State.PENDING, float(n)) for n, s in enumerate(specs))
    return plan(Snapshot(Versions(), 100.0, queues, waiting, tuple(nodes), held), DEFAULT)


def starts(made: Plan) -> dict[str, tuple[Member, ...]]:
    return {d.workload: d.members for d in made.decisions if isinstance(d, Start)}


def test_a_memory_share_is_seated_with_the_gpus_that_it_came_to() -> None:
    made = planned([sized("n1", 40_000)], asking("w", gpu_memory_mib=10_000))
    (member,) = starts(made)["w"]
    assert member.devices == (0,)
    assert member.bundle == Resources.of({"GPU": 0.25, "gpu-memory-mib": 10_000})


def test_quota_counts_the_worst_device_before_and_the_real_one_after_the_seat_is_chosen() -> None:
    nodes = [sized("n1", 40_000), sized("n2", 80_000, gpus=4)]
    small = queue("q", gpu=0.2)
    made = planned(nodes, asking("w", gpu_memory_mib=10_000), queues=(small,))
    assert starts(made) == {}
    assert made.waits[WorkloadId("w")][0].reason is WaitReason.QUOTA
    fits = planned(nodes, asking("w", gpu_memory_mib=8_000), queues=(small,))
    assert list(starts(fits)) == ["w"]


def test_members_of_a_gang_do_not_add_up_over_devices() -> None:
    made = planned([sized("n1", 40_000)], asking("w", count=3, gpu_memory_mib=21_000))
    assert starts(made) == {}
    reasons = {w.reason for w in made.waits[WorkloadId("w")]}
    assert WaitReason.FRAGMENTED in reasons
    assert WaitReason.NEVER_FITS_NOW in reasons
    assert list(starts(planned([sized("n1", 40_000)], asking("w", count=2, gpu_memory_mib=21_000)))) == ["w"]


def test_a_share_of_two_devices_goes_to_a_node_that_names_them() -> None:
    spec = asking("w", GPU=1, gpu_devices=2)
    (member,) = starts(planned([sized("n1", 40_000, exact=False), sized("n2", 40_000)], spec))["w"]
    assert (member.node, member.devices) == ("n2", (0, 1))
    made = planned([sized("n1", 40_000, exact=False)], spec)
    assert starts(made) == {}
    assert WaitReason.DEVICE_BINDING_UNAVAILABLE in {w.reason for w in made.waits[WorkloadId("w")]}


def test_an_instance_by_profile_and_no_whole_gpu_of_a_mixed_node() -> None:
    nodes = [cut("n1", "1g.10gb", "3g.40gb")]
    assert starts(planned(nodes, mig("w", "3g.40gb")))["w"][0].devices == (1,)
    made = planned(nodes, workload("whole"))
    assert starts(made) == {}
    assert {w.reason for w in made.waits[WorkloadId("whole")]} >= {WaitReason.RESOURCES, WaitReason.NEVER_FITS_NOW}


def test_instances_of_several_profiles_can_not_be_promised_without_names() -> None:
    made = planned([cut("n1", "1g.10gb", "3g.40gb", exact=False)], mig("w", "3g.40gb"))
    assert WaitReason.DEVICE_BINDING_UNAVAILABLE in {w.reason for w in made.waits[WorkloadId("w")]}


def test_models_hold_for_parts_of_gpus_too() -> None:
    nodes = [
        replace(sized("n1", 40_000), labels=(("ray.io/accelerator-type", "A100"),)),
        replace(sized("n2", 80_000), labels=(("ray.io/accelerator-type", "H100"),)),
    ]
    spec = replace(asking("w", gpu_memory_mib=10_000), accelerators=("H100",))
    assert starts(planned(nodes, spec))["w"][0].node == "n2"


def test_why_memory_can_not_be_had_where_nobody_knows_it() -> None:
    made = planned([node("n1")], asking("w", gpu_memory_mib=1))
    assert any("memory known" in w.detail for w in made.waits[WorkloadId("w")])


def test_why_a_mode_can_not_be_had() -> None:
    made = planned([sized("n1", 40_000)], asking("w", GPU=0.5, gpu_mps=1))
    assert any("shared by mps" in w.detail for w in made.waits[WorkloadId("w")])


def test_the_owner_checks_memory_again_and_ray_is_asked_for_gpus_by_name() -> None:
    nodes = [sized("n1", 40_000, gpus=1)]
    books = Allocations()
    for id in ("a", "b", "c", "d"):
        members = starts(planned(nodes, asking(id, gpu_memory_mib=9_000), held=tuple(books.allocations.values())))[id]
        books.reserve(WorkloadId(id), 1, members, nodes, 100.0, 130.0)
    last = books.allocations[WorkloadId("d"), 1].members[0]
    assert bundle_of(last) == Resources.of({"GPU": 0.225, "gpu0": 0.225})
    made = planned(nodes, asking("e", gpu_memory_mib=9_000), held=tuple(books.allocations.values()))
    assert starts(made) == {}
    books.release(WorkloadId("a"), 1, None)
    books.removed(WorkloadId("a"), 1, 0)
    again = planned(nodes, asking("e", gpu_memory_mib=13_000), held=tuple(books.allocations.values()))
    assert list(starts(again)) == ["e"]


def test_a_share_that_has_become_another_part_of_its_device_is_stale() -> None:
    members = starts(planned([sized("n1", 40_000)], asking("w", gpu_memory_mib=9_000)))["w"]
    with pytest.raises(StalePlanError, match="another part"):
        Allocations().reserve(WorkloadId("w"), 1, members, [sized("n1", 80_000)], 100.0, 130.0)


def test_a_grant_speaks_of_what_ray_counts() -> None:
    nodes = [cut("n1", "1g.10gb", "3g.40gb")]
    spec = mig("w", "3g.40gb")
    members = starts(planned(nodes, spec))["w"]
    books = Allocations()
    held = books.reserve(WorkloadId("w"), 1, members, nodes, 100.0, 130.0)
    ready = replace(held, members=tuple(replace(m, phase=MemberPhase.READY, group_id="ab") for m in held.members))
    running = Workload(spec, State.RUNNING, 0.0, attempt=1, placement=members)
    (seat,) = grant_for(running, ready, 10.0).seats
    assert seat.resources == Resources.of({"GPU": 1})
    assert seat.devices == (1,)
    assert bundle_of(ready.members[0]) == Resources.of({"GPU": 1, "gpu1": 1})


def test_a_new_node_is_expected_to_have_the_devices_of_its_group() -> None:
    seen = group("g", replicas=1, gpu=2)
    full = replace(
        of_group(seen, 0), devices=tuple(Device(i, uuid=f"GPU-{i}", memory_bytes=40_000 * MIB) for i in range(2))
    )
    busy = running("busy", [full.id, full.id])
    for mib, grows in ((30_000, {"g": (1, 2)}), (50_000, {})):
        waits = Workload(asking("w", gpu_memory_mib=mib), State.PENDING, 0.0)
        assert changes(plan(world([seen], [full], [busy, waits]), DEFAULT)) == grows
    empty = group("g", replicas=0, gpu=2)
    waits = Workload(asking("w", gpu_memory_mib=1), State.PENDING, 0.0)
    assert changes(plan(world([empty], [], [waits]), DEFAULT)) == {}  # of no node of it the memory is known


def test_an_order_is_made_for_an_instance_too() -> None:
    seen = group("g", replicas=1, gpu=2)
    first = cut("g-0", "1g.10gb", "3g.40gb")
    first = replace(first, group=seen.name, instance="g-0")
    held = Allocation(
        WorkloadId("busy"),
        1,
        (Member("worker", 0, first.id, Resources.of({"mig-3g.40gb": 1}), devices=(1,), phase=MemberPhase.READY),),
        0.0,
        0.0,
    )
    spec = mig("busy", "3g.40gb")
    busy = Workload(spec, State.RUNNING, 0.0, 1, (("worker", 1),), 0.0, 0.0, lease_renewed_s=NOW)
    waits = Workload(mig("w", "3g.40gb"), State.PENDING, 0.0)
    seen_world = replace(world([seen], [first], [waits]), workloads=(busy, waits), allocations=(held,))
    assert changes(plan(seen_world, DEFAULT)) == {"g": (1, 2)}


def test_after_a_restart_the_books_are_built_again_from_what_ray_holds() -> None:
    nodes = [cut("n1", "1g.10gb", "3g.40gb"), sized("n2", 40_000)]
    for spec in (mig("w", "3g.40gb"), asking("w", gpu_memory_mib=10_000), asking("w", GPU=1, gpu_devices=2)):
        books = Allocations()
        held = books.reserve(spec.id, 1, starts(planned(nodes, spec))["w"], nodes, 100.0, 130.0)
        bundles = tuple((m.node, bundle_of(m)) for m in held.members)
        there = WorldGroup(group_name("main", spec.id, 1), "ab", bundles, created=True)
        running_ = Workload(spec, State.RUNNING, 0.0, attempt=1, ready_s=1.0, placement=held.members)
        (again,) = adopt_world([there], {spec.id: running_}, "main", 200.0, 230.0, nodes).adopt
        assert [(m.bundle, m.devices, m.exact) for m in again.members] == [
            (m.bundle, m.devices, True) for m in held.members
        ]
        before, after = (Room.of(nodes, [a], 0.0) for a in (held, again))
        assert all(before.slot(n.id).left == after.slot(n.id).left for n in nodes)
