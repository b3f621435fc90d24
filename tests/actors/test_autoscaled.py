"""Ray's own autoscaler on a real cluster: it brings the nodes of a gang, our agents leave them, and it takes them away.

The autoscaler runs in the head as it does everywhere; its node provider is Ray's fake one, which starts raylets on this
machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from rayorch.actors.node_groups import GroupSettings
from rayorch.actors.start import InstanceSettings, start_instance, stop_instance
from rayorch.adapters.ray_emulation import FAST_FAILURE_DETECTION
from rayorch.core.admission import NodeShape
from rayorch.core.capacity import GroupName, NodeGroup, Provider
from rayorch.core.types import MODEL_LABEL, Resources, Role, State
from rayorch.core.views import AutoscalerView, LaunchState, Overview
from tests.instance import PATIENCE_S, Instance, ProgressFile, eventually, job_spec, short_profile
from tests.machine import Machine, free_port

pytestmark = pytest.mark.ray

HEAD_ID = "f" * 51 + "00000"  # the fake provider looks for its head under this id
GPUS, MOST = 2, 3
MODEL = "H100"
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
IDLE_MINUTES = 0.1


def _config(address: str) -> dict[str, Any]:
    """What `ray start --autoscaling-config` reads (JSON is YAML)."""
    node = {"CPU": 4, "GPU": GPUS, "object_store_memory": 100_000_000}
    types = {
        "ray.head.default": {"resources": {"CPU": 4}, "node_config": {}, "max_workers": 0},
        "gpu": {
            "resources": node,
            "labels": {MODEL_LABEL: MODEL},
            "node_config": {},
            "min_workers": 0,
            "max_workers": MOST,
        },
    }
    provider = {"type": "external", "module": PROVIDER, "head_node_id": HEAD_ID, "launch_multiple": True}
    empty: dict[str, Any] = {"file_mounts": {}, "cluster_synced_files": [], "rsync_exclude": [], "rsync_filter": []}
    for commands in ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray"):
        empty[f"{commands}_commands"] = []
    return {
        "cluster_name": "fake",
        "max_workers": MOST,
        "upscaling_speed": 100.0,
        "idle_timeout_minutes": IDLE_MINUTES,
        "provider": {**provider, "disable_node_updaters": True, "gcs_address": address},
        "auth": {},
        "available_node_types": types,
        "head_node_type": "ray.head.default",
        "file_mounts_sync_continuously": False,
        **empty,
    }


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """A server of rayorch on a head with Ray's autoscaler and no other node."""
    port = free_port()
    address = f"{ray.util.get_node_ip_address()}:{port}"
    config = tmp_path / "autoscaling.yaml"
    config.write_text(json.dumps(_config(address)))
    fake = {"RAY_FAKE_CLUSTER": "1", "RAY_CLOUD_INSTANCE_ID": HEAD_ID, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID}
    autoscaler = {"RAY_enable_autoscaler_v2": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    head = Machine(tmp_path, "head", env={**fake, **autoscaler})
    system = f"--system-config={json.dumps(FAST_FAILURE_DETECTION)}"
    head.ray("--head", f"--port={port}", "--num-cpus=4", "--num-gpus=0", "--include-dashboard=false",
             f"--autoscaling-config={config}", system)  # fmt: skip
    try:
        eventually("the head is up", lambda: "Ray runtime started" in head.log_tail(20_000))
        ray.init(address=address, namespace="rayorch", log_to_driver=False)
        pools = (NodeShape(Resources.of({"GPU": GPUS, "CPU": 4}), MOST, ((MODEL_LABEL, MODEL),)),)
        declared = NodeGroup(
            GroupName("gpu"),
            pools[0].total,
            0,
            0,
            MOST,
            labels=pools[0].labels,
            model=MODEL,
            autoscaler_labels=pools[0].labels,
        )
        groups = GroupSettings(None, declared=(declared,))
        start_instance(InstanceSettings(short_profile(), tmp_path / "home", pools=pools, groups=groups))
        made = Instance()
        try:
            yield made
        finally:
            made.close()
            stop_instance("main")
    except BaseException as error:
        error.add_note(head.log_tail())
        raise
    finally:
        ray.shutdown()
        head.power_off()


def _gpu_nodes() -> dict[str, bool]:
    """Every node with GPUs that there ever was, and whether it is alive."""
    return {row["NodeID"]: row["Alive"] for row in ray.nodes() if row["NodeID"] != HEAD_ID}


def _view(instance: Instance) -> Overview:
    view = instance.ask(instance.controller.overview.remote())
    assert isinstance(view, Overview)
    return view


def test_nodes_come_for_a_gang_and_our_agents_do_not_keep_them(instance: Instance, tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path / "wide")
    role = Role("worker", Resources.of({"GPU": GPUS}), 2, 2)
    wide = job_spec("wide", progress.command(20), accelerators=(MODEL,))
    instance.submit(replace(wide, roles=(role,)))

    assert instance.ended("wide").state is State.SUCCEEDED
    assert progress.attempts() == (1,)
    assert len(_gpu_nodes()) == 2
    assert _view(instance).capacity.provider is Provider.RAY
    eventually("Ray has taken them away", lambda: not any(_gpu_nodes().values()), PATIENCE_S)
    assert len(_gpu_nodes()) == 2

    instance.submit(replace(job_spec("again", "true", accelerators=(MODEL,)), roles=(role,)))

    def launched() -> AutoscalerView | None:
        seen = _view(instance).autoscaler
        states = {launch.state for launch in seen.launches} if seen is not None else set()
        return seen if states & {LaunchState.REQUESTED, LaunchState.PENDING} else None

    shown = eventually("the autoscaler's request is shown", launched)
    assert {launch.group for launch in shown.launches} == {"gpu"}
    assert instance.ended("again").state is State.SUCCEEDED
