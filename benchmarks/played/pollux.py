"""Tiresias on the workloads of Pollux (Qiao, OSDI'21), by the protocol of its simulator, against its published results.

16 nodes of 4 GPUs; the scheduler has its turn every 60 s; every change of an allocation, the first one included, costs
30 s; jobs run with the number of GPUs and the batch that their users tuned, as fast as the measured step times of where
they lie. Tiresias there: two queues, parted at 16 GPU-hours; each is walked in the order of arrival, running and
waiting jobs together, and who no longer fits is stopped without loss. All of it through `rayorch.sim.trace.run`.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

from benchmarks.played.traces import nodes
from rayorch.core.eviction import EvictionKnobs
from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import BackfillKnobs, Profile
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import las
from rayorch.policies.place import spread
from rayorch.sim.models import SimModels
from rayorch.sim.models.measured import load_applications
from rayorch.sim.models.restart import POLLUX
from rayorch.sim.models.speed import MeasuredSpeed
from rayorch.sim.readers import pollux
from rayorch.sim.trace.outcome import Outcome
from rayorch.sim.trace.run import run

ROUND_S = 60.0
THRESHOLD_GPU_S = 16 * 3600.0

TIRESIAS: Profile = replace(
    DEFAULT,
    name="tiresias",
    order=las.senior_key,
    score=spread.score,
    ordering=OrderKnobs(las_thresholds_gpu_s=(THRESHOLD_GPU_S,)),
    eviction=EvictionKnobs(by_order=True, consolidate=False),
    backfill=BackfillKnobs(hold=False),
)


def play(data: Path, workload: int) -> Outcome:
    """One of the eight workloads at load 1. `data`: the folder with `pollux` in it."""
    folder = data / "pollux"
    path, profiles = folder / "workloads" / f"workload-{workload}.csv", folder / "traces"
    speed = MeasuredSpeed(load_applications(profiles), pollux.batches(path))
    models = SimModels(restart=POLLUX, speed=speed)
    return run(pollux.read(path, profiles), nodes(16, 4, level="host"), TIRESIAS, models=models, round_s=ROUND_S)


def average_jct_s(outcome: Outcome) -> float:
    """From submission to the end, of those that ended."""
    ended = [record.ended_s - record.submit_s for record in outcome.records if record.ended_s is not None]
    return sum(ended) / len(ended)


def published_s(data: Path, workload: int) -> float:
    """The average that Pollux' artifact has for Tiresias."""
    with gzip.open(data / "pollux" / "results" / "tiresias-1.0.json.gz", "rt") as file:
        return float(json.load(file)["avgs"][f"workload-{workload}"])


def tiresias_w6_s(data: Path) -> float:
    """The average completion time on workload 6; published: 3,469.69 s."""
    return average_jct_s(play(data, 6))
