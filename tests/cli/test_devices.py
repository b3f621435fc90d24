"""`rayorch devices` and what `rayorch nodes` says of them, over the gateway's routes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rayorch.core.device_facts import GpuFacts, GpuProcess, MigInstance
from rayorch.core.devices import DeviceReading, NodeReading, XidSeen
from rayorch.core.types import Device, NodeId
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.cli.conftest import Run

WELL = Device(0, "H100", "GPU-a", memory_bytes=80 * 2**30, numa=0, nvlink=(1,), pci="0000:10:00.0")
HOT = Device(1, "H100", "GPU-b", watch="throttled: hardware thermal slowdown")
LOST = Device(2, "H100", "GPU-c", sick="lost: GPU is lost", lost=True)
SLICE = Device(3, "H100", "MIG-d", mig_profile="1g.10gb", memory_bytes=10 * 2**30)


@pytest.fixture
def node(backend: FakeBackend) -> NodeId:
    """The node of the fake cluster, with devices in all states."""
    (known,) = backend.nodes.values()
    devices = (WELL, HOT, LOST, SLICE)
    backend.nodes[known.id] = replace(known, devices=devices, device_note="its MIG profiles differ")
    facts = GpuFacts(
        0,
        "GPU-a",
        "NVIDIA H100 80GB HBM3",
        memory_used_bytes=2**30,
        temperature_c=61,
        power_w=512.4,
        power_limit_w=700.0,
        sm_clock_mhz=1755,
        correctable=4,
        uncorrectable=0,
        processes=(GpuProcess(77, 2**30, "python train.py"),),
        instances=(MigInstance("MIG-x", "1g.10gb", 1, 0),),
    )
    backend.readings[known.id] = NodeReading(
        (
            DeviceReading(WELL, facts, None, (XidSeen(31, 2, 5.0),)),
            *(DeviceReading(device) for device in devices[1:]),
        ),
        read_s=1.0,
        looks=7,
    )
    return known.id


def test_nodes_say_what_is_wrong_with_their_devices(run: Run, node: NodeId) -> None:
    shown = run("nodes").stdout
    assert "GPU 2: lost: GPU is lost" in shown
    assert "GPU 1: watch: throttled: hardware thermal slowdown" in shown
    assert "its MIG profiles differ" in shown
    (item,) = json.loads(run("nodes", "-o", "json").stdout)
    assert [device["health"] for device in item["devices"]] == ["healthy", "watch", "sick", "healthy"]
    assert item["deviceNote"] == "its MIG profiles differ"
    assert item["devices"][0]["nvlink"] == [1]


def test_a_node_without_trouble_has_an_empty_reason(run: Run, backend: FakeBackend) -> None:
    line = run("nodes", "-o", "csv").stdout.splitlines()[1]
    assert line.endswith(",")


def test_the_readings_of_a_node(run: Run, node: NodeId) -> None:
    done = run("devices", "gpu-01")
    first, second, third, fourth = done.stdout.splitlines()[1:]
    for text in ("NVIDIA H100 80GB HBM3", "healthy", "61", "512/700", "1755", "1.0/80", "4/0", "31", "GPU-a"):
        assert text in first
    assert "watch" in second and "throttled" in second
    assert "sick" in third and "GPU is lost" in third
    assert "1g.10gb" in fourth
    assert "gpu-01: read" in done.stderr
    data = json.loads(run("devices", node, "-o", "json").stdout)
    assert (data["looks"], data["node"], len(data["devices"])) == (7, node, 4)
    assert data["devices"][0]["processes"][0]["owner"] == "unknown"
    assert data["devices"][0]["xids"][0]["action"] == "restart_app"
    assert run("devices", node, "-o", "name").stdout.split() == ["GPU-a", "GPU-b", "GPU-c", "MIG-d"]


def test_a_node_with_nothing_to_read(run: Run, backend: FakeBackend) -> None:
    done = run("devices", "gpu-01")
    assert done.exit_code == 0
    assert "no driver to read" in done.stderr
    (id,) = (node.id for node in backend.nodes.values() if node.name == "gpu-01")
    backend.readings[id] = NodeReading(error="the raylet's environment can't be read")
    assert "environment can't be read" in run("devices", "gpu-01").stderr


def test_an_operator_clears_one(run: Run, backend: FakeBackend, node: NodeId) -> None:
    assert run("devices", "gpu-01", "--clear", "2").exit_code == 0
    assert backend.cleared == [(node, 2)]
    assert run("devices", "gpu-01", "--clear", "9").exit_code != 0
    assert run("devices", "nowhere").exit_code != 0
    assert run("devices", "gpu-01", "--clear", "-1").exit_code != 0


def test_the_page_shows_them(run: Run, node: NodeId, backend: FakeBackend) -> None:
    import asyncio

    from rayorch.serve_apps.gateway.page import page_values

    values = page_values(asyncio.run(backend.overview()))
    (shown,) = values["nodes"]  # type: ignore[misc]
    assert shown["sick"] == ["GPU 2: lost: GPU is lost"]
    assert shown["watched"] == ["GPU 1: throttled: hardware thermal slowdown"]
    assert shown["note"] == "its MIG profiles differ"
