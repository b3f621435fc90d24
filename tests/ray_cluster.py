"""A small emulated Ray cluster for tests: a head without GPUs and nodes whose GPUs exist only in Ray's books.

This module imports ray when a cluster is started, not before, so that tests without Ray stay quick.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray._private.node import Node
    from ray.cluster_utils import Cluster

JOIN_TIMEOUT_S = 120
NODE_STARTS = 2
OBJECT_STORE_BYTES = 100 * 2**20

FAST_DETECTION: Mapping[str, int] = {
    # A killed raylet refuses the connection, so it is found after period * threshold, about 2 s instead of 13 s.
    # The timeout is what tells a hung node from a busy one and stays generous for machines with few cores.
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 4_000,
    "health_check_failure_threshold": 3,
    # Freed resources are seen after 20 ms instead of 100 ms, and a placement group that lost that race is
    # tried again after 20 ms instead of a second.
    "raylet_report_resources_period_milliseconds": 20,
    "gcs_create_placement_group_retry_min_interval_ms": 20,
}


class EmulatedCluster:
    """One running cluster with this process connected to it. Call `shutdown` when done."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.nodes: list[Node] = []

    @property
    def address(self) -> str:
        """What a driver passes to `ray.init(address=...)`."""
        return str(self.cluster.address)

    @property
    def node_ids(self) -> list[str]:
        """Hex ids of the nodes with GPUs, in the order they were added; removed ones are left out."""
        return [str(node.node_id) for node in self.nodes]

    def add_node(self, gpus: int, cpus: int = 8, labels: Mapping[str, str] | None = None, **node_args: Any) -> str:
        """Add a node and wait until Ray lists it; returns its hex id."""
        node = _add_node(
            self.cluster,
            num_cpus=cpus,
            num_gpus=gpus,
            labels=dict(labels or {}),
            object_store_memory=OBJECT_STORE_BYTES,
            **node_args,
        )
        self.nodes.append(node)
        return str(node.node_id)

    def kill_node(self, node_id: str) -> None:
        """Kill every process of a node at once, as a power cut would; returns before Ray has noticed."""
        node = self._node(node_id)
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)

    def _node(self, node_id: str) -> Node:
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise KeyError(node_id)

    def shutdown(self) -> None:
        """Disconnect and end every process of the cluster."""
        import ray

        try:
            ray.shutdown()
        finally:
            self.nodes.clear()
            self.cluster.shutdown()


def _add_node(cluster: Cluster, **node_args: Any) -> Node:
    """Start a node; once more if Ray gives it up, which it does after 30 s however busy the machine is."""
    for attempt in range(NODE_STARTS):
        try:
            return cluster.add_node(**node_args)
        except Exception as error:
            _end_half_started(error)
            if "timed out during startup" not in str(error) or attempt == NODE_STARTS - 1:
                raise
    raise AssertionError("unreachable")


def _end_half_started(error: Exception) -> None:
    """End the processes of the node whose constructor raised; Ray keeps no other reference to it."""
    from ray._private.node import Node

    frames = error.__traceback__
    while frames is not None:
        node = frames.tb_frame.f_locals.get("self")
        if isinstance(node, Node):
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
            return
        frames = frames.tb_next


def start_cluster(
    nodes: int = 2,
    gpus: int = 4,
    cpus: int = 8,
    racks: Sequence[str] = ("r1", "r2"),
    namespace: str = "rayorch",
    head_cpus: int = 8,
    system_config: Mapping[str, object] | None = None,
    **head_args: Any,
) -> EmulatedCluster:
    """Start a head without GPUs and `nodes` nodes of `gpus` GPUs each, spread over `racks` in contiguous parts.

    Node i carries the labels `rack` and `node-name` (`n<i>`). `system_config` adds to FAST_DETECTION.
    Raises TimeoutError when a node does not join; nothing is left running then.
    """
    import ray
    from ray.cluster_utils import Cluster

    Path(os.environ["RAY_TMPDIR"], "ray").mkdir(parents=True, exist_ok=True)
    cluster = Cluster()
    _add_node(
        cluster,
        num_cpus=head_cpus,
        num_gpus=0,
        object_store_memory=OBJECT_STORE_BYTES,
        _system_config={**FAST_DETECTION, **(system_config or {})},
        **{"include_dashboard": False, **head_args},
    )
    emulated = EmulatedCluster(cluster, namespace)
    try:
        for i in range(nodes):
            # One after another: a raylet whose agent does not come up in time aborts, which happens on busy machines.
            rack = racks[i * len(racks) // nodes]
            emulated.add_node(gpus, cpus, labels={"rack": rack, "node-name": f"n{i}"})
        cluster.wait_for_nodes(timeout=JOIN_TIMEOUT_S)
        ray.init(address=cluster.address, namespace=namespace, log_to_driver=False)
    except BaseException:
        emulated.shutdown()
        raise
    return emulated
