"""SenseTime's Helios traces (Hu, SC'21): `cluster_log.csv`, and how many GPUs each virtual cluster had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rayorch.core.resources import Resources
from rayorch.core.types import QueueId, QueueSpec
from rayorch.sim.readers.rows import (
    CANCELLED,
    FAILED,
    SUCCEEDED,
    Refused,
    Table,
    TraceBuilder,
    moment,
    number,
    on_nodes,
    optional_moment,
    ran_s,
    share,
    whole,
)
from rayorch.sim.trace.model import Trace, TraceJob

COLUMNS = ("job_id", "user", "vc", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "start_time", "end_time")
STATUSES = {
    "COMPLETED": SUCCEEDED,
    "CANCELLED": CANCELLED,
    "FAILED": FAILED,
    "TIMEOUT": FAILED,
    "NODE_FAIL": FAILED,
}
GPUS_PER_NODE = 8


def read(path: str | Path, quotas: str | Path | None = None, per_node: int = GPUS_PER_NODE) -> Trace:
    """One job a row: gpu_num, cpu_num (of the job), node_num, state, submit_time, start_time, end_time (no zone).

    A job runs from start_time to end_time. Its members are its nodes, where the GPUs divide evenly between them.
    `quotas`: `cluster_gpu_number.csv`; the GPUs of each virtual cluster on its last day become the queues' quotas.
    """
    builder = TraceBuilder("helios", path)

    def job(line: int, row: Mapping[str, str]) -> None:
        found = job_of(builder, line, row, per_node)
        builder.add(replace(found, queue=builder.text(row["vc"] or "all")))

    builder.each(Table(path, COLUMNS, builder), job)
    queues = read_quotas(quotas) if quotas is not None else ()
    return builder.build(f"columns {', '.join(COLUMNS)}", from_zero=True, queues=queues)


def job_of(
    builder: TraceBuilder, line: int, row: Mapping[str, str], per_node: int, memory_bytes: float = 0.0
) -> TraceJob:
    """What the rows of Helios and of Acme have in common; `memory_bytes`: of each member."""
    started_s = optional_moment(row["start_time"], "start_time")
    ended_s = optional_moment(row["end_time"], "end_time")
    members, each = on_nodes(whole(row["gpu_num"], "gpu_num"), whole(row["node_num"], "node_num"), per_node)
    cpus = share(number(row["cpu_num"], "cpu_num", most=1e7), members)
    return TraceJob(
        row["job_id"],
        moment(row["submit_time"], "submit_time"),
        ran_s(started_s, ended_s),
        builder.ask(members, each, cpus, memory_bytes),
        user=builder.text(row["user"]),
        status=STATUSES.get(row["state"], ""),
        started_s=started_s,
        ended_s=ended_s,
        line=line,
    )


def read_quotas(path: str | Path) -> tuple[QueueSpec, ...]:
    """date, then a column of GPUs for each virtual cluster, and total: the queues of the last day."""
    builder = TraceBuilder("helios", path)
    last: Mapping[str, str] = {}
    for _, row in Table(path, ("date", "total"), builder):
        last = row
    queues = []
    for name, text in last.items():
        if name not in ("date", "total"):
            try:
                gpus = whole(text, name)
            except Refused:
                continue
            queues.append(QueueSpec(QueueId(name), deserved=Resources.of({"GPU": gpus})))
    return tuple(queues)
