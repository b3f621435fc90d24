"""Work that came past the queues, on the page and in the API."""

from __future__ import annotations

import httpx

from rayorch.core.bypass import Bypass
from rayorch.core.types import Resources
from rayorch.serve_apps.gateway.fake import FakeBackend

SLY = Bypass("<b>sly</b>", "python train.py", "eve", 999_940.0, "RUNNING", "0a000000", Resources.of({"GPU": 2}))


async def test_the_page_shows_it_and_nothing_without_it(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    assert "past the queues" not in (await client.get("/")).text
    backend.bypasses.append(SLY)
    text = (await client.get("/")).text
    assert "Came past the queues" in text
    assert "&lt;b&gt;sly&lt;/b&gt;" in text and "<b>sly" not in text
    for word in ("eve", "2 GPU", "python train.py", "1m00s"):
        assert word in text


async def test_the_api_has_it(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    assert (await client.get("/api/v1/bypasses")).json()["items"] == []
    backend.bypasses.append(SLY)
    (found,) = (await client.get("/api/v1/bypasses")).json()["items"]
    assert (await client.get("/api/v1/overview")).json()["bypasses"] == [found]
    assert found == {
        "id": "<b>sly</b>",
        "jobId": "0a000000",
        "entrypoint": "python train.py",
        "who": "eve",
        "startedAt": 999_940.0,
        "status": "RUNNING",
        "resources": {"GPU": 2},
    }
