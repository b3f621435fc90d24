"""The inventory: lost nodes stay visible, foreign use must be seen twice, cordons and blocks are layers apart."""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.admission import NodeShape
from rayorch.core.events import NodeCordoned
from rayorch.core.inventory import Inventory, with_pools
from rayorch.core.types import MODEL_LABEL, Device, NodeHealth, NodeId, Resources
from tests.build import gpus, node

N1, N2 = NodeId("n1"), NodeId("n2")


def cordon(drain_by_s: float | None = None) -> dict[NodeId, NodeCordoned]:
    return {N1: NodeCordoned(N1, "fan", drain_by_s, 1.0)}


def two_nodes() -> Inventory:
    inventory = Inventory(version=1000)
    inventory.observe((node("n1"), node("n2")), 1.0)
    return inventory


def test_a_node_that_is_not_seen_any_more_is_lost_once_and_stays_until_forgotten() -> None:
    inventory = two_nodes()
    assert inventory.observe((node("n2"),), 2.0) == (N1,)
    assert inventory.observe((node("n2"),), 3.0) == ()
    assert inventory.nodes[N1].health is NodeHealth.LOST
    inventory.forget(N2)  # a live one stays
    inventory.forget(N1)
    assert set(inventory.nodes) == {N2}


def test_a_node_that_is_seen_again_is_not_lost() -> None:
    inventory = two_nodes()
    inventory.observe((node("n2"),), 2.0)
    inventory.observe((node("n1"), node("n2")), 3.0)
    assert inventory.nodes[N1].health is NodeHealth.OK


def test_nothing_changed_is_no_new_version() -> None:
    inventory = two_nodes()
    before = inventory.version
    inventory.observe((node("n1"), node("n2")), 2.0)
    inventory.set_cordons({})
    inventory.observe_foreign({N1: gpus(2)}, {N1: gpus(2)}, {})
    assert inventory.version == before


def test_foreign_use_counts_when_it_was_seen_twice_and_then_the_smaller() -> None:
    inventory = two_nodes()
    inventory.observe_foreign({N1: gpus(3)}, {N1: gpus(1)}, {N1: ("job 7",)})
    assert inventory.nodes[N1].foreign == Resources()
    inventory.observe_foreign({N1: gpus(2, 1)}, {N1: gpus(1)}, {N1: ("job 7",)})
    assert (inventory.nodes[N1].foreign, inventory.nodes[N1].foreign_holders) == (gpus(1), ("job 7",))
    inventory.observe_foreign({N1: gpus(1)}, {N1: gpus(1)}, {})
    assert inventory.nodes[N1].foreign == Resources()


def test_a_group_of_ours_that_is_being_made_is_not_foreign() -> None:
    inventory = two_nodes()
    inventory.observe_foreign({N1: gpus(2)}, {}, {})  # Ray's usage came before our books
    inventory.observe_foreign({N1: gpus(2)}, {N1: gpus(2)}, {})
    assert inventory.nodes[N1].foreign == Resources()


def test_cordons_and_drains_come_and_go_and_survive_an_observation() -> None:
    inventory = two_nodes()
    inventory.set_cordons(cordon())
    inventory.observe((node("n1"), node("n2")), 2.0)
    assert inventory.nodes[N1].health is NodeHealth.CORDONED
    inventory.set_cordons(cordon(drain_by_s=60.0))
    assert (inventory.nodes[N1].health, inventory.nodes[N1].drain_deadline_s) == (NodeHealth.DRAINING, 60.0)
    inventory.set_cordons({})
    assert inventory.nodes[N1] == node("n1")


def test_the_earlier_of_two_drain_deadlines_counts() -> None:
    inventory = two_nodes()
    spot = replace(node("n1"), health=NodeHealth.DRAINING, drain_deadline_s=30.0)
    inventory.observe((spot, node("n2")), 2.0)
    inventory.set_cordons(cordon(drain_by_s=60.0))
    assert inventory.nodes[N1].drain_deadline_s == 30.0


def test_a_lost_node_is_lost_whatever_else_it_is() -> None:
    inventory = two_nodes()
    inventory.set_cordons(cordon())
    inventory.observe((node("n2"),), 2.0)
    assert inventory.nodes[N1].health is NodeHealth.LOST


