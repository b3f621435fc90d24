"""What Ray's autoscaler reports, read from recorded shapes; and that a cluster without one says nothing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import ray
from google.protobuf import text_format
from ray._raylet import InnerGcsClient
from ray.core.generated import autoscaler_pb2

from rayorch.adapters.ray_autoscaler import MAX_SHOWN, autoscaler_view, read_autoscaler
from rayorch.core.errors import ClusterError
from rayorch.core.views import AutoscalerView, Launch, LaunchState
from tests.ray_cluster import EmulatedCluster

REPORT = """
autoscaling_state {
  autoscaler_state_version: 17
  pending_instance_requests { ray_node_type_name: "h100" count: 3 request_ts: 1796035000 }
  pending_instances {
    ray_node_type_name: "a100" instance_id: "pod-7" ip_address: "10.0.0.7" details: "ALLOCATED"
  }
  failed_instance_requests { ray_node_type_name: "l4" count: 1 reason: "newer" start_ts: 20 failed_ts: 30 }
  failed_instance_requests { ray_node_type_name: "l4" count: 2 reason: "no stock" start_ts: 10 failed_ts: 20 }
  infeasible_resource_requests { resources_bundle { key: "GPU" value: 64 } }
  infeasible_gang_resource_requests {
    requests { resources_bundle { key: "GPU" value: 8 } }
    requests { resources_bundle { key: "CPU" value: 1 } }
  }
  infeasible_cluster_resource_constraints {
    resource_requests {
      count: 4
      request {
        resources_bundle { key: "GPU" value: 8 }
        label_selectors {
          label_constraints { label_key: "ray.io/accelerator-type" operator: LABEL_OPERATOR_IN label_values: "H100" }
        }
      }
    }
  }
}
"""


def _reply(text: str) -> bytes:
    message: Any = text_format.Parse(text, autoscaler_pb2.GetClusterStatusReply())
    return bytes(message.SerializeToString())


def test_the_gcs_is_asked_as_it_can_be() -> None:
    assert list(inspect.signature(InnerGcsClient.get_cluster_status).parameters) == ["self", "timeout_s"]


def test_requested_pending_and_failed_nodes_are_told_apart_with_reasons() -> None:
    assert autoscaler_view(_reply(REPORT), 5.0) == AutoscalerView(
        observed_s=5.0,
        launches=(
            Launch("h100", 3, LaunchState.REQUESTED, since_s=1796035000.0),
            Launch("a100", 1, LaunchState.PENDING, "ALLOCATED", "pod-7"),
            Launch("l4", 2, LaunchState.FAILED, "no stock", since_s=20.0),
            Launch("l4", 1, LaunchState.FAILED, "newer", since_s=30.0),
        ),
        unmet=("64 GPU", "8 GPU + 1 CPU", "4 x 8 GPU on ray.io/accelerator-type=H100"),
    )


def test_only_the_newest_of_many_failures_are_shown() -> None:
    rows = "".join(f'failed_instance_requests {{ reason: "{n}" count: 1 failed_ts: {n} }}' for n in range(1, 300))
    view = autoscaler_view(_reply(f"autoscaling_state {{ autoscaler_state_version: 1 {rows} }}"), 5.0)
    assert view is not None
    assert [launch.reason for launch in view.launches] == [str(n) for n in range(300 - MAX_SHOWN, 300)]


def test_a_cluster_whose_autoscaler_never_reported_shows_none() -> None:
    assert autoscaler_view(_reply(""), 5.0) is None


def test_without_a_connection_to_ray_it_is_unknown() -> None:
    if ray.is_initialized():
        pytest.skip("another test's cluster is connected")
    with pytest.raises(ClusterError, match="not connected"):
        read_autoscaler(5.0)


@pytest.mark.ray
def test_the_gcs_of_a_cluster_without_an_autoscaler_is_asked(ray_cluster: Any) -> None:
    cluster: EmulatedCluster = ray_cluster(nodes=0)
    assert cluster.address
    assert read_autoscaler(5.0) is None
