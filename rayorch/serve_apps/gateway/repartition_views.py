"""Which idle MIG GPUs to cut anew, as JSON of /api/v1."""

from __future__ import annotations

from rayorch.core.payload import Json
from rayorch.core.repartition import Cut, repartition_plan
from rayorch.core.views import Overview


def repartition_json(view: Overview) -> dict[str, Json]:
    """The plan for what waits now. Nothing carries it out but an operator."""
    made = repartition_plan(
        (row.node for row in view.nodes),
        (row.held for row in view.workloads if row.held is not None),
        (row.workload for row in view.workloads),
        view.now_s,
    )
    unserved: list[Json] = [{"workload": id, "reason": reason} for id, reason in made.unserved]
    return {"cuts": [_cut_json(cut) for cut in made.cuts], "unserved": unserved}


def _cut_json(cut: Cut) -> Json:
    return {
        "node": cut.node,
        "name": cut.name,
        "gpu": cut.gpu,
        "model": cut.model,
        "before": list(cut.before),
        "after": [{"profile": i.profile, "start": i.start} for i in cut.after],
        "serves": list(cut.serves),
        "otherSeats": cut.others,
        "steps": list(cut.steps),
    }
