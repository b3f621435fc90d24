"""The goodput model against worked numbers, and the measured tables against what was published of them."""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path

import pytest

from rayorch.core.errors import SpecError
from rayorch.core.types import Resources
from rayorch.sim.models.measured import Application, TrainingState, load_application, load_applications, packed
from rayorch.sim.models.speed import Amdahl, TableSpeed
from rayorch.sim.models.throughput import GradientNoise, ThroughputModel, best_batch, load_throughput_models
from rayorch.sim.readers import pollux
from rayorch.sim.trace.model import Ask, TraceJob
from tests.data import DATA, needs

MODEL = ThroughputModel(0.1, 0.005, 0.08, 0.01, 0.02, 0.002, 2.0)
NOISE = GradientNoise(base=64, sqr=1.0, var=4.0)


@pytest.mark.parametrize(
    ("nodes", "replicas", "local", "accumulated", "iteration_s", "throughput", "efficiency", "goodput"),
    [
        (1, 1, 64, 0, 0.42, 152.3810, 1.0, 152.3810),
        (1, 4, 32, 0, 0.261105, 490.2236, 0.833333, 408.5197),
        (1, 4, 64, 0, 0.420685, 608.5311, 0.625, 380.3319),
        (2, 8, 32, 0, 0.295296, 866.9254, 0.625, 541.8284),
        (2, 8, 64, 0, 0.442719, 1156.4901, 0.416667, 481.8709),
        (1, 1, 64, 1, 0.84, 152.3810, 0.833333, 126.9841),
    ],
)
def test_worked_numbers(
    nodes: int,
    replicas: int,
    local: int,
    accumulated: int,
    iteration_s: float,
    throughput: float,
    efficiency: float,
    goodput: float,
) -> None:
    batch = replicas * local * (accumulated + 1)
    speed = MODEL.throughput(nodes, replicas, local, accumulated)
    assert MODEL.iteration_s(nodes, replicas, local, accumulated) == pytest.approx(iteration_s, rel=1e-5)
    assert speed == pytest.approx(throughput, rel=1e-5)
    assert NOISE.efficiency(batch) == pytest.approx(efficiency, rel=1e-5)
    assert speed * NOISE.efficiency(batch) == pytest.approx(goodput, rel=1e-5)


@pytest.mark.parametrize(
    ("nodes", "replicas", "goodput"),
    [(1, 1, 150.936276), (1, 2, 260.869015), (1, 4, 299.145479), (2, 8, 305.717199), (4, 16, 297.031909)],
)
def test_the_best_batch_is_that_of_adaptdl(nodes: int, replicas: int, goodput: float) -> None:
    model = ThroughputModel(0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14)
    noise = GradientNoise(128, 0.00136, 0.000502)
    found = best_batch(model, noise, nodes, replicas, 1280, (64, 256))
    assert found.goodput == pytest.approx(goodput, rel=1e-6)


def test_efficiency_falls_and_throughput_rises_with_the_batch() -> None:
    efficiencies = [NOISE.efficiency(batch) for batch in (64, 128, 256, 1024, 8192)]
    assert efficiencies == sorted(efficiencies, reverse=True) and efficiencies[0] == 1.0
    speeds = [MODEL.throughput(1, 2, local) for local in range(8, 256, 8)]
    assert speeds == sorted(speeds)
    each = [MODEL.throughput(2, k, 64) / k for k in range(2, 64)]
    assert each == sorted(each, reverse=True)
    assert best_batch(MODEL, NOISE, 1, 16, 100, (64, 256)).goodput == 0.0


@needs("throughput_models.json")
def test_all_fitted_models_are_read() -> None:
    table = load_throughput_models(DATA / "throughput_models.json")
    assert sorted(table) == ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"]
    a100, t4 = table["bert"]["a100"], table["bert"]["t4"]
    assert a100.local_batch_range == (4, 48) and t4.max_gpus == 64
    assert a100.throughput(1, 4, 12) > 4 * t4.throughput(1, 4, 12)


