"""The workloads of Pollux (Qiao, OSDI'21) and Sia (Jayaram Subramanya, SOSP'23): measured applications."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rayorch.core.errors import SpecError
from rayorch.sim.models.measured import load_applications, packed
from rayorch.sim.models.speed import MeasuredSpeed, sizes_of
from rayorch.sim.readers.rows import Refused, Table, TraceBuilder, number, whole
from rayorch.sim.trace.model import Trace, TraceJob

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
GPUS_PER_NODE = 4
"""The machines that were measured have four GPUs."""


FIXED, SAME_BATCH, GOODPUT = "no", "batch", "goodput"
ELASTIC = (FIXED, SAME_BATCH, GOODPUT)


def read(path: str | Path, profiles: str | Path | None = None, elastic: str = FIXED) -> Trace:
    """name, time [s], application, num_replicas, batch_size: each replica is a member of one GPU.

    How long a job runs is worked out from the measured tables in `profiles` (the folder `traces` beside the folder of
    the workload, where nothing is said): alone, with that batch, on as few nodes as there can be.

    `elastic`: "batch" or "goodput", jobs run with every number of replicas with which they were measured, at the batch
    that the workload names or in each epoch at the best one; the trace then brings its speeds. "no": as many as asked.
    """
    if elastic not in ELASTIC:
        raise SpecError("elastic", f"must be one of {', '.join(ELASTIC)}, got {elastic!r}")
    folder = Path(profiles) if profiles is not None else Path(path).resolve().parent.parent / "traces"
    if not folder.is_dir():
        raise SpecError("profiles", f"{folder} is not a folder of measured applications; name it with profiles=")
    applications = load_applications(folder)
    builder = TraceBuilder("pollux", path)
    durations: dict[tuple[str, int, int], float] = {}
    sizes: dict[tuple[str, int, int], tuple[int, int]] = {}

    def job(line: int, row: Mapping[str, str]) -> None:
        name, replicas = row["application"], whole(row["num_replicas"], "num_replicas", least=1)
        batch = whole(row["batch_size"], "batch_size", least=1)
        if name not in applications:
            raise Refused(f"{name[:40]!r} was not measured; there are {', '.join(sorted(applications))}")
        key = (name, replicas, batch)
        if key not in durations:
            try:
                durations[key] = applications[name].duration_s(packed(replicas, GPUS_PER_NODE), batch)
                if elastic != FIXED:
                    sizes[key] = sizes_of(applications[name], replicas, batch, elastic == GOODPUT, GPUS_PER_NODE)
            except SpecError as error:
                raise Refused(str(error)) from None
        builder.add(
            TraceJob(
                row["name"],
                number(row["time"], "time"),
                durations[key],
                builder.ask(replicas, 1, sizes=sizes.get(key, (0, 0))),
                name=builder.text(name),
                line=line,
                batch=None if elastic == FIXED else batch,
            )
        )

    builder.each(Table(path, COLUMNS, builder), job)
    found = builder.build(f"columns {', '.join(COLUMNS)}")
    if elastic == FIXED:
        return found
    return replace(found, speed=MeasuredSpeed(applications, {}, GPUS_PER_NODE, elastic == GOODPUT))


def batches(path: str | Path) -> dict[str, int]:
    """The total batch size of each job by name; rows that `read` refuses for it are left out."""
    builder = TraceBuilder("pollux", path)
    found: dict[str, int] = {}

    def job(line: int, row: Mapping[str, str]) -> None:
        found[row["name"]] = whole(row["batch_size"], "batch_size", least=1)

    builder.each(Table(path, COLUMNS, builder), job)
    return found
