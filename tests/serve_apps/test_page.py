"""The overview page: what it says, and that nothing in it can run."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import httpx
import pytest

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.snapshot import Versions
from rayorch.core.types import (
    Allocation,
    Device,
    Kind,
    Member,
    NodeHealth,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    State,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.core.views import DeviceHolder, NodeRow, Overview, QueueRow, WorkloadRow
from rayorch.serve_apps.gateway.fake import FakeBackend
from rayorch.serve_apps.gateway.page import age, hue

EVIL = '<img src=x onerror="alert(1)">'
ONE_GPU = Resources.of({"GPU": 1})


def _workload(id: str, state: State, **fields: object) -> Workload:
    spec = WorkloadSpec(WorkloadId(id), id, Kind.TRAIN, QueueId("research/nlp"), (Role("worker", ONE_GPU, 2, 4),))
    return replace(Workload(spec, state, 1000.0), **fields)  # type: ignore[arg-type]


def _overview() -> Overview:
    node = NodeSpec(
        NodeId("ab" * 14),
        "gpu-01",
        Resources.of({"GPU": 2, "CPU": 8}),
        (Device(0, "H100"), Device(1, "H100", sick="XID 79")),
        topology=(("rack", "r1"),),
        health=NodeHealth.DRAINING,
        reason=EVIL,
        foreign=Resources.of({"CPU": 1}),
        foreign_holders=("job 7",),
    )
    running = _workload("llm", State.RUNNING, attempt=1, started_s=1100.0, size=(("worker", 2),), step=42)
    held = Allocation(running.id, 1, (Member("worker", 0, node.id, ONE_GPU, devices=(0,)),), 0, 0)
    waits = (
        Wait(WaitReason.FRAGMENTED, f"needs 2x8 {EVIL}", unblocks="llm ends"),
        Wait(WaitReason.QUOTA, "16 of 24", blocks=False),
    )
    queue = QueueSpec(QueueId("research/nlp"), Resources.of({"GPU": 4}))
    return Overview(
        now_s=1300.0,
        instance="main",
        cycle=7,
        last_cycle_s=1299.0,
        cycle_took_s=0.012,
        versions=Versions(),
        queues=(QueueRow(queue, ONE_GPU.times(6), ONE_GPU.times(2), Resources(), 1, 1, 250.0),),
        nodes=(NodeRow(node, ONE_GPU, (DeviceHolder(0, running.id, 1, "worker", 10_000),)),),
        workloads=(WorkloadRow(running, held=held), WorkloadRow(_workload("next", State.PENDING), 1, waits, 1360.0)),
        synced=False,
        warnings=("the journal's disk is nearly full",),
    )


class _Text(HTMLParser):
    """The words of a page, and its tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = ""
        self.attributes: list[tuple[str, str, str | None]] = []

    def handle_data(self, data: str) -> None:
        self.words += f" {' '.join(data.split())}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]


async def _page(client: httpx.AsyncClient, backend: FakeBackend, view: Overview) -> _Text:
    async def overview() -> Overview:
        return view

    backend.overview = overview  # type: ignore[method-assign]
    answer = await client.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    page = _Text()
    page.feed(answer.text)
    page.close()
    return page


async def test_the_page_says_what_is_held_what_waits_and_why(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    words = (await _page(client, backend, _overview())).words
    assert "1 GPU, 7 CPU free" not in words, "the sick device is not free"
    for expected in (
        *("1 of 2 GPUs granted", "llm", "42", "2 worker", "gpu-01", "draining", "GPU 1: XID 79"),
        *("Fragmented", "needs 2x8", "→ llm ends", "Quota", "16 of 24", "in 1m00s", "5m00s"),
        *("research/nlp", "6 GPU", "4m10s", "7 CPU free · 1 CPU used outside grants job 7"),
        *("the journal's disk is nearly full", "Comparing the books with the world"),
    ):
        assert expected in " ".join(words.split()), expected


async def test_what_users_write_is_shown_and_never_run(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    page = await _page(client, backend, _overview())
    assert EVIL in " ".join(page.words.split())
    assert not any(tag == "img" for tag, _, _ in page.attributes)
    assert not any(name.startswith("on") or name == "style" for _, name, _ in page.attributes)


async def test_everything_that_the_page_loads_is_served_here(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    page = await _page(client, backend, _overview())
    sources = [value for tag, name, value in page.attributes if (tag, name) in (("script", "src"), ("link", "href"))]
    assert sources == ["ui/style.css", "ui/refresh.js"]
    for source in sources:
        answer = await client.get(f"/{source}")
        assert answer.status_code == 200 and answer.text
    assert (await client.get("/ui/page.py")).status_code == 404


@pytest.mark.parametrize(
    ("query", "every"), [("", "5"), ("?refresh=0", "0"), ("?refresh=30", "30"), ("?refresh=x", "5")]
)
async def test_the_reader_chooses_how_often_it_reloads(
    client: httpx.AsyncClient, backend: FakeBackend, query: str, every: str
) -> None:
    answer = await client.get(f"/{query}")
    assert f'data-refresh="{every}"' in answer.text


async def test_an_empty_cluster_has_a_page_too(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    words = (await _page(client, backend, Overview(0.0, "main", 0, 0.0, 0.0, Versions()))).words
    assert "Nothing waits." in words and "No node is known." in words


def test_a_workload_keeps_its_colour() -> None:
    assert hue("llm-7b-k3f9") == hue("llm-7b-k3f9")
    assert len({hue(f"w{n}") for n in range(50)}) > 6


def test_ages_are_in_two_units() -> None:
    assert [age(s) for s in (-1, 5, 252, 11100, 784800)] == ["0s", "5s", "4m12s", "3h05m", "9d2h"]
