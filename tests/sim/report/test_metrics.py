"""Figures of a run, against what can be worked out on paper."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rayorch.core.errors import SpecError
from rayorch.core.types import QueueId, QueueSpec, Resources, State
from rayorch.sim.report.fairness import jain, queue_shares, rhos
from rayorch.sim.report.measures import BY_KEY
from rayorch.sim.report.metrics import summarise
from rayorch.sim.report.over_time import Steps, parts
from rayorch.sim.report.summary import summary_from
from tests.sim.report.outcomes import job, outcome, record, trace

FIRST = job("first", 0.0, 100.0, 4)
SECOND = job("second", 0.0, 100.0, 4)


def _two_in_a_row() -> tuple[object, dict[str, float | None]]:
    """Four GPUs; two jobs of four come at once, one runs after the other."""
    records = [record(FIRST, (0.0, 100.0)), record(SECOND, (100.0, 200.0))]
    found = summarise(outcome(records, 4.0), trace(FIRST, SECOND), cluster="1x4")
    return found, dict(found.figures)


def test_times_and_use_of_two_jobs_in_a_row() -> None:
    _, figures = _two_in_a_row()
    assert set(figures) == set(BY_KEY)
    assert figures["jobs"] == figures["finished"] == 2
    assert (figures["jct_avg_s"], figures["wait_avg_s"]) == (150.0, 50.0)
    assert (figures["jct_p50_s"], figures["wait_p50_s"]) == (150.0, 50.0)
    assert figures["slowdown_avg"] == figures["bounded_slowdown_avg"] == 1.5
    assert figures["makespan_s"] == 200.0
    assert figures["utilisation"] == figures["goodput"] == 1.0
    assert figures["idle_while_waiting"] == 0.0
    assert figures["fragmentation"] is None


def test_finish_time_fairness_is_that_of_a_part_of_the_cluster() -> None:
    # first: two jobs are there all its life, so that its part is 2 GPUs, on which it would take 200 s: rho 0.5.
    # second: 1.5 jobs on average over 200 s, its part 8/3 GPUs: 150 s alone, so that rho is 4/3.
    records = [record(FIRST, (0.0, 100.0)), record(SECOND, (100.0, 200.0))]
    found = rhos(records, {"first": 100.0, "second": 100.0}, 4.0)
    assert found == pytest.approx([0.5, 4 / 3])
    _, figures = _two_in_a_row()
    assert figures["rho_worst"] == pytest.approx(4 / 3)
    assert figures["unfair_share"] == 0.5
    assert figures["jain_jobs"] == pytest.approx((0.5 + 4 / 3) ** 2 / (2 * (0.25 + 16 / 9)))


def test_lost_work_and_preemptions() -> None:
    stopped = record(FIRST, (0.0, 50.0), (150.0, 220.0), lost_gpu_s=80.0)
    records = [stopped, record(SECOND, (50.0, 150.0))]
    figures = summarise(outcome(records, 4.0), trace(FIRST, SECOND)).figures
    assert (figures["preemptions"], figures["preempted_jobs"]) == (1, 1)
    assert figures["lost_gpu_h"] == pytest.approx(80 / 3600)
    assert figures["goodput"] == pytest.approx((4 * 220 - 80) / (4 * 220))
    assert figures["jct_avg_s"] == (220 + 150) / 2


def test_moves_and_what_one_brings() -> None:
    runs = record(FIRST, (0.0, 50.0), (50.0, 110.0)), record(SECOND, (100.0, 200.0))
    moved = replace(runs[0], moves=2, freed_gpus=1.5), replace(runs[1], moves=1)
    figures = summarise(outcome(moved, 8.0), trace(FIRST, SECOND)).figures
    assert (figures["moves"], figures["freed_per_move"]) == (3, 0.5)
    still = summarise(outcome(runs, 8.0), trace(FIRST, SECOND)).figures
    assert (still["moves"], still["freed_per_move"]) == (0, None)


def test_jobs_that_have_not_ended_count_in_no_jct() -> None:
    waits, runs = job("waits", 10.0, 50.0, 4), job("runs", 0.0, 1000.0, 4)
    records = [record(runs, (0.0, 400.0), ended=False), record(waits)]
    figures = summarise(outcome(records, 4.0, end_s=400.0), trace(runs, waits), stopped_at_s=400.0).figures
    assert (figures["unfinished"], figures["never_started"], figures["finished"]) == (1, 1, 0)
    assert figures["jct_avg_s"] is None and figures["rho_worst"] is None
    assert figures["wait_avg_s"] == 0.0
    assert figures["makespan_s"] == 400.0


def test_a_refused_job_is_no_job_that_waits() -> None:
    refused = record(FIRST)
    refused = type(refused)(**{**_fields(refused), "state": State.FAILED, "ended_s": 0.0})
    figures = summarise(outcome([refused], 4.0, end_s=10.0), trace(FIRST)).figures
    assert (figures["refused"], figures["never_started"], figures["finished"]) == (1, 0, 0)


def _fields(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}  # type: ignore[attr-defined]


def test_a_run_without_jobs_has_figures_that_say_so() -> None:
    figures = summarise(outcome([], 4.0, end_s=0.0), trace()).figures
    assert figures["jobs"] == 0 and figures["jct_avg_s"] is None and figures["makespan_s"] is None


def test_idle_while_waiting_counts_what_could_have_been_used() -> None:
    # 2 of 8 GPUs wait behind nothing for half of the time.
    late = job("late", 0.0, 50.0, 2)
    records = [record(late, (50.0, 100.0))]
    figures = summarise(outcome(records, 8.0), trace(late)).figures
    assert figures["idle_while_waiting"] == pytest.approx(0.5 * 2 / 8)
    assert figures["utilisation"] == pytest.approx(0.5 * 2 / 8)


def test_a_queue_gets_what_it_is_entitled_to() -> None:
    a, b = job("a", 0.0, 100.0, 4, "qa"), job("b", 0.0, 100.0, 4, "qb")
    records = [record(a, (0.0, 100.0)), record(b, (100.0, 200.0))]
    # With a quota of 2 each: a holds 4 of its 2 for 100 s; b none of its 2 for 100 s, then all.
    quotas = [QueueSpec(QueueId(name), Resources.of({"GPU": 2})) for name in ("qa", "qb")]
    first, second = queue_shares(records, quotas, 4.0, 200.0)
    assert (first.queue, first.deserved_gpus, first.got) == ("qa", 2.0, pytest.approx(1.0))
    assert second.got == pytest.approx(0.5, abs=1e-3)
    assert first.held_gpu_h == pytest.approx(400 / 3600) and first.held_share == pytest.approx(0.5)
    # Without quotas: two ask for something at first, so that each is due half; later b is alone and due everything.
    first, second = queue_shares(records, (), 4.0, 200.0)
    assert first.deserved_gpus is None and first.got == pytest.approx(1.0)
    assert second.got == pytest.approx(4 * 100 / (2 * 100 + 4 * 100), abs=1e-3)


def test_jain_is_one_for_equals_and_one_over_n_for_one_that_has_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([]) is None and jain([0.0, 0.0]) is None


def test_step_functions_have_the_means_that_their_areas_say() -> None:
    steps = Steps.of_changes([(10.0, 2.0), (20.0, -2.0), (10.0, 1.0), (30.0, -1.0)])
    assert list(steps.times_s) == [10.0, 20.0, 30.0] and list(steps.values) == [3.0, 1.0, 0.0]
    assert steps.mean(0.0, 40.0) == pytest.approx(40 / 40)
    assert steps.means(np.array([0.0, 10.0, 15.0, 25.0, 100.0])) == pytest.approx([0.0, 3.0, 2.0, 5 / 75])
    assert Steps.of_changes([]).mean(0.0, 5.0) == 0.0
    assert list(parts(5.0, 5.0, 2)) == [5.0, 5.0, 5.0]


def test_the_offered_load_is_that_of_what_was_played() -> None:
    early, late = job("early", 0.0, 100.0, 2), job("late", 100.0, 50.0, 4)
    records = [record(early, (0.0, 100.0)), record(late, (100.0, 150.0))]
    assert summarise(outcome(records, 4.0), trace(early, late)).offered_load == pytest.approx(400 / (4 * 100))
    assert summarise(outcome(records[:1], 4.0), trace(early)).offered_load is None
    figures = summarise(outcome(records, 4.0), trace(early, late)).figures
    assert figures["utilisation_arriving"] == 0.5 and figures["utilisation"] == pytest.approx(400 / 600)


def test_a_summary_is_the_same_after_its_file() -> None:
    found, _ = _two_in_a_row()
    value = json.loads(json.dumps(found.to_dict()))  # type: ignore[attr-defined]
    assert summary_from(value) == found
    for spoiled in ({}, [], {**value, "schema": "rayorch/run/v0"}, {**value, "figures": {}}, {**value, "queues": 3}):
        with pytest.raises(SpecError):
            summary_from(spoiled)
