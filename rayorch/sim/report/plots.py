"""The plots of a report, as SVG text to stand in a page. The only module that needs matplotlib (the extra `report`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayorch.sim.report.compare import Group, Interval
from rayorch.sim.report.over_time import Floats
from rayorch.sim.report.summary import Distribution, OverTime, Summary

COLOURS = ("#3b6fb6", "#d9822b", "#4c9a5b", "#a14f9b", "#b0413e", "#5b8c8c", "#8a7a3a", "#666666")
WIDE = (9.0, 3.2)
HOUR_S = 3600.0
MOST_BARS = 40
"""Queues that are drawn one beside the other; the page's table has all."""


def distribution(groups: Sequence[Group], what: str, heading: str, least: float, unit: str) -> str:
    """How a length of time, or a ratio, is distributed over jobs: a line per profile, the mean of its seeds' quantiles.

    `what`: the field of the summary. `least`: the smallest value shown; the axis is logarithmic, what is below is there
    as the height at which a line begins.
    """
    with _style():
        drawing, axes = _one(heading)
        for n, group in enumerate(groups):
            quantiles = _pooled([getattr(run, what) for run in group.runs])
            if quantiles is not None:
                values = np.maximum(least, quantiles)
                axes.step(values, np.linspace(0, 1, len(values)), where="post", color=_colour(n), label=group.profile)
        axes.set_xscale("log")
        axes.set_xlim(left=least)
        axes.set_ylim(0, 1)
        axes.set_xlabel(unit)
        axes.set_ylabel("share of jobs")
        return _svg(drawing, axes)


def allocation(groups: Sequence[Group]) -> str:
    """GPUs that are held, those that there are, and below what waits; the first seed of each profile."""
    with _style():
        drawing = Figure(figsize=(WIDE[0], 4.6), layout="constrained")
        above, below = drawing.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for n, group in enumerate(groups):
            over = group.runs[0].over_time
            if n == 0:
                _stairs(above, over, over.capacity_gpus, "#999999", "capacity", dashed=True)
            _stairs(above, over, over.allocated_gpus, _colour(n), group.profile)
            _stairs(below, over, over.waiting_gpus, _colour(n), group.profile)
        above.set_title("GPUs allocated", loc="left", fontsize=10)
        above.set_ylim(bottom=0)
        below.set_title("GPUs asked for by what waits", loc="left", fontsize=10)
        below.set_ylim(bottom=0)
        below.set_xlabel("hours")
        return _svg(drawing, above)


def share_over_time(groups: Sequence[Group], what: str, heading: str) -> str:
    """A curve of GPUs over capacity, in per cent; the first seed of each profile. Empty where no run has it."""
    return _over_time(groups, what, heading, _of_capacity, "% of capacity")


def ratio_over_time(groups: Sequence[Group], what: str, heading: str) -> str:
    """A curve as it is; the first seed of each profile. Empty where no run has it."""
    return _over_time(groups, what, heading, lambda values, _over: values)


def _of_capacity(values: Sequence[float], over: OverTime) -> Floats:
    """GPUs as a part of the capacity [%]."""
    found: Floats = 100.0 * np.array(values) / np.maximum(1e-9, np.array(over.capacity_gpus))
    return found


def _over_time(
    groups: Sequence[Group],
    what: str,
    heading: str,
    shown: Callable[[Sequence[float], OverTime], Sequence[float] | Floats],
    unit: str = "",
) -> str:
    known = [(n, g, g.runs[0].over_time) for n, g in enumerate(groups) if getattr(g.runs[0].over_time, what)]
    if not known:
        return ""
    with _style():
        drawing, axes = _one(heading)
        for n, group, over in known:
            _stairs(axes, over, shown(getattr(over, what), over), _colour(n), group.profile)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("hours")
        axes.set_ylabel(unit)
        return _svg(drawing, axes)


def serving(groups: Sequence[Group]) -> str:
    """Requests of applications and what their replicas could take; the first seed of each profile. Empty: none."""
    known = [(n, g) for n, g in enumerate(groups) if g.runs[0].over_time.requests]
    if not known:
        return ""
    with _style():
        drawing, axes = _one("Requests at once, and what replicas could take")
        first = known[0][1].runs[0].over_time
        _stairs(axes, first, first.requests, "#999999", "requests", dashed=True)
        for n, group in known:
            _stairs(axes, group.runs[0].over_time, group.runs[0].over_time.answerable, _colour(n), group.profile)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("hours")
        return _svg(drawing, axes)


