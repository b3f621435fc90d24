"""Queues over HTTP: their limits, their mode, their end."""

from __future__ import annotations

from dataclasses import replace

import httpx

from rayorch.core.cells import CellsView
from rayorch.core.types import Budget, CellShare, QueueId, QueueMode, Resources, UserLimits
from rayorch.core.views import BudgetRow, QueueRow
from rayorch.serve_apps.gateway.fake import FakeBackend
from rayorch.serve_apps.gateway.queue_views import queue_json
from tests.build import gpus, queue
from tests.serve_apps.test_api import document

NLP = QueueId("research/nlp")


async def test_a_queue_is_held_drained_and_opened(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    for mode in (QueueMode.HOLD, QueueMode.DRAIN, QueueMode.OPEN):
        answer = await client.patch("/api/v1/queues/research/nlp", json={"mode": mode.value})
        assert (answer.status_code, answer.json()) == (200, {"queue": "research/nlp", "mode": mode.value})
        assert backend.queues[NLP].mode is mode
    answer = await client.patch("/api/v1/queues/research/nlp", json={"mode": "deleting"})
    assert (answer.status_code, answer.json()["field"]) == (400, "mode")
    assert (await client.patch("/api/v1/queues/none", json={"mode": "hold"})).status_code == 422


async def test_a_queue_in_use_is_deleted_only_with_drain(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post("/api/v1/workloads", json=document())
    assert (await client.delete("/api/v1/queues/research/nlp")).status_code == 422
    assert (await client.delete("/api/v1/queues/research/nlp?drain=true")).status_code == 204
    assert backend.queues[NLP].mode is QueueMode.DELETING


def test_all_limits_and_the_budget_are_shown() -> None:
    spec = replace(
        queue("q", 8, 2),
        guaranteed=gpus(4),
        hard_cap=gpus(10),
        denied=("GPU:B200",),
        per_user=UserLimits(gpus(1), 2, 3),
        budget=Budget(100.0, 3600.0),
    )
    spec = replace(spec, cells=(CellShare("node", 2, "H100"),))
    unseen = queue_json(QueueRow(spec))
    assert isinstance(unseen, dict)
    kind = {"level": "node", "model": "H100", "count": 2}
    assert unseen["cells"] == [{**kind, "bound": None, "owed": None, "lacking": None}]
    cells = (CellsView(spec.id, "node", "H100", 2, 1, 1, 1),)
    budget = BudgetRow(25.0, 0.0, 2.0, 50.0, 3600.0)
    shown = queue_json(QueueRow(spec, Resources.of({"GPU": 1}), budget=budget, cells=cells))
    assert isinstance(shown, dict)
    assert shown["cells"] == [{**kind, "bound": 1, "owed": 1, "lacking": 1}]
    assert shown["guaranteed"] == {"GPU": 4}
    assert shown["hardCap"] == {"GPU:B200": 0, "GPU": 10}
    assert shown["perUser"] == {"resources": {"GPU": 1}, "maxRunning": 2, "maxPending": 3}
    assert shown["budget"] == {
        "gpuHours": 100.0, "periodS": 3600.0, "start": 0.0, "drain": False,
        "usedGpuHours": 25.0, "burn": 2.0, "spentAt": 50.0, "again": 3600.0,
    }  # fmt: skip
