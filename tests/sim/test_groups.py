"""The played provider: what it does with counts, names and machines, and what can go wrong in it."""

from __future__ import annotations

import pytest

from rayorch.core.capacity import GroupName, InstancePhase, NodeGroup
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, ClusterError, StalePlanError
from rayorch.core.types import NodeHealth, NodeId, Resources
from rayorch.sim.groups import FAILED_SHOWN_S, TERMINATION_S, GroupPlay, SimProvider
from rayorch.sim.world import SimWorld
from tests.build import gpus

A = GroupName("a")


def group(replicas: int = 0, hosts: int = 1, most: int = 8) -> NodeGroup:
    return NodeGroup(A, gpus(8, 64), replicas, max_replicas=most, hosts=hosts, labels=(("rack", "r1"),), model="H100")


class Played:
    """A provider with its world and clock."""

    def __init__(self, start: NodeGroup, play: GroupPlay | None = None, seed: int = 0) -> None:
        self.provider = SimProvider({start: play or GroupPlay(provision_s=(3.0, 3.0))}, seed)
        self.world = self.provider.world = SimWorld(())
        self.now_s = 0.0

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.provider.tick(self.now_s)
            self.world.tick(self.now_s)

    def scale(self, was: int, to: int, *instances: str) -> None:
        self.provider.scale(GroupChange(A, was, to, "test", instances=instances), self.now_s)

    def occupy(self, node: str) -> None:
        """A gang's group on the node."""
        self.world.create_group(f"on {node}", ((NodeId(node), gpus(8)),), self.now_s)
        self.run(1)

    @property
    def shown(self) -> NodeGroup:
        return self.provider.observe(self.now_s)[0]

    @property
    def phases(self) -> dict[str, InstancePhase]:
        return {i.name: i.phase for i in self.shown.instances}


def test_a_group_makes_as_many_machines_as_its_count_says_and_each_becomes_a_node() -> None:
    it = Played(group())
    it.scale(0, 2)
    it.run(2)
    assert it.phases == {"a-1": InstancePhase.PENDING, "a-2": InstancePhase.PENDING}
    it.run(4)
    (first, _) = it.shown.instances
    assert (first.created_s, first.ready_s, first.node) == (1.0, 4.0, "a-1")
    node = it.world.nodes[NodeId("a-1")]
    assert (node.group, node.instance, node.topology) == ("a", "a-1", (("rack", "r1"),))
    assert [device.model for device in node.devices] == ["H100"] * 8


def test_a_patch_tests_the_count_and_the_names() -> None:
    it = Played(group(2))
    it.run(6)
    with pytest.raises(StalePlanError, match="2 replicas, not 1"):
        it.scale(1, 3)
    with pytest.raises(StalePlanError, match="a-7"):
        it.scale(2, 1, "a-7")
    it.scale(2, 1, "a-1")
    with pytest.raises(StalePlanError):
        it.scale(2, 1, "a-1")
    it.run(2)
    assert list(it.phases) == ["a-2"] and list(it.world.nodes) == ["a-2"]
    assert [patch.to_replicas for patch in it.provider.patches] == [1]


def test_a_refusal_is_of_growth_only_and_unknown_groups_are_refused() -> None:
    it = Played(group(2), GroupPlay(refuses="exceeded quota"))
    it.run(1)
    with pytest.raises(AdmissionError, match="exceeded quota"):
        it.scale(2, 3)
    it.scale(2, 1, "a-1")
    with pytest.raises(AdmissionError, match="no group b"):
        it.provider.scale(GroupChange(GroupName("b"), 0, 1, "test"), it.now_s)


def test_out_of_stock_machines_stay_pending_until_there_is_stock() -> None:
    it = Played(group(3), GroupPlay(provision_s=(3.0, 3.0), stock=2))
    it.run(10)
    pending = [i for i in it.shown.instances if i.phase is InstancePhase.PENDING]
    assert [i.name for i in pending] == ["a-3"] and "all 2 machines" in pending[0].reason
    it.provider.play(A, GroupPlay(provision_s=(3.0, 3.0), stock=3))
    it.run(5)
    assert set(it.phases.values()) == {InstancePhase.RUNNING}


def test_a_failed_machine_is_shown_for_a_while_and_replaced() -> None:
    it = Played(group(1), GroupPlay(provision_s=(3.0, 3.0), fails=1, fail_reason="no such image"))
    it.run(4)
    assert [(i.phase, i.reason) for i in it.shown.instances] == [(InstancePhase.FAILED, "no such image")]
    it.run(FAILED_SHOWN_S + 5)
    assert it.phases == {"a-2": InstancePhase.RUNNING}


