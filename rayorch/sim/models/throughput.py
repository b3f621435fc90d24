"""How fast a training job goes on so many GPUs of a type: the goodput model of Pollux (Qiao, OSDI'21, §3).

    T_grad = alpha_c + beta_c·m                          compute of one pass over a local batch m
    T_sync = 0 | alpha_r + beta_r·max(K - 2, 0)          K replicas on one node
               | alpha_n + beta_n·max(K - 2, 0)          on several
    T_iter = s·T_grad + (T_grad^gamma + T_sync^gamma)^(1/gamma)        s passes are accumulated first
    goodput = K·m·(s + 1)/T_iter · efficiency

Statistical efficiency: with the gradient's noise, a batch M makes (φ + M0)/(φ + M) of the progress of as many samples
in batches of M0, φ = M0·var/sqr. `measured` has the same from measured tables instead of fitted parameters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rayorch.core.errors import SpecError

CANDIDATES = 50
"""So many total batch sizes are tried, evenly spaced by factor."""
SLACK = 1e-8


@dataclass(frozen=True, slots=True)
class ThroughputModel:
    """The parameters above, in seconds, of one application on one GPU type.

    `local_batch_range`, `max_gpus`: what they were fitted on; outside they are an extrapolation.
    """

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float
    local_batch_range: tuple[int, int] = (1, 1 << 30)
    max_gpus: int = 1 << 30

    def pass_s(self, local_batch: float) -> float:
        """One pass, forward and backward, over a local batch."""
        return self.alpha_c + self.beta_c * local_batch

    def sync_s(self, nodes: int, replicas: int) -> float:
        """Exchanging gradients; what overlaps with computing included."""
        if replicas <= 1:
            return 0.0
        alpha, beta = (self.alpha_n, self.beta_n) if nodes > 1 else (self.alpha_r, self.beta_r)
        return alpha + beta * max(replicas - 2, 0)

    def iteration_s(self, nodes: int, replicas: int, local_batch: float, accumulated: int = 0) -> float:
        """One step of the optimizer."""
        pass_s, sync_s = self.pass_s(local_batch), self.sync_s(nodes, replicas)
        overlapped_s = pass_s if sync_s == 0.0 else (pass_s**self.gamma + sync_s**self.gamma) ** (1.0 / self.gamma)
        return accumulated * pass_s + overlapped_s

    def throughput(self, nodes: int, replicas: int, local_batch: float, accumulated: int = 0) -> float:
        """Samples a second."""
        batch = replicas * local_batch * (accumulated + 1)
        return batch / self.iteration_s(nodes, replicas, local_batch, accumulated)


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Of an application at one moment of its training: squared norm and variance of the gradient at batch `base`."""

    base: float
    sqr: float
    var: float

    def gain(self, batch: float) -> float:
        """Progress of one step with `batch`, in steps with the base batch."""
        scale = batch / self.base
        below = self.var / scale + self.sqr
        return (self.var + self.sqr) / below if below > 0 else 1.0

    def efficiency(self, batch: float) -> float:
        """Progress of a sample in that batch, in samples of the base batch; falls as batches grow."""
        return self.gain(batch) * self.base / batch


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """`goodput`: samples of the base batch a second; 0 where no batch size will do."""

    goodput: float
    local_batch: int = 0
    accumulated: int = 0


def best_batch(
    model: ThroughputModel,
    noise: GradientNoise,
    nodes: int,
    replicas: int,
    max_batch: float,
    local_range: tuple[int, int],
) -> BatchChoice:
    """The batch size of the highest goodput on so many replicas; O(50).

    As AdaptDL: one replica with more than the base batch accumulates at least once, since one batch alone tells too
    little about the noise.
    """
    least, most = local_range
    low = max(noise.base, least * replicas)
    best = BatchChoice(0.0)
    if low > max_batch:
        return best
    for step in range(CANDIDATES):
        local = low * (max_batch / low) ** (step / (CANDIDATES - 1)) / replicas
        accumulated = math.ceil(local / most - SLACK) - 1
        if replicas == 1 and local > noise.base + SLACK:
            accumulated = max(1, accumulated)
        each = math.ceil(local / (accumulated + 1) - SLACK)
        if least <= each <= most:
            batch = replicas * each * (accumulated + 1)
            found = model.throughput(nodes, replicas, each, accumulated) * noise.efficiency(batch)
            if found > best.goodput:
                best = BatchChoice(found, each, accumulated)
    return best


ThroughputTable = Mapping[str, Mapping[str, ThroughputModel]]
"""application -> GPU type -> its model."""


def load_throughput_models(path: str | Path) -> ThroughputTable:
    """From JSON: application -> GPU type -> parameters [s]. SpecError with the path of what is wrong."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise SpecError(str(path), f"is not JSON: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(types, dict) for types in data.values()):
        raise SpecError(str(path), "must be an object of applications")
    return {app: {gpu: _model(fields, f"{app}.{gpu}") for gpu, fields in types.items()} for app, types in data.items()}


def _model(fields: object, at: str) -> ThroughputModel:
    if not isinstance(fields, dict):
        raise SpecError(at, "must be an object of parameters")
    missing = [name for name in PARAMETERS if not isinstance(fields.get(name), int | float)]
    if missing:
        raise SpecError(f"{at}.{missing[0]}", "must be a number")
    model = ThroughputModel(**{name: float(fields[name]) for name in PARAMETERS})  # type: ignore[arg-type]
    low, high = fields.get("local_batch_range", model.local_batch_range)
    return replace(model, local_batch_range=(int(low), int(high)), max_gpus=int(fields.get("max_gpus", model.max_gpus)))


PARAMETERS = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
