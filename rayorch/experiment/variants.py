"""What is done to a trace before it is played: drawn anew for a seed, rid of what can never fit, given quotas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import assert_never

import numpy as np

from rayorch.core.errors import SpecError
from rayorch.core.types import GPU, UNIT, NodeSpec, QueueId, QueueSpec, Resources
from rayorch.sim.generators import DAY_S, WEEK_S, bootstrap, fit, gpus_of
from rayorch.sim.models import stream
from rayorch.sim.trace.model import Ask, Trace, TraceJob

BLOCK = 50
BLOCKS = 10
"""Neighbouring jobs that are drawn together, so that bursts of like jobs stay bursts; of a short trace fewer, so that
there are at least so many blocks."""


class Resample(StrEnum):
    """How each seed gets a trace of its own."""

    NONE = "none"  # it does not: all seeds play the trace itself
    BLOCKS = "blocks"  # arrival times stay; what comes is drawn, in blocks of neighbours (Künsch 1989)
    WEEKS = "weeks"  # whole weeks, drawn with replacement
    FITTED = "fitted"  # a generator is fitted to the trace, and makes as many jobs


def resampled(trace: Trace, how: Resample, seed: int) -> Trace:
    """The trace of a seed. SpecError where it can't be drawn so."""
    match how:
        case Resample.NONE:
            return trace
        case Resample.BLOCKS:
            return _in_blocks(trace, seed)
        case Resample.WEEKS:
            return bootstrap(trace, seed)
        case Resample.FITTED:
            return replace(fit(trace).draw(seed, jobs=len(trace.jobs)), nodes=trace.nodes, queues=trace.queues)
    assert_never(how)


