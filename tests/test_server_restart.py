"""A server that is replaced, as a container is when its pod's kubelet starts it again: running work goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import ray

from rayorch import server
from rayorch.policies.default import DEFAULT
from rayorch.server import Server, ServerSettings
from tests.instance import ProgressFile, eventually

END_TIMEOUT_S = 60


@pytest.mark.parametrize(("leave", "ended"), [(False, ["main"]), (True, [])])
def test_the_end_of_a_server_that_leaves_ends_no_owner(
    leave: bool, ended: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[str] = []
    fake = SimpleNamespace(is_initialized=lambda: True, exceptions=ray.exceptions)
    monkeypatch.setattr(server, "ray", fake)
    monkeypatch.setattr(server, "stop_instance", stopped.append)
    state = tmp_path / "main" / "server.json"
    state.parent.mkdir()
    state.write_text("{}")
    made = Server(ServerSettings(home=tmp_path, profile=DEFAULT, leave_running=leave))
    made._up = True
    made.stop()
    assert stopped == ended
    assert not state.exists(), "nobody answers at that address any more"


@contextmanager
def _server(address: str, home: Path) -> Iterator[httpx.Client]:
    """`python -m rayorch.server --leave-running`, from its start to a SIGTERM."""
    log = home / "server.log"
    state = home / "main" / "server.json"
    command = [sys.executable, "-m", "rayorch.server", "--address", address, "--home", str(home), "--leave-running"]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "RAY_ADDRESS": address})
    try:

        def up() -> Any:
            assert process.poll() is None, log.read_text()[-3000:]
            return state.exists() and json.loads(state.read_text())["pid"] == process.pid

        eventually("the server is up", up)
        with httpx.Client(base_url=json.loads(state.read_text())["gateway_url"], timeout=30) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        process.wait(END_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()


@pytest.mark.ray
def test_a_running_job_does_not_notice_that_the_server_is_replaced(
    ray_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = ray_cluster(nodes=1, gpus=2)
    progress = ProgressFile(tmp_path / "progress")
    metadata = {"rayorch.workers": "1", "rayorch.gpus": "1"}
    with _server(cluster.address, tmp_path) as client:
        body = {"entrypoint": progress.command(), "submission_id": "steady", "metadata": metadata}
        assert client.post("/api/jobs/", json=body).status_code == 200
        progress.goes_on()
    progress.goes_on()  # without any server
    with _server(cluster.address, tmp_path) as client:
        progress.goes_on()
        assert client.get("/api/jobs/steady").json()["status"] == "RUNNING"
        assert client.post("/api/jobs/steady/stop").json() == {"stopped": True}
        eventually("it has stopped", lambda: client.get("/api/jobs/steady").json()["status"] == "STOPPED")
    assert progress.attempts() == (1,)
