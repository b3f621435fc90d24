"""Durable submissions: how many a second the queue owner takes, and how long one takes through HTTP.

A whole rayorch runs (controller and all). Its only node is cordoned, so that all workloads wait: starting them is
another benchmark's matter. A submission counts when it was acknowledged, which means that it is on disk.

    actor_per_s         batches of 100 to the queue actor, 4 batches under way
    actor_single_per_s  one call each, 100 under way: they share fsyncs only by coming together
    http_p99_ms         POST /api/v1/workloads at 100/s, open loop: each is sent at its time, whatever the others do,
                        and its latency counts from that time
    client_late_p99_ms  how late the client woke up to send: a busy machine shows here
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import ray

from benchmarks.harness import Running, arguments, gpu_nodes, percentile, rayorch_up, report, say, waiting_job
from rayorch.actors.names import find, queues_name
from rayorch.core.requests import CordonRequest
from rayorch.core.types import NodeId, QueueId, QueueSpec

QUEUE = QueueId("waiting")
ANSWER_TIMEOUT_S = 60.0
BATCH = 100
BATCHES_UNDER_WAY = 4
SINGLES_UNDER_WAY = 100


def document(name: str) -> dict[str, Any]:
    """The same workload as `waiting_job`, as HTTP takes it."""
    return {
        "apiVersion": "rayorch/v1",
        "kind": "Workload",
        "metadata": {"name": name, "queue": QUEUE, "annotations": {"contact": "ada"}},
        "spec": {
            "kind": "train",
            "gang": {"workers": [2, 4], "resources": {"GPU": 1, "CPU": 2}},
            "entrypoint": "python train.py --lr 3e-4 --epochs 40",
            "env": {"SEED": "17"},
        },
    }


async def rate(count: int, under_way: int, submit: Callable[[int], Awaitable[int]]) -> float:
    """Accepted submissions a second while `count` calls of `submit` are made, at most `under_way` at once."""
    free = asyncio.Semaphore(under_way)

    async def one(i: int) -> int:
        async with free:
            return await submit(i)

    began = time.perf_counter()
    accepted = sum(await asyncio.gather(*(one(i) for i in range(count))))
    return accepted / (time.perf_counter() - began)


async def through_actor(count: int) -> tuple[float, float]:
    """(batched, one by one) submissions a second."""
    owner = find(queues_name("main"))

    async def batch(i: int) -> int:
        specs = tuple(waiting_job(f"batch-{i}-{k}", QUEUE) for k in range(BATCH))
        results = await owner.submit_many.remote(specs)
        return sum(result.reply.accepted for result in results)

    async def single(i: int) -> int:
        result = await owner.submit.remote(waiting_job(f"single-{i}", QUEUE))
        return int(result.reply.accepted)

    batched = await rate(count // BATCH, BATCHES_UNDER_WAY, batch)
    return batched, await rate(count // 4, SINGLES_UNDER_WAY, single)


class Connections:
    """Kept-open HTTP connections, as lean as possible: the client runs on the cores that it measures."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port)

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """(status, body) of the answer. An idle connection that the server has closed is replaced."""
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        reader, writer = await self._connection()
        writer.write(request)
        header = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", header)[1])  # type: ignore[index]
        answer = await reader.readexactly(length)
        self._idle.append((reader, writer))
        return int(header.split(b" ", 2)[1]), answer

    def close(self) -> None:
        """Close what is idle."""
        for _, writer in self._idle:
            writer.close()


async def through_http(url: str, per_s: int, seconds: int) -> tuple[list[float], list[float]]:
    """Latencies [s] of an open loop, and how late the client itself was. AssertionError when one was not accepted."""
    connections = Connections(url)

    async def one(name: str, due_s: float) -> tuple[float, float]:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        late_s = time.perf_counter() - due_s
        status, answer = await connections.post("/api/v1/workloads", json.dumps(document(name)).encode())
        assert status == 201, answer
        return time.perf_counter() - due_s, late_s

    await asyncio.gather(*(one(f"warm-{i}", time.perf_counter()) for i in range(20)))
    began = time.perf_counter() + 0.5
    measured = await asyncio.gather(*(one(f"http-{i}", began + i / per_s) for i in range(per_s * seconds)))
    connections.close()
    return [latency_s for latency_s, _ in measured], [late_s for _, late_s in measured]


def measure(running: Running, count: int, seconds: int) -> dict[str, float]:
    """All figures, from a fresh journal."""
    owner = find(queues_name("main"))
    assert ray.get(owner.set_queue.remote(QueueSpec(QUEUE)), timeout=ANSWER_TIMEOUT_S).accepted
    for node in gpu_nodes():
        request = CordonRequest(NodeId(node), "all workloads of this benchmark wait")
        assert ray.get(owner.cordon.remote(request), timeout=ANSWER_TIMEOUT_S).accepted
    say(f"100 submissions a second through {running.gateway_url} for {seconds} s")
    latencies, late = asyncio.run(through_http(running.gateway_url, 100, seconds))
    say(f"{count} submissions through the queue actor")
    batched, single = asyncio.run(through_actor(count))
    status = ray.get(owner.status.remote(), timeout=ANSWER_TIMEOUT_S)
    say(f"{status.sequence} records in the journal")
    return {
        "actor_per_s": batched,
        "http_p99_ms": percentile(latencies, 0.99) * 1000,
        "actor_single_per_s": single,
        "http_p50_ms": percentile(latencies, 0.5) * 1000,
        "http_max_ms": max(latencies) * 1000,
        "client_late_p99_ms": percentile(late, 0.99) * 1000,
    }


def main() -> int:
    """Run and report."""
    given = arguments("submit_rate", {"count": 400, "seconds": 3}, {"count": 4_000, "seconds": 20})
    with rayorch_up("1x8") as running:
        figures = measure(running, given.count, given.seconds)
    return report("submit_rate", figures, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
