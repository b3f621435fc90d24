"""Microsoft's Philly trace (Jeon, ATC'19): the published JSON, and the table that Pollux' artifact made of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rayorch.core.errors import SpecError
from rayorch.sim.readers.rows import (
    CANCELLED,
    FAILED,
    SUCCEEDED,
    Refused,
    Table,
    TraceBuilder,
    json_of,
    members_of,
    moment,
    number,
    on_nodes,
    optional_moment,
    whole,
)
from rayorch.sim.trace.model import Trace, TraceJob

COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")
STATUSES = {"Pass": SUCCEEDED, "Killed": CANCELLED, "Failed": FAILED}
KEYS = ("status", "vc", "jobid", "attempts", "submitted_time", "user")


def read(path: str | Path, per_node: int = 0) -> Trace:
    """The table: timestamp (UTC), duration [s], num_gpus, gpu_time [GPU-s], cluster (virtual cluster: the queue).

    `per_node`: see `rows.members_of`. Jobs have no ids; they are named after their lines.
    """
    builder = TraceBuilder("philly", path)

    def job(line: int, row: Mapping[str, str]) -> None:
        gpus = whole(row["num_gpus"], "num_gpus", least=1)
        members, each = members_of(gpus, per_node)
        builder.add(
            TraceJob(
                f"philly-{line}",
                moment(row["timestamp"], "timestamp"),
                number(row["duration"], "duration"),
                builder.ask(members, each),
                queue=builder.text(row["cluster"] or "all"),
                line=line,
            )
        )

    builder.each(Table(path, COLUMNS, builder), job)
    return builder.build(f"columns {', '.join(COLUMNS)}", from_zero=True)


def read_json(path: str | Path, per_node: int = 8) -> Trace:
    """`cluster_job_log`: a JSON array of jobs, each with its scheduling attempts and the GPUs that they had.

    A job runs for as long as all its attempts together; what it asks for is what its last attempt had. `line` is the
    place in the array, from 1.
    """
    builder = TraceBuilder("philly", path)
    expected = f"an array of jobs with {', '.join(KEYS)}"
    jobs = json_of(path, expected)
    if not isinstance(jobs, list):
        raise SpecError(str(path), f"must be {expected}")
    jobs.reverse()
    rows = ((place, jobs.pop()) for place in range(1, len(jobs) + 1))  # what is read is not held any longer
    builder.each(rows, lambda place, entry: builder.add(_job(builder, entry, place, per_node)))
    return builder.build(expected, from_zero=True)


def _job(builder: TraceBuilder, entry: object, place: int, per_node: int) -> TraceJob:
    if not isinstance(entry, dict):
        raise Refused("is not an object")
    missing = [key for key in KEYS if key not in entry]
    if missing:
        raise Refused(f"has no {missing[0]}")
    attempts = entry["attempts"]
    if not isinstance(attempts, list) or not attempts:
        raise Refused("has no attempt, so that its GPUs are not known")
    runs = [_attempt(attempt) for attempt in attempts]
    shaped = [nodes for _, _, nodes in runs if nodes]
    if not shaped:
        raise Refused("no attempt says which GPUs it had")
    nodes = shaped[-1]
    members, each = (len(nodes), nodes[0]) if len(set(nodes)) == 1 else on_nodes(sum(nodes), 0, per_node)
    times = [(start, end) for start, end, _ in runs if start is not None and end is not None and end >= start]
    if not times:
        raise Refused("no attempt has both a start and an end")
    if runs[-1][1] is None:
        raise Refused("had not ended, so that how long it runs is not known")
    return TraceJob(
        str(entry["jobid"]),
        moment(str(entry["submitted_time"]), "submitted_time"),
        sum(end - start for start, end in times),
        builder.ask(members, each),
        queue=builder.text(str(entry["vc"]) or "all"),
        user=builder.text(str(entry["user"] or "")),
        status=STATUSES.get(str(entry["status"]), ""),
        started_s=times[0][0],
        ended_s=times[-1][1],
        line=place,
    )


def _attempt(attempt: object) -> tuple[float | None, float | None, tuple[int, ...]]:
    """(start, end, GPUs on each node), as far as they are known."""
    if not isinstance(attempt, dict):
        raise Refused("an attempt is not an object")
    detail = attempt.get("detail")
    nodes = tuple(
        len(node["gpus"])
        for node in (detail if isinstance(detail, list) else ())
        if isinstance(node, dict) and isinstance(node.get("gpus"), list) and node["gpus"]
    )
    start = optional_moment(str(attempt.get("start_time")), "start_time")
    return start, optional_moment(str(attempt.get("end_time")), "end_time"), nodes
