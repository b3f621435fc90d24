"""The stream of events, read from a real server because a client in the process can't hang up."""

from __future__ import annotations

import httpx

from tests.serve_apps.conftest import Served
from tests.serve_apps.test_api import document


def _read(served: Served, count: int, **headers: str) -> list[str]:
    lines: list[str] = []
    with httpx.stream(
        "GET", f"{served.address}/api/v1/events", headers={"Accept": "text/event-stream", **headers}, timeout=30
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("id: "):
                lines.append(line)
            if len(lines) == count:
                return lines
    return lines


def test_a_stream_resumes_after_the_last_event_that_was_seen(served: Served) -> None:
    for n in range(4):
        httpx.post(f"{served.address}/api/v1/workloads", json=document(f"w{n}")).raise_for_status()
    assert _read(served, 4) == ["id: 1", "id: 2", "id: 3", "id: 4"]
    assert _read(served, 2, **{"Last-Event-ID": "2"}) == ["id: 3", "id: 4"]
