"""Applications as they were measured: step times by placement, and how training progresses at each batch size.

Read from the tables that the simulator of Pollux (Qiao, OSDI'21) runs on, one folder an application:

    placements.csv     placement (a digit for each node: its GPUs), local_bsz, step_time, sync_time [s]
    scalability.csv    num_nodes, num_replicas, local_bsz, step_time, sync_time [s]
    validation-B.csv   a row an epoch at total batch size B: progress, iteration, metric, grad_sqr, grad_var

Between local batch sizes times are interpolated by straight lines. A placement that was not measured lies between the
measured numbers of nodes and of GPUs a node around it (Pollux's own code takes simplices of SciPy's there).
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from rayorch.core.errors import SpecError

MAX_EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
"""After how many epochs each application is done, as the simulator of Pollux has it; others: all that were measured."""
MAX_LOCAL_BATCH = {"yolov3": 8}
"""Where a GPU takes less than what was measured elsewhere."""
SLACK = 1e-8

Times = tuple[float, float]
"""(step time, of it synchronisation) [s]."""


@dataclass(frozen=True, slots=True)
class _Curve:
    """Times by local batch size, ascending."""

    batches: tuple[float, ...]
    steps_s: tuple[float, ...]
    syncs_s: tuple[float, ...]

    def at(self, batch: float) -> Times | None:
        """Between the two measured batch sizes around it; None outside."""
        if not self.batches[0] <= batch <= self.batches[-1]:
            return None
        high = bisect_left(self.batches, batch)
        low = high if self.batches[high] == batch else high - 1
        if low == high:
            return self.steps_s[low], self.syncs_s[low]
        part = (batch - self.batches[low]) / (self.batches[high] - self.batches[low])
        return (
            self.steps_s[low] + part * (self.steps_s[high] - self.steps_s[low]),
            self.syncs_s[low] + part * (self.syncs_s[high] - self.syncs_s[low]),
        )


@dataclass(frozen=True, slots=True)
class Validation:
    """One training at one total batch size; index: the epoch."""

    progress: tuple[float, ...]
    iteration: tuple[float, ...]
    metric: tuple[float, ...]
    sqr: tuple[float, ...]
    var: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrainingState:
    """How far a training is: `epoch` epochs are over, `progress` in steps of the base batch, `done` when all are."""

    epoch: int = 0
    progress: float = 0.0
    done: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Application:
    """One application: see the module's docstring. `base_batch`: the smallest batch that it was trained with."""

    name: str
    placements: Mapping[tuple[int, ...], _Curve]
    grid: Mapping[tuple[int, int], _Curve]
    validation: Mapping[int, Validation]
    max_epochs: int
    local_range: tuple[int, int]
    _times: dict[tuple[tuple[int, ...], float], Times] = field(default_factory=dict, repr=False)

    @property
    def base_batch(self) -> int:
        """The batch size that progress is counted in."""
        return min(self.validation)

    @property
    def max_batch(self) -> int:
        """The largest batch that it was trained with."""
        return max(self.validation)

    # ------------------------------------------------------------ speed

    def times(self, placement: Sequence[int], local_batch: float) -> Times:
        """(step, synchronisation) [s] of replicas that lie so: GPUs on each node, in any order, nodes without left out.

        SpecError where nothing near it was measured.
        """
        key = (tuple(count for count in placement if count), local_batch)
        known = self._times.get(key)
        if known is None:
            known = self._times[key] = self._look_up(*key)
        return known

    def _look_up(self, placement: tuple[int, ...], local_batch: float) -> Times:
        if not placement:
            raise SpecError("placement", "has no GPU")
        turns = [placement[n:] + placement[:n] for n in range(len(placement))]
        exact = self.placements.get(min(turns))
        found = (
            exact.at(local_batch) if exact is not None else self._between(len(placement), sum(placement), local_batch)
        )
        if found is None:
            raise SpecError(
                "placement", f"{self.name}: nothing measured near {placement} at a local batch of {local_batch:g}"
            )
        return found

    def _between(self, nodes: int, replicas: int, batch: float) -> Times | None:
        """Between the measured node counts around it, at the same number of GPUs a node."""
        density = replicas / nodes
        counts = sorted({n for n, _ in self.grid})
        low = max((n for n in counts if n <= nodes), default=counts[0])
        high = min((n for n in counts if n >= nodes), default=counts[-1])
        first, second = self._on(low, density, batch), self._on(high, density, batch)
        if first is None or second is None or low == high:
            return first if second is None else second
        part = (nodes - low) / (high - low)
        return (first[0] + part * (second[0] - first[0]), first[1] + part * (second[1] - first[1]))

    def _on(self, nodes: int, density: float, batch: float) -> Times | None:
        """On so many nodes, between the measured numbers of GPUs around `density` on each."""
        known = [(r / nodes, t) for (n, r), c in sorted(self.grid.items()) if n == nodes and (t := c.at(batch))]
        if not known:
            return None
        below = [entry for entry in known if entry[0] <= density + SLACK]
        above = [entry for entry in known if entry[0] >= density - SLACK]
        (x0, low), (x1, high) = (below[-1] if below else known[0]), (above[0] if above else known[-1])
        part = 0.0 if x1 - x0 < SLACK else (density - x0) / (x1 - x0)
        return (low[0] + part * (high[0] - low[0]), low[1] + part * (high[1] - low[1]))

    # ------------------------------------------------------------ batches

    def split(self, batch: float, replicas: int) -> tuple[int, int]:
        """(local batch, accumulated passes) of a total batch on so many replicas, as AdaptDL splits it."""
        local = math.ceil(batch / replicas - SLACK)
        accumulated = math.ceil(local / self.local_range[1] - SLACK) - 1
        if replicas == 1 and batch > self.base_batch:
            accumulated = max(1, accumulated)
        each = math.ceil(local / (accumulated + 1) - SLACK)
        return min(each, int(self.max_batch / (replicas * (accumulated + 1)))), accumulated

    def _around(self, batch: float) -> tuple[int, int, float]:
        """The two trained batch sizes around one, and how far it lies from the first to the second."""
        sizes = sorted(self.validation)
        if not sizes[0] <= batch <= sizes[-1]:
            raise SpecError("batch", f"{self.name} was trained with {sizes[0]} to {sizes[-1]}, not {batch:g}")
        low = sizes[bisect_right(sizes, batch) - 1]
        high = sizes[bisect_left(sizes, batch)]
        return low, high, 0.0 if low == high else (batch - low) / (high - low)

    def gradient(self, batch: float, epoch: int) -> tuple[float, float]:
        """(squared norm, variance) of the gradient in an epoch at a total batch size."""
        low, high, part = self._around(batch)
        first, second = self.validation[low], self.validation[high]
        sqr = first.sqr[epoch] + part * (second.sqr[epoch] - first.sqr[epoch])
        return sqr, first.var[epoch] + part * (second.var[epoch] - first.var[epoch])

    # ------------------------------------------------------------ progress

    def progress_after(self, epochs: int) -> float:
        """Progress at the end of so many epochs, in steps of the base batch."""
        return 0.0 if epochs == 0 else min(run.progress[epochs - 1] for run in self.validation.values())

    def rate(self, placement: Sequence[int], batch: float, epoch: int) -> float:
        """Progress a second in an epoch, in steps of the base batch."""
        nodes = tuple(count for count in placement if count)
        replicas = sum(nodes)
        local, accumulated = self.split(batch, replicas)
        step_s, sync_s = self.times(nodes, local)
        total = replicas * local * (accumulated + 1)
        sqr, var = self.gradient(total, epoch)
        gain = (var + sqr) / (var / (total / self.base_batch) + sqr)
        return gain / (step_s + (step_s - sync_s) * accumulated)

    def advance(
        self, state: TrainingState, placement: Sequence[int], batch: float, seconds: float
    ) -> tuple[TrainingState, float]:
        """(the state after at most `seconds` of training, seconds used): fewer where it is done earlier."""
        used_s = 0.0
        while used_s < seconds and not state.done:
            rate = self.rate(placement, batch, state.epoch)
            target = self.progress_after(state.epoch + 1)
            left_s = seconds - used_s
            if state.progress + rate * left_s < target:
                return replace(state, progress=state.progress + rate * left_s), seconds
            took_s = (target - state.progress) / rate
            used_s += took_s
            state = TrainingState(state.epoch + 1, target, state.epoch + 1 >= self.max_epochs)
        return state, used_s

    def duration_s(self, placement: Sequence[int], batch: float) -> float:
        """How long the whole training takes, undisturbed."""
        return self.advance(TrainingState(), placement, batch, math.inf)[1]

    def best_s(self, placement: Sequence[int]) -> float:
        """How long the whole training takes where each epoch has the trained batch size that makes most progress there.

        Infinite where nothing near the placement was measured with any of them.
        """
        nodes = tuple(count for count in placement if count)
        took_s = 0.0
        for epoch in range(self.max_epochs):
            best = max((rate for batch in self.validation if (rate := self._rate_or_0(nodes, batch, epoch))), default=0)
            if best <= 0:
                return math.inf
            took_s += (self.progress_after(epoch + 1) - self.progress_after(epoch)) / best
        return took_s

    def trains_on(self, placement: Sequence[int]) -> bool:
        """Whether something near the placement was measured with one of the trained batch sizes."""
        nodes = tuple(count for count in placement if count)
        return any(self._rate_or_0(nodes, batch, 0) > 0 for batch in self.validation)

    def _rate_or_0(self, nodes: tuple[int, ...], batch: int, epoch: int) -> float:
        local, accumulated = self.split(batch, sum(nodes))
        if local < 1 or sum(nodes) * local * (accumulated + 1) < self.base_batch:
            return 0.0
        try:
            return self.rate(nodes, batch, epoch)
        except SpecError:
            return 0.0


