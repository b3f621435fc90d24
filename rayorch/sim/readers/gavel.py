"""Gavel's traces and throughputs (Narayanan, OSDI'20): jobs in steps, and how many steps a second each GPU does."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rayorch.core.errors import SpecError
from rayorch.sim.models.speed import TableSpeed
from rayorch.sim.readers.rows import Refused, TraceBuilder, json_of, lines_of, members_of, number, whole
from rayorch.sim.trace.model import Trace, TraceJob

NEW = ("type", "command", "dir", "steps_arg", "needs_data", "steps", "scale", "priority", "slo", "arrival")
OLD = ("type", "command", "steps_arg", "needs_data", "steps", "arrival", "scale")
REFERENCE = "v100"

JobType = tuple[str, int]
"""(job type, scale factor): what throughputs are measured of."""


@dataclass(frozen=True, slots=True)
class GavelThroughputs:
    """`alone`: steps a second by GPU type ("v100", "v100_unconsolidated") and job. `packed`: of two jobs on one GPU,
    each one's."""

    alone: Mapping[str, Mapping[JobType, float]]
    packed: Mapping[str, Mapping[tuple[JobType, JobType], tuple[float, float]]]


def read_throughputs(path: str | Path) -> GavelThroughputs:
    """`simulation_throughputs.json`: GPU type -> "('job type', scale)" -> "null" or another job -> steps/s.

    SpecError with the path of what is wrong.
    """
    expected = "an object of GPU types, each an object of jobs"
    data = json_of(path, expected)
    if not isinstance(data, dict) or not all(isinstance(jobs, dict) for jobs in data.values()):
        raise SpecError(str(path), f"must be {expected}")
    alone: dict[str, dict[JobType, float]] = {}
    packed: dict[str, dict[tuple[JobType, JobType], tuple[float, float]]] = {}
    for gpu, jobs in data.items():
        alone[gpu], packed[gpu] = {}, {}
        for text, speeds in jobs.items():
            job = _job_type(text, f"{gpu}.{text}")
            if not isinstance(speeds, dict):
                raise SpecError(f"{gpu}.{text}", "must be an object of throughputs")
            for other, speed in speeds.items():
                at = f"{gpu}.{text}.{other}"
                if other == "null":
                    alone[gpu][job] = _speed(speed, at)
                elif isinstance(speed, list) and len(speed) == 2:
                    packed[gpu][(job, _job_type(other, at))] = (_speed(speed[0], at), _speed(speed[1], at))
                else:
                    raise SpecError(at, "must be two throughputs")
    return GavelThroughputs(alone, packed)


def _job_type(text: str, at: str) -> JobType:
    try:
        name, scale = ast.literal_eval(text)
        return str(name), int(scale)
    except (ValueError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise SpecError(at, "must be named ('job type', scale)") from error


def _speed(value: object, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise SpecError(at, f"must be a number of steps a second, got {value!r:.40}")
    return float(value)


def read(
    path: str | Path,
    throughputs: str | Path | GavelThroughputs | None = None,
    gpu: str = REFERENCE,
    per_node: int = 0,
    elastic: bool = False,
) -> Trace:
    """A trace of 10 or of 7 columns, separated by tabs: steps to do, number of GPUs (scale), arrival [s].

    A job runs for its steps at the throughput that it has alone on `gpu`, from `throughputs`. Types that were not
    measured there are refused. `elastic`: members are of one GPU each, and a job runs with every number of them from
    the smallest to the largest scale at which its type was measured, as fast as that; the trace then brings its speeds.
    """
    if elastic and per_node:
        raise SpecError("elastic", "and per_node exclude each other: what comes and goes are single GPUs")
    if throughputs is None:
        raise SpecError("throughputs", "is needed: how long steps take (simulation_throughputs.json)")
    table = throughputs if isinstance(throughputs, GavelThroughputs) else read_throughputs(throughputs)
    if gpu not in table.alone:
        raise SpecError("gpu", f"must be one of {', '.join(sorted(table.alone))}, got {gpu!r}")
    speeds = table.alone[gpu]
    tables = tables_of(speeds) if elastic else {}
    builder = TraceBuilder("gavel", path)
    rows = ((line, text.split("\t")) for line, text in lines_of(path) if text.strip())
    builder.each(rows, lambda line, cells: builder.add(_job(builder, cells, line, speeds, per_node, tables)))
    found = builder.build(f"{len(NEW)} or {len(OLD)} columns separated by tabs")
    return replace(found, speed=TableSpeed(tables)) if elastic else found


def tables_of(speeds: Mapping[JobType, float]) -> dict[str, tuple[tuple[int, float], ...]]:
    """Of each job type: (GPUs, steps a second) at every scale at which it was measured, rising."""
    found: dict[str, list[tuple[int, float]]] = {}
    for (name, scale), speed in sorted(speeds.items()):
        if speed > 0:
            found.setdefault(name, []).append((scale, speed))
    return {name: tuple(points) for name, points in found.items()}


def _job(
    builder: TraceBuilder,
    cells: list[str],
    line: int,
    speeds: Mapping[JobType, float],
    per_node: int,
    tables: Mapping[str, tuple[tuple[int, float], ...]],
) -> TraceJob:
    names = {len(NEW): NEW, len(OLD): OLD}.get(len(cells))
    if names is None:
        raise Refused(f"has {len(cells)} cells, expected {len(NEW)} or {len(OLD)}")
    row = dict(zip(names, cells, strict=True))
    steps = whole(row["steps"], "total_steps", least=1, most=10**12)
    scale = whole(row["scale"], "scale_factor", least=1)
    speed = speeds.get((row["type"], scale))
    if not speed:
        raise Refused(f"{row['type'][:60]!r} on {scale} GPUs was not measured")
    members, each = members_of(scale, per_node)
    table = tables.get(row["type"])
    sizes = (table[0][0], table[-1][0]) if table else (0, 0)
    return TraceJob(
        f"gavel-{line}",
        number(row["arrival"], "arrival_time"),
        steps / speed,
        builder.ask(members, each, sizes=sizes),
        priority=_priority(row.get("priority", "1")),
        name=builder.text(row["type"]),
        steps=steps,
        line=line,
    )


def _priority(text: str) -> int:
    """Gavel's weights; 1 is the usual one."""
    return round(number(text or "1", "priority", most=1e6)) - 1
