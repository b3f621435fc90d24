"""What was not played, and why: in notes, on the page, in JSON, and read back."""

from __future__ import annotations

import json
from dataclasses import replace

from rayorch.core.types import Resources
from rayorch.experiment.side_by_side import Report, simulate
from rayorch.sim.report.left_out import MOST_LINES, MOST_REASONS, jobs_by_reason, rows_by_reason, rows_in_words
from rayorch.sim.report.plots import MOST_BARS
from rayorch.sim.report.summary import summary_from
from rayorch.sim.trace.model import Ask, BadRow, Trace, TraceJob
from rayorch.sim.trace.outcome import TurnedAway

ONE = Ask(1, Resources.of({"GPU": 1}))


def played(*jobs: TraceJob, refused: tuple[BadRow, ...] = ()) -> Report:
    return simulate(Trace("by-hand", jobs, refused=refused), "2x4", progress=False)


def job(id: str, queue: str = "all", line: int = 0, priority: int = 0) -> TraceJob:
    return TraceJob(id, 0.0, 10.0, ONE, queue=queue, line=line, priority=priority)


def test_refused_rows_are_listed_by_reason_with_their_lines() -> None:
    rows = (BadRow(9, "never started"), BadRow(4, "<b>"), *(BadRow(n, "never started") for n in range(20, 60)))
    report = played(job("a"), refused=rows)
    (note,) = (note for note in report.notes if "could not be used" in note)
    assert note == (
        "42 rows of the trace could not be used: lines 9, 20, 21, 22, 23 and 36 more: never started; line 4: <b>"
    )
    html = report.to_html()
    assert "Rows of the trace that could not be used: 42" in html and "&lt;b&gt;" in html and "<b>" not in html
    listed = json.loads(report.to_json())["runs"][0]["refused"]
    assert listed[0] == {"count": 41, "reason": "never started", "lines": [9, *range(20, 39)]}
    assert listed[1] == {"count": 1, "reason": "<b>", "lines": [4]}


def test_the_lists_are_bounded_and_the_counts_are_of_all() -> None:
    found = rows_by_reason(BadRow(n, f"ended {n} s before it started") for n in range(1, 100))
    assert len(found) == MOST_REASONS and found[0].lines == (1,)
    assert rows_in_words(found, 99).endswith("line 5: ended 5 s before it started; 94 more for other reasons")
    (one,) = rows_by_reason(BadRow(n, "x" * 1_000) for n in range(1, 1_000))
    assert len(one.lines) == MOST_LINES and one.count == 999 and len(one.reason) == 200
    assert len(jobs_by_reason(TurnedAway(1, f"r{n}", "id") for n in range(99))) == MOST_REASONS


def test_jobs_refused_at_the_door_say_the_real_reasons_with_an_example() -> None:
    report = played(
        job("a"),
        job("b/c", line=3),
        job("b/d", line=4),
        job("e", queue="nlp//x", line=5),
        job("f", priority=10**7, line=6),
    )
    (note,) = (note for note in report.notes if "refused at the door" in note)
    assert note == (
        "4 jobs were refused at the door and never waited: 2 (such as 'b/c' in line 3): id: must not contain a slash or"
        " a control character, got 'b/c'; 1 ('e' in line 5): queue: queue 'nlp//x' does not exist; there are: all;"
        " 1 ('f' in line 6): priority: queue 'all' takes -1000000 to 1000000, got 10000000"
    )
    assert report.runs[0].figures["finished"] == 1.0


def test_what_was_left_out_is_read_back() -> None:
    (run,) = played(job("a"), job("b/c", line=3), refused=(BadRow(9, "never started"),)).runs
    assert run.refused and run.turned_away
    assert summary_from(json.loads(json.dumps(run.to_dict()))) == replace(run, figures=dict(run.figures))


def test_the_page_takes_any_names_and_draws_the_largest_of_many_queues() -> None:
    evil = "<script>$\\frac$"
    jobs = [TraceJob(f"{n}{evil}", float(n), 9.0 + n, ONE, queue=f"{evil}{n:03d}", user=evil) for n in range(60)]
    report = simulate(Trace(evil, tuple(jobs)), "2x4", progress=False)
    html = report.to_html()
    assert report.runs[0].figures["finished"] == 60.0
    assert "<script" not in html and "&lt;script&gt;$\\frac$059" in html
    heading = html.index("Held of what the queue was entitled to</text>")
    bars = html[html.rindex("<svg", 0, heading) : html.index("</svg>", heading)]
    bars = "\n".join(line for line in bars.splitlines() if "<text" in line)  # each is in a comment, too
    assert bars.count("frac$0") == MOST_BARS and "frac$019" not in bars and "frac$020" in bars