def holders(run: Summary) -> str:
    """Who held what: GPUs by queue over time, one on top of the other."""
    over = run.over_time
    if not over.held_by_queue:
        return ""
    with _style():
        drawing, axes = _one(f"GPUs held by queue: {run.profile}, seed {run.seed}")
        bottom: Floats = np.zeros(len(over.allocated_gpus))
        edges = np.array(over.edges_s) / HOUR_S
        for n, (queue, held) in enumerate(over.held_by_queue):
            top = bottom + np.array(held)
            colour = COLOURS[n % len(COLOURS)]
            hatch = "" if n < len(COLOURS) else "///"
            axes.stairs(top, edges, baseline=bottom, fill=True, color=colour, hatch=hatch, lw=0, label=queue, alpha=0.8)
            bottom = top
        _stairs(axes, over, over.capacity_gpus, "#555555", "capacity", dashed=True)
        axes.set_xlabel("hours")
        axes.set_ylim(bottom=0)
        return _svg(drawing, axes)


def queue_parts(groups: Sequence[Group]) -> str:
    """What each queue held of what it was entitled to, a bar per profile; the mean of the seeds.

    Of many queues those that asked for most under the first profile.
    """
    names = sorted({share.queue for group in groups for run in group.runs for share in run.queues})
    if len(names) > MOST_BARS:
        asked = {share.queue: share.asked_gpu_h for share in groups[0].runs[0].queues}
        names = sorted(sorted(names, key=lambda name: -asked.get(name, 0.0))[:MOST_BARS])
    if len(names) < 2:
        return ""
    with _style():
        drawing, axes = _one("Held of what the queue was entitled to")
        width = 0.8 / len(groups)
        for n, group in enumerate(groups):
            got: dict[str, list[float]] = {name: [] for name in names}
            for share in (share for run in group.runs for share in run.queues):
                if share.got is not None and share.queue in got:
                    got[share.queue].append(share.got)
            heights = [100.0 * sum(values) / len(values) if values else 0.0 for values in got.values()]
            places = np.arange(len(names)) + (n - (len(groups) - 1) / 2) * width
            axes.bar(places, heights, width, color=_colour(n), label=group.profile)
        axes.set_xticks(np.arange(len(names)), [name[-24:] for name in names], rotation=30, ha="right")
        axes.set_ylabel("%")
        return _svg(drawing, axes)


def against_load(groups: Sequence[Group], key: str, heading: str, scale: float, unit: str) -> str:
    """A measure at each load with its 95 % interval, a line per profile. Empty for fewer than two loads."""
    loads = sorted({group.load for group in groups if group.load is not None})
    if len(loads) < 2:
        return ""
    with _style():
        drawing, axes = _one(heading)
        for n, profile in enumerate(dict.fromkeys(group.profile for group in groups)):
            points: list[tuple[float, Interval]] = [
                (group.load, value)
                for group in groups
                if group.profile == profile and group.load is not None and (value := group.of(key)) is not None
            ]
            axes.errorbar(
                [load for load, _ in points],
                [value.mean / scale for _, value in points],
                yerr=[(value.half or 0.0) / scale for _, value in points],
                color=_colour(n),
                label=profile,
                marker="o",
                capsize=3,
            )
        axes.set_xlabel("offered load")
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        return _svg(drawing, axes)


def _style() -> AbstractContextManager[None]:
    """Text stays text (small, searchable, in the page's own font, no formulas between dollar signs), and the same
    figures give the same bytes."""
    return matplotlib.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "rayorch",
            "font.size": 9,
            "text.parse_math": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
        }
    )


def _one(heading: str) -> tuple[Figure, Axes]:
    drawing = Figure(figsize=WIDE, layout="constrained")
    axes = drawing.subplots()
    axes.set_title(heading, loc="left", fontsize=10)
    return drawing, axes


def _colour(n: int) -> str:
    return COLOURS[n % len(COLOURS)]


def _stairs(
    axes: Axes, over: OverTime, values: Sequence[float] | Floats, colour: str, label: str, dashed: bool = False
) -> None:
    edges = np.array(over.edges_s) / HOUR_S
    if len(values):
        axes.stairs(np.array(values), edges, baseline=None, color=colour, label=label, ls="--" if dashed else "-")


def _pooled(found: Sequence[Distribution]) -> Floats | None:
    known = [d.values for d in found if d.count]
    return np.mean(np.array(known), axis=0) if known else None


def _svg(drawing: Figure, axes: Axes) -> str:
    """The drawing as an element for a page, the legend beside it where there is something to tell apart."""
    if axes.get_legend_handles_labels()[0]:
        drawing.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    text = io.StringIO()
    drawing.savefig(text, format="svg", metadata={"Date": None})
    found = text.getvalue()
    return found[found.index("<svg") :]
