"""Ray's drains on a real cluster: what keeps a node from being idle, and that only an idle one is let go."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray._raylet import InnerGcsClient
from ray.core.generated import autoscaler_pb2
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayorch.actors.node_agent import start_agent
from rayorch.adapters.ray_drain import busy_nodes, drain_idle, drain_preempted
from rayorch.adapters.ray_groups import create_group, remove_group
from rayorch.adapters.ray_nodes import Machine, observe_nodes
from rayorch.core.errors import ClusterError
from rayorch.core.types import GPU, NodeHealth, NodeId, Resources
from tests.instance import eventually
from tests.ray_cluster import EmulatedCluster

FAR_S = 3600.0


def test_the_names_that_a_drain_needs_are_there() -> None:
    for name in ("IDLE_TERMINATION", "PREEMPTION"):
        assert autoscaler_pb2.DrainNodeReason.Value(f"DRAIN_NODE_REASON_{name}")
    assert {"RUNNING", "IDLE", "DRAINING", "DEAD", "UNSPECIFIED"} <= set(autoscaler_pb2.NodeStatus.keys())
    row = autoscaler_pb2.NodeState(node_id=b"\1", status="IDLE", node_activity=["Busy workers on node."])
    reply = autoscaler_pb2.GetClusterResourceStateReply(cluster_resource_state={"node_states": [row]})
    (read,) = autoscaler_pb2.GetClusterResourceStateReply.FromString(
        reply.SerializeToString()
    ).cluster_resource_state.node_states
    assert (read.node_id.hex(), list(read.node_activity)) == ("01", ["Busy workers on node."])
    drain = list(inspect.signature(InnerGcsClient.drain_node).parameters)
    assert drain == ["self", "node_id", "reason", "reason_message", "deadline_timestamp_ms", "timeout"]
    assert list(inspect.signature(InnerGcsClient.get_cluster_resource_state).parameters) == ["self", "timeout_s"]
    assert ray._private.worker.global_worker is not None


def test_without_a_connection_to_ray_nothing_is_said() -> None:
    if ray.is_initialized():
        pytest.skip("another test's cluster is connected")
    with pytest.raises(ClusterError, match="not connected"):
        drain_idle(NodeId("00"), "no reason")
    with pytest.raises(ClusterError, match="not connected"):
        busy_nodes([NodeId("00")])


@pytest.fixture(scope="module")
def cluster(ray_cluster: Any) -> EmulatedCluster:
    started: EmulatedCluster = ray_cluster(nodes=0, gpus=1)
    return started


def _machine(cluster: EmulatedCluster, **node: Any) -> NodeId:
    return NodeId(cluster.add_node(1, **node))


@pytest.mark.ray
def test_the_machine_of_a_node_comes_from_labels_or_from_the_environment_of_its_raylet(
    cluster: EmulatedCluster,
) -> None:
    labelled = _machine(cluster, labels={"rayorch.io/group": "h100", "rayorch.io/instance": "pod-1"})
    kuberay = {"RAY_NODE_TYPE_NAME": "a100", "RAY_CLOUD_INSTANCE_ID": "pod-2"}
    started_by_kuberay = _machine(cluster, env_vars=kuberay)
    machines: dict[NodeId, Machine] = {NodeId("gone"): ("g", "i")}

    for _ in range(2):  # the second time from what is remembered
        seen = {node.id: (node.group, node.instance) for node in observe_nodes((), machines)}
        assert seen[labelled] == ("h100", "pod-1")
        assert seen[started_by_kuberay] == ("a100", "pod-2")
        assert sorted(seen.values())[0] == ("", "")  # the head belongs to no group
        assert machines == seen
    for node in (labelled, started_by_kuberay):
        cluster.kill_node(node)


@pytest.mark.ray
def test_an_agent_or_a_group_keeps_a_node_busy_and_without_them_it_is_let_go_at_once(cluster: EmulatedCluster) -> None:
    node = _machine(cluster)
    eventually("idle", lambda: not busy_nodes([node]))
    agent = start_agent("drains", node)
    ray.get(agent.ping.remote(), timeout=60)
    eventually("busy", lambda: node in busy_nodes([node]))
    assert "no longer idle" in drain_idle(node, "an agent is no reason to stay, but Ray does not know")
    ray.kill(agent)
    eventually("idle again", lambda: not busy_nodes([node]))

    group = create_group("rayorch/drains/w/1", (Resources.of({GPU: 1}),), (node,))
    assert group.wait(20)
    assert "no longer idle" in drain_idle(node, "a group that nobody uses yet holds it")
    remove_group(group.id.hex())
    eventually("let go", lambda: not drain_idle(node, "nothing is here"))

    eventually("gone", lambda: node not in {n.id for n in observe_nodes(())})
    assert busy_nodes([node]) == {}


@pytest.mark.ray
def test_a_preempted_node_is_drained_though_it_is_busy_and_carries_the_deadline(cluster: EmulatedCluster) -> None:
    node = _machine(cluster)
    holder = _sleeper(node)
    deadline_s = time.time() + FAR_S

    assert drain_preempted(node, "spot", deadline_s) == ""

    seen = _until(lambda: next(n for n in observe_nodes(()) if n.id == node), lambda n: n.health is not NodeHealth.OK)
    assert seen.health is NodeHealth.DRAINING
    assert seen.drain_deadline_s == pytest.approx(deadline_s, abs=0.01)
    assert ray.get(holder.ping.remote(), timeout=60) is None  # Ray ends nothing by itself
    ray.kill(holder)


def _sleeper(node: NodeId) -> Any:
    class Sleeper:
        def ping(self) -> None:
            """A sign of life."""

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    handle = ray.remote(num_cpus=1)(Sleeper).options(scheduling_strategy=where).remote()
    ray.get(handle.ping.remote(), timeout=60)
    return handle


def _until(look: Callable[[], Any], check: Callable[[Any], bool]) -> Any:
    return eventually("seen", lambda: (lambda found: found if check(found) else None)(look()))
