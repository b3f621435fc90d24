"""A gateway over a fake cluster: as an ASGI app for most tests, under uvicorn for Ray's own clients."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import httpx
import pytest

from rayorch.core.types import Device, NodeId, NodeSpec, QueueId, QueueSpec, Resources
from rayorch.serve_apps.gateway import GatewaySettings, UvicornGateway, create_app
from rayorch.serve_apps.gateway.fake import FakeBackend

FAST = GatewaySettings(poll_s=0.02, queue_note_s=0.02, overview_age_s=0.0, log_settle_s=0.2)


@pytest.fixture
def backend() -> FakeBackend:
    """Two queues, one node with two GPUs."""
    fake = FakeBackend()
    fake.queues[QueueId("research/nlp")] = QueueSpec(QueueId("research/nlp"), Resources.of({"GPU": 4}))
    node = NodeId("ab" * 14)
    fake.nodes[node] = NodeSpec(node, "gpu-01", Resources.of({"GPU": 2, "CPU": 8}), (Device(0, "H100"), Device(1)))
    return fake


@pytest.fixture
async def client(backend: FakeBackend) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, without a network."""
    app = create_app(backend, FAST, clock=lambda: backend.now_s)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8266") as http:
        yield http


@dataclass
class Served:
    """A gateway under uvicorn, in a thread of its own."""

    address: str
    backend: FakeBackend


def serve(backend: FakeBackend, settings: GatewaySettings = FAST) -> Iterator[Served]:
    """Run until the generator goes on; the thread ends with it."""
    gateway = UvicornGateway(create_app(backend, settings), "127.0.0.1", 0, settings)
    thread = threading.Thread(target=gateway.run, name="gateway")
    thread.start()
    try:
        while httpx.get(f"{gateway.address}/healthz").status_code != 200:
            time.sleep(0.02)
        yield Served(gateway.address, backend)
    finally:
        gateway.stop()
        thread.join()


@pytest.fixture
def served(backend: FakeBackend) -> Iterator[Served]:
    """A real server on a free port of this machine."""
    yield from serve(backend)
