"""Alibaba's openb trace (cluster-trace-gpu-v2023; Weng, ATC'23): pods that share GPUs, and the machines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from rayorch.core.resources import Resources
from rayorch.core.types import NodeSpec
from rayorch.sim.readers.rows import (
    FAILED,
    MEMORY,
    MIB,
    SUCCEEDED,
    Refused,
    Table,
    TraceBuilder,
    machine,
    machines_of,
    number,
    optional,
    whole,
)
from rayorch.sim.trace.model import Trace, TraceJob

COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
PRIORITIES = {"LS": 2, "Guaranteed": 2, "Burstable": 1, "BE": 0}
"""By quality of service: latency-sensitive pods go before best-effort ones."""
STATUSES = {"Succeeded": SUCCEEDED, "Failed": FAILED}
MILLI = 1000.0


def read(path: str | Path, nodes: str | Path | None = None) -> Trace:
    """A pod list; `nodes`: the node list that goes with it.

    Times are seconds since the trace's start. A pod of one GPU may take a part of it (`gpu_milli`); `gpu_spec` "A|B"
    names the models that will do. It runs from when it was scheduled to its deletion; one that never was, as long as
    it existed. Lists without times (the multigpu ones) come one pod a second and never leave (infinite duration).
    """
    builder = TraceBuilder("openb", path)

    def job(line: int, row: Mapping[str, str]) -> None:
        gpus = whole(row["num_gpu"], "num_gpu", most=1024)
        milli = number(row["gpu_milli"], "gpu_milli", most=MILLI)
        if gpus and not milli:
            raise Refused("asks for GPUs of which it takes nothing")
        each = gpus * milli / MILLI if gpus == 1 else float(gpus)
        ask = builder.ask(
            1,
            each,
            number(row["cpu_milli"], "cpu_milli", most=1e9) / MILLI,
            number(row["memory_mib"], "memory_mib", most=1e9) * MIB,
            row.get("gpu_spec", "").split("|"),
        )
        created_s = optional(row.get("creation_time", ""), "creation_time")
        submit_s = float(line - 2) if created_s is None else created_s
        duration_s, started_s, deleted_s = math.inf, None, None
        if "creation_time" in row:
            if created_s is None:
                raise Refused("has no creation_time")
            deleted_s = optional(row["deletion_time"], "deletion_time")
            started_s = optional(row["scheduled_time"], "scheduled_time")
            if deleted_s is None:
                raise Refused("was not deleted, so that how long it runs is not known")
            duration_s = deleted_s - (created_s if started_s is None else started_s)
            if duration_s < 0:
                raise Refused(f"was deleted {-duration_s:g} s before it started")
        qos = row.get("qos", "")
        builder.add(
            TraceJob(
                row["name"],
                submit_s,
                duration_s,
                ask,
                priority=PRIORITIES.get(qos, 0),
                name=builder.text(qos),
                status=STATUSES.get(row.get("pod_phase", ""), ""),
                started_s=started_s,
                ended_s=deleted_s,
                line=line,
            )
        )

    builder.each(Table(path, COLUMNS, builder), job)
    return builder.build(f"columns {', '.join(COLUMNS)}", nodes=read_nodes(nodes) if nodes is not None else ())


def read_nodes(path: str | Path) -> tuple[NodeSpec, ...]:
    """A node list: sn, cpu_milli, memory_mib, gpu (how many), model. SpecError with the line of a wrong row."""
    return machines_of(path, NODE_COLUMNS, _machine)


def _machine(row: Mapping[str, str]) -> NodeSpec:
    count = whole(row["gpu"], "gpu", most=1024)
    total = {
        "GPU": count,
        "CPU": number(row["cpu_milli"], "cpu_milli", most=1e9) / MILLI,
        MEMORY: number(row["memory_mib"], "memory_mib", most=1e9) * MIB,
    }
    return machine(row["sn"], Resources.of(total), count, row["model"].strip())
