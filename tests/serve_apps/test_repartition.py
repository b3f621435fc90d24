"""The plan for idle MIG GPUs in the API, and what a workload shares GPUs without."""

from __future__ import annotations

import httpx

from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.core.test_mig import SMALL, cut


def document(**gang: object) -> dict[str, object]:
    return {
        "apiVersion": "rayorch/v1",
        "kind": "Workload",
        "metadata": {"name": "w", "queue": "research/nlp"},
        "spec": {"entrypoint": "true", "gang": {"workers": 1, **gang}},
    }


async def test_nothing_waits_and_nothing_is_to_cut(client: httpx.AsyncClient) -> None:
    found = (await client.get("/api/v1/repartition")).json()
    assert found == {"apiVersion": "rayorch/v1", "kind": "Repartition", "cuts": [], "unserved": []}


async def test_who_waits_for_an_instance_is_served_by_an_idle_gpu(
    client: httpx.AsyncClient, backend: FakeBackend
) -> None:
    spec = cut("n1", SMALL)
    backend.nodes[spec.id] = spec
    asks = document(resources={"mig-3g.20gb": 1})
    assert (await client.post("/api/v1/workloads", json=asks)).status_code == 201
    found = (await client.get("/api/v1/repartition")).json()
    (one,) = found["cuts"]
    assert (one["name"], one["gpu"], one["model"], one["serves"]) == ("n1", "p0", "A100-40G", ["w"])
    assert {"profile": "3g.20gb", "start": 4} in one["after"]
    assert any("nvidia-smi mig -i p0 -cgi 3g.20gb" in step for step in one["steps"])
    (row,) = [n for n in (await client.get("/api/v1/nodes")).json()["items"] if n["name"] == "n1"]
    assert (row["migMixed"], row["total"]["mig-1g.5gb"]) == (True, 7)


async def test_a_workload_says_what_its_part_of_a_gpu_is_shared_without(client: httpx.AsyncClient) -> None:
    made = await client.post("/api/v1/workloads", json=document(resources={"gpu-memory": "20Gi"}, sharing="mps"))
    (warning,) = made.json()["isolation"]
    assert "MPS" in warning
    assert made.json()["roles"][0]["resources"] == {"gpu-memory-mib": 20480, "gpu-mps": 1}


async def test_the_page_shows_which_instances_are_free(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    spec = cut("n1", SMALL)
    backend.nodes[spec.id] = spec
    assert "7 mig-1g.5gb" in (await client.get("/")).text
