"""A runner whose work is a Serve application: it deploys it, says what it uses, and drains it when told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayorch.core.grants import Grant, Seat
from rayorch.core.payload import Payload
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.types import (
    Kind,
    QueueId,
    Resources,
    Role,
    State,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from tests.ray_cluster import EmulatedCluster

pytestmark = pytest.mark.ray

INSTANCE = "servetest"
BUNDLE = Resources.of({"CPU": 0.5, "GPU": 1})
PATIENCE_S = 180.0
APP = WorkloadId("echo")


def until(runner: Any, what: str, check: Callable[[RunnerView], bool]) -> RunnerView:
    import ray

    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        view: RunnerView = ray.get(runner.status.remote(), timeout=PATIENCE_S)
        if check(view):
            return view
        assert time.monotonic() < deadline_s, f"never came: {what}, but {view}"
        time.sleep(0.2)


def test_an_application_is_deployed_resized_and_drained(
    ray_cluster: Callable[..., EmulatedCluster], tmp_path: Path
) -> None:
    import ray

    from rayorch.actors.logs import LogSettings, start_log_store
    from rayorch.actors.runner import RunnerSettings, start_runner
    from rayorch.adapters import ray_serve
    from tests.actors.fake_owner import start_fakes

    cluster = ray_cluster(nodes=1, gpus=2, cpus=8)
    owner, _ = start_fakes(INSTANCE)
    logs = start_log_store(LogSettings(INSTANCE, str(tmp_path)))
    seats = tuple(Seat("m", i, cluster.node_ids[0], "", i, BUNDLE, surplus=i + 1) for i in range(2))
    payload = Payload(import_path="tests.adapters.served.echo_app:app", app_name="echo", route_prefix="/echo")
    spec = WorkloadSpec(APP, "echo", Kind.SERVE, QueueId("q"), (Role("m", BUNDLE, 1, 2),), payload=payload.to_text())
    grant = Grant(APP, 1, 0, seats[:1], lease_s=30.0)
    runner = start_runner(RunnerSettings(INSTANCE), Workload(spec, State.RUNNING, 0.0, attempt=1), grant)

    up = until(runner, "the application", lambda v: v.phase is RunnerPhase.RUNNING and bool(v.in_use))
    assert up.in_use is not None and [s.node_id for s in up.in_use] == cluster.node_ids
    version = ray.get(runner.update.remote(replace(grant, seats=seats)))
    until(runner, "a second replica", lambda v: v.applied_version == version and len(v.in_use or ()) == 2)
    _, reports = ray.get(owner.seen.remote())
    assert "DemandReported" in {type(r.report).__name__ for r in reports}

    order = StopOrder(StopCause.RECLAIMED, "training is owed the GPU", time.time(), time.time() + PATIENCE_S)
    ray.get(runner.update.remote(replace(grant, seats=seats, stop=order)))
    ended = until(runner, "the end", lambda v: v.phase is RunnerPhase.ENDED)
    assert (ended.exit_code, ended.message) == (0, "drained: training is owed the GPU")
    assert ray_serve.app_status("echo").state == "NOT_DEPLOYED"
    assert ray_serve.seats_in_use("echo") == ()
    log = ray.get(logs.read.remote(APP, 1, 0)).text
    assert "deploying tests.adapters.served.echo_app:app as echo" in log and "drained" in log
    ray.kill(runner)
    ray.serve.shutdown()


def test_the_reason_of_a_failed_deployment_is_the_last_line_of_what_serve_says() -> None:
    from rayorch.actors.runner_serve import last_line

    said = "The deployment failed to start 3 times.\n  File x.py, line 1\n\nRuntimeError: no such weights\n\n"
    assert last_line(said) == "RuntimeError: no such weights"
    assert last_line("") == ""
    assert len(last_line("x" * 5000)) == 500
