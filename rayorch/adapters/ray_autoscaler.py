"""What Ray's autoscaler is doing: what it asked for, what is on its way, what failed, what it can't give.

The autoscaler reports to the GCS in each of its rounds; where none runs there is no report. The messages are private
to Ray; `tests/adapters/test_ray_autoscaler.py` holds their names, with a recorded report.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray
from ray._private import worker as ray_worker
from ray.core.generated import autoscaler_pb2

from rayorch.core.errors import ClusterError
from rayorch.core.views import AutoscalerView, Launch, LaunchState

ANSWER_TIMEOUT_S = 10
MAX_SHOWN = 100
"""At most so many launches, and demands that can't be met, are shown of each kind; the newest."""


def read_autoscaler(now_s: float) -> AutoscalerView | None:
    """The autoscaler's last report, None when there has been none. ClusterError when the GCS can't be read."""
    if not ray.is_initialized():
        raise ClusterError("this process is not connected to Ray")
    worker: Any = ray_worker.global_worker
    try:
        reply = worker.gcs_client.get_cluster_status(timeout_s=ANSWER_TIMEOUT_S)
    except Exception as error:  # the GCS client raises several unrelated classes
        raise ClusterError(f"the autoscaler's state could not be read: {error}") from error
    return autoscaler_view(reply, now_s)


def autoscaler_view(reply: bytes, now_s: float) -> AutoscalerView | None:
    """A serialized GetClusterStatusReply as values."""
    messages: Any = autoscaler_pb2
    state = messages.GetClusterStatusReply.FromString(reply).autoscaling_state
    if not state.autoscaler_state_version:
        return None
    requested = [
        Launch(row.ray_node_type_name, row.count, LaunchState.REQUESTED, since_s=float(row.request_ts) or None)
        for row in state.pending_instance_requests
    ]
    pending = [
        Launch(row.ray_node_type_name, 1, LaunchState.PENDING, row.details, row.instance_id)
        for row in state.pending_instances
    ]
    failed = [
        Launch(row.ray_node_type_name, row.count, LaunchState.FAILED, row.reason, since_s=float(row.failed_ts) or None)
        for row in sorted(state.failed_instance_requests, key=lambda row: row.failed_ts)
    ]
    launches = (*requested[-MAX_SHOWN:], *pending[-MAX_SHOWN:], *failed[-MAX_SHOWN:])
    return AutoscalerView(now_s, launches, _unmet(state))


def _unmet(state: Any) -> tuple[str, ...]:
    """In words, what no node type of the autoscaler could ever take."""
    found = [_words([row]) for row in state.infeasible_resource_requests]
    found += [_words(gang.requests) for gang in state.infeasible_gang_resource_requests]
    for constraint in state.infeasible_cluster_resource_constraints:
        found += [f"{row.count} x {_words([row.request])}" for row in constraint.resource_requests]
    return tuple(dict.fromkeys(found))[:MAX_SHOWN]


def _words(requests: Iterable[Any]) -> str:
    return " + ".join(_amounts(request) for request in requests) or "nothing"


def _amounts(request: Any) -> str:
    amounts = ", ".join(f"{amount:g} {name}" for name, amount in sorted(request.resources_bundle.items()))
    labels = sorted(
        f"{one.label_key}={','.join(one.label_values)}"
        for selector in request.label_selectors
        for one in selector.label_constraints
    )
    return f"{amounts} on {', '.join(labels)}" if labels else amounts