def test_a_slow_machine_takes_longer() -> None:
    it = Played(group(1), GroupPlay(provision_s=(3.0, 3.0), slow_share=1.0, slow_factor=10.0))
    it.run(20)
    assert it.phases == {"a-1": InstancePhase.PENDING}
    it.run(15)
    assert it.phases == {"a-1": InstancePhase.RUNNING}


def test_the_same_seed_gives_the_same_times() -> None:
    def times(seed: int) -> list[float | None]:
        it = Played(group(6), GroupPlay(provision_s=(3.0, 40.0)), seed)
        it.run(60)
        return [i.ready_s for i in it.shown.instances]

    assert times(1) == times(1) != times(2)


def test_a_lost_node_is_replaced_and_never_comes_back() -> None:
    it = Played(group(2))
    it.run(6)
    it.world.lose_node(NodeId("a-1"))
    it.run(1)
    assert it.phases == {"a-2": InstancePhase.RUNNING, "a-3": InstancePhase.PENDING}
    assert not it.world.away


def test_a_lost_host_takes_its_replica_with_it() -> None:
    it = Played(group(1, hosts=3))
    it.run(6)
    assert sorted(it.world.nodes) == ["a-1-h0", "a-1-h1", "a-1-h2"]
    assert {i.replica for i in it.shown.instances} == {"a-1"}
    it.world.lose_node(NodeId("a-1-h1"))
    it.run(8)
    assert sorted(it.world.nodes) == ["a-2-h0", "a-2-h1", "a-2-h2"]


def test_a_busy_machine_that_is_deleted_or_taken_back_has_its_grace() -> None:
    it = Played(group(2), GroupPlay(provision_s=(3.0, 3.0), notice_s=10.0))
    it.run(6)
    for name, grace_s, what in (("a-1", TERMINATION_S, "by hand"), ("a-2", 10.0, "taken back")):
        it.occupy(name)
        (it.provider.delete if name == "a-1" else it.provider.notice)(name, it.now_s)
        node = it.world.nodes[NodeId(name)]
        assert (node.health, node.drain_deadline_s) == (NodeHealth.DRAINING, it.now_s + grace_s)
        it.run(grace_s - 1)
        assert NodeId(name) in it.world.nodes
        it.run(1)
        assert NodeId(name) not in it.world.nodes
        removal = it.provider.removals[-1]
        assert removal.busy and not removal.named and what in removal.reason
    it.run(5)
    assert len(it.world.nodes) == 2  # both replaced


def test_an_idle_machine_that_is_deleted_goes_at_once() -> None:
    it = Played(group(1))
    it.run(6)
    it.provider.delete("a-1", it.now_s)
    it.run(1)
    assert it.phases == {"a-2": InstancePhase.PENDING}


def test_a_count_that_others_lower_costs_any_machine() -> None:
    it = Played(group(3))
    it.run(6)
    it.provider.set_replicas(A, 1, it.now_s)
    it.run(2)
    assert len(it.world.nodes) == 1
    assert [patch.ours for patch in it.provider.patches] == [False]
    assert {removal.reason for removal in it.provider.removals} == {"chosen by the operator"}


def test_during_an_outage_nothing_is_answered_and_stale_is_what_was() -> None:
    it = Played(group(1))
    it.run(6)
    it.provider.out_of_reach(it.now_s + 10)
    with pytest.raises(ClusterError):
        it.provider.observe(it.now_s)
    with pytest.raises(ClusterError):
        it.scale(1, 2)
    it.run(10)
    it.provider.stale(it.now_s + 10)
    it.scale(1, 2)
    it.run(8)
    assert (it.shown.replicas, len(it.shown.instances)) == (1, 1)
    it.run(2)
    assert (it.shown.replicas, len(it.shown.instances)) == (2, 2)


def test_ray_ends_an_idle_node_and_refuses_a_busy_one() -> None:
    it = Played(group(3))
    it.run(6)
    it.occupy("a-1")
    it.world.foreign[NodeId("a-2")] = Resources.of({"GPU": 1})
    assert "on a-1" in it.world.drain_idle(NodeId("a-1"), it.now_s, "not needed")
    assert "foreign" in it.world.drain_idle(NodeId("a-2"), it.now_s, "not needed")
    assert it.world.drain_idle(NodeId("a-3"), it.now_s, "not needed") == ""
    it.run(1)
    assert sorted(it.world.nodes) == ["a-1", "a-2"]


def test_a_hidden_group_is_not_listed_and_takes_no_change() -> None:
    it = Played(group(1))
    it.run(6)
    it.provider.hidden = {A}
    assert it.provider.observe(it.now_s) == ()
    with pytest.raises(AdmissionError):
        it.scale(1, 2)
    assert len(it.world.nodes) == 1


def test_limits_that_others_change_leave_the_count() -> None:
    it = Played(group(2))
    it.provider.edit(group(0, most=3))
    assert (it.shown.replicas, it.shown.max_replicas) == (2, 3)
