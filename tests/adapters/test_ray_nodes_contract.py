"""The private names of Ray that `ray_nodes` and `ray_emulation` lean on are still there, in the shape they have."""

from __future__ import annotations

import inspect

from ray._private import state as ray_state
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._raylet import GlobalStateAccessor, InnerGcsClient
from ray.core.generated import gcs_pb2


def test_the_actor_table_tells_who_holds_what_and_where() -> None:
    row = gcs_pb2.ActorTableData(job_id=b"\1", class_name="Squatter", name="n", required_resources={"GPU": 1.0})
    row.address.node_id = b"\2"
    row.placement_group_id = b"\3"

    read = gcs_pb2.ActorTableData.FromString(row.SerializeToString())

    assert read.required_resources.get("GPU") == 1.0 and read.required_resources.get("CPU") is None
    assert (read.address.node_id.hex(), read.placement_group_id.hex(), read.job_id.hex()) == ("02", "03", "01")
    assert callable(ray_state.state._connect_and_get_accessor)
    assert callable(GlobalStateAccessor.get_actor_table)


def test_the_record_of_a_node_names_its_group_and_its_machine() -> None:
    assert {"node_id", "node_type_name", "instance_id"} <= set(gcs_pb2.GcsNodeInfo.DESCRIPTOR.fields_by_name)
    assert "timeout" in inspect.signature(InnerGcsClient.get_all_node_info).parameters


def test_nodes_their_use_and_drains_are_read_from_the_global_state() -> None:
    for name in ("get_draining_nodes", "total_resources_per_node", "available_resources_per_node"):
        assert callable(getattr(ray_state, name, None) or getattr(ray_state.state, name)), name


def test_a_head_can_be_given_a_redis_and_its_gcs_be_killed_and_started() -> None:
    parameters = inspect.signature(RayParams).parameters
    assert {"external_addresses", "num_redis_shards", "redis_password", "_system_config"} <= set(parameters)
    for name in ("kill_gcs_server", "start_gcs_server"):
        assert callable(getattr(Node, name))
