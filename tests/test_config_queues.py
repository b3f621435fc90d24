"""The Queue document and what else says how much may be held: every field arrives, and what is wrong is named."""

from __future__ import annotations

import pytest

from rayorch.config import ClusterDocument, parse_document
from rayorch.config.text import load_yaml
from rayorch.core.errors import SpecError
from rayorch.core.types import (
    Budget,
    CellShare,
    QueueId,
    QueueMode,
    QueueSpec,
    Resources,
    UserLimits,
    WorkloadSpec,
)

QUEUE = """
apiVersion: rayorch/v1
kind: Queue
metadata: {name: research/nlp}
spec:
  deserved: {GPU: 24, "GPU:H100": 8, licence/x: 2}
  guaranteed: 8
  borrowLimit: 16
  lendLimit: {GPU: 12}
  hardCap: {GPU: 40, "GPU:B200": 0}
  surplusPriority: 3
  perUser: {resources: {GPU: 4}, maxRunning: 8, maxPending: 100}
  mode: hold
  budget: {gpuHours: 5000, period: 720h, start: 2026-12-01T00:00:00Z, drain: true}
  fence: true
  minRuntime: 10m
  cells: [{level: node, count: 2, model: H100}, {level: rack, count: 1}]
"""


def _queue(**spec: object) -> object:
    return parse_document({"apiVersion": "rayorch/v1", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec})


def test_every_field_of_a_queue_arrives() -> None:
    (value,) = load_yaml(QUEUE)
    assert parse_document(value).to_core() == QueueSpec(
        id=QueueId("research/nlp"),
        deserved=Resources.of({"GPU": 24, "GPU:H100": 8, "licence/x": 2}),
        guaranteed=Resources.of({"GPU": 8}),
        borrow_limit=Resources.of({"GPU": 16}),
        lend_limit=Resources.of({"GPU": 12}),
        hard_cap=Resources.of({"GPU": 40}),
        denied=("GPU:B200",),
        surplus_priority=3,
        per_user=UserLimits(Resources.of({"GPU": 4}), 8, 100),
        mode=QueueMode.HOLD,
        budget=Budget(5000.0, 720 * 3600.0, 1796083200.0, True),
        fence=True,
        min_runtime_s=600.0,
        cells=(CellShare("node", 2, "H100"), CellShare("rack", 1)),
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"mode": "deleting"}, "spec.mode"),
        ({"mode": "paused"}, "spec.mode"),
        ({"perUser": {"resources": {"GPU": 0}}}, "spec.perUser.resources.GPU"),
        ({"perUser": {"maxRunning": -1}}, "spec.perUser.maxRunning"),
        ({"budget": {"gpuHours": -1}}, "spec.budget.gpuHours"),
        ({"budget": {}}, "spec.budget.gpuHours"),
        ({"budget": {"gpuHours": 1, "period": "0s"}}, "spec.budget.period"),
        ({"guaranteed": {"GPU": "all"}}, "spec.guaranteed.GPU"),
        ({"hardCap": {"GPU": float("nan")}}, "spec.hardCap.GPU"),
        ({"surplusPriority": 0.5}, "spec.surplusPriority"),
        ({"cells": [{"level": "node"}]}, "spec.cells[0].count"),
        ({"cells": [{"level": "node", "count": 0}]}, "spec.cells[0].count"),
        ({"cells": [{"level": "", "count": 1}]}, "spec.cells[0].level"),
        ({"cells": [{"level": "node", "count": 1, "gpusEach": 0}]}, "spec.cells[0].gpusEach"),
        ({"cells": [{"level": "node", "count": 1, "gpusEach": True}]}, "spec.cells[0].gpusEach"),
        ({"cells": [{"level": "node", "count": True}]}, "spec.cells[0].count"),
        ({"cells": [{"level": "node", "count": float("nan")}]}, "spec.cells[0].count"),
        ({"cells": [{"level": "node", "count": -1}]}, "spec.cells[0].count"),
        ({"cells": [{"level": "node", "count": 1, "gpus": 8}]}, "spec.cells[0].gpus"),
    ],
)
def test_what_is_wrong_is_named(spec: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        _queue(**spec).to_core()  # type: ignore[attr-defined]
    assert refused.value.field == field


def test_countables_are_named_by_the_cluster_and_drawn_by_members() -> None:
    cluster = {"apiVersion": "rayorch/v1", "kind": "Cluster", "metadata": {"name": "main"}}
    document = parse_document({**cluster, "spec": {"countables": {"licence/x": 10, "watts": 50_000}}})
    assert isinstance(document, ClusterDocument)
    assert document.to_core().countables == Resources.of({"licence/x": 10, "watts": 50_000})
    with pytest.raises(SpecError) as refused:
        parse_document({**cluster, "spec": {"countables": {"CPU": 10}}}).to_core()
    assert refused.value.field == "spec.countables.CPU"
    gang = {"workers": 2, "resources": {"GPU": 1}, "countables": {"licence/x": 1}}
    spec = parse_document(
        {
            "apiVersion": "rayorch/v1",
            "kind": "Workload",
            "metadata": {"name": "w", "queue": "q"},
            "spec": {"entrypoint": "true", "gang": gang},
        }
    ).to_core()
    assert isinstance(spec, WorkloadSpec)
    assert spec.role("worker").countables == Resources.of({"licence/x": 1})
    assert spec.min_charge == Resources.of({"GPU": 2, "CPU": 1, "licence/x": 2})
