"""A queue as JSON: its limits, what it holds, and how much of its budget is used."""

from __future__ import annotations

from rayorch.core.payload import Json
from rayorch.core.types import QueueSpec, Resources
from rayorch.core.views import QueueRow


def amounts(held: Resources) -> dict[str, Json]:
    """{"GPU": 0.5, "CPU": 4}; whole amounts as integers."""
    return {name: int(n) if n == int(n) else n for name, n in held.to_floats().items()}


def queue_json(row: QueueRow) -> Json:
    """One queue with what it holds."""
    spec = row.spec
    return {
        "name": spec.id,
        "deserved": amounts(spec.deserved),
        "borrowLimit": None if spec.borrow_limit is None else amounts(spec.borrow_limit),
        "lendLimit": None if spec.lend_limit is None else amounts(spec.lend_limit),
        "guaranteed": amounts(spec.guaranteed),
        "hardCap": None if spec.hard_cap is None and not spec.denied else _caps(spec),
        "weight": spec.weight,
        "surplusPriority": spec.surplus_priority,
        "mode": spec.mode.value,
        "perUser": {
            "resources": amounts(spec.per_user.resources),
            "maxRunning": spec.per_user.max_running,
            "maxPending": spec.per_user.max_pending,
        },
        "budget": _budget_json(row),
        "cells": _cells_json(row),
        "fence": spec.fence,
        "minRuntimeS": spec.min_runtime_s,
        "minPriority": spec.min_priority,
        "maxPriority": spec.max_priority,
        "maxPending": spec.max_pending,
        "strict": spec.strict,
        "used": amounts(row.used),
        "borrowed": amounts(row.borrowed),
        "lent": amounts(row.lent),
        "pending": row.pending,
        "running": row.running,
        "oldestPendingS": row.oldest_pending_s,
        "latelyGpuHours": round(row.lately_gpu_s / 3600, 4),
    }


def _caps(spec: QueueSpec) -> Json:
    return {**dict.fromkeys(spec.denied, 0.0), **(spec.hard_cap or Resources()).to_floats()}


def _cells_json(row: QueueRow) -> list[Json]:
    """Null: no plan has counted them, since the profile keeps none or nothing has been planned yet."""
    if row.cells:
        return [
            {
                "level": c.level,
                "model": c.model,
                "count": c.count,
                "bound": c.bound,
                "owed": c.owed,
                "lacking": c.lacking,
                **({"gpusEach": c.gpus_each} if c.gpus_each else {}),
                **({"there": c.there} if c.there is not None else {}),
            }
            for c in row.cells
        ]
    unknown: dict[str, Json] = {"bound": None, "owed": None, "lacking": None}
    return [
        {
            "level": c.level,
            "model": c.model,
            "count": c.count,
            **unknown,
            **({"gpusEach": c.gpus_each} if c.gpus_each else {}),
        }
        for c in row.spec.cells
    ]


def _budget_json(row: QueueRow) -> Json:
    budget, used = row.spec.budget, row.budget
    if budget is None:
        return None
    return {
        "gpuHours": budget.gpu_hours,
        "periodS": budget.period_s,
        "start": budget.from_s,
        "drain": budget.drain,
        "usedGpuHours": used.used_gpu_hours if used is not None else 0.0,
        "burn": used.burn if used is not None else None,
        "spentAt": used.spent_at_s if used is not None else None,
        "again": used.again_s if used is not None else None,
    }
