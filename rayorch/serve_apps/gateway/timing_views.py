"""What workloads ask of time, and how far arrays and dependencies have come, as the JSON of /api/v1."""

from __future__ import annotations

from rayorch.core.dependencies import text_of
from rayorch.core.payload import Json
from rayorch.core.timing import ArrayProgress
from rayorch.core.types import Workload


def timing_json(workload: Workload) -> dict[str, Json]:
    """Limits and dependencies of a workload; `entry` of an array's entry, `array` and `progress` of an array."""
    spec = workload.spec
    result: dict[str, Json] = {
        "wallLimitS": spec.wall_limit_s,
        "ranS": workload.ran_s,
        "expectedS": spec.expected_s,
        "beginAt": spec.begin_s,
        "deadlineAt": spec.deadline_s,
        "totalSteps": spec.total_steps,
        "after": [text_of(dependency) for dependency in spec.after],
        "unmet": [text_of(dependency) for dependency in workload.unmet],
        "requeues": workload.requeues,
        "reservation": spec.reservation,
        "array": None,
        "entry": None,
        "progress": None,
    }
    if (array := spec.array) is not None:
        result["array"] = {"count": array.count, "maxRunning": array.max_running, "first": array.first}
    if (entry := spec.entry) is not None:
        result["entry"] = {"array": entry.array, "index": entry.index}
    if (progress := workload.progress) is not None:
        result["progress"] = progress_json(progress)
    return result


def progress_json(progress: ArrayProgress) -> dict[str, Json]:
    """How many entries of an array are where."""
    return {
        "waiting": progress.waiting,
        "running": progress.running,
        "succeeded": progress.succeeded,
        "failed": progress.failed,
        "cancelled": progress.cancelled,
    }
