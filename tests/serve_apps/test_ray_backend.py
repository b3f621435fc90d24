"""The gateway over the real owners: a job through HTTP, a function's value, a leased gang. One small cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rayorch
from rayorch import Client, NotFoundError
from rayorch.client.function import pickling
from rayorch.config import load_profile
from rayorch.serve_apps.gateway import GatewaySettings, UvicornGateway, create_app
from tests.ray_cluster import EmulatedCluster

pytestmark = pytest.mark.ray

WORK_S = 240
"""A guard against a hang: a worker's start may take long on a machine with few cores."""


@pytest.fixture(scope="module")
def client(ray_cluster: Callable[..., EmulatedCluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """An instance on one node with two GPUs, its gateway in a thread, and a client of it."""
    from rayorch.actors.start import InstanceSettings, start_instance, stop_instance
    from rayorch.serve_apps.gateway.ray_backend import RayBackend

    ray_cluster(nodes=1, gpus=2)
    folder = tmp_path_factory.mktemp("instance")
    start_instance(InstanceSettings(load_profile(), folder, "gw"))
    backend = RayBackend("gw", folder)
    backend.start_results()
    settings = GatewaySettings(instance="gw")
    gateway = UvicornGateway(create_app(backend, settings), "127.0.0.1", 0, settings)
    thread = threading.Thread(target=gateway.run, name="gateway")
    thread.start()
    try:
        with rayorch.connect(gateway.address) as connected:
            yield connected
    finally:
        gateway.stop()
        thread.join()
        stop_instance("gw")


def test_a_command_runs_in_its_folder_and_its_output_and_exit_code_come_back(client: Client, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import os, sys; print('in', os.environ['RAYORCH_WORKLOAD']); sys.exit(5)\n")
    handle = client.submit("python t.py", id="command", working_dir=tmp_path)
    lines = list(handle.logs(follow=True))
    assert "in command" in lines
    error = handle.exception(timeout=WORK_S)
    assert isinstance(error, rayorch.WorkloadFailedError)
    assert error.exit_code == 5
    kinds = [event["type"] for event in handle.events()]
    assert kinds[0] == "Submitted" and "Started" in kinds and kinds[-1] == "AttemptEnded"


def test_the_value_of_a_function_comes_back_through_ray(client: Client) -> None:
    def double(x: int) -> tuple[int, str]:
        import os

        return 2 * x, os.environ["RAYORCH_ATTEMPT"]

    import sys

    pickling().register_pickle_by_value(sys.modules[__name__])
    assert client.submit(double, args=(21,)).result(timeout=WORK_S) == (42, "1")


def test_a_leased_gang_is_a_group_in_which_tasks_run(client: Client) -> None:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def device() -> list[int]:
        return [int(i) for i in ray.get_gpu_ids()]

    with client.gang(bundles=[{"GPU": 1}, {"GPU": 1, "CPU": 1}], timeout=WORK_S) as group:
        assert [bundle["GPU"] for bundle in group.bundle_specs] == [1, 1]
        task = ray.remote(num_gpus=1, num_cpus=0)(device)
        inside = [PlacementGroupSchedulingStrategy(group, index) for index in range(2)]
        found = ray.get([task.options(scheduling_strategy=s).remote() for s in inside], timeout=WORK_S)
        assert sorted(found) == [[0], [1]]
        (node,) = [n for n in client.nodes() if n["total"].get("GPU")]  # type: ignore[union-attr]
        assert node["used"]["GPU"] == 2  # type: ignore[index,call-overload]


def test_what_can_never_fit_is_refused_at_the_door(client: Client) -> None:
    with pytest.raises(rayorch.AdmissionError):
        client.submit("true", queue="nowhere")
    with pytest.raises(NotFoundError):
        client.workload("nothing")
