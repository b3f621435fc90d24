"""What workloads ask of time, and how far arrays and dependencies have come, as the JSON of /api/v1."""

from __future__ import annotations

from rayorch.core.arrays import EntryRow
from rayorch.core.cron import CronView
from rayorch.core.dependencies import text_of
from rayorch.core.payload import Json
from rayorch.core.reservations import ReservationView
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


def entry_json(array: str, row: EntryRow) -> Json:
    """One entry of an array."""
    return {
        "id": f"{array}.{row.index}",
        "index": row.index,
        "state": row.state.value,
        "attempt": row.attempt,
        "exitCode": row.exit_code,
    }


def reservation_json(view: ReservationView, now_s: float) -> Json:
    """One reservation; `state` is active, upcoming or over."""
    spec, window = view.spec, view.window
    state = "over" if window is None else "active" if window.active(now_s) else "upcoming"
    return {
        "name": spec.id,
        "queue": spec.queue,
        "owners": list(spec.owners),
        "count": spec.count,
        "resources": dict(spec.bundle.to_floats()),
        "accelerators": list(spec.accelerators),
        "startsAt": window.start_s if window is not None else None,
        "endsAt": window.end_s if window is not None else spec.end_s,
        "everyS": spec.every_s,
        "standing": spec.standing,
        "state": state,
        "inUse": view.in_use,
        "setAside": view.set_aside,
        "missing": view.missing,
    }


def cron_json(view: CronView) -> Json:
    """One cron."""
    cron, spec = view.cron, view.cron.spec
    return {
        "name": spec.id,
        "queue": spec.template.queue,
        "schedule": spec.schedule,
        "timeZone": spec.time_zone,
        "concurrency": spec.concurrency.value,
        "missed": spec.missed.value,
        "suspended": spec.suspended,
        "nextAt": view.next_s,
        "lastWorkload": cron.last,
        "lastAt": cron.last_s,
        "submitted": cron.submitted,
        "skipped": cron.skipped,
        "missedCount": cron.missed,
        "refused": cron.refused,
        "note": cron.note,
    }
