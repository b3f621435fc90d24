"""Shanghai AI Lab's Acme traces (Hu, NSDI'24): work on large language models on two clusters, Seren and Kalos."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rayorch.sim.readers.helios import STATUSES
from rayorch.sim.readers.rows import (
    GIB,
    Table,
    TraceBuilder,
    moment,
    number,
    on_nodes,
    optional,
    optional_moment,
    ran_s,
    share,
    whole,
)
from rayorch.sim.trace.model import Trace, TraceJob

COLUMNS = (
    *("job_id", "user", "node_num", "gpu_num", "cpu_num", "type", "state"),
    *("submit_time", "start_time", "end_time"),
)
GPUS_PER_NODE = 8


def read(path: str | Path, per_node: int = GPUS_PER_NODE) -> Trace:
    """One job a row: node_num, gpu_num, cpu_num (of the job), type (its name here), state, times with zone.

    A job runs from start_time to end_time (Kalos counts its `duration` from the submission). `mem_per_pod_GB`, where
    there is one, is each member's memory [GiB].
    """
    builder = TraceBuilder("acme", path)

    def job(line: int, row: Mapping[str, str]) -> None:
        started_s = optional_moment(row["start_time"], "start_time")
        ended_s = optional_moment(row["end_time"], "end_time")
        gpus, nodes = whole(row["gpu_num"], "gpu_num"), whole(row["node_num"], "node_num")
        members, each = on_nodes(gpus, nodes, per_node) if gpus else (max(1, nodes), 0)
        memory = optional(row.get("mem_per_pod_GB", ""), "mem_per_pod_GB", most=1e6) or 0.0
        builder.add(
            TraceJob(
                row["job_id"],
                moment(row["submit_time"], "submit_time"),
                ran_s(started_s, ended_s),
                builder.ask(
                    members, each, share(number(row["cpu_num"], "cpu_num", most=1e7), members), round(memory * GIB)
                ),
                user=builder.text(row["user"]),
                name=builder.text(row["type"]),
                status=STATUSES.get(row["state"], ""),
                started_s=started_s,
                ended_s=ended_s,
                line=line,
            )
        )

    builder.each(Table(path, COLUMNS, builder), job)
    return builder.build(f"columns {', '.join(COLUMNS)}", from_zero=True)
