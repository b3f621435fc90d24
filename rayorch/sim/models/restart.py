"""What a restart and a checkpoint cost, by application, and how much work is saved when an attempt ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rayorch.core.checkpoint_interval import daly_s
from rayorch.sim.models.distributions import Lognormal
from rayorch.sim.models.misstatement import TRUTH, Misstatement

ALWAYS_SAVED = 0.0
NEVER_SAVED = math.inf


@dataclass(frozen=True, slots=True)
class RestartCost:
    """Of one application [s].

    `restart_s`: from a new attempt's start until it does new work. `checkpoint_s`: what one checkpoint blocks it for.
    `interval_s`: work between two checkpoints; 0: every moment is saved, infinite: none is; None: Daly's interval.
    `on_request`: a stop that is announced saves everything first. `sigma`: how much restarts vary (log-normal).
    `start_s`: the same as `restart_s` for the very first attempt.
    """

    restart_s: float = 0.0
    checkpoint_s: float = 0.0
    interval_s: float | None = ALWAYS_SAVED
    on_request: bool = True
    sigma: float = 0.0
    start_s: float = 0.0

    def interval(self, mtbf_s: float) -> float:
        """Work between two checkpoints where the gang fails once in `mtbf_s`."""
        if self.interval_s is not None:
            return self.interval_s
        return ALWAYS_SAVED if self.checkpoint_s <= 0 else daly_s(self.checkpoint_s, mtbf_s)

    def stretch(self, mtbf_s: float = math.inf) -> float:
        """How many times as long the work takes because it writes checkpoints."""
        interval_s = self.interval(mtbf_s)
        if interval_s <= 0 or math.isinf(interval_s):
            return 1.0
        return 1.0 + self.checkpoint_s / interval_s

    def saved_s(self, worked_s: float, announced: bool, mtbf_s: float = math.inf) -> float:
        """What of the work of an attempt is left after its end: up to its last checkpoint, or all of it."""
        if announced and self.on_request:
            return worked_s
        interval_s = self.interval(mtbf_s)
        if interval_s <= 0:
            return worked_s
        if math.isinf(interval_s):
            return 0.0
        return math.floor(worked_s / interval_s) * interval_s


@dataclass(frozen=True, slots=True)
class RestartModel:
    """`costs`: by application (`TraceJob.name`); `default`: of all others. `misstated`: what the policy is charged."""

    costs: tuple[tuple[str, RestartCost], ...] = ()
    default: RestartCost = RestartCost()
    misstated: Misstatement = TRUTH

    @staticmethod
    def of_seconds(seconds: Mapping[str, float], other_s: float = 0.0) -> RestartModel:
        """By how long a restart of each application takes."""
        return RestartModel(
            tuple((name, RestartCost(restart_s)) for name, restart_s in sorted(seconds.items())), RestartCost(other_s)
        )

    def of(self, name: str) -> RestartCost:
        """Of one application."""
        for known, cost in self.costs:
            if known == name:
                return cost
        return self.default

    def draw(self, name: str, rng: np.random.Generator) -> float:
        """How long one restart takes [s]; nothing is drawn where they do not vary."""
        cost = self.of(name)
        if not cost.sigma:
            return cost.restart_s
        return Lognormal(cost.restart_s, cost.sigma).draw(rng)

    def told(self, rng: np.random.Generator) -> RestartModel:
        """What the policy believes: each cost misstated, drawn once for each application."""
        return replace(
            self,
            costs=tuple((name, self._misstated(cost, rng)) for name, cost in self.costs),
            default=self._misstated(self.default, rng),
            misstated=TRUTH,
        )

    def _misstated(self, cost: RestartCost, rng: np.random.Generator) -> RestartCost:
        return replace(
            cost,
            restart_s=self.misstated.of(cost.restart_s, rng),
            checkpoint_s=self.misstated.of(cost.checkpoint_s, rng),
        )

    @staticmethod
    def fit(restarts: Iterable[tuple[str, float]], base: RestartModel | None = None) -> RestartModel:
        """From (application, seconds that a restart took): the median and spread of each, the rest as in `base`."""
        base = base if base is not None else RestartModel()
        seen: dict[str, list[float]] = {}
        for name, took_s in restarts:
            if took_s > 0:
                seen.setdefault(name, []).append(took_s)
        costs = dict(base.costs)
        for name, took in seen.items():
            fitted = Lognormal.fit(took)
            costs[name] = replace(base.of(name), restart_s=float(np.median(took)), sigma=fitted.sigma)
        everything = [took_s for took in seen.values() for took_s in took]
        default = base.default
        if everything:
            fitted = Lognormal.fit(everything)
            default = replace(default, restart_s=float(np.median(everything)), sigma=fitted.sigma)
        return replace(base, costs=tuple(sorted(costs.items())), default=default)


POLLUX = RestartModel(default=RestartCost(30.0, start_s=30.0))
"""What the simulator of Pollux (Qiao, OSDI'21) takes for every change of an allocation, the first one included."""

SIA = RestartModel.of_seconds(
    {"deepspeech2": 25.0, "cifar10": 50.0, "ncf": 15.0, "yolov3": 80.0, "bert": 120.0, "imagenet": 250.0}, 30.0
)
"""What a restart takes in the simulator of Sia (Jayaram Subramanya, SOSP'23): the truth of that world."""

SIA_CHARGED = RestartModel.of_seconds(
    {"deepspeech2": 25.0, "cifar10": 30.0, "ncf": 30.0, "yolov3": 45.0, "bert": 120.0, "imagenet": 250.0}, 30.0
)
"""What Sia's policy charges for it."""
