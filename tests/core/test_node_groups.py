"""What is under way in node groups: orders close by what is seen, refusals are remembered, nothing is decided twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.capacity import BackOff, GroupName, Instance, InstancePhase, NodeGroup, Provider
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import StalePlanError
from rayorch.core.node_groups import GroupKnobs, NodeGroups
from rayorch.core.types import NodeHealth, NodeId, WorkloadId
from tests.scenes import gpus, node

A = GroupName("a")
KNOBS = GroupKnobs(provision_s=300.0, deadline_factor=2.0, backoff_s=60.0, backoff_max_s=200.0)


def group(replicas: int, *instances: Instance, **settings: object) -> NodeGroup:
    """Group "a" of up to 8 replicas."""
    settings.setdefault("max_replicas", 8)
    settings.setdefault("name", A)
    return NodeGroup(total=gpus(8), replicas=replicas, instances=instances, **settings)  # type: ignore[arg-type]


def came(name: str, created_s: float = 0.0, ready_s: float = 100.0, replica: str = "") -> Instance:
    """A machine that has become the node of its name."""
    return Instance(name, replica or name, InstancePhase.RUNNING, created_s, ready_s, NodeId(name))


def on_its_way(name: str, created_s: float = 0.0, reason: str = "") -> Instance:
    """A machine that is not a node yet."""
    return Instance(name, name, InstancePhase.PENDING, created_s, reason=reason)


def growth(of: int, to: int, at_s: float = 0.0, **changed: object) -> GroupChange:
    """An order for w, expected after 300 s and given up after 600 s."""
    change = GroupChange(A, of, to, "for w", (WorkloadId("w"),), at_s + 300.0, at_s + 600.0)
    return replace(change, **changed)  # type: ignore[arg-type]


def shrink(of: int, to: int, *names: str, nodes: bool = True) -> GroupChange:
    """The machines of these names go, with the nodes that they have become."""
    gone = tuple(NodeId(name) for name in names) if nodes else ()
    return GroupChange(A, of, to, "idle", instances=names, nodes=gone)


def groups(*seen: NodeGroup, now_s: float = 0.0) -> NodeGroups:
    """Groups of ours that have been observed once."""
    made = NodeGroups(Provider.OURS, KNOBS, version=10)
    made.observe(seen, now_s)
    return made


# ---------------------------------------------------------------- orders


def test_an_order_is_open_until_its_nodes_have_come_and_then_teaches_how_long_they_take() -> None:
    books = groups(group(0))
    books.order(growth(0, 2), 0.0)
    assert books.capacity().groups[0].order is not None
    books.observe((group(2, on_its_way("a1"), came("a2", 5.0, 95.0)),), 100.0)
    assert books.capacity().groups[0].order is not None
    assert books.capacity().groups[0].provision_s == 90.0
    books.observe((group(2, came("a1", 5.0, 130.0), came("a2", 5.0, 95.0)),), 130.0)
    assert books.capacity().groups[0].order is None
    assert books.capacity().groups[0].provision_s == 125.0


def test_an_order_that_the_provider_does_not_show_yet_stays_open() -> None:
    books = groups(group(1, came("a1")))
    books.order(growth(1, 2), 0.0)
    books.observe((group(1, came("a1")),), 1.0)  # what was read before the patch
    order = books.capacity().groups[0].order
    assert order is not None
    assert (order.from_replicas, order.to_replicas, order.beneficiaries) == (1, 2, ("w",))


def test_a_deadline_that_passes_is_a_strike_with_what_the_provider_said() -> None:
    books = groups(group(0))
    books.order(growth(0, 2), 0.0)
    books.observe((group(2, came("a1"), on_its_way("a2", reason="Unschedulable: 0/3 nodes")),), 600.0)
    state = books.capacity().groups[0]
    assert state.order is None
    assert state.back_off == BackOff(660.0, "1 of 2 nodes came in 600 s: Unschedulable: 0/3 nodes", 1)


def test_after_a_late_order_the_next_one_is_given_more_time() -> None:
    books = groups(group(0))
    books.order(growth(0, 1), 0.0)
    books.observe((group(1, on_its_way("a1")),), 600.0)
    assert books.capacity().groups[0].provision_s == 600.0


def test_an_order_of_which_all_that_is_left_has_failed_is_struck_at_once() -> None:
    books = groups(group(0))
    books.order(growth(0, 1), 0.0)
    failed = Instance("a1", "a1", InstancePhase.FAILED, 1.0, reason="quota exceeded")
    books.observe((group(1, failed),), 20.0)
    assert books.capacity().groups[0].back_off == BackOff(80.0, "a1 failed: quota exceeded", 1)


def test_a_failed_machine_among_others_that_may_come_is_no_strike_before_the_deadline() -> None:
    books = groups(group(0))
    books.order(growth(0, 3), 0.0)
    failed = Instance("a1", "a1", InstancePhase.FAILED, 1.0, reason="Evicted")
    books.observe((group(3, failed, on_its_way("a2", 1.0), came("a3", 1.0, 15.0)),), 20.0)
    assert books.capacity().groups[0].order is not None
    books.observe((group(3, failed, came("a2", 1.0, 25.0), came("a3", 1.0, 15.0)),), 26.0)  # and nobody replaces it
    back_off = books.capacity().groups[0].back_off
    assert back_off is not None and back_off.reason == "a1 failed: Evicted"


def test_each_strike_doubles_the_back_off_up_to_its_bound_and_success_forgets_them() -> None:
    books, rests = groups(group(0)), []
    for turn in range(4):
        now_s = 10_000.0 * turn
        books.observe((group(0),), now_s)
        books.order(growth(0, 1, now_s), now_s)
        books.refused(A, "out of stock", now_s)
        back_off = books.capacity().groups[0].back_off
        assert back_off is not None
        rests.append(back_off.until_s - now_s)
    assert rests == [60.0, 120.0, 200.0, 200.0]
    books.observe((group(0),), 50_000.0)
    books.order(growth(0, 1, 50_000.0), 50_000.0)
    books.observe((group(1, came("a1", 50_000.0, 50_050.0)),), 50_100.0)
    assert books.capacity().groups[0].back_off is None


def test_a_count_that_is_higher_than_its_nodes_is_taken_for_an_order_after_a_restart() -> None:
    books = groups(group(3, came("a1", 0.0, 80.0), on_its_way("a2", 900.0)), now_s=1000.0)
    state = books.capacity().groups[0]
    assert state.provision_s == 80.0  # learned from what is there
    assert state.order is not None
    assert (state.order.from_replicas, state.order.to_replicas, state.order.beneficiaries) == (1, 3, ())
    assert (state.order.ordered_s, state.order.expected_s) == (900.0, 980.0)
    assert state.order.deadline_s > 1000.0


def test_a_machine_of_the_minimum_that_never_comes_up_does_not_keep_the_group_from_growing_for_ever() -> None:
    seen = group(2, came("a1"), on_its_way("a2", reason="CrashLoopBackOff"), min_replicas=2)
    books = groups(seen)
    for now_s in (700.0, 701.0, 761.0, 762.0):  # its deadline, a strike, the end of the back-off
        books.observe((seen,), now_s)
    state = books.capacity().groups[0]
    assert (state.order, state.given_up) == (None, 1)
    books.order(growth(2, 3, 762.0), 762.0)
    more = group(3, came("a1"), on_its_way("a2"), came("a3", 763.0, 800.0), min_replicas=2)
    books.observe((more,), 800.0)
    assert books.capacity().groups[0].order is None
    books.observe((group(3, came("a1"), came("a2", 0.0, 801.0), came("a3", 763.0, 800.0), min_replicas=2),), 802.0)
    assert books.capacity().groups[0].given_up == 0
    books.observe((group(3, came("a1"), came("a3", 763.0, 800.0), min_replicas=2),), 803.0)
    order = books.capacity().groups[0].order
    assert order is not None and order.to_replicas == 3  # one that is lost anew is awaited again


def test_what_did_not_come_above_the_minimum_is_no_loss_to_be_lived_with() -> None:
    seen = group(2, came("a1"), on_its_way("a2"), min_replicas=1)
    books = groups(seen)
    for now_s in (700.0, 761.0):
        books.observe((seen,), now_s)
    state = books.capacity().groups[0]
    assert state.given_up == 0
    assert state.order is not None  # it could not be cancelled meanwhile: it is waited for again, not asked for twice


def test_a_clock_that_is_set_back_keeps_no_order_open_and_no_group_resting_for_longer() -> None:
    day_s = 86_400.0
    books = groups(group(1, came("a1")), group(0, name=GroupName("b")), now_s=2 * day_s)
    books.order(growth(1, 2, 2 * day_s), 2 * day_s)
    books.order(replace(growth(0, 1, 2 * day_s), group=GroupName("b")), 2 * day_s)
    books.refused(GroupName("b"), "out of stock", 2 * day_s)
    now_s = day_s
    books.observe((group(2, came("a1")), group(0, name=GroupName("b"))), now_s)
    order, back_off = books.capacity().groups[0].order, books.capacity().groups[1].back_off
    assert order is not None and (order.ordered_s, order.deadline_s) == (now_s, now_s + 600.0)
    assert back_off is not None and back_off.until_s == now_s + 60.0


def test_the_rest_of_an_order_stays_open_when_part_of_it_is_cancelled() -> None:
    books = groups(group(0))
    books.order(growth(0, 3), 0.0)
    waiting = (on_its_way("a1"), on_its_way("a2"), on_its_way("a3"))
    books.observe((group(3, *waiting),), 10.0)
    books.order(shrink(3, 2, "a3", nodes=False), 11.0)
    books.observe((group(2, *waiting[:2]),), 12.0)
    state = books.capacity().groups[0]
    assert state.order is not None
    assert (state.order.to_replicas, state.shrinks_to) == (2, None)


def test_the_estimate_is_a_high_quantile_of_the_last_creations_and_forgets_the_oldest() -> None:
    old = tuple(came(f"o{i:02d}", 0.0, 900.0 + i) for i in range(30))
    new = tuple(came(f"p{i:02d}", 5_000.0, 5_000.0 + 10 * (i + 1)) for i in range(20))
    assert groups(group(50, *old, *new)).capacity().groups[0].provision_s == 190.0


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (growth(1, 3), "has 2 replicas, not 1"),
        (growth(2, 9), "8 replicas at most"),
        (shrink(2, 0, "a1", "a2"), "keeps 1 replicas at least"),
        (shrink(2, 1, "a9"), "is gone"),
        (shrink(2, 1, "a1", nodes=False), "has become a node"),
        (replace(growth(2, 3), group=GroupName("b")), "there is no such group"),
        (growth(2, 2), "has 2 replicas already"),
    ],
)
def test_a_change_that_was_decided_on_something_else_is_stale(change: GroupChange, why: str) -> None:
    books = groups(group(2, came("a1"), came("a2"), min_replicas=1))
    with pytest.raises(StalePlanError, match=why):
        books.order(change, 1.0)


def test_a_group_takes_one_decision_at_a_time() -> None:
    books = groups(group(2, came("a1"), came("a2")))
    books.order(growth(2, 3), 0.0)
    for change in (growth(2, 4), shrink(2, 1, "a1")):
        with pytest.raises(StalePlanError, match="open order"):
            books.order(change, 1.0)
    other = groups(group(2, came("a1"), came("a2")))
    other.order(shrink(2, 1, "a1"), 0.0)
    with pytest.raises(StalePlanError, match="shrinking already"):
        other.order(growth(2, 3), 1.0)


def test_a_group_that_refused_takes_no_growth_before_its_back_off_is_over() -> None:
    books = groups(group(0))
    books.order(growth(0, 1), 0.0)
    books.refused(A, "403", 1.0)
    with pytest.raises(StalePlanError, match="left alone: 403"):
        books.order(growth(0, 1), 60.0)
    books.order(growth(0, 1), 61.0)


def test_nothing_is_ordered_while_the_provider_can_not_be_read_and_what_was_known_stays() -> None:
    books = groups(group(1, came("a1")))
    books.unknown("connection refused", 5.0)
    capacity = books.capacity()
    assert (capacity.error, capacity.decides, capacity.observed_s) == ("connection refused", False, 0.0)
    assert [state.group.replicas for state in capacity.groups] == [1]
    with pytest.raises(StalePlanError, match="connection refused"):
        books.order(growth(1, 2), 6.0)
    books.observe((group(1, came("a1")),), 7.0)
    assert books.capacity().decides


def test_where_ray_changes_the_counts_nothing_is_ordered() -> None:
    books = NodeGroups(Provider.RAY, KNOBS)
    books.observe((group(1, came("a1")),), 0.0)
    with pytest.raises(StalePlanError, match="not ours to change"):
        books.order(growth(1, 2), 1.0)


def test_what_ray_is_late_with_is_no_order_and_no_strike_of_ours() -> None:
    books = groups(group(1, came("a1")))
    books.order(growth(1, 2), 0.0)
    for now_s in (1.0, 10_000.0):
        books.observe((group(2, came("a1")),), now_s, provider=Provider.RAY)
        state = books.capacity().groups[0]
        assert (books.capacity().provider, state.order, state.back_off) == (Provider.RAY, None, None)


# ---------------------------------------------------------------- shrinks


def test_what_a_shrink_takes_is_leaving_until_it_is_gone() -> None:
    books = groups(group(2, came("a1"), came("a2")))
    books.order(shrink(2, 1, "a1"), 0.0)
    assert books.leaving == {"a1": "idle"}
    state = books.capacity().groups[0]
    assert state.shrinks_to == 1
    assert [i.phase for i in state.group.instances] == [InstancePhase.LEAVING, InstancePhase.RUNNING]
    books.observe((group(1, came("a1"), came("a2")),), 5.0)
    assert books.leaving == {"a1": "idle"}
    books.observe((group(1, came("a2")),), 9.0)
    assert (books.leaving, books.capacity().groups[0].shrinks_to) == ({}, None)


def test_a_machine_that_becomes_a_node_while_it_is_cancelled_takes_nothing_new() -> None:
    books = groups(group(0))
    books.order(growth(0, 1), 0.0)
    books.observe((group(1, on_its_way("a1")),), 1.0)
    books.order(shrink(1, 0, "a1", nodes=False), 2.0)
    books.observe((group(1, came("a1")),), 3.0)
    assert books.leaving == {"a1": "idle"}


def test_a_node_that_ray_does_not_drain_stays_and_is_not_tried_again_at_once() -> None:
    books = groups(group(3, came("a1"), came("a2"), came("a3")))
    books.order(shrink(3, 1, "a1", "a2"), 0.0)
    books.stay((NodeId("a1"),), "an actor lives there", 1.0)
    assert books.leaving == {"a2": "idle; 1 stay: an actor lives there"}
    left = books.shrink(A)
    assert left is not None
    assert (left.from_replicas, left.to_replicas, left.instances, left.nodes) == (3, 2, ("a2",), ("a2",))
    assert books.capacity().groups[0].stays == ("a1",)
    books.stay((NodeId("a2"),), "busy", 2.0)
    assert (books.leaving, books.shrink(A)) == ({}, None)
    with pytest.raises(StalePlanError, match="could not be taken away"):
        books.order(shrink(3, 2, "a1"), 3.0)


def test_a_replica_of_several_hosts_stays_whole() -> None:
    hosts = tuple(came(f"a{i}", replica=f"r{i // 2}") for i in range(4))
    books = groups(group(2, *hosts, hosts=2))
    books.order(shrink(2, 0, "a0", "a1", "a2", "a3"), 0.0)
    books.stay((NodeId("a2"),), "busy", 1.0)
    left = books.shrink(A)
    assert left is not None
    assert (left.to_replicas, left.instances) == (1, ("a0", "a1"))


def test_a_refused_shrink_leaves_its_nodes_alone() -> None:
    books = groups(group(2, came("a1"), came("a2")))
    books.order(shrink(2, 1, "a1"), 0.0)
    books.refused(A, "403", 1.0)
    state = books.capacity().groups[0]
    assert (books.leaving, state.shrinks_to, state.back_off, state.stays) == ({}, None, None, ("a1",))


def test_a_shrink_that_is_never_taken_up_is_given_up() -> None:
    books = groups(group(2, came("a1"), came("a2")))
    books.order(shrink(2, 1, "a1"), 0.0)
    books.observe((group(2, came("a1"), came("a2")),), 119.0)
    assert books.leaving
    books.observe((group(2, came("a1"), came("a2")),), 121.0)
    assert not books.leaving


def test_what_its_provider_takes_away_is_leaving_too() -> None:
    going = replace(came("a1"), phase=InstancePhase.LEAVING, reason="evicted")
    assert groups(group(1, going)).leaving == {"a1": "evicted"}


# ---------------------------------------------------------------- nodes and versions


def test_a_machine_is_a_node_when_ray_says_so() -> None:
    books = NodeGroups(Provider.OURS, KNOBS)
    ray = node("n1", group="a", instance="a1")
    ready = replace(came("a2"), node=None)
    books.observe((group(2, on_its_way("a1", 10.0), ready),), 50.0, nodes=(ray,))
    first, second = books.capacity().groups[0].group.instances
    assert (first.phase, first.node, first.ready_s) == (InstancePhase.RUNNING, "n1", 50.0)
    assert (second.phase, second.reason) == (InstancePhase.PENDING, "it has not joined Ray")


def test_nodes_count_where_the_provider_shows_no_machines() -> None:
    books = NodeGroups(Provider.OURS, KNOBS)
    books.observe((group(0),), 0.0, nodes=())
    books.order(growth(0, 1), 10.0)
    books.observe((group(1),), 20.0, nodes=())
    lost = node("n0", group="a", instance="a0", health=NodeHealth.LOST)
    books.observe((group(1),), 70.0, nodes=(node("n1", group="a", instance="a1"), lost))
    state = books.capacity().groups[0]
    assert state.order is None
    assert [i.name for i in state.group.instances] == ["a1"]
    assert state.provision_s == 60.0


def test_the_version_grows_with_what_is_shown_and_only_then() -> None:
    books = groups(group(1, came("a1")))
    before = books.version
    books.observe((group(1, came("a1")),), 5.0)
    assert books.version == before
    books.observe((group(1, came("a1"), max_replicas=9),), 6.0)
    assert books.version == before + 1


def test_a_group_that_is_gone_is_forgotten_with_all_that_was_under_way() -> None:
    books = groups(group(0))
    books.order(growth(0, 1), 0.0)
    books.observe((), 1.0)
    assert books.capacity().groups == ()
    books.observe((group(0),), 2.0)
    assert books.capacity().groups[0].order is None
