"""Alibaba's PAI trace (cluster-trace-gpu-v2020; Weng, NSDI'22): its task and job tables, and its simulator's table.

The published tables have no header (it lies beside them); both forms are read. CPUs and GPUs are percentages there:
600 are six CPUs, 50 is half a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rayorch.sim.readers.rows import (
    EMPTY,
    FAILED,
    GIB,
    SUCCEEDED,
    Refused,
    Table,
    TraceBuilder,
    first_lines,
    number,
    optional,
    ran_s,
    whole,
)
from rayorch.sim.trace.model import Trace, TraceJob

TASK_COLUMNS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
SIMULATED_COLUMNS = ("job_id", "num_gpu", "num_cpu", "submit_time", "num_inst", "duration")
STATUSES = {"Terminated": SUCCEEDED, "Failed": FAILED}
MISC = frozenset({"MISC", "CPU"})
"""No model: GPUs of older generations of all kinds, and none at all."""


def read(path: str | Path, jobs: str | Path | None = None) -> Trace:
    """`pai_task_table.csv`, each task a job of its own; `jobs`: `pai_job_table.csv`, for who submitted it and when.

    Times are seconds. Without the job table a task is taken to be submitted when it started. inst_num members of
    plan_cpu and plan_gpu [%] and plan_mem [GB] each; MISC is no model. A task's id is its job's, a dot and its name: no
    workload's id may have a slash. Tasks without a start or end, and those that ask for nothing, are refused. That the
    tasks of one job run together is lost.
    """
    builder = TraceBuilder("pai", path)
    submitted = _submitted(builder, jobs) if jobs is not None else {}

    def job(line: int, row: Mapping[str, str]) -> None:
        started_s, ended_s = optional(row["start_time"], "start_time"), optional(row["end_time"], "end_time")
        duration_s = ran_s(started_s, ended_s)
        assert started_s is not None
        user, submit_s = submitted.get(row["job_name"], ("", started_s))
        ask = builder.ask(
            whole(row["inst_num"], "inst_num", least=1),
            _percent(row["plan_gpu"], "plan_gpu"),
            _percent(row["plan_cpu"], "plan_cpu"),
            round((optional(row["plan_mem"], "plan_mem", most=1e6) or 0.0) * GIB),
            _models(row["gpu_type"]),
        )
        builder.add(
            TraceJob(
                f"{row['job_name']}.{row['task_name']}",
                min(submit_s, started_s),
                duration_s,
                ask,
                user=user,
                name=builder.text(row["task_name"]),
                status=STATUSES.get(row["status"], ""),
                started_s=started_s,
                ended_s=ended_s,
                line=line,
            )
        )

    builder.each(Table(path, TASK_COLUMNS, builder, header=_header(path, TASK_COLUMNS)), job)
    return builder.build(f"columns {', '.join(TASK_COLUMNS)}", from_zero=True)


def read_simulated(path: str | Path) -> Trace:
    """The table of the artifact's simulator: job_id, num_gpu, num_cpu (of one instance), num_inst, submit_time [s],
    duration [s]; user, gpu_type and group where there are."""
    builder = TraceBuilder("pai", path)

    def job(line: int, row: Mapping[str, str]) -> None:
        ask = builder.ask(
            whole(row["num_inst"] or "1", "num_inst", least=1),
            _round(optional(row["num_gpu"], "num_gpu", most=1e4) or 0.0),
            _round(optional(row["num_cpu"], "num_cpu", most=1e6) or 0.0),
            models=_models(row.get("gpu_type", "")),
        )
        builder.add(
            TraceJob(
                row["job_id"],
                number(row["submit_time"], "submit_time"),
                number(row["duration"], "duration"),
                ask,
                user=builder.text(row.get("user", "")),
                name=builder.text(row.get("group", "")),
                line=line,
            )
        )

    builder.each(Table(path, SIMULATED_COLUMNS, builder), job)
    return builder.build(f"columns {', '.join(SIMULATED_COLUMNS)}", from_zero=True)


def _submitted(builder: TraceBuilder, path: str | Path) -> dict[str, tuple[str, float]]:
    """(user, time of submission) of each job; what is wrong there is refused too."""
    found: dict[str, tuple[str, float]] = {}

    def job(line: int, row: Mapping[str, str]) -> None:
        found[row["job_name"]] = (builder.text(row["user"]), number(row["start_time"], "start_time of the job"))

    builder.each(Table(path, JOB_COLUMNS, builder, header=_header(path, JOB_COLUMNS)), job)
    return found


def _header(path: str | Path, columns: tuple[str, ...]) -> tuple[str, ...] | None:
    """The columns of a file without a header; None where its first line is one."""
    first = first_lines(path, 1)
    return None if not first or first[0].lstrip("\ufeff").split(",")[0] == columns[0] else columns


def _models(gpu_type: str) -> tuple[str, ...]:
    name = gpu_type.strip()
    return () if name in MISC or name.lower() in EMPTY else (name,)


def _percent(text: str, what: str) -> float:
    return _round((optional(text, what, most=1e9) or 0.0) / 100.0)


def _round(amount: float) -> float:
    """To 1/10000; a part that is too small to count is refused."""
    rounded = round(amount, 4)
    if amount > 0 and rounded == 0:
        raise Refused(f"asks for {amount:g}, which is less than can be counted")
    return rounded
