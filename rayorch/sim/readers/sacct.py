"""Slurm's accounting: what `sacct --parsable2` (or `--parsable`) prints, with a header.

    sacct -a -X --parsable2 -S 2026-01-01 -o JobID,JobName,User,Account,Partition,QOS,Priority,Submit,Start,End,State,\
NNodes,NCPUS,ReqTRES,AllocTRES
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rayorch.core.errors import SpecError
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
from rayorch.sim.trace.model import Ask, Trace, TraceJob

COLUMNS = ("JobID", "Submit", "Start", "End", "State")
TRES_COLUMNS = ("AllocTRES", "ReqTRES")
SEPARATOR = "|"
GPUS_PER_NODE = 8

STATUSES = {
    "COMPLETED": SUCCEEDED,
    **dict.fromkeys(("CANCELLED", "REVOKED"), CANCELLED),
    **dict.fromkeys(("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"), FAILED),
    **dict.fromkeys(("PREEMPTED", "REQUEUED"), ""),
}
RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT"})
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"})

MAX_PRIORITY = QueueSpec(QueueId("any")).max_priority

_MEMORY = re.compile(r"^([0-9.]+)([KMGTP]?)$")
_SCALES = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
"""Slurm's units are powers of 1024; without one it means MiB."""


def read(path: str | Path, queue_by: str = "Partition", per_node: int = GPUS_PER_NODE) -> Trace:
    """One job a row; steps (123.batch, 123.0) are left out, entries of arrays (123_4) are jobs of their own.

    A job runs from Start to End. GPUs are gres/gpu in AllocTRES, else ReqTRES, with the model that
    gres/gpu:MODEL names; its members are its nodes where the GPUs divide evenly between them. `queue_by`: the column
    that is the queue. Where priorities go beyond what ours may be, all are divided by one number, which keeps their
    order. Of several records of one job (requeued ones, `--duplicates`) the last counts. Times have no zone: they are
    taken as they stand.
    """
    builder = TraceBuilder("sacct", path)
    table = Table(path, COLUMNS, builder, SEPARATOR)
    if not any(name in table.header for name in (*TRES_COLUMNS, *CPU_COLUMNS)):
        raise SpecError(str(path), f"says nothing of resources; expected {' or '.join(TRES_COLUMNS)}, or NCPUS")
    if queue_by != "Partition" and queue_by not in table.header:
        raise SpecError("queue_by", f"must be one of {', '.join(filter(None, table.header))}, got {queue_by!r}")
    last: dict[str, TraceJob] = {}

    def job(line: int, row: Mapping[str, str]) -> None:
        id = row["JobID"].strip()
        if "." in id:
            return  # a step: part of a job that has its own row
        found = _job(builder, id, line, row, queue_by, per_node)
        earlier = last.pop(id, None)
        if earlier is not None:
            builder.refuse(earlier.line, f"is an earlier record of a job that has another in line {line}")
        last[id] = found

    builder.each(table, job)
    step = -(-max((job.priority for job in last.values()), default=0) // MAX_PRIORITY) or 1
    for found in last.values():
        builder.add(found if step == 1 else replace(found, priority=found.priority // step))
    return builder.build(f"columns {', '.join(COLUMNS)} separated by {SEPARATOR!r}", from_zero=True)


def _job(builder: TraceBuilder, id: str, line: int, row: Mapping[str, str], queue_by: str, per_node: int) -> TraceJob:
    if not id:
        raise Refused("has no JobID")
    state = _state(row["State"])
    if state in WAITING or "_[" in id:
        raise Refused("never started")
    if state in RUNNING:
        raise Refused("had not ended, so that how long it runs is not known")
    if state not in STATUSES:
        raise Refused(f"has the state {state[:40]!r}")
    started_s, ended_s = optional_moment(row["Start"], "Start"), optional_moment(row["End"], "End")
    return TraceJob(
        id,
        moment(row["Submit"], "Submit"),
        ran_s(started_s, ended_s),
        _ask(builder, row, per_node),
        queue=builder.text(row.get(queue_by, "") or "all"),
        user=builder.text(row.get("User", "")),
        priority=whole(row.get("Priority", "") or "0", "Priority", most=1 << 32),
        name=builder.text(row.get("JobName", "")),
        status=STATUSES[state],
        started_s=started_s,
        ended_s=ended_s,
        line=line,
    )


def _state(text: str) -> str:
    """The state without who cancelled it; one that was cut ("OUT_OF_ME+") in full."""
    word = text.split()[0] if text.strip() else ""
    if not word.endswith("+"):
        return word
    return next((state for state in (*STATUSES, *RUNNING, *WAITING) if state.startswith(word[:-1])), word)


def _ask(builder: TraceBuilder, row: Mapping[str, str], per_node: int) -> Ask:
    """The gang of a job: a member a node, where its GPUs divide so."""
    tres = next((found for name in TRES_COLUMNS if (found := _tres(row.get(name, "")))), {})
    models = [name.partition(":")[2] for name in tres if name.startswith("gres/gpu:")]
    typed = sum(whole(tres[f"gres/gpu:{name}"], "gres/gpu") for name in models)
    gpus = whole(tres.get("gres/gpu", "0"), "gres/gpu") or typed  # older releases print the typed ones only
    nodes = whole(tres.get("node", "") or row.get("NNodes", "") or row.get("AllocNodes", "") or "1", "nodes")
    cpus = tres.get("cpu", "") or next((row[name] for name in CPU_COLUMNS if row.get(name)), "0")
    members, each = on_nodes(gpus, nodes, per_node)
    memory_bytes = _memory_bytes(tres.get("mem", "0"))
    return builder.ask(
        members,
        each,
        share(number(cpus, "CPUs", most=1e8), members),
        -(-memory_bytes // members),
        models if len(models) == 1 else (),
    )


def _tres(text: str) -> dict[str, str]:
    """ "cpu=8,gres/gpu:a100=2,mem=64G,node=2" by name."""
    return dict(part.split("=", 1) for part in text.strip().split(",") if "=" in part)


def _memory_bytes(text: str) -> int:
    found = _MEMORY.match(text.strip())
    if found is None:
        raise Refused(f"memory is not an amount: {text[:40]!r}")
    return round(number(found[1], "memory", most=1e9) * _SCALES[found[2]])


CPU_COLUMNS = ("NCPUS", "AllocCPUS", "ReqCPUS")
