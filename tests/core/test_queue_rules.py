"""The door for queues: limits that contradict each other, or that nothing could ever meet, are named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.admission import check_queue, check_workload
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.types import Budget, CellShare, QueueId, QueueSpec, Resources, Role, UserLimits
from tests.build import gpus, queue, tree, workload

GOOD = QueueSpec(
    QueueId("q"),
    deserved=Resources.of({"GPU": 8, "GPU:H100": 4}),
    guaranteed=gpus(8),
    hard_cap=gpus(8),
    per_user=UserLimits(gpus(1), 1, 1),
    budget=Budget(0.0, 1.0),
    denied=("GPU:B200",),
    weights=(("GPU", 2),),
)


def test_limits_may_be_equal() -> None:
    check_queue(GOOD)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("guaranteed.GPU", {"guaranteed": gpus(9)}),
        ("guaranteed.TPU", {"guaranteed": Resources.of({"TPU": 1})}),
        ("hard_cap.GPU", {"hard_cap": gpus(7)}),
        ("deserved.GPU:H100", {"deserved": Resources.of({"GPU": 8, "GPU:H100": 9})}),
        ("deserved.GPU:H 100[0]", {"deserved": Resources.of({"GPU:H 100": 1})}),
        ("hard_cap", {"hard_cap": 8}),
        ("surplus_priority", {"surplus_priority": True}),
        ("mode", {"mode": "hold"}),
        ("fence", {"fence": 1}),
        ("min_runtime_s", {"min_runtime_s": float("inf")}),
        ("denied[0]", {"denied": ("GPU",)}),
        ("denied", {"denied": ["GPU:B200"]}),
        ("weights[0]", {"weights": (2,)}),
        ("weights.GPU", {"weights": (("GPU", -1),)}),
        ("per_user", {"per_user": None}),
        ("per_user.max_running", {"per_user": UserLimits(max_running=-1)}),
        ("per_user.max_pending", {"per_user": UserLimits(max_pending=1.5)}),  # type: ignore[arg-type]
        ("per_user.resources.GPU", {"per_user": UserLimits(Resources((("GPU", -1),)))}),
        ("budget", {"budget": 5}),
        ("budget.gpu_hours", {"budget": Budget(float("nan"))}),
        ("budget.period_s", {"budget": Budget(1.0, 0.5)}),
        ("budget.from_s", {"budget": Budget(1.0, from_s=float("inf"))}),
        ("budget.drain", {"budget": Budget(1.0, drain=1)}),  # type: ignore[arg-type]
        ("cells", {"cells": [CellShare("node", 1)]}),
        ("cells[0]", {"cells": ("node",)}),
        ("cells[0].level", {"cells": (CellShare(" ", 1),)}),
        ("cells[0].count", {"cells": (CellShare("node", 0),)}),
        ("cells[0].count", {"cells": (CellShare("node", True),)}),
        ("cells[0].model[0]", {"cells": (CellShare("node", 1, "H 100"),)}),
        ("cells[1]", {"cells": (CellShare("node", 1), CellShare("node", 2))}),
        ("cells[1]", {"cells": (CellShare("node", 1, gpus_each=8), CellShare("node", 2, gpus_each=8))}),
        ("cells[1].gpus_each", {"cells": (CellShare("node", 1), CellShare("node", 2, gpus_each=8))}),
        ("cells[0].gpus_each", {"cells": (CellShare("node", 1, gpus_each=-1),)}),
        ("cells[0].gpus_each", {"cells": (CellShare("node", 1, gpus_each=True),)}),
        ("cells[0].gpus_each", {"cells": (CellShare("node", 1, gpus_each=float("nan")),)}),  # type: ignore[arg-type]
        ("cells[0].count", {"cells": (CellShare("node", -1),)}),
        ("cells[0].count", {"cells": (CellShare("node", float("nan")),)}),  # type: ignore[arg-type]
    ],
)
def test_a_queue_that_contradicts_itself_is_refused_with_the_field(field: str, change: dict[str, object]) -> None:
    with pytest.raises(SpecError) as refused:
        check_queue(replace(GOOD, **change))  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "role"),
    [
        ("roles.a.bundle.GPU:H100", Role("a", Resources.of({"GPU:H100": 1}), 1, 1)),
        ("roles.a.countables.GPU", Role("a", gpus(1), 1, 1, countables=gpus(1))),
        ("roles.a.countables.x", Role("a", Resources.of({"x": 1}), 1, 1, countables=Resources.of({"x": 1}))),
        ("roles.a.countables", Role("a", gpus(1), 1, 1, countables=5)),  # type: ignore[arg-type]
    ],
)
def test_a_member_asks_nodes_for_nothing_that_they_do_not_have(field: str, role: Role) -> None:
    with pytest.raises(SpecError) as refused:
        check_workload(replace(workload("w"), roles=(role,)))
    assert refused.value.field == field


def test_a_gang_that_no_limit_on_a_model_could_ever_take_is_refused() -> None:
    capped = replace(queue("q"), hard_cap=Resources.of({"GPU:H100": 2}), denied=("GPU:B200",))
    built = tree(capped)
    with pytest.raises(AdmissionError, match="needs 4 GPU:H100, the queue can hold at most 2"):
        built.submit(workload("w", members=4, accelerators=("H100",)), 0.0)
    with pytest.raises(AdmissionError, match="4 GPUs of one model: at most 2 H100, 0 B200"):
        built.submit(workload("w", members=4, accelerators=("H100", "B200")), 0.0)
    assert built.submit(workload("w", members=4, accelerators=("H100", "A100")), 0.0)
