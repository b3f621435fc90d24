"""What is kept of one run: its figures and curves, small enough for a file each, and all that a report is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import cast

from rayorch.core.errors import SpecError
from rayorch.sim.report.fairness import QueueShare
from rayorch.sim.report.left_out import RefusedJobs, RefusedRows, jobs_from, rows_from
from rayorch.sim.report.measures import BY_KEY
from rayorch.sim.report.serving import ServiceShare

SCHEMA = "rayorch/run/v1"
"""Of a run's file. A file of another version is not read."""

Curve = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Quantiles of one thing over jobs: `values[i]` is that of the share i / (len − 1). `count`: of how many jobs."""

    count: int = 0
    values: Curve = ()


@dataclass(frozen=True, slots=True)
class OverTime:
    """Means over equal parts of the makespan; `edges_s` has one more. `held_by_queue`: GPUs, the largest queues first,
    the rest together under "others". `elastic_size`: GPUs that elastic jobs hold over those that they asked for, 0
    where none runs; empty: there are none. `requests`, `answerable`: requests at once of all
    applications, and what their replicas could take."""

    edges_s: Curve = ()
    allocated_gpus: Curve = ()
    capacity_gpus: Curve = ()
    waiting_gpus: Curve = ()
    waiting_jobs: Curve = ()
    fragmentation: Curve = ()
    elastic_size: Curve = ()
    requests: Curve = ()
    answerable: Curve = ()
    held_by_queue: tuple[tuple[str, Curve], ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """One finished run. `load`: offered load that arrivals were compressed to; None: as they are in the trace.

    `offered_load`: GPU-seconds asked for over capacity while jobs came. `refused_rows`: of the trace's file;
    `refused`: why, and where the first of them are. `turned_away`: why jobs were refused at the door.
    `too_large`: the first jobs that the empty cluster can't hold, by name, with what they ask for. `stopped_at_s`: the
    limit on simulated time, where one was set. `cut_short`: moments in which decisions undid each other without an end.
    """

    profile: str
    seed: int
    load: float | None
    trace: str
    cluster: str
    figures: Mapping[str, float | None]
    offered_load: float | None = None
    refused_rows: int = 0
    too_large: tuple[str, ...] = ()
    stopped_at_s: float | None = None
    log_sha256: str = ""
    jct: Distribution = Distribution()
    wait: Distribution = Distribution()
    rho: Distribution = Distribution()
    over_time: OverTime = OverTime()
    queues: tuple[QueueShare, ...] = field(default=())
    services: tuple[ServiceShare, ...] = field(default=())
    cut_short: int = 0
    refused: tuple[RefusedRows, ...] = ()
    turned_away: tuple[RefusedJobs, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        return {"schema": SCHEMA, **asdict(self), "figures": dict(self.figures)}


def summary_from(value: object) -> Summary:
    """The summary in a decoded JSON value; SpecError names what is wrong with it."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise SpecError("schema", f"must be {SCHEMA}")
    try:
        given = {key: item for key, item in value.items() if key != "schema"}
        figures = given["figures"]
        if set(figures) != set(BY_KEY) or not all(n is None or isinstance(n, int | float) for n in figures.values()):
            raise SpecError("figures", "are not those of this version")
        curves = {name: _distribution(given[name]) for name in ("jct", "wait", "rho")}
        over_time = given["over_time"]
        held = tuple((str(name), _curve(values)) for name, values in over_time["held_by_queue"])
        plain = {f.name: _curve(over_time[f.name]) for f in fields(OverTime) if f.name != "held_by_queue"}
        given |= curves
        given["over_time"] = OverTime(held_by_queue=held, **plain)
        given["queues"] = tuple(QueueShare(**queue) for queue in given["queues"])
        given["services"] = tuple(ServiceShare(**service) for service in given["services"])
        given["too_large"] = tuple(str(name) for name in given["too_large"])
        given["refused"] = rows_from(given["refused"])
        given["turned_away"] = jobs_from(given["turned_away"])
        return Summary(**given)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecError("", f"is no run's summary: {type(error).__name__}: {error}") from error


def _distribution(value: object) -> Distribution:
    given = cast("dict[str, object]", value)
    return Distribution(int(cast(int, given["count"])), _curve(given["values"]))


def _curve(value: object) -> Curve:
    return tuple(float(number) for number in cast("list[float]", value))
