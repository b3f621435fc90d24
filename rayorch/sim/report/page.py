"""A report as one page of HTML that needs nothing else: no network, no script."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from rayorch.sim.report import plots
from rayorch.sim.report.compare import Difference, Group, by_load, differences, groups
from rayorch.sim.report.left_out import lines_in_words
from rayorch.sim.report.measures import BY_KEY, HEADLINES, MEASURES
from rayorch.sim.report.summary import Summary
from rayorch.sim.report.text import difference, figure, largest_of, load_name, notes, with_interval

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1100px; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 0.6em 0 1.2em; }
th, td { border-top: 1px solid #ddd; padding: 3px 14px 3px 0; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
.better { color: #2c7a3f; } .worse { color: #b0413e; } .notes { background: #fff7e0; padding: 0.6em 1em 0.6em 2em; }
svg { max-width: 100%; height: auto; } svg text { font-family: system-ui, sans-serif; }
td.left { text-align: left; } details { margin: 0.6em 0; }
"""


def page(runs: Sequence[Summary], version: str) -> str:
    """The page. `version`: rayorch's."""
    levels = by_load(runs)
    found = differences(runs, HEADLINES)
    title = f"{runs[0].trace} on {runs[0].cluster}" if runs else "no runs"
    body = [
        f"<h1>{_text(title)}</h1>",
        _played(runs),
        _notes(runs),
        plots.against_load(groups(runs), "jct_avg_s", "Mean JCT against load", plots.HOUR_S, "hours"),
    ]
    for load, at_load in levels.items():
        heading = "Figures" if len(levels) == 1 else f"Load {load_name(load)}"
        body += [
            f"<h2>{_text(heading)}</h2>",
            _figures(at_load),
            _against([d for d in found if d.load == load]),
            *_plots(at_load),
        ]
    body += [_queues(group.runs[0]) for group in groups(runs)]
    body += [_services(group.runs[0]) for group in groups(runs)]
    body += [_refused(runs)]
    body += ["<details><summary>What the figures mean</summary>", _meanings(), "</details>"]
    body += [f"<p>rayorch {_text(version)}; ± are 95 % confidence intervals over seeds.</p>"]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head>\n<body>{''.join(body)}</body></html>\n"
    )


def _played(runs: Sequence[Summary]) -> str:
    """Which loads and seeds these are."""
    if not runs:
        return ""
    loads = ", ".join(load_name(load) for load in dict.fromkeys(run.load for run in runs))
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.seed for run in runs))
    return f"<p>Offered load: {_text(loads)}. Seeds: {_text(seeds)}. Where nothing else is said, means over seeds.</p>"


def _text(value: object) -> str:
    return html.escape(str(value))


def _notes(runs: Sequence[Summary]) -> str:
    said = notes(runs)
    return f"<ul class='notes'>{''.join(f'<li>{_text(note)}</li>' for note in said)}</ul>" if said else ""


def _rows(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML already."""
    head = "".join(f"<th>{cell}</th>" for cell in heading)
    return (
        f"<table><tr>{head}</tr>"
        + "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        + "</table>"
    )


def _figures(at_load: Sequence[Group]) -> str:
    keys = [m.key for m in MEASURES if any(group.of(m.key) is not None for group in at_load)]
    heading = ["", *(_text(group.profile) for group in at_load)]
    rows = []
    for key in keys:
        values = [group.of(key) for group in at_load]
        largest = largest_of(values)
        rows.append([_text(BY_KEY[key].label), *(_text(with_interval(key, value, largest)) for value in values)])
    return _rows(heading, rows)


def _against(found: Sequence[Difference]) -> str:
    """The paired differences at one load."""
    if not found:
        return ""
    profiles = list(dict.fromkeys(d.profile for d in found))
    cells = {(d.key, d.profile): f"<span class='{d.verdict}'>{_text(difference(d))}</span>" for d in found}
    rows = [[_text(BY_KEY[key].label), *(cells.get((key, p), "") for p in profiles)] for key in HEADLINES]
    heading = [f"against {_text(found[0].baseline)}, paired by seed", *map(_text, profiles)]
    return _rows(heading, rows)


def _plots(at_load: Sequence[Group]) -> list[str]:
    return [
        plots.distribution(at_load, "jct", "Job completion time", 1.0, "seconds (log)"),
        plots.distribution(at_load, "wait", "Queueing delay", 1.0, "seconds (log); shorter ones at 1"),
        plots.distribution(at_load, "rho", "Finish-time fairness rho", 0.1, "rho (log); fair up to 1"),
        plots.allocation(at_load),
        plots.share_over_time(at_load, "fragmentation", "Fragmentation: free GPUs that are of no use"),
        plots.ratio_over_time(at_load, "elastic_size", "Elastic jobs: GPUs held over GPUs asked for"),
        plots.serving(at_load),
        plots.queue_parts(at_load),
        *(plots.holders(group.runs[0]) for group in at_load),
    ]


def _queues(run: Summary) -> str:
    if len(run.queues) < 2:
        return ""
    jct, wait = largest_of(s.jct_avg_s for s in run.queues), largest_of(s.wait_avg_s for s in run.queues)
    rows = [
        [
            _text(s.queue),
            f"{s.jobs:,}",
            "" if s.deserved_gpus is None else f"{s.deserved_gpus:g}",
            f"{s.held_gpu_h:,.0f}",
            f"{s.held_share * 100:.1f} %",
            "" if s.got is None else f"{s.got * 100:.1f} %",
            _text(figure("jct_avg_s", s.jct_avg_s, jct)),
            _text(figure("wait_avg_s", s.wait_avg_s, wait)),
        ]
        for s in run.queues
    ]
    heading = ("queue", "jobs", "quota", "GPU-h held", "of all held", "of its due", "JCT mean", "wait mean")
    name = f"Queues: {run.profile}, load {load_name(run.load)}, seed {run.seed}"
    return f"<details><summary>{_text(name)}</summary>{_rows(heading, rows)}</details>"


def _services(run: Summary) -> str:
    if not run.services:
        return ""
    rows = [
        [
            _text(s.service),
            _text(s.queue),
            "" if s.attainment is None else f"{s.attainment * 100:.2f} %",
            "" if s.met is None else f"{s.met * 100:.2f} %",
            f"{s.replicas_avg:.2f}",
            f"{s.gpu_h:,.0f}",
            _text(s.refused or s.stops),
        ]
        for s in run.services
    ]
    heading = ("application", "queue", "attainment", "time in which all was met", "replicas", "GPU-h", "stops")
    name = f"Applications: {run.profile}, load {load_name(run.load)}, seed {run.seed}"
    return f"<details><summary>{_text(name)}</summary>{_rows(heading, rows)}</details>"


def _refused(runs: Sequence[Summary]) -> str:
    """Rows of the file that could not be used, by reason."""
    if not runs or not runs[0].refused:
        return ""
    first = runs[0]
    rows = [[_text(one.reason), f"{one.count:,}", _text(lines_in_words(one))] for one in first.refused]
    if more := first.refused_rows - sum(one.count for one in first.refused):
        rows.append(["other reasons", f"{more:,}", ""])
    name = f"Rows of the trace that could not be used: {first.refused_rows:,}"
    return f"<details><summary>{_text(name)}</summary>{_rows(('why', 'rows', 'where'), rows)}</details>"


def _meanings() -> str:
    return _rows(
        ("figure", "key", "meaning"),
        ([_text(m.label), _text(m.key), f"<div style='text-align:left'>{_text(m.meaning)}</div>"] for m in MEASURES),
    )
