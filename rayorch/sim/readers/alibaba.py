"""Alibaba's newer GPU traces: disaggregated recommendation models (gpu-v2025), and jobs on spot GPUs (v2026)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rayorch.core.resources import Resources
from rayorch.core.types import NodeSpec
from rayorch.sim.readers.rows import GIB, Refused, Table, TraceBuilder, machine, machines_of, number, optional, whole
from rayorch.sim.trace.model import Trace, TraceJob

DLRM_COLUMNS = (
    *("instance_sn", "role", "app_name", "cpu_request", "gpu_request", "rdma_request", "memory_request"),
    *("max_instance_per_node", "creation_time", "scheduled_time", "deletion_time"),
)
SPOT_COLUMNS = (
    *("job_name", "organization", "gpu_model", "cpu_request", "gpu_request", "worker_num"),
    *("submit_time", "duration", "job_type"),
)
SPOT_NODE_COLUMNS = ("node_name", "gpu_model", "gpu_capacity_num", "cpu_num")
RDMA = "rdma"
LATENCY_SENSITIVE = 2


def read_dlrm(path: str | Path, rdma: bool = False) -> Trace:
    """gpu-v2025: one inference instance a row; cpu_request, gpu_request, memory_request [GiB], times [s].

    What existed before the trace comes at 0; what outlives it runs to the trace's last moment. `rdma`: also ask for
    the part of a network card (rdma_request, 100 is a whole one). max_instance_per_node can't be said of a trace's
    job and is lost. The application is both name and user.
    """
    builder = TraceBuilder("dlrm", path)
    end_s = _last_moment(path)

    def job(line: int, row: Mapping[str, str]) -> None:
        created_s = optional(row["creation_time"], "creation_time")
        deleted_s = optional(row["deletion_time"], "deletion_time")
        submit_s = created_s if created_s is not None else 0.0
        started_s = optional(row["scheduled_time"], "scheduled_time")
        from_s = submit_s if started_s is None else started_s
        until_s = deleted_s if deleted_s is not None else end_s
        if until_s < from_s:
            raise Refused(f"was deleted {from_s - until_s:g} s before it started")
        part = number(row["rdma_request"], "rdma_request", most=1e4) / 100.0 if rdma else 0.0
        ask = builder.ask(
            1,
            number(row["gpu_request"], "gpu_request", most=1024),
            number(row["cpu_request"], "cpu_request", most=1e6),
            round((optional(row["memory_request"], "memory_request", most=1e6) or 0.0) * GIB),
            others={RDMA: part} if part else None,
        )
        app = builder.text(row["app_name"])
        builder.add(
            TraceJob(
                row["instance_sn"],
                submit_s,
                until_s - from_s,
                ask,
                user=app,
                priority=LATENCY_SENSITIVE,
                name=app,
                started_s=started_s,
                ended_s=deleted_s,
                line=line,
            )
        )

    builder.each(Table(path, DLRM_COLUMNS, builder), job)
    return builder.build(f"columns {', '.join(DLRM_COLUMNS)}")


def _last_moment(path: str | Path) -> float:
    last_s = 0.0
    for _, row in Table(path, DLRM_COLUMNS, TraceBuilder("dlrm")):
        for name in ("creation_time", "scheduled_time", "deletion_time"):
            try:
                last_s = max(last_s, optional(row[name], name) or 0.0)
            except Refused:  # the row is refused, with its line, when it is read as a job
                continue
    return last_s


def read_spot(path: str | Path, nodes: str | Path | None = None) -> Trace:
    """v2026 spot-gpu: worker_num members of gpu_request GPUs of gpu_model and cpu_request CPUs; times [s].

    Jobs of type HP go before those of type Spot (priority 1 and 0). `nodes`: `node_info_df.csv`.
    """
    builder = TraceBuilder("spot-gpu", path)

    def job(line: int, row: Mapping[str, str]) -> None:
        ask = builder.ask(
            whole(row["worker_num"], "worker_num", least=1),
            number(row["gpu_request"], "gpu_request", most=1024),
            number(row["cpu_request"], "cpu_request", most=1e6),
            models=(row["gpu_model"],),
        )
        kind = row["job_type"].strip()
        builder.add(
            TraceJob(
                row["job_name"],
                number(row["submit_time"], "submit_time"),
                number(row["duration"], "duration"),
                ask,
                queue=builder.text(f"org{row['organization']}"),
                priority=0 if kind == "Spot" else 1,
                name=builder.text(kind),
                line=line,
            )
        )

    builder.each(Table(path, SPOT_COLUMNS, builder), job)
    machines = read_spot_nodes(nodes) if nodes is not None else ()
    return builder.build(f"columns {', '.join(SPOT_COLUMNS)}", nodes=machines)


def read_spot_nodes(path: str | Path) -> tuple[NodeSpec, ...]:
    """`node_info_df.csv`: node_name, gpu_model, gpu_capacity_num, cpu_num. SpecError with the line of a wrong row."""
    return machines_of(path, SPOT_NODE_COLUMNS, _machine)


def _machine(row: Mapping[str, str]) -> NodeSpec:
    count = whole(row["gpu_capacity_num"], "gpu_capacity_num", most=1024)
    total = Resources.of({"GPU": count, "CPU": number(row["cpu_num"], "cpu_num", most=1e6)})
    return machine(f"node-{row['node_name']}", total, count, row["gpu_model"].strip())
