"""Shanghai AI Lab's Acme traces (Hu, NSDI'24): work on large language models on two clusters, Seren and Kalos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rayorch.sim.readers.helios import GPUS_PER_NODE, job_of
from rayorch.sim.readers.rows import GIB, Table, TraceBuilder, optional
from rayorch.sim.trace.model import Trace

COLUMNS = (
    *("job_id", "user", "node_num", "gpu_num", "cpu_num", "type", "state"),
    *("submit_time", "start_time", "end_time"),
)


def read(path: str | Path, per_node: int = GPUS_PER_NODE) -> Trace:
    """One job a row: node_num, gpu_num, cpu_num (of the job), type (its name here), state, times with zone.

    A job runs from start_time to end_time (Kalos counts its `duration` from the submission). `mem_per_pod_GB`, where
    there is one, is each member's memory [GiB].
    """
    builder = TraceBuilder("acme", path)

    def job(line: int, row: Mapping[str, str]) -> None:
        memory = optional(row.get("mem_per_pod_GB", ""), "mem_per_pod_GB", most=1e6) or 0.0
        found = job_of(builder, line, row, per_node, round(memory * GIB))
        builder.add(replace(found, name=builder.text(row["type"])))

    builder.each(Table(path, COLUMNS, builder), job)
    return builder.build(f"columns {', '.join(COLUMNS)}", from_zero=True)
