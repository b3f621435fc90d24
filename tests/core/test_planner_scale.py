"""What is asked of node groups, what is given back, and what waiting gangs are told: state in, decisions out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from rayorch.core.capacity import (
    BackOff,
    Capacity,
    GroupName,
    GroupState,
    Instance,
    InstancePhase,
    NodeGroup,
    Order,
    Provider,
)
from rayorch.core.decisions import GroupChange, Plan, Scale, WaitReason
from rayorch.core.planner import plan
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import (
    MODEL_LABEL,
    Kind,
    NodeHealth,
    NodeId,
    NodeSpec,
    QueueSpec,
    Resources,
    Role,
    Segment,
    StopCause,
    TopologyRequest,
    Workload,
    WorkloadId,
)
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, gpus, node, pending, queue, reasons, running, snapshot, started, stopping, wanted

LONG_IDLE_S = NOW - 1000.0


def group(
    name: str, replicas: int = 0, most: int = 10, gpu: float = 8, cpu: float = 64, rack: str = "", **settings: object
) -> NodeGroup:
    """A group of nodes with 8 GPUs."""
    model = str(settings.get("model", ""))
    labels = [("rack", rack)] if rack else []
    labels += [(MODEL_LABEL, model)] if model else []
    settings.setdefault("labels", tuple(sorted(labels)))
    return NodeGroup(GroupName(name), gpus(gpu, CPU=cpu), replicas, max_replicas=most, **settings)  # type: ignore[arg-type]


def of_group(seen: NodeGroup, number: int, idle_since_s: float | None = None, **changes: object) -> NodeSpec:
    """A node of a group; its machine has the same name."""
    name = f"{seen.name}-{number}"
    gpu, cpu = seen.total.gpu_units // 10_000, seen.total.units("CPU") / 10_000
    made = node(name, gpu, seen.label("rack"), None, cpu, model=seen.model)
    made = replace(made, group=seen.name, instance=name, idle_since_s=idle_since_s)
    return replace(made, **changes)  # type: ignore[arg-type]


def world(
    states: Iterable[GroupState | NodeGroup],
    nodes: Iterable[NodeSpec] = (),
    work: Iterable[object] = (),
    queues: Iterable[QueueSpec] = (),
    provider: Provider = Provider.OURS,
    error: str = "",
    synced: bool = True,
) -> Snapshot:
    """Groups, their nodes, and work. Groups without instances get one for each of their nodes."""
    nodes = tuple(nodes)
    shown = [state if isinstance(state, GroupState) else GroupState(state) for state in states]
    made = []
    for state in shown:
        ours = [n for n in nodes if n.group == state.group.name]
        hosts = state.group.hosts
        machines = tuple(
            Instance(n.instance, f"{state.group.name}:{i // hosts}", InstancePhase.RUNNING, 0.0, 1.0, n.id)
            for i, n in enumerate(ours)
        )
        made.append(replace(state, group=replace(state.group, instances=(*machines, *state.group.instances))))
    capacity = Capacity(provider, tuple(sorted(made, key=lambda s: s.group.name)), NOW, error)
    return replace(snapshot(nodes, work, queues, synced=synced), capacity=capacity)


def coming(seen: NodeGroup, count: int, of: int, *beneficiaries: str, late_s: float = 0.0) -> GroupState:
    """The group with an open order for the last `count` of its replicas, whose machines are pending."""
    names = [f"{seen.name}-new{i}" for i in range(count * seen.hosts)]
    machines = tuple(
        Instance(name, f"{seen.name}:new{i // seen.hosts}", InstancePhase.PENDING, NOW - 50)
        for i, name in enumerate(names)
    )
    order = Order(
        group=seen.name,
        from_replicas=of,
        to_replicas=of + count,
        ordered_s=NOW - 50,
        expected_s=NOW + 250 + late_s,
        deadline_s=NOW + 550,
        beneficiaries=tuple(WorkloadId(id) for id in beneficiaries),
        reason="for them",
        shares=tuple((WorkloadId(id), count * seen.hosts) for id in beneficiaries),
    )
    return GroupState(replace(seen, replicas=of + count, instances=machines), order)


def resting(seen: NodeGroup, for_s: float = 100.0, reason: str = "out of stock") -> GroupState:
    """The group after a strike."""
    return GroupState(seen, back_off=BackOff(NOW + for_s, reason, 1))


def changes(made: Plan) -> dict[str, tuple[int, int]]:
    """Old and new count of each group that changes."""
    return {c.group: (c.from_replicas, c.to_replicas) for c in details(made)}


def details(made: Plan) -> tuple[GroupChange, ...]:
    """The changes."""
    return next(d for d in made.decisions if isinstance(d, Scale)).changes


def decide(*args: object, **settings: object) -> Plan:
    """The plan for a world."""
    return plan(world(*args, **settings), DEFAULT)  # type: ignore[arg-type]


# ---------------------------------------------------------------- growth: how much


def test_a_gang_larger_than_the_cluster_gets_exactly_its_nodes() -> None:
    made = decide([group("a", 1)], [of_group(group("a"), 0)], [pending("w", 3, gpu=8)])
    assert details(made) == (
        GroupChange(
            group=GroupName("a"),
            from_replicas=1,
            to_replicas=3,
            reason="2 nodes for w",
            beneficiaries=(WorkloadId("w"),),
            expected_s=NOW + 300,
            deadline_s=NOW + 600,
            shares=((WorkloadId("w"), 2),),
        ),
    )


def test_nobody_counts_on_a_machine_that_was_given_up_and_others_are_ordered_beside_it() -> None:
    dead = Instance("a-dead", "a-dead", InstancePhase.PENDING, NOW - 5000, reason="CrashLoopBackOff")
    seen = group("a", 2, min_replicas=2, instances=(dead,))
    node = of_group(group("a"), 0)
    made = decide([GroupState(seen, given_up=1)], [node], [pending("w", 3, gpu=8)])
    assert changes(made) == {"a": (2, 4)}


def test_what_was_given_up_is_cancelled_once_the_minimum_has_come_without_it() -> None:
    dead = Instance("a-dead", "a-dead", InstancePhase.PENDING, NOW - 5000, reason="CrashLoopBackOff")
    nodes = [of_group(group("a"), n) for n in range(2)]
    seen = group("a", 3, min_replicas=2, instances=(dead,))
    (change,) = details(decide([GroupState(seen, given_up=1)], nodes))
    assert (change.from_replicas, change.to_replicas, change.instances) == (3, 2, ("a-dead",))
    assert changes(decide([GroupState(replace(seen, min_replicas=3), given_up=1)], nodes)) == {}


def test_what_is_free_on_nodes_that_are_partly_used_is_counted_first() -> None:
    nodes = [of_group(group("a"), 0), of_group(group("a"), 1)]
    work = [running("x", ["a-0"], gpu=4), running("y", ["a-1"], gpu=6), pending("w", 8, gpu=2)]
    assert changes(decide([group("a", 2)], nodes, work)) == {"a": (2, 4)}  # 3 of 8 fit, 5 need 2 nodes


def test_no_free_node_is_promised_to_two_gangs() -> None:
    work = [pending("v", 2, gpu=8, submitted_s=0.0), pending("w", 2, gpu=8, submitted_s=1.0)]
    assert changes(decide([group("a", 1)], [of_group(group("a"), 0)], work)) == {"a": (1, 4)}


def test_gangs_share_what_new_nodes_leave_over() -> None:
    work = [pending("v", 3, gpu=4), pending("w", 1, gpu=4)]
    (change,) = details(decide([group("a")], [], work))
    assert (change.to_replicas, change.beneficiaries) == (2, ("v", "w"))


def test_replicas_of_several_hosts_come_whole() -> None:
    work = [pending("w", 5, gpu=8)]
    assert changes(decide([group("a", hosts=4)], [], work)) == {"a": (0, 2)}


def test_a_gang_that_can_not_be_completed_asks_for_nothing() -> None:
    made = decide([group("a", 1, most=2)], [of_group(group("a"), 0)], [pending("w", 3, gpu=8)])
    assert changes(made) == {}
    assert wanted(made) == ["w"]
    limit = made.waits[WorkloadId("w")][-1]
    assert (limit.reason, limit.detail) == (WaitReason.CAPACITY_LIMIT, "group a has 1 of 2 replicas")


def test_two_gangs_that_each_want_the_last_node_do_not_hold_one_another() -> None:
    nodes = [of_group(group("a"), 0)]
    work = [pending("v", 2, gpu=8, submitted_s=0.0), pending("w", 2, gpu=8, submitted_s=1.0)]
    (change,) = details(decide([group("a", 1, most=2)], nodes, work))
    assert (change.to_replicas, change.beneficiaries) == (2, ("v",))


def test_a_gang_behind_one_that_can_not_be_completed_is_served() -> None:
    work = [pending("large", 5, gpu=8, submitted_s=0.0), pending("small", 2, gpu=8, submitted_s=1.0)]
    (change,) = details(decide([group("a", most=3)], [], work))
    assert (change.to_replicas, change.beneficiaries) == (2, ("small",))


def test_claims_beyond_quota_ask_for_nothing() -> None:
    work = [pending("v", 2, gpu=8, submitted_s=0.0), pending("w", 2, gpu=8, submitted_s=1.0)]
    (change,) = details(decide([group("a")], [], work, [queue("q", 16)]))
    assert (change.to_replicas, change.beneficiaries) == (2, ("v",))


def test_an_elastic_gang_asks_only_for_its_minimum() -> None:
    assert changes(decide([group("a")], [], [pending("w", (2, 8), gpu=8)])) == {"a": (0, 2)}


def test_one_change_for_a_group_serves_all_gangs() -> None:
    work = [pending(f"w{i}", 1, gpu=8, submitted_s=float(i)) for i in range(6)]
    (change,) = details(decide([group("a")], [], work))
    assert (change.to_replicas, change.reason) == (6, "6 nodes for w0, w1, w2, w3 and 2 more")


def test_a_group_below_its_minimum_is_raised_for_nobody() -> None:
    (change,) = details(decide([group("a", 1, min_replicas=2)], [of_group(group("a"), 0)]))
    assert (change.to_replicas, change.beneficiaries, change.reason) == (2, (), "its minimum is 2")


def test_a_fraction_of_a_device_is_counted_by_devices() -> None:
    assert changes(decide([group("a", gpu=1)], [], [pending("w", 3, gpu=0.6)])) == {"a": (0, 3)}
    assert changes(decide([group("a", gpu=1)], [], [pending("w", 3, gpu=0.5)])) == {"a": (0, 2)}


# ---------------------------------------------------------------- growth: where


def test_the_smallest_preference_is_grown_first_then_the_least_waste_then_the_name() -> None:
    work = [pending("w", 1, gpu=4)]
    assert changes(decide([group("a", preference=1), group("b")], [], work)) == {"b": (0, 1)}
    assert changes(decide([group("a"), group("b", gpu=4)], [], work)) == {"b": (0, 1)}
    assert changes(decide([group("a"), group("b")], [], work)) == {"a": (0, 1)}


def test_one_group_that_suffices_comes_before_several_that_do_together() -> None:
    groups = [group("a", most=2), group("b", most=4, preference=1)]
    assert changes(decide(groups, [], [pending("w", 4, gpu=8)])) == {"b": (0, 4)}
    assert changes(decide(groups, [], [pending("w", 6, gpu=8)])) == {"a": (0, 2), "b": (0, 4)}


def test_a_driver_without_gpus_sits_beside_the_workers_or_on_a_cpu_group() -> None:
    roles = (Role("worker", gpus(8, CPU=16), 2, 2), Role("driver", Resources.of({"CPU": 16}), 1, 1))
    both = [group("gpu", cpu=64), group("cpu", gpu=0, cpu=64)]
    assert changes(decide(both, [], [pending("w", roles=roles)])) == {"gpu": (0, 2)}
    tight = [group("gpu", cpu=16), group("cpu", gpu=0, cpu=64)]
    assert changes(decide(tight, [], [pending("w", roles=roles)])) == {"cpu": (0, 1), "gpu": (0, 2)}


def test_the_group_whose_leftover_takes_the_driver_is_grown() -> None:
    roles = (Role("worker", gpus(8, CPU=16), 2, 2), Role("driver", Resources.of({"CPU": 16}), 1, 1))
    groups = [group("a", cpu=16), group("b", cpu=64)]
    assert changes(decide(groups, [], [pending("w", roles=roles)])) == {"b": (0, 2)}


def test_a_driver_that_fits_nowhere_keeps_the_whole_gang_from_asking() -> None:
    roles = (Role("worker", gpus(8), 2, 2), Role("driver", Resources.of({"CPU": 200}), 1, 1))
    assert changes(decide([group("a")], [], [pending("w", roles=roles)])) == {}


def test_all_members_go_to_one_domain_by_the_labels_of_groups_and_nodes() -> None:
    r1, r2, bare = group("a", rack="r1", most=1), group("b", 1, rack="r2"), group("c")
    made = decide([r1, r2, bare], [of_group(r2, 0)], [pending("w", 2, gpu=8, rack="required")])
    assert changes(made) == {"b": (1, 2)}


def test_the_domain_that_needs_least_added_is_taken() -> None:
    r1, r2 = group("a", rack="r1"), group("b", 2, rack="r2", preference=1)
    nodes = [of_group(r2, 0), of_group(r2, 1)]
    assert changes(decide([r1, r2], nodes, [pending("w", 3, gpu=8, rack="required")])) == {"b": (2, 3)}


def test_domains_below_other_parents_are_other_domains() -> None:
    labels = (("rack", "r1"), ("zone", "z2"))
    far = group("a", labels=labels)
    nodes = [node("n1", 8, rack="r1", zone="z1")]
    made = decide([far], nodes, [pending("w", 2, gpu=8, rack="required")])
    assert changes(made) == {"a": (0, 2)}


def test_a_group_names_its_rack_and_its_nodes_tell_the_zone() -> None:
    seen = group("a", 1, rack="r1")
    there = of_group(seen, 0, topology=(("zone", "z1"), ("rack", "r1")))
    assert changes(decide([seen], [there], [pending("w", 2, gpu=8, rack="required")])) == {"a": (1, 2)}


def test_a_gang_that_must_be_on_one_node_gets_one() -> None:
    work = [pending("w", 4, gpu=2, topology=TopologyRequest(required="node"))]
    groups = [group("a", gpu=4), group("b", gpu=8)]
    assert changes(decide(groups, [], work)) == {"b": (0, 1)}


def test_models_are_tried_in_their_order() -> None:
    groups = [group("a", model="A100"), group("h", model="H100", preference=5)]
    assert changes(decide(groups, [], [pending("w", 2, gpu=8, accelerators=("H100", "A100"))])) == {"h": (0, 2)}
    only = [group("a", model="A100"), group("h", model="H100", most=1)]
    assert changes(decide(only, [], [pending("w", 2, gpu=8, accelerators=("H100", "A100"))])) == {"a": (0, 2)}


def test_gpus_of_two_models_are_not_mixed_for_a_gang_that_names_models() -> None:
    groups = [group("a", model="A100", most=1), group("h", model="H100", most=1)]
    assert changes(decide(groups, [], [pending("w", 2, gpu=8, accelerators=("H100", "A100"))])) == {}
    assert changes(decide(groups, [], [pending("w", 2, gpu=8)])) == {"a": (0, 1), "h": (0, 1)}


# ---------------------------------------------------------------- one decision at a time


def test_what_is_on_its_way_is_not_asked_for_again() -> None:
    made = decide([coming(group("a"), 2, 0, "w")], [], [pending("w", 2, gpu=8)])
    assert changes(made) == {}
    assert reasons(made, "w")[-1] is WaitReason.PROVISIONING
    wait = made.waits[WorkloadId("w")][-1]
    assert wait.detail == "nodes for it are on their way: 2 of group a, expected in 250 s"
    assert (wait.need, wait.unit, made.estimates[WorkloadId("w")]) == (250, "s", NOW + 250)


def test_a_count_above_its_nodes_is_on_its_way_even_without_a_known_order() -> None:
    assert changes(decide([group("a", 2)], [], [pending("w", 2, gpu=8)])) == {}
    assert changes(decide([group("a", 1)], [], [pending("w", 2, gpu=8)])) == {"a": (1, 2)}


def test_a_group_with_an_open_order_takes_no_growth_and_the_next_group_does() -> None:
    work = [pending("v", 1, gpu=8, submitted_s=0.0), pending("w", 2, gpu=8, submitted_s=1.0)]
    made = decide([coming(group("a"), 1, 0, "v"), group("b", preference=9)], [], work)
    assert changes(made) == {"b": (0, 2)}
    alone = decide([coming(group("a"), 1, 0, "v")], [], work)
    assert changes(alone) == {}
    busy = alone.waits[WorkloadId("w")][-1]
    assert (busy.reason, busy.need, busy.unit) == (WaitReason.CAPACITY_BUSY, 250, "s")


def test_nodes_that_come_one_by_one_wait_for_the_gang_that_they_were_ordered_for() -> None:
    work = [pending("w", 2, gpu=8, submitted_s=0.0), pending("small", 1, gpu=8, submitted_s=1.0)]
    seen = replace(group("a", most=2))
    made = decide([coming(seen, 1, 1, "w")], [of_group(seen, 0)], work)
    assert started(made) == {}
    assert WaitReason.PROVISIONING in reasons(made, "w")
    assert WaitReason.CAPACITY_LIMIT in reasons(made, "small")


def test_a_gang_that_fits_before_all_its_nodes_have_come_starts_and_leaves_the_rest_to_the_next() -> None:
    seen = group("a")
    work = [pending("w", 2, gpu=8, submitted_s=0.0), pending("small", 1, gpu=8, submitted_s=1.0)]
    made = decide([coming(seen, 1, 2, "w")], [of_group(seen, 0), of_group(seen, 1)], work)
    assert list(started(made)) == ["w"]
    assert changes(made) == {}
    assert reasons(made, "small")[-1] is WaitReason.PROVISIONING  # what w leaves over is its next best


def test_a_gang_goes_where_its_nodes_were_ordered() -> None:
    """Any model would do for v, only L4 for w: v does not take the L4 nodes that came for w."""
    h100, l4 = group("h", model="H100"), group("l", model="L4")
    work = [pending("v", 1, gpu=8, submitted_s=0.0), pending("w", 1, gpu=8, submitted_s=1.0, accelerators=("L4",))]
    made = decide([coming(h100, 1, 0, "v"), coming(l4, 1, 0, "w")], [], work)
    assert changes(made) == {}
    assert "1 of group h" in made.waits[WorkloadId("v")][-1].detail
    assert "1 of group l" in made.waits[WorkloadId("w")][-1].detail


# ---------------------------------------------------------------- refused, unknown, not ours


def test_a_group_that_refused_is_left_alone_and_the_next_one_tried() -> None:
    work = [pending("w", 2, gpu=8)]
    assert changes(decide([resting(group("a")), group("b", preference=9)], [], work)) == {"b": (0, 2)}
    made = decide([resting(group("a"))], [], work)
    assert changes(made) == {}
    wait = made.waits[WorkloadId("w")][-1]
    assert wait.reason is WaitReason.CAPACITY_REFUSED
    assert (wait.need, wait.unit, wait.detail) == (100, "s", "group a is asked again in 100 s: out of stock")


def test_what_a_group_at_its_maximum_could_add_is_counted_in_seats() -> None:
    made = decide([group("a", 0, most=2)], [], [pending("w", 32, gpu=1)])
    wait = made.waits[WorkloadId("w")][-1]
    assert wait.reason is WaitReason.CAPACITY_LIMIT
    assert (wait.need, wait.have, wait.unit) == (32, 16, "seats")


def test_a_back_off_that_is_over_is_one_no_more() -> None:
    assert changes(decide([resting(group("a"), for_s=0.0)], [], [pending("w", 2, gpu=8)])) == {"a": (0, 2)}


def test_what_did_not_come_in_time_is_cancelled_by_name_and_what_came_is_used() -> None:
    seen = group("a")
    state = coming(seen, 2, 1, "w")
    struck = replace(state, order=None, back_off=BackOff(NOW + 100, "1 of 3 nodes came in 600 s", 1))
    work = [pending("w", 3, gpu=8, submitted_s=0.0), pending("small", 1, gpu=8, submitted_s=1.0)]
    made = decide([struck], [of_group(seen, 0)], work)
    (change,) = details(made)
    assert (change.from_replicas, change.to_replicas, change.instances) == (3, 1, ("a-new0", "a-new1"))
    assert change.nodes == ()
    assert list(started(made)) == ["small"]
    assert WaitReason.CAPACITY_REFUSED in reasons(made, "w")


def test_an_unknown_provider_changes_nothing_and_says_so() -> None:
    idle = of_group(group("a"), 0, LONG_IDLE_S)
    made = decide([group("a", 1)], [idle], [pending("w", 3, gpu=8)], error="connection refused")
    assert changes(made) == {}
    wait = made.waits[WorkloadId("w")][-1]
    assert (wait.reason, wait.detail) == (
        WaitReason.CAPACITY_UNKNOWN,
        "who provides nodes could not be read: connection refused",
    )


def test_nothing_is_changed_before_the_books_are_compared_with_the_world() -> None:
    idle = of_group(group("a"), 0, LONG_IDLE_S)
    assert changes(decide([group("a", 1)], [idle], [pending("w", 3, gpu=8)], synced=False)) == {}


def test_where_ray_provides_only_the_demand_is_stated_with_labels() -> None:
    h100, other = group("h", model="H100", rack="r7"), group("a", model="A100", rack="r1")
    work = [
        running("x", ["h-0"], gpu=8, accelerators=("H100",), rack="required"),
        pending("w", 2, gpu=8, accelerators=("H100", "A100"), rack="required"),
        pending("v", 2, gpu=8, rack="required", submitted_s=5.0),
    ]
    made = decide([replace(h100, replicas=1), other], [of_group(h100, 0)], work, provider=Provider.RAY)
    scale = next(d for d in made.decisions if isinstance(d, Scale))
    assert scale.changes == ()
    assert [(d.workload, d.selector) for d in scale.held] == [("x", (("rack", "r7"), (MODEL_LABEL, "H100")))]
    assert [(d.workload, d.selector) for d in scale.wanted] == [
        ("w", (("rack", "r7"), (MODEL_LABEL, "H100"))),
        ("v", ()),  # two racks could take it: Ray is told none
    ]


def test_ray_is_asked_for_the_first_model_that_a_group_adds() -> None:
    work = [pending("w", 2, gpu=8, accelerators=("B200", "A100"))]
    made = decide([group("a", model="A100")], [], work, provider=Provider.RAY)
    scale = next(d for d in made.decisions if isinstance(d, Scale))
    assert [d.selector for d in scale.wanted] == [((MODEL_LABEL, "A100"),)]


def test_an_attempt_in_two_racks_has_no_neighbours_and_asks_for_no_node_beside_them() -> None:
    groups = [group("a", gpu=4, rack="r1"), group("b", gpu=4, rack="r2")]
    nodes = [node("h1", 4, rack="r1"), node("h2", 4, rack="r2")]
    serve = running("srv", ["h1", "h2"], gpu=4, kind=Kind.SERVE, members=(2, 3), rack="required", demand=(9, 9))
    assert changes(decide(groups, nodes, [serve])) == {}


def test_ray_is_only_asked_for_what_it_can_add_all_at_once_or_it_would_add_nothing_for_anybody() -> None:
    seen = group("a", 1, most=3)
    work = [
        running("x", ["a-0"], gpu=8),
        pending("first", 1, gpu=8),
        pending("too-many", 2, gpu=8, submitted_s=5.0),  # one more node can be had, not two
        pending("fits", 1, gpu=8, submitted_s=6.0),
        pending("too-large", 1, gpu=16, submitted_s=7.0),
    ]
    made = decide([seen], [of_group(seen, 0)], work, provider=Provider.RAY)
    scale = next(d for d in made.decisions if isinstance(d, Scale))
    assert [d.workload for d in scale.wanted] == ["first", "fits"]
    assert WaitReason.CAPACITY_LIMIT in reasons(made, "too-many")
    assert scale.changes == ()


def test_without_known_groups_ray_is_asked_for_all() -> None:
    work = [pending("w", 1, gpu=8), pending("v", 1, gpu=16, submitted_s=5.0)]
    made = decide([], [], work, provider=Provider.RAY)
    scale = next(d for d in made.decisions if isinstance(d, Scale))
    assert [d.workload for d in scale.wanted] == ["w", "v"]


def test_nodes_that_ray_has_promised_are_awaited_and_stay_in_the_demand() -> None:
    seen = group("a", 2, most=2)
    made = decide([seen], [of_group(seen, 0)], [pending("w", 2, gpu=8)], provider=Provider.RAY)
    scale = next(d for d in made.decisions if isinstance(d, Scale))
    assert [d.workload for d in scale.wanted] == ["w"]
    assert WaitReason.PROVISIONING in reasons(made, "w")


def test_the_policy_says_which_gangs_are_asked_for() -> None:
    none = replace(DEFAULT, scale=lambda waiting: ())
    made = plan(world([group("a")], [], [pending("w", 2, gpu=8)]), none)
    assert changes(made) == {}
    assert reasons(made, "w")[-1] is WaitReason.CAPACITY_BUSY


# ---------------------------------------------------------------- shrink


def test_a_node_goes_after_it_has_been_idle_for_long_enough() -> None:
    seen = group("a", 3)
    nodes = [of_group(seen, 0, NOW - 300), of_group(seen, 1, NOW - 299), of_group(seen, 2)]
    (change,) = details(decide([seen], nodes))
    assert (change.from_replicas, change.to_replicas) == (3, 2)
    assert (change.instances, change.nodes) == (("a-0",), ("a-0",))
    assert change.reason == "1 replicas have been idle for 300 s and more"


def test_a_group_may_say_how_long() -> None:
    seen = group("a", 1, idle_s=30.0)
    assert changes(decide([seen], [of_group(seen, 0, NOW - 30)])) == {"a": (1, 0)}


def test_minimum_and_spares_stay_and_the_longest_idle_goes_first() -> None:
    seen = group("a", 4)
    nodes = [of_group(seen, i, LONG_IDLE_S + i) for i in range(4)]
    assert [c.instances for c in details(decide([replace(seen, spares=3)], nodes))] == [("a-0",)]
    assert [c.instances for c in details(decide([replace(seen, min_replicas=2)], nodes))] == [("a-0", "a-1")]
    assert changes(decide([replace(seen, spares=4)], nodes)) == {}


def test_a_draining_node_is_no_spare() -> None:
    seen = group("a", 2, spares=1, spot=True)
    drained = of_group(seen, 1, LONG_IDLE_S, health=NodeHealth.DRAINING, drain_deadline_s=NOW + 60)
    assert changes(decide([seen], [of_group(seen, 0, LONG_IDLE_S), drained])) == {}


@pytest.mark.parametrize(
    "busy",
    [
        {"idle_since_s": None},
        {"foreign": gpus(1)},
        {"health": NodeHealth.CORDONED},
        {"health": NodeHealth.DRAINING},
        {"blocked_until_s": NOW + 5},
    ],
    ids=lambda busy: next(iter(busy)),
)
def test_what_is_in_use_or_out_of_service_is_not_given_back(busy: dict[str, object]) -> None:
    seen = group("a", 1)
    assert changes(decide([seen], [replace(of_group(seen, 0, LONG_IDLE_S), **busy)])) == {}  # type: ignore[arg-type]


def test_a_node_that_a_gang_holds_or_gets_is_not_given_back() -> None:
    seen = group("a", 2)
    nodes = [of_group(seen, 0, LONG_IDLE_S), of_group(seen, 1, LONG_IDLE_S)]
    work = [running("x", ["a-0"], gpu=1), pending("w", 1, gpu=8)]
    made = decide([seen], nodes, work)
    assert started(made) == {"w": ["a-1"]}
    assert changes(made) == {}


def test_idle_nodes_that_a_waiting_gang_counts_on_stay() -> None:
    seen = group("a", 2)
    nodes = [of_group(seen, 0, LONG_IDLE_S), of_group(seen, 1, LONG_IDLE_S)]
    assert changes(decide([seen, group("b", preference=1)], nodes, [pending("w", 3, gpu=8)])) == {"a": (2, 3)}
    waiting = decide([coming(group("a"), 1, 2, "w")], nodes, [pending("w", 3, gpu=8)])
    assert changes(waiting) == {}


def test_idle_nodes_stay_while_a_short_back_off_lasts_and_go_in_a_long_one() -> None:
    seen = group("a", 2)
    nodes = [of_group(seen, 0, LONG_IDLE_S), of_group(seen, 1, LONG_IDLE_S)]
    assert changes(decide([resting(seen, 200.0)], nodes, [pending("w", 3, gpu=8)])) == {}
    assert changes(decide([resting(seen, 400.0)], nodes, [pending("w", 3, gpu=8)])) == {"a": (2, 0)}


def test_nodes_that_are_held_for_a_head_stay() -> None:
    seen = group("a", 2, most=2)
    nodes = [of_group(seen, 0), of_group(seen, 1, LONG_IDLE_S)]
    assert changes(decide([seen], nodes, [running("x", ["a-0"], gpu=8), pending("w", 2, gpu=8)])) == {}


def test_replicas_of_several_hosts_go_whole_or_stay() -> None:
    seen = group("a", 2, hosts=2)
    nodes = [of_group(seen, i, LONG_IDLE_S) for i in range(4)]
    made = decide([seen], nodes, [running("x", ["a-3"], gpu=1)])
    assert [(c.to_replicas, c.instances) for c in details(made)] == [(1, ("a-0", "a-1"))]


def test_what_could_not_be_taken_away_a_moment_ago_is_not_tried_again() -> None:
    seen = group("a", 2)
    nodes = [of_group(seen, 0, LONG_IDLE_S), of_group(seen, 1, LONG_IDLE_S)]
    made = decide([GroupState(seen, stays=("a-0",))], nodes)
    assert [c.instances for c in details(made)] == [("a-1",)]


def test_a_group_with_something_under_way_gives_nothing_back() -> None:
    seen = group("a")
    nodes = [of_group(seen, 0, LONG_IDLE_S), of_group(seen, 1, LONG_IDLE_S)]
    assert changes(decide([coming(seen, 1, 2)], nodes)) == {}
    shrinking = replace(seen, replicas=2)
    assert changes(decide([GroupState(shrinking, shrinks_to=1)], nodes)) == {}


# ---------------------------------------------------------------- cancelled, spot, coming back


def test_what_a_cancelled_gang_ordered_is_cancelled_by_name() -> None:
    (change,) = details(decide([coming(group("a"), 3, 0, "w")]))
    assert (change.from_replicas, change.to_replicas) == (3, 0)
    assert change.instances == ("a-new0", "a-new1", "a-new2")
    assert change.reason == "3 replicas that have not come yet are not needed any more"


def test_of_an_order_for_two_gangs_the_part_of_the_cancelled_one_is_cancelled() -> None:
    made = decide([coming(group("a"), 3, 0, "v", "w")], [], [pending("v", 2, gpu=8)])
    (change,) = details(made)
    assert (change.from_replicas, change.to_replicas, len(change.instances)) == (3, 2, 1)


def test_machines_that_are_not_listed_yet_are_not_cancelled() -> None:
    """A lower count alone would let the provider choose which machine goes."""
    state = coming(group("a"), 3, 0, "w")
    unlisted = replace(state, group=replace(state.group, instances=state.group.instances[:1]))
    (change,) = details(decide([unlisted]))
    assert (change.to_replicas, change.instances) == (2, ("a-new0",))


def test_what_somebody_else_asked_for_is_not_cancelled() -> None:
    assert changes(decide([coming(group("a"), 3, 0)])) == {}


def test_spares_come_although_nobody_waits_for_them_any_more() -> None:
    assert changes(decide([coming(group("a", spares=2), 3, 0, "w")])) == {"a": (3, 2)}


def test_a_drained_spot_node_is_not_free_and_its_replacement_is_on_its_way() -> None:
    seen = group("s", 2, spot=True)
    drained = of_group(seen, 1, health=NodeHealth.DRAINING, drain_deadline_s=NOW + 60)
    made = decide([seen], [of_group(seen, 0), drained], [pending("w", 2, gpu=8)])
    assert changes(made) == {}
    assert made.estimates[WorkloadId("w")] == NOW + 360


def test_nobody_replaces_a_node_that_a_person_drains() -> None:
    seen = group("a", 2)
    drained = of_group(seen, 1, health=NodeHealth.DRAINING, drain_deadline_s=NOW + 60)
    assert changes(decide([seen], [of_group(seen, 0), drained], [pending("w", 2, gpu=8)])) == {"a": (2, 3)}


def test_the_replacement_of_a_lost_node_is_kept_for_the_gang_that_lost_it() -> None:
    seen = group("a", 2)
    nodes = [of_group(seen, 0), of_group(seen, 1, health=NodeHealth.LOST)]
    dying = stopping(running("w", ["a-0", "a-1"], gpu=8), cause=StopCause.NODE_LOST)
    order = coming(group("a"), 1, 1, "w")
    assert changes(decide([order], nodes, [dying])) == {}


def test_replacements_are_kept_for_a_gang_whose_node_is_taken_soon() -> None:
    seen = group("s", spot=True)
    nodes = [of_group(seen, 0), of_group(seen, 1, health=NodeHealth.DRAINING, drain_deadline_s=NOW + 100)]
    state = coming(seen, 1, 1, "w")
    assert changes(decide([state], nodes, [running("w", ["s-0", "s-1"], gpu=8)])) == {}


def test_a_gang_that_waits_after_a_failure_keeps_its_order() -> None:
    held_back: Workload = replace(pending("w", 2, gpu=8), not_before_s=NOW + 20, start_failures=1)
    made = decide([coming(group("a"), 2, 0, "w")], [], [held_back])
    assert changes(made) == {}
    assert reasons(made, "w") == [WaitReason.BACK_OFF, WaitReason.PROVISIONING]


def test_a_serve_application_that_lacks_a_replica_gets_a_node() -> None:
    app = running("app", ["n1"], (1, 3), gpu=8, kind=Kind.SERVE, demand=(3, 0))
    made = decide([group("a")], [node("n1")], [app])
    assert changes(made) == {"a": (0, 2)}
    assert NodeId("n1") not in {n for c in details(made) for n in c.nodes}


# ---------------------------------------------------------------- groups and segments


def test_nodes_are_ordered_for_segments_that_find_no_domain_though_their_pieces_would_fit() -> None:
    racks = [group("r0", 1, rack="a", gpu=2), group("r1", 1, rack="b", gpu=2), group("big", 0, rack="c", gpu=4)]
    nodes = [of_group(racks[0], 0), of_group(racks[1], 0)]
    role = Role("w", gpus(1), 4, 4, segments=(Segment(4, "rack"),))
    made = plan(world(racks, nodes, [pending("g", roles=(role,))]), DEFAULT)
    assert [(c.group, c.to_replicas) for c in details(made)] == [("big", 1)]
    assert WaitReason.PROVISIONING in reasons(made, "g")


def test_nothing_is_ordered_where_the_parts_of_a_gang_would_not_lie_together() -> None:
    """Nodes of a group whose label names no rack are in none, however many there are."""
    role = Role("w", gpus(1), 4, 4, segments=(Segment(4, "rack"),))
    made = plan(world([group("g", 0)], [node("n", 2, "r0")], [pending("g", roles=(role,))]), DEFAULT)
    assert details(made) == ()
    assert reasons(made, "g")[0] is WaitReason.RESOURCES


def test_what_is_ordered_stays_while_one_who_finds_no_place_would_use_it_if_others_sat_elsewhere() -> None:
    # `any` comes first and takes the H100, the fuller node; `h` can use no other. With the A100 too both have a place.
    a100 = coming(group("a", gpu=4, model="A100"), 1, 0, "any")
    h100 = coming(group("h", gpu=2, model="H100"), 1, 0, "any")
    work = [pending("any", gpu=2, submitted_s=0.0), pending("h", gpu=2, submitted_s=1.0, accelerators=("H100",))]
    assert changes(decide([a100, h100], [], work)) == {}
    assert changes(decide([a100, h100], [], work[:1])) == {"a": (1, 0)}