def test_a_block_is_only_ever_extended() -> None:
    inventory = two_nodes()
    inventory.block((N1, NodeId("unknown")), 40.0, "no group here")
    inventory.block((N1,), 30.0, "no group here")
    assert (inventory.nodes[N1].blocked_until_s, inventory.nodes[N1].reason) == (40.0, "no group here")


def test_shapes_remember_nodes_that_are_down() -> None:
    inventory = two_nodes()
    inventory.observe((node("n1"),), 2.0)
    inventory.observe((node("n1"), node("n3", gpu=8, rack="r1")), 3.0)
    small, big = node("n1").total, node("n3", gpu=8).total
    unknown = (MODEL_LABEL, "")
    assert inventory.shapes() == (NodeShape(big, 1, (("rack", "r1"), unknown)), NodeShape(small, 2, (unknown,)))


def test_a_shape_says_the_model_that_its_gpus_have_and_whether_they_have_none() -> None:
    inventory = Inventory()
    mixed = replace(node("n3", model="H100"), devices=(Device(0, "H100"), Device(1, "A100")))
    bare = replace(node("n4", gpu=0), labels=(("disk", "ssd"),))
    inventory.observe((node("n1", model="H100"), node("n2"), mixed, bare), 1.0)
    labels = sorted((shape.max_count, shape.labels) for shape in inventory.shapes())
    assert labels == [
        (1, (("disk", "ssd"),)),
        (1, ((MODEL_LABEL, "H100"),)),
        (2, ((MODEL_LABEL, ""),)),
    ]


def test_a_reader_of_changes_has_what_there_is() -> None:
    inventory = two_nodes()
    first = inventory.changes_since(-1)
    assert first.full and {n.id for n in first.nodes} == {N1, N2}
    inventory.observe((node("n2"),), 2.0)
    inventory.forget(N1)
    changes = inventory.changes_since(first.version)
    assert (changes.full, changes.nodes, changes.removed) == (False, (), (N1,))
    assert inventory.changes_since(inventory.version).nodes == ()


def test_a_copy_of_a_former_life_is_replaced_as_a_whole() -> None:
    old = two_nodes()
    new = Inventory(version=5000)
    new.observe((node("n2"),), 9.0)
    changes = new.changes_since(old.version)
    assert changes.full and [n.id for n in changes.nodes] == [N2]


def test_a_declared_pool_stands_for_its_nodes_and_the_others_stay() -> None:
    big, small = Resources.of({"GPU": 8, "CPU": 64}), Resources.of({"CPU": 4})
    seen = (NodeShape(big, 2, (("gpu", "h100"),)), NodeShape(small, 1, ()))
    pool = NodeShape(Resources.of({"GPU": 8, "CPU": 1000}), 10, (("gpu", "h100"),))
    assert with_pools(seen, (pool,)) == (pool, seen[1])
    assert with_pools(seen, ()) == seen


def test_a_node_with_nothing_in_use_at_all_is_idle_since_it_was_first_seen_so() -> None:
    inventory = two_nodes()
    inventory.observe((node("n1"), node("n2")), 10.0)
    inventory.observe_foreign({N1: gpus(0), N2: gpus(0, 1)}, {}, {})
    inventory.observe((node("n1"), node("n2")), 20.0)
    inventory.observe_foreign({N1: gpus(0), N2: gpus(0)}, {}, {})
    assert (inventory.nodes[N1].idle_since_s, inventory.nodes[N2].idle_since_s) == (10.0, 20.0)
    inventory.observe_foreign({N1: gpus(1)}, {}, {})  # Ray says nothing of n2: that is not "nothing in use"
    assert (inventory.nodes[N1].idle_since_s, inventory.nodes[N2].idle_since_s) == (None, None)


def test_nothing_new_goes_to_a_node_that_its_group_gives_back() -> None:
    inventory = two_nodes()
    inventory.set_leaving({N1: "idle for 300 s"})
    assert inventory.nodes[N1].health is NodeHealth.CORDONED
    assert inventory.nodes[N1].reason == "idle for 300 s"
    inventory.set_leaving({})
    assert inventory.nodes[N1].health is NodeHealth.OK


def test_a_drain_is_stronger_than_leaving() -> None:
    inventory = two_nodes()
    inventory.set_leaving({N1: "idle for 300 s"})
    inventory.set_cordons({N1: NodeCordoned(N1, "repair", 50.0, 2.0)})
    assert (inventory.nodes[N1].health, inventory.nodes[N1].reason) == (NodeHealth.DRAINING, "repair")
