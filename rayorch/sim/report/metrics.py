"""From the outcome of a run to its figures and curves. Pure; formulas are in `measures`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rayorch.core.types import QueueSpec, State
from rayorch.sim.generators import offered_load
from rayorch.sim.report.fairness import QueueShare, asked_while_held, by_queue, held_steps, jain, queue_shares, rhos
from rayorch.sim.report.left_out import jobs_by_reason, rows_by_reason
from rayorch.sim.report.measures import BY_KEY
from rayorch.sim.report.over_time import Floats, Steps, parts
from rayorch.sim.report.serving import attainment, gpus_held, over_time, share_of
from rayorch.sim.report.summary import Curve, Distribution, OverTime, Summary
from rayorch.sim.trace.model import Trace
from rayorch.sim.trace.outcome import JobRecord, Outcome, ServiceRecord

QUANTILES = 200
PARTS = 300
"""Points of a distribution and of a curve over time: what a plot of a thousand pixels shows."""

MOST_QUEUES = 12
"""Queues that are shown by name over time."""

SHORT_S = 10.0
"""Durations below this count as this in the bounded slowdown (Feitelson 1997)."""

LEAST_S = 1.0
"""Durations below this count as this in the plain slowdown, so that jobs of no length have one."""

MOST_NAMED = 5
"""Jobs that are too large are all counted, and so many of them named."""


def summarise(
    outcome: Outcome,
    trace: Trace,
    queues: Sequence[QueueSpec] = (),
    *,
    load: float | None = None,
    title: str = "",
    cluster: str = "",
    too_large: Sequence[str] = (),
    stopped_at_s: float | None = None,
) -> Summary:
    """What is kept of a run. `trace`: what was played, without the jobs that are `too_large`. `title`: its name."""
    records = outcome.records
    durations = {job.id: job.duration_s for job in trace.jobs}
    start_s, end_s = _span(outcome)
    capacity = _steps(outcome, outcome.series.capacity_gpus).mean(start_s, end_s)
    shares = queue_shares(records, queues, capacity, end_s)
    fairness = rhos(records, durations, capacity)
    done = [(jct_s, durations[r.id]) for r in records if (jct_s := r.jct_s) is not None]
    jct, duration = np.array(done, dtype=np.float64).reshape(-1, 2).T
    wait = np.array([wait_s for r in records if (wait_s := r.wait_s) is not None])
    figures: dict[str, float | None] = dict.fromkeys(BY_KEY)
    figures |= _counts(records) | {"too_large": len(too_large)}
    figures |= _times("jct", jct) | _times("wait", wait) | _slowdowns(jct, duration)
    figures |= _use(outcome, start_s, end_s, capacity) | _fairness_figures(fairness, shares)
    figures |= _nodes(outcome, start_s, end_s)
    services = tuple(share_of(record, start_s, end_s) for record in outcome.services)
    figures["attainment"] = attainment(outcome.services, start_s, end_s)
    figures["serving_gpu_h"] = sum(share.gpu_h for share in services) if services else None
    figures |= {"events": outcome.events, "turns": outcome.turns, "cpu_s": outcome.cpu_s}
    figures["events_per_cpu_s"] = outcome.events / outcome.cpu_s if outcome.cpu_s > 0 else None
    return Summary(
        profile=outcome.profile,
        seed=outcome.seed,
        load=load,
        trace=title or trace.name,
        cluster=cluster,
        figures=figures,
        offered_load=_offered_load(trace, capacity),
        refused_rows=len(trace.refused),
        too_large=tuple(too_large[:MOST_NAMED]),
        stopped_at_s=stopped_at_s,
        log_sha256=outcome.log_sha256,
        jct=_distribution(jct),
        wait=_distribution(wait),
        rho=_distribution(fairness),
        over_time=_over_time(outcome, start_s, end_s),
        queues=shares,
        services=services,
        cut_short=outcome.cut_short,
        refused=rows_by_reason(trace.refused),
        turned_away=jobs_by_reason(outcome.turned_away),
    )


def _offered_load(trace: Trace, capacity_gpus: float) -> float | None:
    """None where it is not defined: all jobs come at once, one never ends, or there are no GPUs."""
    if not trace.jobs or capacity_gpus <= 0 or any(math.isinf(job.duration_s) for job in trace.jobs):
        return None
    load = offered_load(trace, capacity_gpus)
    return None if math.isinf(load) else load


def _span(outcome: Outcome) -> tuple[float, float]:
    """From the first submission to the last end, or to the end of the simulated time where a job had not ended."""
    if not outcome.records:
        return 0.0, 0.0
    start_s = min(record.submit_s for record in outcome.records)
    ends = [record.ended_s for record in outcome.records if record.ended_s is not None]
    held = [run.to_s for record in outcome.records for run in record.runs]
    last = max([start_s, *ends, *held])
    if len(ends) < len(outcome.records) and len(outcome.series.times_s):
        last = max(last, float(outcome.series.times_s[-1]))
    return start_s, last


def _counts(records: Sequence[JobRecord]) -> dict[str, float | None]:
    never = sum(record.started_s is None and not record.state.terminal for record in records)
    return {
        "jobs": len(records),
        "finished": sum(record.state is State.SUCCEEDED for record in records),
        "refused": sum(record.started_s is None and record.state.terminal for record in records),
        "failed": sum(r.started_s is not None and r.state in (State.FAILED, State.CANCELLED) for r in records),
        "never_started": never,
        "unfinished": sum(not r.state.terminal and r.started_s is not None for r in records),
        "preemptions": sum(record.preemptions for record in records),
        "preempted_jobs": sum(record.preemptions > 0 for record in records),
        "resizes": sum(record.resizes for record in records),
        "moves": (moves := sum(record.moves for record in records)),
        "freed_per_move": sum(record.freed_gpus for record in records) / moves if moves else None,
    }


def _times(key: str, values: Floats) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys((f"{key}_avg_s", f"{key}_p50_s", f"{key}_p95_s", f"{key}_p99_s"))
    p50, p95, p99 = (float(n) for n in np.percentile(values, (50, 95, 99)))
    return {f"{key}_avg_s": float(values.mean()), f"{key}_p50_s": p50, f"{key}_p95_s": p95, f"{key}_p99_s": p99}


def _slowdowns(jct_s: Floats, duration_s: Floats) -> dict[str, float | None]:
    if not len(jct_s):
        return {"slowdown_avg": None, "bounded_slowdown_avg": None}
    return {
        "slowdown_avg": float(np.mean(jct_s / np.maximum(LEAST_S, duration_s))),
        "bounded_slowdown_avg": float(np.mean(np.maximum(1.0, jct_s / np.maximum(SHORT_S, duration_s)))),
    }


def _steps(outcome: Outcome, values: Floats) -> Steps:
    return Steps(outcome.series.times_s, values)


def _use(outcome: Outcome, start_s: float, end_s: float, capacity: float) -> dict[str, float | None]:
    """What was done with the cluster. `capacity`: its mean GPUs over that time."""
    series = outcome.series
    held_gpu_s = sum(run.gpus * (run.to_s - run.from_s) for record in outcome.records for run in record.runs)
    lost_gpu_s = sum(record.lost_gpu_s for record in outcome.records)
    free = np.maximum(0.0, series.capacity_gpus - series.allocated_gpus)
    idle = _steps(outcome, np.minimum(free, series.waiting_gpus)).mean(start_s, end_s)
    figures: dict[str, float | None] = {
        "makespan_s": end_s - start_s if outcome.records else None,
        "goodput": (held_gpu_s - lost_gpu_s) / held_gpu_s if held_gpu_s > 0 else None,
        "lost_gpu_h": lost_gpu_s / 3600.0,
        "fragmentation": None,
    }
    elastic = [(run, record.gpus) for record in outcome.records if record.elastic for run in record.runs]
    if (asked_gpu_s := sum((run.to_s - run.from_s) * gpus for run, gpus in elastic)) > 0:
        figures["elastic_size"] = sum((run.to_s - run.from_s) * run.gpus for run, _ in elastic) / asked_gpu_s
    if capacity <= 0:
        return figures
    figures["utilisation"] = _steps(outcome, series.allocated_gpus).mean(start_s, end_s) / capacity
    figures["idle_while_waiting"] = idle / capacity
    last_s = max((record.submit_s for record in outcome.records), default=start_s)
    if (there := _steps(outcome, series.capacity_gpus).mean(start_s, last_s)) > 0:
        figures["utilisation_arriving"] = _steps(outcome, series.allocated_gpus).mean(start_s, last_s) / there
    if series.fragmentation is not None:
        figures["fragmentation"] = _steps(outcome, series.fragmentation).mean(start_s, end_s) / capacity
    return figures


def _nodes(outcome: Outcome, start_s: float, end_s: float) -> dict[str, float | None]:
    """What the cluster cost; of a node that was there longer only the part within the makespan."""
    of_groups = sum(max(0.0, min(end_s, stay.to_s) - max(start_s, stay.from_s)) for stay in outcome.stays)
    return {
        "node_h": (outcome.fixed_nodes * (end_s - start_s) + of_groups) / 3600.0,
        "nodes_added": sum(stay.from_s > 0 for stay in outcome.stays),
    }


def _fairness_figures(fairness: Floats, shares: Sequence[QueueShare]) -> dict[str, float | None]:
    got = [share.got for share in shares if share.got is not None]
    figures: dict[str, float | None] = {"jain_queues": jain(got), "jain_jobs": jain(fairness)}
    if len(fairness):
        figures["rho_worst"] = float(fairness.max())
        figures["rho_p99"] = float(np.percentile(fairness, 99))
        figures["unfair_share"] = float(np.mean(fairness > 1.0 + 1e-9))
    return figures


def _distribution(values: Floats) -> Distribution:
    if not len(values):
        return Distribution()
    return Distribution(len(values), _curve(np.quantile(values, np.linspace(0.0, 1.0, QUANTILES + 1))))


def _curve(values: Floats) -> Curve:
    """Six significant digits: a plot shows no more, and a file of them stays small."""
    return tuple(float(f"{number:.6g}") for number in values)


def _over_time(outcome: Outcome, start_s: float, end_s: float) -> OverTime:
    if end_s <= start_s:
        return OverTime()
    edges = parts(start_s, end_s, PARTS)
    series = outcome.series

    def means(values: Floats) -> Curve:
        return _curve(_steps(outcome, values).means(edges))

    return OverTime(
        _curve(edges),
        means(series.allocated_gpus),
        means(series.capacity_gpus),
        means(series.waiting_gpus),
        means(series.waiting_jobs),
        () if series.fragmentation is None else means(series.fragmentation),
        _elastic_sizes(outcome.records, edges),
        *_serving_curves(outcome, edges),
        _held_by_queue(outcome.records, edges, outcome.services),
    )


def _serving_curves(outcome: Outcome, edges: Floats) -> tuple[Curve, Curve]:
    if not outcome.services:
        return (), ()
    wanted, able = over_time(outcome.services, edges)
    return _curve(wanted), _curve(able)


def _elastic_sizes(records: Sequence[JobRecord], edges: Floats) -> Curve:
    elastic = [record for record in records if record.elastic]
    if not elastic:
        return ()
    held, asked = held_steps(elastic).means(edges), asked_while_held(elastic).means(edges)
    return _curve(np.divide(held, asked, out=np.zeros_like(held), where=asked > 0))


def _held_by_queue(
    records: Sequence[JobRecord], edges: Floats, services: Sequence[ServiceRecord] = ()
) -> tuple[tuple[str, Curve], ...]:
    held = {name: held_steps(jobs).means(edges) for name, jobs in by_queue(records).items()}
    for record in services:
        name = record.service.queue
        held[name] = held.get(name, np.zeros(len(edges) - 1)) + gpus_held(record).means(edges)
    order = sorted(held, key=lambda name: (-float(held[name].sum()), name))
    shown = order if len(order) <= MOST_QUEUES else order[: MOST_QUEUES - 1]
    curves = [(name, _curve(held[name])) for name in shown]
    if rest := order[len(shown) :]:
        curves.append(("others", _curve(np.sum([held[name] for name in rest], axis=0))))
    return tuple(curves)