def packed(replicas: int, per_node: int = 4) -> tuple[int, ...]:
    """A placement on as few nodes as there can be."""
    whole, rest = divmod(replicas, per_node)
    return (*([per_node] * whole), *([rest] if rest else ()))


# ---------------------------------------------------------------- reading


def load_applications(folder: str | Path) -> dict[str, Application]:
    """Every application that has a folder there, by name. SpecError with the file that is missing or wrong."""
    found = {path.name: _cached(path) for path in sorted(Path(folder).iterdir()) if (path / "placements.csv").exists()}
    if not found:
        raise SpecError(str(folder), "has no application: expected folders with placements.csv, validation-*.csv")
    return found


def load_application(folder: str | Path) -> Application:
    """One application from its folder; read once in a process."""
    return _cached(Path(folder))


@lru_cache(maxsize=64)
def _cached(folder: Path) -> Application:
    placed: dict[tuple[int, ...], list[tuple[float, float, float]]] = {}
    means: dict[tuple[int, int], dict[float, list[Times]]] = {}
    for row in _rows(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time")):
        placement = tuple(int(digit) for digit in row["placement"])
        batch, step_s, sync_s = float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"])
        placed.setdefault(placement, []).append((batch, step_s, sync_s))
        at = means.setdefault((len(placement), sum(placement)), {})
        at.setdefault(batch, []).append((step_s, sync_s))
    columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    for row in _rows(folder / "scalability.csv", columns) if (folder / "scalability.csv").exists() else ():
        at = means.setdefault((int(row["num_nodes"]), int(row["num_replicas"])), {})
        at.setdefault(float(row["local_bsz"]), []).append((float(row["step_time"]), float(row["sync_time"])))
    grid = {
        key: _curve([(batch, *map(float, np.mean(times, axis=0))) for batch, times in at.items()])
        for key, at in means.items()
    }
    validation = {int(path.stem.rpartition("-")[2]): _validation(path) for path in folder.glob("validation-*.csv")}
    if not validation:
        raise SpecError(str(folder), "has no validation-*.csv")
    batches = [batch for curve in placed.values() for batch, _, _ in curve]
    epochs = min(len(run.progress) for run in validation.values())
    return Application(
        folder.name,
        {placement: _curve(points) for placement, points in placed.items()},
        grid,
        dict(sorted(validation.items())),
        min(epochs, MAX_EPOCHS.get(folder.name, epochs)),
        (int(min(batches)), MAX_LOCAL_BATCH.get(folder.name, int(max(batches)))),
    )


def _curve(points: Sequence[tuple[float, ...]]) -> _Curve:
    batches, steps_s, syncs_s = zip(*sorted(points), strict=True)
    return _Curve(batches, steps_s, syncs_s)


def _validation(path: Path) -> Validation:
    columns = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
    rows = [tuple(float(row[name]) for name in columns) for row in _rows(path, columns)]
    if not rows:
        raise SpecError(str(path), "has no epoch")
    return Validation(*(tuple(values) for values in zip(*rows, strict=True)))


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    if not path.exists():
        raise SpecError(str(path), "is missing")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise SpecError(str(path), f"has no column {missing[0]}; expected {', '.join(columns)}")
        return list(reader)
