"""The Standard Workload Format of the Parallel Workloads Archive: 18 columns, -1 where nothing is known.

1 job · 2 submit [s] · 3 wait [s] · 4 run [s] · 5 processors · 6 CPU time [s] · 7 memory [KB] · 8 requested processors ·
9 requested time [s] · 10 requested memory [KB] · 11 status · 12 user · 13 group · 14 executable · 15 queue ·
16 partition · 17 preceding job · 18 think time [s]. Lines that begin with ";" are comments.
"""

from __future__ import annotations

from pathlib import Path

from rayorch.core.errors import SpecError
from rayorch.core.resources import CPU, GPU
from rayorch.sim.readers.rows import CANCELLED, FAILED, SUCCEEDED, Refused, TraceBuilder, lines_of, members_of, number
from rayorch.sim.trace.model import Trace, TraceJob

FIELDS = 18
STATUSES = {0: FAILED, 1: SUCCEEDED, 5: CANCELLED}


def read(path: str | Path, processor: str = GPU, per_node: int = 0) -> Trace:
    """One job a line. `processor`: what one processor is, "GPU" or "CPU"; `per_node`: see `rows.members_of`.

    Requested times are not taken over: what a policy is told is the run-time model's (`sim.models.runtime`).
    """
    if processor not in (GPU, CPU):
        raise SpecError("processor", f"must be GPU or CPU, got {processor!r}")
    builder = TraceBuilder("swf", path)
    rows = ((line, text.split()) for line, text in lines_of(path) if text.strip() and not text.lstrip().startswith(";"))
    builder.each(rows, lambda line, cells: builder.add(_job(builder, cells, line, processor, per_node)))
    return builder.build(f"{FIELDS} columns a line, comments after ';'")


def _job(builder: TraceBuilder, cells: list[str], line: int, processor: str, per_node: int) -> TraceJob:
    if len(cells) != FIELDS:
        raise Refused(f"has {len(cells)} cells, expected {FIELDS}")
    job, submit_s, wait_s, run_s, used = (number(cells[n], NAMES[n], least=-1) for n in range(5))
    asked, status, user, executable, queue = (number(cells[n], NAMES[n], least=-1) for n in (7, 10, 11, 13, 14))
    processors = asked if asked > 0 else used
    if submit_s < 0:
        raise Refused("has no submit time")
    if run_s < 0:
        raise Refused("has no run time")
    if processors <= 0 or processors != int(processors):
        raise Refused("has no number of processors")
    members, each = members_of(int(processors), per_node)
    ask = builder.ask(members, each) if processor == GPU else builder.ask(members, cpus=each)
    started_s = submit_s + wait_s if wait_s >= 0 else None
    return TraceJob(
        f"{job:.0f}",
        submit_s,
        run_s,
        ask,
        queue=builder.text(f"q{queue:.0f}" if queue >= 0 else "all"),
        user=builder.text(f"u{user:.0f}" if user >= 0 else ""),
        name=builder.text(f"app{executable:.0f}" if executable >= 0 else ""),
        status=STATUSES.get(int(status), ""),
        started_s=started_s,
        ended_s=None if started_s is None else started_s + run_s,
        line=line,
    )


NAMES = {
    0: "job",
    1: "submit time",
    2: "wait time",
    3: "run time",
    4: "processors",
    7: "requested processors",
    10: "status",
    11: "user",
    13: "executable",
    14: "queue",
}
