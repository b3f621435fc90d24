"""Where nodes come from, as the API and the page show it."""

from __future__ import annotations

import httpx
import pytest

from rayorch.core.capacity import (
    BackOff,
    Capacity,
    GroupName,
    GroupState,
    Instance,
    InstancePhase,
    NodeGroup,
    Order,
    Provider,
)
from rayorch.core.types import NodeId, Resources, WorkloadId
from rayorch.core.views import AutoscalerView, Launch, LaunchState
from rayorch.serve_apps.gateway.fake import FakeBackend

NOW_S = 1_000_000.0
EVIL = "<script>alert(1)</script>"
RUNNING, PENDING, LEAVING = InstancePhase.RUNNING, InstancePhase.PENDING, InstancePhase.LEAVING


def capacity(provider: Provider = Provider.OURS, error: str = "") -> Capacity:
    """A group that grows, with a machine that can't be scheduled, and one that was refused."""
    instances = (
        Instance("h1", "h1", RUNNING, NOW_S - 500, NOW_S - 400, NodeId("n1")),
        Instance("h2", "h2", PENDING, NOW_S - 30, reason=f"Unschedulable: 0/12 {EVIL}"),
        Instance("h3", "h3", LEAVING, NOW_S - 900, NOW_S - 800, NodeId("n3")),
    )
    node = Resources.of({"GPU": 8, "CPU": 96})
    h100 = NodeGroup(GroupName("h100"), node, 2, 0, 16, model="H100", spares=1, instances=instances)
    order = Order(
        h100.name,
        1,
        2,
        NOW_S - 30,
        NOW_S + 170,
        NOW_S + 400,
        (WorkloadId("llm"),),
        "for llm",
        ((WorkloadId("llm"), 1),),
    )
    spot = NodeGroup(GroupName("spot"), node, 0, 0, 8, hosts=2, model="A100", spot=True)
    states = (
        GroupState(h100, order, provision_s=200.0),
        GroupState(spot, back_off=BackOff(NOW_S + 60, "out of stock", 2), shrinks_to=0),
    )
    return Capacity(provider, states, NOW_S - 1, error)


AUTOSCALER = AutoscalerView(
    NOW_S - 2,
    (
        Launch("h100", 3, LaunchState.REQUESTED, since_s=NOW_S - 40),
        Launch("l4", 1, LaunchState.FAILED, "no quota", since_s=NOW_S - 5),
    ),
    ("64 GPU",),
)


async def test_the_api_says_what_each_group_has_what_it_waits_for_and_why(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.now_s, backend.capacity, backend.autoscaler = NOW_S, capacity(), AUTOSCALER
    shown = (await client.get("/api/v1/capacity")).json()
    assert (shown["provider"], shown["error"], shown["observedAt"]) == ("ours", "", NOW_S - 1)
    h100, spot = shown["groups"]
    assert h100["node"] == {"CPU": 96, "GPU": 8}
    assert h100["nodes"] == {"pending": 1, "running": 1, "leaving": 1, "failed": 0}
    assert [(m["name"], m["phase"]) for m in h100["machines"]] == [("h2", "pending"), ("h3", "leaving")]
    assert h100["order"] == {
        "from": 1,
        "to": 2,
        "orderedAt": NOW_S - 30,
        "expectedAt": NOW_S + 170,
        "deadlineAt": NOW_S + 400,
        "beneficiaries": ["llm"],
        "nodesFor": {"llm": 1},
        "reason": "for llm",
    }
    assert (spot["spot"], spot["hosts"], spot["shrinksTo"]) == (True, 2, 0)
    assert spot["backOff"] == {"until": NOW_S + 60, "reason": "out of stock", "strikes": 2}
    assert [launch["state"] for launch in shown["autoscaler"]["launches"]] == ["requested", "failed"]
    assert shown["autoscaler"]["unmet"] == ["64 GPU"]
    overview = (await client.get("/api/v1/overview")).json()
    assert {**overview["capacity"], "apiVersion": "rayorch/v1", "kind": "Capacity"} == shown


async def test_the_page_shows_groups_with_orders_reasons_and_back_off_and_nothing_in_it_can_run(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    backend.now_s, backend.capacity, backend.autoscaler = NOW_S, capacity(), AUTOSCALER
    page = (await client.get("/?refresh=0")).text
    for text in (
        "Node groups",
        "1 → 2 for llm, expected in 170 s",
        "1 x Unschedulable: 0/12 &lt;script&gt;",
        "left alone for 60 s: out of stock",
        "8 x 2 hosts",
        "No node type of Ray's autoscaler can take 64 GPU.",
        "no quota",
    ):
        assert text in page, text
    assert EVIL not in page


@pytest.mark.parametrize(("provider", "shown"), [(Provider.NONE, False), (Provider.RAY, True), (Provider.OURS, True)])
async def test_the_page_has_the_section_only_where_somebody_provides_nodes(
    client: httpx.AsyncClient, backend: FakeBackend, provider: Provider, shown: bool
) -> None:
    backend.capacity = Capacity(provider)
    assert ("Node groups" in (await client.get("/?refresh=0")).text) is shown


async def test_unknown_groups_are_said_to_be_unknown(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    backend.now_s, backend.capacity = NOW_S, capacity(error="API server gone")
    assert (await client.get("/api/v1/capacity")).json()["error"] == "API server gone"
    page = (await client.get("/?refresh=0")).text
    assert "Not known now, so no node is asked for or given back: API server gone" in page
    assert "h100" in page  # what was known is still shown
