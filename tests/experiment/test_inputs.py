"""What an experiment is made of: clusters, words of the command line, profiles, drawn traces, digests."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rayorch.core.errors import SpecError
from rayorch.core.types import GPU, MODEL_LABEL, QueueId, Resources
from rayorch.experiment import options
from rayorch.experiment.nodes import from_file, from_words, gpus_in, machines_of, supplies_of
from rayorch.experiment.plays import Inputs, play, plays_of
from rayorch.experiment.profiles import fingerprint, profile_of, profiles_of
from rayorch.experiment.side_by_side import simulate
from rayorch.experiment.store import trace_digest
from rayorch.experiment.variants import (
    Resample,
    elastic_as,
    quotas_by_use,
    resampled,
    with_models_of,
    without_too_large,
)
from rayorch.policies.default import DEFAULT
from rayorch.sim.models import Told
from rayorch.sim.trace.model import Ask, Trace, TraceJob
from tests.sim.report.outcomes import job, trace
from tests.source_tree import ROOT

TRACE = trace(*(job(f"j{n}", 10.0 * n, 20.0 + n, 1 + n % 4, f"q{n % 2}") for n in range(120)))

CLUSTER = """\
apiVersion: rayorch/v1
kind: Cluster
metadata: {name: ours}
spec:
  topology: [rack]
  policies: {order: fifo, name: mine}
  nodePools:
    - {name: a, match: {rack: r1, ray.io/accelerator-type: H100}, gpusPerNode: 8, resources: {CPU: 64}, maxNodes: 2}
    - {name: b, gpusPerNode: 4, maxNodes: 1}
