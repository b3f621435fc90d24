"""Ray's drains: what keeps a node busy in Ray's eyes, and asking that a node be left.

A drain can't be taken back, and Ray does not enforce its deadline. After an idle drain was accepted the node takes
nothing new and its raylet ends itself. All names here are private to Ray; `tests/adapters/test_ray_drain.py` holds
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray
from ray._private import worker as ray_worker
from ray.core.generated import autoscaler_pb2

from rayorch.core.errors import ClusterError
from rayorch.core.types import NodeId

ANSWER_TIMEOUT_S = 10.0
"""How long the GCS may take. It asks the node itself, which may be gone."""

IDLE_TERMINATION = "DRAIN_NODE_REASON_IDLE_TERMINATION"
PREEMPTION = "DRAIN_NODE_REASON_PREEMPTION"


def drain_idle(node: NodeId, reason: str) -> str:
    """Ask Ray to let an idle node go. Answers with why Ray won't, empty when it does: then nothing runs there.

    Ray refuses as soon as any worker is leased, a group holds anything or an object lies there. ClusterError: not
    known whether it was drained.
    """
    return _drain(node, IDLE_TERMINATION, reason, None)


def drain_preempted(node: NodeId, reason: str, deadline_s: float) -> str:
    """Tell Ray that a node will be taken away at `deadline_s`, busy or not; the same answers."""
    return _drain(node, PREEMPTION, reason, deadline_s)


def _drain(node: NodeId, kind: str, reason: str, deadline_s: float | None) -> str:
    values: Any = autoscaler_pb2
    deadline_ms = 0 if deadline_s is None else int(deadline_s * 1000)
    try:
        # The id as hex: in bytes it would be read as no node at all, and be "accepted".
        code = values.DrainNodeReason.Value(kind)
        accepted, why = _gcs().drain_node(node, code, reason, deadline_ms, timeout=ANSWER_TIMEOUT_S)
    except Exception as error:  # the GCS client raises several unrelated classes
        raise ClusterError(f"node {node} could not be drained: {error}") from error
    return "" if accepted else str(why) or "Ray gives no reason"


def busy_nodes(nodes: Iterable[NodeId]) -> dict[NodeId, str]:
    """Those of the nodes that Ray does not call idle, and why. One that is gone is not busy. ClusterError."""
    wanted = frozenset(nodes)
    messages: Any = autoscaler_pb2
    try:
        reply = messages.GetClusterResourceStateReply.FromString(
            _gcs().get_cluster_resource_state(timeout_s=ANSWER_TIMEOUT_S)
        )
    except Exception as error:
        raise ClusterError(f"Ray's idle nodes could not be read: {error}") from error
    busy = {messages.NodeStatus.Value(name) for name in ("RUNNING", "UNSPECIFIED")}
    found: dict[NodeId, str] = {}
    for row in reply.cluster_resource_state.node_states:
        node = NodeId(row.node_id.hex())
        if node in wanted and row.status in busy:
            found[node] = "; ".join(row.node_activity) or "it is in use"
    return found


def _gcs() -> Any:
    if not ray.is_initialized():
        raise ClusterError("this process is not connected to Ray")
    worker: Any = ray_worker.global_worker
    return worker.gcs_client