def test_a_wrong_table_is_refused_with_its_field(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    for text, field in (("[]", str(path)), ("{", str(path)), ('{"bert": {"t4": {"alpha_c": "x"}}}', "bert.t4.alpha_c")):
        path.write_text(text)
        with pytest.raises(SpecError) as error:
            load_throughput_models(path)
        assert error.value.field == field


# ---------------------------------------------------------------- measured tables


def _written(folder: Path) -> Path:
    folder.mkdir()
    placements = ["placement,local_bsz,step_time,sync_time"]
    for placement in ("1", "2", "12", "22"):
        gpus = sum(map(int, placement))
        placements += [f"{placement},{b},{0.1 * b + 0.01 * gpus},{0.01 * gpus}" for b in (4, 8, 16)]
    scalability = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    scalability += [f"{n},{r},{b},{0.1 * b + 0.01 * r},{0.01 * r}" for n, r in ((4, 4), (4, 8)) for b in (4, 8, 16)]
    (folder / "placements.csv").write_text("\n".join(placements) + "\n")
    (folder / "scalability.csv").write_text("\n".join(scalability) + "\n")
    for batch, steps in ((8, 100), (32, 40)):
        rows = [f"{100 * e},{steps * e},0.{e},1.0,{batch / 8}" for e in (1, 2, 3)]
        text = "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *rows])
        (folder / f"validation-{batch}.csv").write_text(text + "\n")
    return folder


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return load_application(_written(tmp_path / "app"))


def test_times_lie_between_what_was_measured(application: Application) -> None:
    assert application.times((1,), 4) == pytest.approx((0.41, 0.01))
    assert application.times((2, 0, 1), 6) == application.times((1, 2), 6) == pytest.approx((0.63, 0.03))
    assert application.times((2, 2, 2), 8) == pytest.approx((0.86, 0.06))  # between two and four nodes
    assert application.times((1, 1, 1, 1, 1, 1), 8) == pytest.approx(application.times((1, 1, 1, 1), 8))
    for placement, batch in (((1,), 17), ((1,), 3), ((), 4)):
        with pytest.raises(SpecError):
            application.times(placement, batch)


def test_a_batch_is_split_as_adaptdl_does(application: Application) -> None:
    assert application.split(8, 1) == (8, 0)
    assert application.split(32, 1) == (16, 1)
    assert application.split(16, 1) == (8, 1)  # one batch alone tells too little of the noise
    assert application.split(32, 4) == (8, 0)


def test_training_goes_as_far_as_its_time(application: Application) -> None:
    whole_s = application.duration_s((2,), 16)
    state, used_s = application.advance(TrainingState(), (2,), 16, whole_s / 3)
    assert not state.done and used_s == whole_s / 3
    state, used_s = application.advance(state, (2,), 16, 1e9)
    assert state.done and used_s == pytest.approx(2 * whole_s / 3)
    assert application.advance(state, (2,), 16, 5.0) == (state, 0.0)
    # gain of a batch of 16: between the variances 1 and 4
    gain = (2.0 + 1.0) / (2.0 / 2.0 + 1.0)
    assert whole_s == pytest.approx(300 / (gain / application.times((2,), 8)[0]))


def test_missing_files_and_columns_are_named(tmp_path: Path) -> None:
    folder = _written(tmp_path / "app")
    (folder / "placements.csv").write_text("placement,step_time\n1,2\n")
    with pytest.raises(SpecError, match="no column local_bsz"):
        load_application(folder)
    with pytest.raises(SpecError, match="has no application"):
        load_applications(tmp_path / "app")


@needs("pollux/traces", "pollux/workloads", "pollux/results")
def test_undisturbed_jobs_finish_within_what_was_published() -> None:
    """No job ends before it could alone, on as few or as many nodes as there can be (bert is faster spread)."""
    applications = load_applications(DATA / "pollux" / "traces")
    published = json.loads(gzip.decompress((DATA / "pollux/results/tiresias-0.5.json.gz").read_bytes()))["jcts"]
    close = total = 0
    for number in range(1, 9):
        with (DATA / f"pollux/workloads-0.5/workload-{number}.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                replicas, batch = int(row["num_replicas"]), int(row["batch_size"])
                application = applications[row["application"]]
                packed_s, spread_s = (application.duration_s(packed(replicas, n), batch) for n in (4, 1))
                alone_s = min(packed_s, spread_s)
                took_s = published[f"workload-{number}"][row["name"]]
                total += 1
                assert took_s > alone_s * 0.98, row["name"]
                close += took_s < alone_s * 1.05 + 150  # up to a round of 60 s, a restart of 30 s and one more
    assert total == 640 and close > 0.6 * total
    assert all(math.isfinite(app.duration_s((1,), app.base_batch)) for app in applications.values())


# ---------------------------------------------------------------- speeds of elastic work


def _asks(name: str, members: int, least: int, most: int, batch: int | None = None) -> TraceJob:
    ask = Ask(members, Resources.of({"GPU": 1}), least=least, most=most)
    return TraceJob("a", 0.0, 100.0, ask, name=name, batch=batch)


def test_amdahl_by_hand() -> None:
    law = Amdahl(0.1)
    assert law.speedup(1) == 1.0 and law.speedup(11) == pytest.approx(5.5)
    assert law.rate(_asks("x", 2, 1, 8), (4, 4)) == pytest.approx((8 / 1.7) / (2 / 1.1))
    assert law.rate(_asks("x", 2, 1, 8), (2,)) == 1.0


def test_a_table_lies_on_straight_lines_and_ends_flat() -> None:
    speed = TableSpeed({"x": ((2, 10.0), (4, 18.0))})
    job = _asks("x", 2, 1, 8)
    assert [speed.rate(job, (gpus,)) for gpus in (1, 2, 3, 4, 8)] == pytest.approx([0.5, 1.0, 1.4, 1.8, 1.8])
    assert speed.rate(_asks("y", 2, 1, 8), (4,)) == Amdahl().rate(_asks("y", 2, 1, 8), (4,))


@needs("pollux")
@pytest.mark.parametrize("mode", ["batch", "goodput"])
def test_workloads_become_elastic_with_their_measured_speeds(mode: str) -> None:
    path = DATA / "pollux" / "workloads" / "workload-6.csv"
    fixed, made = pollux.read(path), pollux.read(path, elastic=mode)
    assert fixed.speed is None and made.speed is not None
    assert [job.duration_s for job in made.jobs] == [job.duration_s for job in fixed.jobs]
    for job in made.jobs[:40]:
        ask = job.ask
        assert ask.fewest <= ask.members <= ask.largest and ask.elastic
        rates = [made.speed.rate(job, packed(n)) for n in {ask.fewest, ask.members, ask.largest}]
        assert all(0 < rate < 64 for rate in rates)
        as_asked = made.speed.rate(job, packed(ask.members))
        assert as_asked == pytest.approx(1.0) if mode == "batch" else as_asked >= 1 - 1e-9  # no batch is better
        assert made.speed.rate(job, (1,) * ask.largest) > 0  # spread as nobody measured it


@needs("pollux")
def test_the_best_batch_of_each_epoch_is_never_slower_than_one_for_all() -> None:
    application = load_application(DATA / "pollux" / "traces" / "cifar10")
    for gpus in (1, 2, 4, 8):
        where = packed(gpus)
        best_s = application.best_s(where)
        for batch in application.validation:
            if application._rate_or_0(where, batch, 0):
                assert best_s <= application.duration_s(where, batch) * (1 + 1e-9)
    assert math.isinf(application.best_s(packed(10_000)))
    with pytest.raises(SpecError, match="elastic: must be one of"):
        pollux.read(DATA / "pollux" / "workloads" / "workload-6.csv", elastic="yes")