---
apiVersion: rayorch/v1
kind: Queue
metadata: {name: q0}
spec: {deserved: {GPU: 4}}
"""


def test_a_short_form_is_nodes_that_lack_nothing_but_gpus() -> None:
    found = from_words("2x8:H100,1x4", racks=3)
    assert [node.total.units(GPU) // 10_000 for node in found.nodes] == [8, 8, 4] and gpus_in(found.nodes) == 20.0
    assert [node.model for node in found.nodes] == ["H100", "H100", ""]
    assert [node.domain("rack") for node in found.nodes] == ["r0000", "r0001", "r0002"]
    assert len({node.id for node in found.nodes}) == 3
    assert Resources.of({"CPU": 10_000, "memory": 1e12}).fits_in(found.nodes[0].total)


def test_a_cluster_file_gives_its_pools_queues_and_profile(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    found = from_file(path)
    assert [(node.group, node.model, node.domain("rack")) for node in found.nodes] == [
        ("a", "H100", "r1"),
        ("a", "H100", "r1"),
        ("b", "", None),
    ]
    assert found.nodes[0].total.units("CPU") == 64 * 10_000 and dict(found.nodes[0].labels)[MODEL_LABEL] == "H100"
    assert [queue.id for queue in found.queues] == [QueueId("q0")] and found.words == "ours (3 nodes)"
    assert profile_of(str(path)).name == "mine"
    path.write_text(CLUSTER.replace(", maxNodes: 1", ""))
    with pytest.raises(SpecError, match="maxNodes"):
        from_file(path)


def test_the_machines_of_the_trace_are_used_where_none_are_named() -> None:
    nodes = from_words("3x2").nodes
    assert machines_of(None, replace(TRACE, nodes=nodes)).nodes == nodes
    assert machines_of(nodes[:1], TRACE).words == "1 nodes"
    with pytest.raises(SpecError, match="names no machines"):
        machines_of(None, TRACE)


def test_words_of_the_command_line() -> None:
    assert options.numbers_of("0-2,5, 7", "--seeds") == (0, 1, 2, 5, 7)
    assert options.loads_of(["0.5,0.8", 1.3, "0.5"]) == (0.5, 0.8, 1.3)
    assert options.loads_of([]) == (None,)
    assert options.seconds("90", "x") == 90.0 and options.seconds("2h", "x") == 7200.0
    assert options.reader_options(["per_node=8", "rdma=true", "nodes=a=b.csv"]) == {
        "per_node": 8,
        "rdma": True,
        "nodes": "a=b.csv",
    }


def test_the_world_is_what_the_options_say() -> None:
    models = options.models_of(
        runtime_spread=0.2, told=False, misstate="2:0.5", restart="30s", checkpoint_every="10m", node_mtbf="10d"
    )
    assert models.runtime.spread == 0.2 and models.runtime.told is Told.NOTHING
    assert (models.runtime.misstated.factor, models.runtime.misstated.noise) == (2.0, 0.5)
    assert (models.restart.default.restart_s, models.restart.default.interval_s) == (30.0, 600.0)
    (law,) = models.failures.laws
    assert law.between.mean == pytest.approx(864_000.0)
    assert options.models_of() == type(models)()


def test_profiles_have_names_that_differ_and_prints_of_what_they_do() -> None:
    first, second, third = profiles_of(["default", "rayorch.policies.default:DEFAULT", "slurm"])
    assert (first.name, second.name, third.name) == ("default", "default-2", "slurm")
    assert fingerprint(DEFAULT) == fingerprint(replace(DEFAULT))
    assert fingerprint(replace(DEFAULT, preemption=False)) != fingerprint(DEFAULT)
    assert fingerprint(replace(DEFAULT, order=lambda w, v: (w.submitted_s,))) != fingerprint(
        replace(DEFAULT, order=lambda w, v: (-w.submitted_s,))
    )


@pytest.mark.parametrize("how", [how for how in Resample if how is not Resample.NONE])
def test_a_drawn_trace_is_another_one_for_each_seed_and_the_same_again(how: Resample) -> None:
    one, again, other = resampled(TRACE, how, 1), resampled(TRACE, how, 1), resampled(TRACE, how, 2)
    assert one == again
    assert how is Resample.WEEKS or one.jobs != other.jobs  # there is one week only to draw
    assert len({j.id for j in one.jobs}) == len(one.jobs)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", j.id) for j in one.jobs)
    assert list(one.jobs) == sorted(one.jobs, key=lambda j: j.submit_s)
    assert resampled(TRACE, Resample.NONE, 1) is TRACE


def test_what_the_empty_cluster_cannot_hold_is_left_out_by_name() -> None:
    def asks(id: str, members: int, each: dict[str, float], models: tuple[str, ...] = ()) -> TraceJob:
        return TraceJob(id, 0.0, 1.0, Ask(members, Resources.of(each), models))

    jobs = (
        asks("fits", 3, {"GPU": 4}),
        asks("wide", 4, {"GPU": 4}),
        asks("thick", 1, {"GPU": 9}),
        asks("other", 1, {"GPU": 1}, ("A100",)),
        asks("one-model", 3, {"GPU": 4}, ("H100",)),
        asks("two-models", 2, {"GPU": 4}, ("A100", "H100")),
        asks("parts", 24, {"GPU": 0.5}),
        asks("thirds", 25, {"GPU": 0.6}),
    )
    kept, left = without_too_large(Trace("t", jobs), from_words("1x8:H100,1x4").nodes)
    assert [j.id for j in kept.jobs] == ["fits", "two-models", "parts"]
    assert left[0] == "wide (4 x 4 GPU)" and left[2] == "other (1 x 1 GPU of A100)" and len(left) == 5


def test_quotas_are_in_proportion_to_what_is_asked_for() -> None:
    jobs = trace(job("a", 0.0, 30.0, 1, "qa"), job("b", 0.0, 10.0, 1, "qb"))
    assert [(q.id, q.deserved.units(GPU)) for q in quotas_by_use(jobs, 8.0)] == [("qa", 60_000), ("qb", 20_000)]


def test_the_key_of_a_run_is_another_one_for_every_other_input() -> None:
    inputs = Inputs(TRACE, "t", from_words("2x4").nodes, "2x4")
    other_job = replace(TRACE, jobs=(replace(TRACE.jobs[0], duration_s=21.0), *TRACE.jobs[1:]))
    changed = [
        replace(inputs, trace=other_job),
        replace(inputs, nodes=from_words("2x5").nodes),
        replace(inputs, queues=quotas_by_use(TRACE, 8.0)),
        replace(inputs, models=options.models_of(restart="1s")),
        replace(inputs, until_s=5.0),
        replace(inputs, resample=Resample.BLOCKS),
    ]
    keys = [plays_of(one, [DEFAULT], [None], [0])[0].key for one in (inputs, *changed)]
    keys += [p.key for p in plays_of(inputs, [replace(DEFAULT, preemption=False)], [None, 0.5], [0, 1])]
    assert len(set(keys)) == len(keys)
    assert plays_of(inputs, [DEFAULT], [None], [0])[0].key == keys[0]
    assert trace_digest(TRACE) == trace_digest(replace(TRACE, source="elsewhere"))


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_of_the_guide_plays_a_trace_to_its_end(path: Path) -> None:
    profile = profile_of(str(path))
    assert profile.name == path.stem
    inputs = Inputs(replace(TRACE, jobs=TRACE.jobs[:25]), "t", from_words("2x4").nodes, "2x4")
    (one,) = plays_of(inputs, [profile], [2.0], [0])
    figures = play(inputs, one).summary.figures
    assert figures["finished"] == 25.0


def test_jobs_become_elastic_by_words() -> None:
    assert options.sizes_of("0.5:2") == (0.5, 2.0)
    for wrong in ("2", "2:0.5", "0:2", "0.5:0.9", "a:b", "nan:2", "0.5:inf"):
        with pytest.raises(SpecError, match="--elastic: must be"):
            options.sizes_of(wrong)
    made = elastic_as(replace(TRACE, jobs=TRACE.jobs[:3]), 0.5, 2.0)
    for before, after in zip(TRACE.jobs, made.jobs, strict=False):
        members = before.ask.members
        assert (after.ask.fewest, after.ask.members, after.ask.largest) == (-(-members // 2), members, 2 * members)
        assert after.ask.elastic and not before.ask.elastic
    assert elastic_as(made, 0.1, 9.0) == made  # what is elastic stays as it is
    assert options.models_of(serial=0.2).scaling.serial == 0.2
    with pytest.raises(SpecError, match="--serial"):
        options.models_of(serial=1.5)


def test_a_gang_is_too_large_only_when_its_fewest_members_are() -> None:
    ask = Ask(4, Resources.of({"GPU": 8}), least=2, most=4)
    jobs = (TraceJob("a", 0.0, 1.0, ask), TraceJob("b", 0.0, 1.0, replace(ask, least=3)))
    kept, large = without_too_large(Trace("made", jobs), from_words("2x8").nodes)
    assert [one.id for one in kept.jobs] == ["a"] and large == ("b (4 x 8 GPU)",)


def test_a_cluster_of_kinds_becomes_node_groups(tmp_path: Path) -> None:
    first, second = supplies_of(from_words("6x4:T4,2x8"), 1)
    assert (first.group.name, first.group.replicas, first.group.min_replicas, first.group.max_replicas) == (
        "t4-0",
        1,
        1,
        6,
    )
    assert (second.group.name, second.group.max_replicas, second.node.total.gpu_units) == ("nodes-1", 2, 80_000)
    assert [node.name for node in first.nodes()] == [f"t4-0-{n:05d}" for n in range(6)]
    path = tmp_path / "c.yaml"
    path.write_text(CLUSTER.replace("gpusPerNode: 4", "gpusPerNode: 4, spares: 1, idle: 5m, preference: 2"))
    a, b = supplies_of(from_file(path))
    assert (a.group.replicas, a.node.topology, a.node.group) == (0, (("rack", "r1"),), "a")
    assert (b.group.replicas, b.group.spares, b.group.idle_s, b.group.preference) == (1, 1, 300.0, 2)
    with pytest.raises(SpecError, match="--min-nodes: must be 0 to 1, which b"):
        supplies_of(from_file(path), 2)
    with pytest.raises(SpecError, match="--provision: needs nodes of a short form without --racks"):
        supplies_of(from_words("4x8", racks=2))


def test_options_of_new_nodes() -> None:
    models = options.models_of(provision="3m", refused=0.25, misstate="2:0.5,provision=0.5")
    assert models.provisioning.told_s("any", 0) == pytest.approx(0.5 * 180 * math.exp(0.35 * 1.2815515655446004))
    assert models.provisioning.refused == 0.25 and models.runtime.misstated.factor == 2.0
    for wrong in ("speed=2", "2,3", "provision=x", "provision="):
        with pytest.raises(SpecError, match="--misstate: must be"):
            options.models_of(misstate=wrong, provision="3m")
    with pytest.raises(SpecError, match="--misstate: provision=… needs --provision"):
        options.models_of(misstate="provision=2")
    for refused, delay in ((1.0, "3m"), (-0.1, "3m"), (0.5, None)):
        with pytest.raises(SpecError, match="--provision-refused"):
            options.models_of(provision=delay, refused=refused)
    with pytest.raises(SpecError, match="--provision: must be more"):
        options.models_of(provision="0s")
    with pytest.raises(SpecError, match="--min-nodes: needs --provision"):
        simulate(TRACE, "4x8", min_nodes=1, progress=False)


def test_an_experiment_with_nodes_that_come_and_go_costs_less_and_takes_longer() -> None:
    fixed = simulate(TRACE, "4x8", jobs=20, progress=False).runs[0].figures
    bought = simulate(TRACE, "4x8", jobs=20, provision=True, progress=False).runs[0].figures
    assert bought["finished"] == fixed["finished"] == 20 and bought["nodes_added"]
    assert (bought["jct_avg_s"] or 0) > (fixed["jct_avg_s"] or 0)
    makespan = fixed["makespan_s"]
    assert makespan is not None and fixed["node_h"] == pytest.approx(4 * makespan / 3600)


def test_models_are_found_whatever_their_case() -> None:
    asks = [Ask(1, Resources.of({"GPU": 1}), models) for models in (("a100",), ("v100", "V100"), ("h100",), ())]
    made = Trace("t", tuple(TraceJob(f"j{n}", 0.0, 1.0, ask) for n, ask in enumerate(asks)))
    found = with_models_of(made, from_words("1x1:A100,1x1:V100,1x1:h100,1x1:H100").nodes)
    assert [job.ask.models for job in found.jobs] == [("A100",), ("V100",), ("h100",), ()]
    assert with_models_of(made, from_words("1x1:a100,1x1:v100,1x1:h100").nodes).jobs[1].ask.models == ("v100",)
    assert with_models_of(made, from_words("1x1:h100").nodes) is made
    report = simulate(made, "1x1:A100,1x1:V100,1x1:H100", progress=False)
    assert report.runs[0].figures["finished"] == 4.0


def test_values_of_another_kind_are_refused_by_name(tmp_path: Path) -> None:
    wrong: list[tuple[str, dict[str, object]]] = [
        ("--seeds", {"seeds": 3}),
        ("--seeds", {"seeds": "0-4"}),
        ("--seeds", {"seeds": [-1]}),
        ("--seeds", {"seeds": [1.5]}),
        ("--seeds", {"seeds": [True]}),
        ("--until", {"until_s": "30d"}),
        ("--until", {"until_s": math.nan}),
        ("--until", {"until_s": -5.0}),
        ("--jobs", {"jobs": "3"}),
    ]
    for field, given in wrong:
        with pytest.raises(SpecError, match=field):
            simulate(TRACE, "2x4", progress=False, **given)  # type: ignore[arg-type]
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    report = simulate(TRACE, path, jobs=3, loads=0.8, serve="chat,peak=1", progress=False)
    assert (report.runs[0].load, report.runs[0].cluster) == (0.8, "ours (3 nodes)")


@pytest.mark.parametrize(
    ("submit_s", "duration_s", "says"),
    [
        (0.0, 1e300, "duration_s"),
        (0.0, 1.7e308, "duration_s"),
        (0.0, math.nan, "duration_s"),
        (0.0, -1.0, "duration_s"),
        (1e300, 1.0, "submit_s"),
        (math.inf, 1.0, "submit_s"),
        (math.nan, 1.0, "submit_s"),
        (-1.0, 1.0, "submit_s"),
    ],
)
def test_times_of_jobs_that_are_none_are_refused_with_the_job_named(
    submit_s: float, duration_s: float, says: str
) -> None:
    """A page could not draw them, and a run would say nothing of what they are."""
    with pytest.raises(SpecError, match=f"TRACE: job late: {says} must be"):
        simulate(trace(job("a", 0.0, 1.0, 1), job("late", submit_s, duration_s, 1)), "1x1", progress=False)


def test_a_job_may_run_without_an_end() -> None:
    report = simulate(trace(job("a", 0.0, math.inf, 1), job("b", 1.0, 5.0, 1)), "1x2", progress=False)
    assert report.runs[0].figures["unfinished"] == 1
    assert "<script" not in report.to_html()
