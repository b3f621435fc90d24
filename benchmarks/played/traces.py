"""Traces that benchmarks play: where they lie, cut to size, on which nodes and with which quotas."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rayorch.core.types import Device, NodeId, NodeSpec, QueueId, QueueSpec, Resources
from rayorch.sim.generators import gpus_of
from rayorch.sim.trace.model import Trace


def data_folder() -> Path:
    """`$RAYORCH_DATA`, else ../shared/data from the project's root. FileNotFoundError with what to do."""
    folder = Path(os.environ.get("RAYORCH_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not there; set RAYORCH_DATA (docs/data.md says where each set is published)"
        )
    return folder


def nodes(count: int, gpus: int, level: str = "") -> tuple[NodeSpec, ...]:
    """Equal nodes. `level`: a topology level of which each node is a domain of its own.

    A gang that is larger than a node then lies on as few of them as it can.
    """
    return tuple(
        NodeSpec(
            NodeId(f"n{n:04}"),
            f"n{n:04}",
            Resources.of({"GPU": gpus}),
            devices=tuple(Device(device, "") for device in range(gpus)),
            topology=((level, f"n{n:04}"),) if level else (),
        )
        for n in range(count)
    )


def slice_of(trace: Trace, first: int, count: int) -> Trace:
    """So many jobs in a row, from time 0 on."""
    jobs = trace.jobs[first : first + count]
    begin_s = jobs[0].submit_s
    moved = tuple(replace(job, submit_s=job.submit_s - begin_s) for job in jobs)
    return replace(trace, name=f"{trace.name}[{first}:{first + count}]", jobs=moved)


def shares(trace: Trace, gpus: int) -> tuple[QueueSpec, ...]:
    """A queue for each of the trace, which deserves its part of the GPUs by the GPU-time of its jobs.

    Whole GPUs, by largest remainders. What is not used can be borrowed.
    """
    used: dict[str, float] = {}
    for job in trace.jobs:
        used[job.queue] = used.get(job.queue, 0.0) + job.duration_s * gpus_of(job)
    whole = sum(used.values())
    exact = {queue: gpus * amount / whole for queue, amount in used.items()}
    given = {queue: int(amount) for queue, amount in exact.items()}
    by_remainder = sorted(exact, key=lambda queue: (given[queue] - exact[queue], queue))
    for queue in by_remainder[: gpus - sum(given.values())]:
        given[queue] += 1
    return tuple(QueueSpec(QueueId(queue), Resources.of({"GPU": given[queue]})) for queue in sorted(given))
