"""The benchmarks without a cluster: every bound has its evidence, and figures come from what was seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks import cycle, gang_start, harness, idle, kueue_perf, latency_vs_slurm, policies_table, preempt, scale
from benchmarks.harness import Bound, arguments, bounds, is_actor, percentile, report
from benchmarks.played import traces
from benchmarks.played.crowd import Crowd
from rayorch.core.resources import Resources
from rayorch.sim.generators import at_load, gpu_seconds
from rayorch.sim.trace.model import Ask, Trace, TraceJob

BENCHMARKS = sorted(yaml.safe_load(harness.RANGES.read_text())["benchmarks"])


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_bound_limits_something_and_says_why(benchmark: str) -> None:
    for bound in bounds(benchmark):
        assert (bound.at_most is None) != (bound.at_least is None), bound
        assert len(bound.evidence) > 20, bound


def test_every_benchmark_has_bounds() -> None:
    shared = {"__init__", "harness"}
    files = {path.stem for path in Path(harness.__file__).parent.glob("*.py")} - shared
    assert files <= set(BENCHMARKS)


def test_a_bound_holds_on_its_own_side_only() -> None:
    assert Bound("a", "ms", "", at_most=5).holds(5)
    assert not Bound("a", "ms", "", at_most=5).holds(5.1)
    assert Bound("a", "/s", "", at_least=5).holds(5)
    assert not Bound("a", "/s", "", at_least=5).holds(4.9)
    assert not Bound("a", "ms", "", at_most=5).holds(float("nan"))


def test_the_last_line_is_json_and_a_missed_bound_fails_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    good = {"restart_s": 1.25, "lost": 0.0}
    bad = {"restart_s": 1.0, "lost": 1.0}
    assert report("restart", good, check=True) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == good
    assert report("restart", bad, check=False) == 0
    assert report("restart", bad, check=True) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert percentile([float(i) for i in range(1, 101)], 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


def test_quick_is_shorter_unless_said_otherwise() -> None:
    quick, usual = {"rounds": 1}, {"rounds": 5, "nodes": 8}

    def given(*argv: str) -> tuple[int, int]:
        found = arguments("idle", quick, usual, argv)
        return found.rounds, found.nodes

    assert given() == (5, 8)
    assert given("--quick") == (1, 8)
    assert given("--quick", "--rounds", "3") == (3, 8)


@pytest.mark.parametrize(
    ("title", "found"),
    [
        ("ray::QueueShell", True),
        ("ray::QueueShell.submit", True),
        ("ray::queues/main:QueueShell.__init__", True),
        ("ray::QueueShellOther", False),
        ("ray::IDLE", False),
        ("python QueueShell", False),
    ],
)
def test_actors_are_found_by_their_process_titles(title: str, found: bool) -> None:
    assert is_actor(title, "QueueShell") is found


def test_overhead_is_of_pairs_and_the_ratio_of_medians() -> None:
    fresh = {8: [gang_start.Pair(2.0, 2.5, 0.1), gang_start.Pair(4.0, 4.1, 0.2), gang_start.Pair(1.0, 1.0, 0.3)]}
    waiting = {8: [gang_start.Pair(0.1, 0.2, 0.4), gang_start.Pair(0.3, 0.2, 0.5), gang_start.Pair(0.1, 0.15, 0.6)]}
    figures = gang_start.figures_of(fresh, waiting)
    assert figures["ratio_8"] == pytest.approx(2.5 / 2.0)
    assert figures["overhead_ms_8"] == pytest.approx(50.0)
    assert figures["fresh_overhead_ms_8"] == pytest.approx(100.0)
    assert figures["granted_ms_8"] == pytest.approx(350.0)


def test_an_untaken_worker_is_told_by_its_title(tmp_path: Path) -> None:
    for pid, title in ((1, b"ray::IDLE\0\0"), (2, b"ray::Idle\0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(title)
    assert [gang_start.is_waiting(pid, tmp_path) for pid in (1, 2, 3)] == [True, False, False]


def test_cpu_time_is_read_behind_a_name_with_spaces_and_brackets(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(n) for n in range(3, 53))  # the 14th and 15th of the line are 14 and 15
    (tmp_path / "7" / "stat").write_text(f"7 (ray::A) b) {fields}\n")
    assert idle.cpu_s(7, tmp_path) == pytest.approx(29 * idle.TICK_S)
    assert idle.spent_s({1: 1.0, 2: 5.0, 3: 0.0}, {1: 1.5, 2: 7.0, 3: 9.0}, [1, 2]) == pytest.approx(2.5)


def test_steps_that_were_run_twice_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert preempt.history(path) == []
    path.write_text("".join(json.dumps({"step": n, "world": 2}) + "\n" for n in (1, 2, 3, 3, 4)) + '{"step": 5, "wor')
    steps = preempt.history(path)
    assert [step.step for step in steps] == [1, 2, 3, 3, 4]
    assert preempt.steps_lost(steps) == 1


def test_gpus_are_free_when_that_many_were_first_seen_after_the_decision() -> None:
    watch = preempt.FreeWatch([(1.0, 4.0), (2.0, 0.0), (3.0, 2.0), (4.0, 4.0)])
    assert watch.first(2, after_s=1.5) == 3.0
    assert watch.first(4, after_s=1.5) == 4.0
    assert watch.first(5, after_s=1.5) is None


def test_a_small_room_of_node_groups_is_played_to_its_end_without_a_node_too_many() -> None:
    figures = scale.measure(groups=12, nodes=120, gangs=15, repeats=1)
    assert figures["excess_nodes"] == 0
    assert figures["node_changes"] > 30  # those that were there have gone, others came
    assert 0 < figures["patches_per_change"] <= 1.1


def test_a_crowded_cluster_is_the_same_from_the_same_seed_and_stays_full() -> None:
    played = []
    for _ in range(2):
        crowd = Crowd.of(nodes=64, pending=300, seed=3)
        before = crowd.used
        turns = cycle.play(crowd, turns=3, ends=8)
        played.append((before, turns.starts, turns.stops, sorted(crowd.held)))
        assert before > 0.9
        assert min(turns.starts) > 0
        assert crowd.waiting >= 300 - turns.starts[-1]
    assert played[0] == played[1]


GENERATOR = """
cohorts:
- className: cohort
  count: 2
  queuesSets:
  - className: cq
    count: 2
    nominalQuota: 10
    borrowingLimit: 100
    workloadsSets:
    - count: 3
      creationIntervalMs: 1000
      workloads:
      - {className: a, runtimeMs: 4000, priority: 50, request: 5}
    - count: 1
      creationIntervalMs: 500
      workloads:
      - {className: b, runtimeMs: 100, priority: 9, request: 500m, podCount: 2, tasConstraint: required,
         tasLevel: cloud.provider.com/topology-rack}
