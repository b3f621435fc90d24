"""Contract: a raylet starts workers ahead of time, and an actor without a runtime environment takes one of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from rayorch.adapters.ray_workers import NodeWorkers

pytestmark = pytest.mark.ray

PATIENCE_S = 120.0
KEEP_S = 300


def test_an_actor_takes_a_worker_that_was_started_for_its_job(ray_cluster: Callable[..., Any]) -> None:
    import ray

    ray_cluster(nodes=1, gpus=1)
    (node,) = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("GPU")]
    workers = NodeWorkers(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
    try:
        before = workers.pids()
        workers.prestart(ray.get_runtime_context().get_job_id(), 1, KEEP_S)
        give_up_s = time.monotonic() + PATIENCE_S
        while not (fresh := workers.pids() - before):
            assert time.monotonic() < give_up_s, "no worker was started"
            time.sleep(0.1)
        taken = _actor_pid(ray)
        assert taken in fresh
    finally:
        workers.close()


def _actor_pid(ray: Any) -> int:
    class Worker:
        def pid(self) -> int:
            return os.getpid()

    actor = ray.remote(num_gpus=1, num_cpus=0)(Worker).remote()
    pid = int(ray.get(actor.pid.remote(), timeout=PATIENCE_S))
    ray.kill(actor)
    return pid
