"""Runs side by side: intervals, paired differences, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rayorch.sim.report import plots
from rayorch.sim.report.compare import Interval, Verdict, differences, groups, interval, seeds_change_nothing, student
from rayorch.sim.report.document import document
from rayorch.sim.report.measures import BY_KEY
from rayorch.sim.report.metrics import summarise
from rayorch.sim.report.page import page
from rayorch.sim.report.summary import Summary
from rayorch.sim.report.text import change, difference, figure, largest_of, notes, with_interval
from tests.sim.report.outcomes import job, outcome, record, trace


def _runs(profile: str, waits_s: Sequence[float], load: float | None = None) -> list[Summary]:
    """A run per seed: two jobs of 100 s, the second of which waits so long."""
    found = []
    for seed, wait_s in enumerate(waits_s):
        a, b = job("a", 0.0, 100.0, 4, "<q>"), job("b", 0.0, 100.0, 4, "other")
        records = [record(a, (0.0, 100.0)), record(b, (wait_s, wait_s + 100.0))]
        run = outcome(records, 8.0, profile, seed)
        found.append(summarise(run, trace(a, b), load=load, cluster="1x8"))
    return found


def test_quantiles_are_those_of_student() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 4, 9, 29, 30, 31, 60, 1000):
        assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-4)
    with pytest.raises(ValueError, match="degree"):
        student(0)


def test_an_interval_is_that_of_the_mean() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found is not None and found.mean == 2.0 and found.half == pytest.approx(4.302653 / 3**0.5)
    one = interval([5.0])
    assert one is not None and one.half is None and (one.low, one.high) == (5.0, 5.0)
    assert interval([]) is None


def test_differences_are_paired_by_seed() -> None:
    # The seeds differ by far more than the profiles do; paired, the difference is plain.
    base, other = _runs("base", [100.0, 500.0, 900.0]), _runs("other", [90.0, 491.0, 889.0])
    (found,) = differences([*base, *other], ["wait_avg_s"])
    assert (found.profile, found.baseline, found.verdict) == ("other", "base", Verdict.BETTER)
    assert found.by.mean == pytest.approx(-5.0) and found.relative == pytest.approx(-10.0 / 500.0)
    assert difference(found) == f"{change(found)} (better)" and change(found).startswith("-2 %")
    (mixed,) = differences([*base, *_runs("other", [90.0, 510.0, 900.0])], ["wait_avg_s"])
    assert mixed.verdict is Verdict.SAME
    (worse,) = differences([*base, *_runs("other", [110.0, 510.0, 910.0])], ["wait_avg_s"])
    assert worse.verdict is Verdict.WORSE


def test_only_seeds_that_both_have_run_are_compared() -> None:
    runs = [*_runs("base", [10.0, 20.0, 30.0]), *_runs("other", [10.0, 20.0])]
    (found,) = differences(runs, ["wait_avg_s"])
    assert found.by.count == 2 and found.by.mean == 0.0
    assert differences(_runs("alone", [1.0]), ["wait_avg_s"]) == ()


def test_groups_are_by_load_and_then_as_given() -> None:
    runs = [*_runs("z", [1.0], 1.3), *_runs("a", [1.0], 1.3), *_runs("z", [1.0], 0.5), *_runs("z", [1.0])]
    assert [(g.profile, g.load) for g in groups(runs)] == [("z", None), ("z", 0.5), ("z", 1.3), ("a", 1.3)]


def test_a_figure_that_one_run_lacks_has_no_mean() -> None:
    good, bad = _runs("p", [1.0, 2.0])
    bad = replace(bad, figures={**bad.figures, "jct_avg_s": None})
    (group,) = groups([good, bad])
    assert group.of("jct_avg_s") is None and group.of("wait_avg_s") is not None


def test_figures_in_words() -> None:
    assert figure("jct_avg_s", 30.0) == "30 s"
    assert figure("jct_avg_s", 600.0) == "10 min"
    assert figure("jct_avg_s", 72_000.0) == "20 h"
    assert figure("utilisation", 0.5) == "50.00 %"
    side_by_side = [Interval(72_000.0, 360.0, 3), Interval(600.0, 60.0, 3), None]
    largest = largest_of(side_by_side)  # one unit for all of a column
    shown = [with_interval("jct_avg_s", one, largest) for one in side_by_side]
    assert shown == ["20 h ±0.1", "0.1667 h ±0.01667", ""] and largest_of([None]) is None
    assert figure("jobs", 12_345) == "12,345"
    assert figure("rho_worst", None) == ""
    assert with_interval("jct_avg_s", interval([7_200.0, 10_800.0])) == "2.5 h ±6.353"
    assert with_interval("jobs", interval([3.0, 3.0])) == "3"


def test_notes_say_what_figures_leave_out() -> None:
    run = _runs("p", [5.0])[0]
    spoiled = replace(
        run,
        refused_rows=7,
        too_large=("huge (9 x 8 GPU)",),
        figures={**run.figures, "too_large": 3, "never_started": 2},
        stopped_at_s=60.0,
        cut_short=4,
    )
    text = "\n".join(notes([spoiled]))
    assert "7 rows" in text and "3 jobs are too large" in text and "huge (9 x 8 GPU) and 2 more" in text
    assert "up to 2 jobs had not ended when the time limit of 60 s was reached" in text
    assert "in up to 4 moments decisions undid each other" in text
    assert "one seed: no confidence intervals" in text
    assert notes([]) == ("no run has finished",)


def test_seeds_that_change_nothing_are_told() -> None:
    same = _runs("p", [5.0, 5.0])
    assert seeds_change_nothing(same) and "no width" in "\n".join(notes(same))
    assert not seeds_change_nothing(_runs("p", [5.0, 6.0]))
    assert not seeds_change_nothing(_runs("p", [5.0]))


def test_the_document_is_plain_json_with_its_version() -> None:
    runs = [*_runs("base", [10.0, 20.0]), *_runs("other", [5.0, 15.0])]
    value = json.loads(json.dumps(document(runs, "1.2.3"), allow_nan=False))
    assert (value["schema"], value["rayorch"], value["confidence"]) == ("rayorch/report/v1", "1.2.3", 0.95)
    assert {m["key"] for m in value["measures"]} == set(BY_KEY)
    assert value["groups"][0]["figures"]["wait_avg_s"]["mean"] == 7.5
    assert [r["profile"] for r in value["runs"]] == ["base", "base", "other", "other"]
    by = {d["measure"]: d for d in value["differences"]}
    assert by["wait_avg_s"]["difference"] == {"mean": -2.5, "low": -2.5, "high": -2.5, "count": 2}
    assert by["wait_avg_s"]["verdict"] == "better"


def test_the_page_needs_nothing_else_and_shows_all_there_is() -> None:
    runs = [run for profile in ("base", "<i>p</i>") for run in _runs(profile, [10.0, 11.0])]
    text = page(runs, "1.2.3")
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    assert "<script" not in text and "src=" not in text and "<link" not in text
    assert "<i>p</i>" not in text and "&lt;i&gt;p&lt;/i&gt;" in text and "&lt;q&gt;" in text
    for heading in ("Job completion time", "Queueing delay", "GPUs allocated", "Held of what", "GPUs held by queue"):
        assert heading in text
    assert text.count("<svg") == 7


def test_a_measure_is_drawn_against_load_only_where_there_are_several() -> None:
    runs = [run for load in (0.5, 1.0) for run in _runs("p", [10.0, 12.0], load)]
    drawn = plots.against_load(groups(runs), "jct_avg_s", "Mean JCT", 1.0, "s")
    assert "Mean JCT" in drawn and drawn == plots.against_load(groups(runs), "jct_avg_s", "Mean JCT", 1.0, "s")
    assert plots.against_load(groups(runs[:2]), "jct_avg_s", "Mean JCT", 1.0, "s") == ""


def test_a_page_of_runs_in_which_nothing_ended() -> None:
    one = job("one", 0.0, 10.0, 1)
    found = summarise(outcome([record(one)], 1.0, end_s=5.0), trace(one), cluster="1x1")
    assert "by-hand on 1x1" in page([found], "1")
    assert "no runs" in page([], "1")


def test_differences_are_words_without_exponents() -> None:
    by = {d.key: d for d in differences([*_runs("base", [1.0, 2.0]), *_runs("other", [2.0, 400.0])], ["wait_avg_s"])}
    assert change(by["wait_avg_s"]) == "+13,300 % ±168,145"  # 12.706 x 99.25 s of 0.75 s


def test_jobs_that_failed_in_the_trace_and_traces_of_unlike_sizes_are_told() -> None:
    few, many = _runs("p", [5.0, 6.0])
    assert "Seeds: 0, 1." in page([few, many], "1")
    few = replace(few, figures={**few.figures, "failed": 1, "jobs": 20})
    text = "\n".join(notes([few, replace(many, figures={**many.figures, "jobs": 1_500})]))
    assert "1 job ended as failed or cancelled, as in the trace" in text
    assert "they have 20 to 1,500 jobs" in text
    assert "failed" not in "\n".join(notes([many])) and "unlike" not in "\n".join(notes([few]))