"""


def test_a_generator_of_kueues_is_read_and_its_least_time_worked_out(tmp_path: Path) -> None:
    path = tmp_path / "x.generator.yaml"
    path.write_text(GENERATOR)
    queues, arrivals = kueue_perf.read(path)
    assert [q.id for q in queues[:3]] == ["cohort0", "cohort0/cq000", "cohort0/cq001"]
    assert queues[0].deserved.units("CPU") == 20 * 10_000
    assert len(arrivals) == 16
    first = arrivals[0]
    assert (first.at_s, first.runtime_s, first.cpus, first.spec.topology.required) == (0.5, 0.1, 1.0, "rack")
    # From the first second on 2 queues x 3 x 20 CPU-seconds come to a cohort of 20 CPUs; the last ends at 3 + 4 s.
    assert kueue_perf.least_s(queues, arrivals) == pytest.approx(max(1 + 120 / 20, 3 + 4))
    crossed = [replace(a, runtime_s=a.runtime_s * 2) for a in arrivals]
    assert kueue_perf.least_s(queues, crossed) == pytest.approx(0.5 + (240 + 2 * 0.2) / 20 if 0.5 + 12.02 > 13 else 13)


def test_an_interval_holds_the_mean_and_shrinks_with_samples_that_agree() -> None:
    middle, low, high = policies_table.interval([0.9, 1.0, 1.1])
    assert low < middle < high and middle == pytest.approx((0.9 * 1.0 * 1.1) ** (1 / 3))
    assert policies_table.interval([0.5, 0.5, 0.5]) == pytest.approx((0.5, 0.5, 0.5))


def test_a_trace_is_brought_to_a_load_and_queues_get_their_parts() -> None:
    ask = Ask(1, Resources.of({"GPU": 2}))
    jobs = tuple(TraceJob(f"j{n}", 100.0 * n, 50.0, ask, queue="ab"[n % 2]) for n in range(11))
    trace = at_load(traces.slice_of(Trace("t", jobs), 1, 10), 8, 0.5)
    assert gpu_seconds(trace.jobs) / (8 * trace.jobs[-1].submit_s) == pytest.approx(0.5)
    assert [(q.id, q.deserved.gpu_units) for q in traces.shares(trace, 7)] == [("a", 40_000), ("b", 30_000)]


def test_without_slurm_there_is_nothing_to_compare_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(latency_vs_slurm, "missing", lambda: ("slurmctld",))
    monkeypatch.setattr("sys.argv", ["latency_vs_slurm"])
    assert latency_vs_slurm.main() == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1]) == {"ratio_1": None, "ratio_128": None, "ratio_1024": None}
    assert "slurmctld not found" in printed.err


def test_our_side_of_the_comparison_with_slurm_starts_what_it_is_asked() -> None:
    ours = latency_vs_slurm.Ours(12)
    turns = [ours.decide(members) for members in (1, 4, 7)]
    assert all(turn.turn_cpu_s > turn.cpu_s > 0 for turn in turns)
    with pytest.raises(AssertionError, match="a gang of 1 nodes did not start"):
        ours.decide(1)
