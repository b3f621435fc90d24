"""The published files themselves, where they are: every row is a job, and sums are those that others counted."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from rayorch.sim.generators import fit, gpu_seconds, gpus_of, offered_load
from rayorch.sim.readers import gavel, open_trace, openb, recognise, tiresias
from tests.data import DATA, needs


@needs("philly")
def test_philly() -> None:
    trace = open_trace(DATA / "philly/philly.csv.gz")
    assert (len(trace.jobs), len(trace.refused)) == (82_247, 0)
    assert len({job.queue for job in trace.jobs}) == 15
    assert max(map(gpus_of, trace.jobs)) == 128
    assert gpu_seconds(trace.jobs) / 3600 == pytest.approx(978_078, abs=1)
    assert trace.jobs[-1].submit_s / 86_400 == pytest.approx(108.9, abs=0.05)
    assert offered_load(trace, 512) == pytest.approx(0.731, abs=0.001)
    generator = fit(trace)
    drawn = generator.draw(1, jobs=10_000)
    assert Counter(gpus_of(j) for j in drawn.jobs)[1.0] / 10_000 == pytest.approx(0.9317, abs=0.01)
    assert generator.mean_gpu_seconds == pytest.approx(gpu_seconds(trace.jobs) / len(trace.jobs), rel=0.05)


@needs("philly")
def test_philly_in_the_standard_workload_format() -> None:
    trace = open_trace(DATA / "philly/philly_2k.swf.gz")
    assert (len(trace.jobs), len(trace.refused), trace.jobs[0].submit_s) == (2_000, 0, 0.0)
    assert trace.jobs[-1].submit_s == 1_879_842.0


@needs("openb")
def test_openb() -> None:
    nodes = DATA / "openb/openb_node_list_gpu_node.csv.gz"
    trace = open_trace(DATA / "openb/openb_pod_list_default.csv.gz", nodes=nodes)
    assert (len(trace.jobs), len(trace.refused), len(trace.nodes)) == (8_152, 0, 1_213)
    assert math.fsum(map(gpus_of, trace.jobs)) == pytest.approx(6_086.8, abs=0.05)
    assert sum(node.total.gpu_units for node in trace.nodes) == 6_212 * 10_000
    models = Counter[str]()
    for node in trace.nodes:
        models[node.model] += node.total.gpu_units // 10_000
    assert models == {"G2": 4392, "T4": 842, "G3": 312, "P100": 265, "V100M32": 204, "V100M16": 195, "A10": 2}
    assert len(openb.read_nodes(DATA / "openb/openb_node_list_all_node.csv.gz")) == 1_523
    typed = open_trace(DATA / "openb/openb_pod_list_gpuspec33.csv.gz")
    assert sum(bool(job.ask.models) for job in typed.jobs) == 8_152 - 5_764
    endless = open_trace(DATA / "openb/openb_pod_list_multigpu50.csv.gz")
    assert (len(endless.jobs), {job.duration_s for job in endless.jobs}) == (9_061, {math.inf})


@needs("pollux")
def test_pollux() -> None:
    for folder, count in (("workloads-0.5", 80), ("workloads", 160), ("workloads-1.5", 240), ("workloads-2.0", 320)):
        path = DATA / "pollux" / folder / "workload-6.csv"
        trace = open_trace(path)
        assert recognise(path).name == "pollux"
        assert (len(trace.jobs), len(trace.refused)) == (count, 0)
        assert all(0 < job.duration_s < 4 * 86_400 for job in trace.jobs)


@needs("tiresias", "gavel")
def test_tiresias_and_gavel() -> None:
    assert len(open_trace(DATA / "tiresias/60_job.csv").jobs) == 60
    times, refused = tiresias.read_service_times(DATA / "tiresias/yarn-gput1000.csv")
    assert (len(times), refused) == (1_001, ())
    table = gavel.read_throughputs(DATA / "gavel/simulation_throughputs.json.gz")
    assert {gpu: len(jobs) for gpu, jobs in table.alone.items() if "_" not in gpu} == {
        "k80": 83,
        "p100": 83,
        "v100": 83,
    }
    assert len({name for name, _ in table.alone["v100"]}) == 26
