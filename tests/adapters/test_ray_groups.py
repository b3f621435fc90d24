"""Ray's placement groups, nodes and its one demand request, on a real cluster: the shapes that the adapters rely on."""

from __future__ import annotations

import inspect
import time
from typing import Any

import pytest
import ray
from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as stock
from ray.util.placement_group import placement_group

from rayorch.adapters.ray_demand import ensure_coordinator
from rayorch.adapters.ray_groups import create_group, group_rows, held_by_node, remove_group, row_bundles
from rayorch.adapters.ray_nodes import observe_nodes, used_by_node
from rayorch.core.types import GPU, Resources
from tests.ray_cluster import EmulatedCluster

BUNDLE = Resources.of({"GPU": 1, "CPU": 1})


def test_ray_still_has_the_private_names_that_the_demand_needs() -> None:
    init = inspect.signature(stock._AutoscalingCoordinatorActor.__init__).parameters
    assert "send_resources_request" in init
    assert hasattr(stock._AutoscalingCoordinatorActor, "_merge_and_send_requests")
    source = inspect.getsource(stock.get_or_create_autoscaling_coordinator)
    assert source.count('"AutoscalingCoordinator"') == 2, "name and namespace of the coordinator have changed"


@pytest.fixture(scope="module")
def cluster(ray_cluster: Any) -> EmulatedCluster:
    started: EmulatedCluster = ray_cluster(nodes=2, gpus=2, racks=("r1", "r2"))
    return started


@pytest.mark.ray
def test_a_group_lies_on_the_nodes_it_was_pinned_to_and_its_room_comes_back(cluster: EmulatedCluster) -> None:
    nodes = tuple(reversed([n.id for n in observe_nodes(("rack",)) if n.total.units(GPU)]))
    group = create_group("rayorch/t/w/1", (BUNDLE, BUNDLE), nodes)
    assert group.wait(20)
    (row,) = group_rows("rayorch/t/")
    assert (row["name"], row["state"]) == ("rayorch/t/w/1", "CREATED")
    assert row_bundles(row) == tuple((node, BUNDLE) for node in nodes)
    assert held_by_node((row,)) == dict.fromkeys(nodes, BUNDLE)
    _until(lambda: all(used_by_node()[node].units(GPU) == BUNDLE.units(GPU) for node in nodes))
    remove_group(row["placement_group_id"])
    remove_group(row["placement_group_id"])  # twice is once
    _until(lambda: not group_rows("rayorch/t/"))
    _until(lambda: not any(used_by_node()[node].units(GPU) for node in nodes))


@pytest.mark.ray
def test_nodes_carry_their_devices_and_their_place_in_the_topology(cluster: EmulatedCluster) -> None:
    gpu_nodes = [n for n in observe_nodes(("zone", "rack")) if n.total.units(GPU)]
    assert sorted(n.topology for n in gpu_nodes) == [(("rack", "r1"),), (("rack", "r2"),)]
    assert {len(n.devices) for n in gpu_nodes} == {2}


@pytest.mark.ray
def test_gangs_and_ray_data_share_the_one_demand_request(cluster: EmulatedCluster) -> None:
    coordinator = ensure_coordinator()
    assert ray.get(coordinator.set_gang_demand.remote([{"GPU": 8.0}], [{}]))
    assert not ray.get(coordinator.set_gang_demand.remote([{"GPU": 8.0}], [{}])), "the same demand again is no news"
    theirs = stock.get_or_create_autoscaling_coordinator()  # as Ray Data and Train find it
    ray.get(theirs.request_resources.remote("data", [{"CPU": 3.0}], 60.0))
    sent = ray.get(coordinator.sent_request.remote())
    assert [row["resources"] for row in sent] == [{"CPU": 3.0}, {"GPU": 8.0}]
    ray.get(coordinator.set_gang_demand.remote([], []))
    assert [row["resources"] for row in ray.get(coordinator.sent_request.remote())] == [{"CPU": 3.0}]


@pytest.mark.ray
def test_a_stock_coordinator_that_came_first_is_replaced(cluster: EmulatedCluster) -> None:
    ray.kill(ensure_coordinator())
    _until(lambda: _coordinator() is None)
    stock.get_or_create_autoscaling_coordinator()
    ours = ensure_coordinator()
    assert ray.get(ours.holds_gangs_by_instance.remote())


@pytest.mark.ray
def test_a_group_of_another_prefix_is_not_ours(cluster: EmulatedCluster) -> None:
    foreign = placement_group([{"GPU": 1}], name="somebody")
    assert foreign.wait(20)
    assert group_rows() == ()
    remove_group(foreign.id.hex())


def _coordinator() -> Any:
    try:
        return ray.get_actor("AutoscalingCoordinator", namespace="AutoscalingCoordinator")
    except ValueError:
        return None


def _until(holds: Any) -> None:
    give_up_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < give_up_s, "waited 30 s in vain"
        time.sleep(0.05)