def check_weeks(trace: Trace) -> None:
    """SpecError for a trace without several whole weeks, and for one whose jobs mostly came after the last of them."""
    if not trace.jobs:
        return
    came = [job.submit_s - trace.jobs[0].submit_s for job in trace.jobs]
    weeks = int(came[-1] // WEEK_S)
    within = sum(at_s < weeks * WEEK_S for at_s in came)
    if weeks < 2 or within < len(came) / 2:
        raise SpecError(
            "--resample",
            f"weeks draws whole weeks, but the {len(came)} jobs come within {came[-1] / DAY_S:.3g} days, and whole"
            f" weeks hold {within} of them: play more of the trace, or draw blocks",
        )


def _in_blocks(trace: Trace, seed: int) -> Trace:
    """Identities are `<place>.<id drawn>`, so that a job may come twice."""
    count = len(trace.jobs)
    block = max(1, min(BLOCK, count // BLOCKS))
    rng = stream(seed, "resample", "blocks")
    starts = rng.integers(0, count - block + 1, size=-(-count // block))
    drawn = (starts[:, None] + np.arange(block)[None, :]).ravel()[:count]
    jobs = tuple(
        replace(
            trace.jobs[int(other)],
            id=f"{place}.{trace.jobs[int(other)].id}",
            submit_s=trace.jobs[place].submit_s,
            started_s=None,
            ended_s=None,
        )
        for place, other in enumerate(drawn)
    )
    return replace(trace, jobs=jobs)


def elastic_as(trace: Trace, least: float, most: float) -> Trace:
    """Every job that takes GPUs runs with `least` to `most` times the members that it asks for, at least one.

    Those that are elastic already stay as they are.
    """
    known: dict[int, Ask] = {}

    def of(ask: Ask) -> Ask:
        found = known.get(id(ask))
        if found is None:
            fewest, largest = max(1, math.ceil(ask.members * least)), max(ask.members, int(ask.members * most))
            able = ask.each.gpu_units and not ask.elastic and largest > fewest
            found = known[id(ask)] = replace(ask, least=fewest, most=largest) if able else ask
        return found

    return replace(trace, jobs=tuple(replace(job, ask=of(job.ask)) for job in trace.jobs))


def with_models_of(trace: Trace, nodes: Sequence[NodeSpec]) -> Trace:
    """GPU models under the names that the nodes have for them: "a100", which no node has, is "A100" where one has that.

    Slurm's types are in lower case by custom. What is called in several ways there stays as it is.
    """
    there = {node.model for node in nodes if node.model}
    alike: dict[str, list[str]] = {}
    for model in sorted(there):
        alike.setdefault(model.casefold(), []).append(model)

    def of(model: str) -> str:
        found = alike.get(model.casefold(), [])
        return found[0] if model not in there and len(found) == 1 else model

    known: dict[int, Ask] = {}
    for job in trace.jobs:
        if id(job.ask) not in known:
            models = tuple(dict.fromkeys(map(of, job.ask.models)))
            known[id(job.ask)] = job.ask if models == job.ask.models else replace(job.ask, models=models)
    if all(id(ask) == place for place, ask in known.items()):
        return trace
    return replace(trace, jobs=tuple(replace(job, ask=known[id(job.ask)]) for job in trace.jobs))


def without_too_large(trace: Trace, nodes: Sequence[NodeSpec]) -> tuple[Trace, tuple[str, ...]]:
    """The jobs that the empty cluster can hold, and the names of the others with what they ask for.

    Looked at are resources and models; whether a topology domain is large enough is the planner's to say.
    """
    verdicts: dict[int, bool] = {}
    keep: list[TraceJob] = []
    large: list[str] = []
    kinds = _kinds(nodes)
    for job in trace.jobs:
        fits = verdicts.get(id(job.ask))
        if fits is None:
            fits = verdicts[id(job.ask)] = _fits(job.ask, kinds)
        if fits:
            keep.append(job)
        else:
            amounts = ", ".join(_amount(name, n) for name, n in job.ask.each.to_floats().items())
            of_model = f" of {' or '.join(job.ask.models)}" if job.ask.models else ""
            large.append(f"{job.id} ({job.ask.members} x {amounts}{of_model})")
    return (trace if not large else replace(trace, jobs=tuple(keep))), tuple(large)


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.4g} GiB {name}" if name in ("memory", "object_store_memory") else f"{amount:g} {name}"


Kind = tuple[Resources, str, int]
"""What nodes of one kind have, their model, and how many there are."""


def _kinds(nodes: Sequence[NodeSpec]) -> list[Kind]:
    counts: dict[tuple[Resources, str], int] = {}
    for node in nodes:
        key = (node.total, node.model)
        counts[key] = counts.get(key, 0) + 1
    return [(total, model, count) for (total, model), count in counts.items()]


def _fits(ask: Ask, kinds: Sequence[Kind]) -> bool:
    """Whether its members have room, all on one model where it names some."""
    if ask.models:
        return any(_room(ask, [kind for kind in kinds if kind[1] == model]) for model in ask.models)
    return _room(ask, kinds)


def _room(ask: Ask, kinds: Sequence[Kind]) -> bool:
    return sum(count * _on_one(ask.each, total) for total, _, count in kinds) >= ask.fewest


def _on_one(each: Resources, total: Resources) -> int:
    """How many members one empty node holds. A fraction of a GPU lies on one device."""
    most = 10**9
    for name, units in each:
        have = total.units(name)
        if name == GPU and units < UNIT:
            most = min(most, (have // UNIT) * (UNIT // units) + (have % UNIT) // units)
        else:
            most = min(most, have // units)
    return most


def quotas_by_use(trace: Trace, gpus: float) -> tuple[QueueSpec, ...]:
    """A quota for each queue in proportion to the GPU-seconds that its jobs ask for; together they are the cluster."""
    asked: dict[str, float] = {}
    for job in trace.jobs:
        wanted = 0.0 if math.isinf(job.duration_s) else gpus_of(job) * job.duration_s
        asked[job.queue] = asked.get(job.queue, 0.0) + wanted
    whole = sum(asked.values())
    if whole <= 0:
        return tuple(QueueSpec(QueueId(name)) for name in sorted(asked))
    return tuple(
        QueueSpec(QueueId(name), Resources.of_units({GPU: int(gpus * UNIT * part / whole)}))
        for name, part in sorted(asked.items())
    )
