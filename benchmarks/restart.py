"""Controller and queue owner are SIGKILLed with 10,000 workloads in the journal: when does the first decision come?

The 10,000 want two whole nodes, of which one is cordoned. Right after the kill, one small gang of a higher priority is
submitted; the first decision is the commit of its start, by the queue owner's clock (the same machine's).

    restart_s          from the SIGKILL to that commit
    lost               accepted workloads that the restarted owner doesn't know
    owner_back_s       from the SIGKILL to the durable submission of the small gang
    recovery_s         how long the owner read its journal
    decision_before_s  the same submission and start before the kill
"""

from __future__ import annotations

import os
import signal
import time

import ray

from benchmarks.harness import Running, arguments, gpu_nodes, leased_gang, rayorch_up, report, say, waiting_job
from rayorch.actors.names import controller_name, find, queues_name
from rayorch.core.requests import CordonRequest
from rayorch.core.types import NodeId, QueueId, QueueSpec, State

QUEUE = QueueId("research")
NODE_GPUS = 8
BATCH = 500
ANSWER_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 120.0
POLL_S = 0.02


def fill(count: int) -> set[str]:
    """Submit `count` workloads that wait; returns the ids that were accepted."""
    owner = find(queues_name("main"))
    assert ray.get(owner.set_queue.remote(QueueSpec(QUEUE)), timeout=ANSWER_TIMEOUT_S).accepted
    request = CordonRequest(NodeId(gpu_nodes()[0]), "the workloads of this benchmark wait")
    assert ray.get(owner.cordon.remote(request), timeout=ANSWER_TIMEOUT_S).accepted
    accepted: set[str] = set()
    for first in range(0, count, BATCH):
        specs = tuple(waiting_job(f"w{i:05d}", QUEUE, NODE_GPUS) for i in range(first, min(count, first + BATCH)))
        results = ray.get(owner.submit_many.remote(specs), timeout=ANSWER_TIMEOUT_S)
        accepted |= {result.workload for result in results if result.reply.accepted}
    return accepted


def decides(name: str) -> tuple[float, float]:
    """Submit a small gang and wait for its start; returns when both were durable [s since the epoch]."""
    owner = find(queues_name("main"))
    result = ray.get(owner.submit.remote(leased_gang(name, QUEUE, 0.5, priority=100)), timeout=ANSWER_TIMEOUT_S)
    assert result.reply.accepted, result
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        workload = ray.get(owner.workload.remote(name), timeout=ANSWER_TIMEOUT_S)
        if workload.state is not State.PENDING and workload.started_s is not None:
            return float(workload.submitted_s), float(workload.started_s)
        time.sleep(POLL_S)
    raise RuntimeError(f"{name} was not started: {ray.get(find(controller_name('main')).status.remote())}")


def known_ids() -> set[str]:
    """What the owner knows now."""
    changes = ray.get(find(queues_name("main")).changes_since.remote(0), timeout=ANSWER_TIMEOUT_S)
    return {workload.id for workload in changes.workloads}


def measure(running: Running, count: int) -> dict[str, float]:
    """Fill, see that decisions are made, kill both, and wait for the next one."""
    say(f"submitting {count} workloads")
    accepted = fill(count)
    say("waiting for a first decision before the kill")
    began_s = time.time()
    _, before_s = decides("before")
    killed = {name: running.pid_of(name) for name in ("QueueShell", "ControllerShell")}
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)
    killed_s = time.time()
    say(f"killed {killed}")
    back_s, decided_s = decides("after")
    for name, pid in killed.items():
        assert running.pid_of(name) != pid, f"{name} was not killed"
    status = ray.get(find(queues_name("main")).status.remote(), timeout=ANSWER_TIMEOUT_S)
    say(f"the journal of {status.sequence} records was read in {status.recovery_s:.2f} s")
    return {
        "restart_s": decided_s - killed_s,
        "lost": float(len((accepted | {"before"}) - known_ids())),
        "accepted": float(len(accepted)),
        "recovery_s": status.recovery_s,
        "owner_back_s": back_s - killed_s,
        "decision_before_s": before_s - began_s,
    }


def main() -> int:
    """Run and report."""
    given = arguments("restart", {"count": 500}, {"count": 10_000})
    with rayorch_up(f"2x{NODE_GPUS}") as running:
        figures = measure(running, given.count)
    return report("restart", figures, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
