"""The emulated cluster that the other tests stand on is what it says."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.ray_cluster import EmulatedCluster

pytestmark = pytest.mark.ray

NOTICE_TIMEOUT_S = 60.0


def test_nodes_carry_gpus_and_racks_and_a_killed_node_is_noticed(ray_cluster: Callable[..., EmulatedCluster]) -> None:
    import ray

    cluster = ray_cluster(nodes=2, gpus=4)
    by_id = {node["NodeID"]: node for node in ray.nodes()}
    first, second = cluster.node_ids

    assert [by_id[i]["Resources"]["GPU"] for i in (first, second)] == [4.0, 4.0]
    assert [by_id[i]["Labels"]["rack"] for i in (first, second)] == ["r1", "r2"]
    assert ray.cluster_resources()["GPU"] == 8.0
    assert ray_cluster(nodes=2, gpus=4) is cluster

    cluster.kill_node(second)
    deadline = time.monotonic() + NOTICE_TIMEOUT_S
    while any(node["NodeID"] == second and node["Alive"] for node in ray.nodes()):
        assert time.monotonic() < deadline, "the dead node is still listed as alive"
        time.sleep(0.1)
    assert cluster.node_ids == [first]
