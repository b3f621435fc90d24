"""Applications that serve beside a trace, from words such as "chat,peak=12,replicas=1-16,start=60s"."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rayorch.config import typed_duration_s
from rayorch.core.admission import check_queue
from rayorch.core.errors import SpecError
from rayorch.core.types import CPU, GPU, QueueId, QueueSpec, Resources
from rayorch.experiment.words import bounded, pairs_of
from rayorch.sim.generators.demand import Demand, Diurnal, read_demand
from rayorch.sim.trace.model import Service, Trace

FIELD = "--serve"
KEYS = (
    *("peak", "demand", "low", "noise", "step", "gpus", "cpus", "replicas", "target", "start"),
    *("queue", "priority", "model"),
)
TAIL = 2.0
"""The demand goes on for so many times the longest run time after the last submission."""


@dataclass(frozen=True, slots=True)
class Served:
    """An application without its demand, which is drawn for each seed, or `fixed`."""

    service: Service
    wave: Diurnal | None = None
    fixed: Demand = ()

    def drawn(self, seed: int, until_s: float) -> Service:
        """With its demand under a seed."""
        demand = self.fixed if self.wave is None else self.wave.draw(self.service.id, seed, until_s)
        return replace(self.service, demand=demand)


def with_services(trace: Trace, served: Sequence[Served], seed: int, until_s: float | None) -> Trace:
    """The trace with its applications; their demand lasts until long after the last submission."""
    if not served:
        return trace
    lasts = [job.duration_s for job in trace.jobs if math.isfinite(job.duration_s)]
    end_s = (trace.jobs[-1].submit_s if trace.jobs else 0.0) + TAIL * max(lasts, default=0.0)
    horizon_s = end_s if until_s is None else min(end_s, until_s)
    return replace(trace, services=tuple(one.drawn(seed, horizon_s) for one in served))


def served_of(texts: Sequence[str]) -> tuple[Served, ...]:
    """One for each text. SpecError for what can't be, and for a name that is given twice."""
    found = tuple(_served(text) for text in texts)
    names = [one.service.id for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SpecError(FIELD, f"{twice} is given twice")
    return found


def _served(text: str) -> Served:
    name, *rest = (part.strip() for part in text.split(","))
    if not name or "=" in name:
        raise SpecError(FIELD, f"must be NAME,peak=REQUESTS[,KEY=VALUE…], got {text!r}")
    given = pairs_of(rest, KEYS, FIELD)
    if ("peak" in given) == ("demand" in given):
        raise SpecError(FIELD, f"needs either peak=REQUESTS or demand=FILE, got {text!r}")

    def figure(key: str, default: float, least: float, most: float) -> float:
        return bounded(given[key], least, most, FIELD, key, given[key]) if key in given else default

    def time(key: str, default_s: float) -> float:
        try:
            return typed_duration_s(given[key]) if key in given else default_s
        except ValueError as error:
            raise SpecError(FIELD, f"{key}: {error}") from error

    priority = figure("priority", 100.0, -1e6, 1e6)
    if not priority.is_integer():
        raise SpecError(FIELD, f"priority must be a whole number, got {given['priority']!r}")
    amounts = {GPU: figure("gpus", 1.0, 0.0, 1024.0), CPU: figure("cpus", 0.0, 0.0, 1e6)}
    if not any(amounts.values()):
        raise SpecError(FIELD, f"a replica takes nothing: {text!r}")
    _check_names(given)
    least, most = _replicas(given.get("replicas", "1-16"))
    service = Service(
        name,
        (),
        Resources.of({resource: amount for resource, amount in amounts.items() if amount}),
        most,
        least,
        figure("target", 1.0, 1e-6, 1e9),
        time("start", 0.0),
        given.get("queue", "serve"),
        int(priority),
        models=(given["model"],) if "model" in given else (),
    )
    if "demand" in given:
        if wrong := next((key for key in ("low", "noise", "step") if key in given), None):
            raise SpecError(FIELD, f"{wrong} is of a wave with peak=, not of a file")
        return Served(service, None, read_demand(Path(given["demand"])))
    step_s = time("step", 300.0)
    if step_s < 1.0:
        raise SpecError(FIELD, "step must be at least 1 s")
    wave = Diurnal(figure("peak", 0.0, 0.0, 1e9), figure("low", 0.3, 0.0, 1.0), figure("noise", 0.1, 0.0, 3.0), step_s)
    return Served(service, wave)


def _check_names(given: Mapping[str, str]) -> None:
    """What is named has a name that can be one."""
    if "queue" in given:
        try:
            check_queue(QueueSpec(QueueId(given["queue"])))
        except SpecError as error:
            raise SpecError(FIELD, f"queue {error.message}") from error
    if given.get("model") == "":
        raise SpecError(FIELD, "model must name a GPU model, got ''")


def _replicas(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if low.isdecimal() and (high.isdecimal() if dash else True):
        least, most = int(low), int(high or low)
        if 1 <= least <= most <= 100_000:
            return least, most
    raise SpecError(FIELD, f"replicas must be LEAST-MOST from 1 on, such as 1-16, got {text!r}")
