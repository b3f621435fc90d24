"""Figures in words: with their unit, their interval, in a cell of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rayorch.sim.report.compare import Difference, Group, Interval, Verdict, groups, seeds_change_nothing
from rayorch.sim.report.left_out import jobs_in_words, rows_in_words
from rayorch.sim.report.measures import BY_KEY, Unit
from rayorch.sim.report.summary import Summary


def figure(key: str, value: float | None, largest: float | None = None) -> str:
    """A figure with its unit, empty for None. `largest`: of those beside it, which all get the unit that suits it."""
    return "" if value is None else _sized(BY_KEY[key].unit, value, value if largest is None else largest)


def with_interval(key: str, value: Interval | None, largest: float | None = None) -> str:
    """A mean ± half its interval, both in the unit that suits the mean (or `largest`); without an interval the mean."""
    if value is None:
        return ""
    unit, scale = BY_KEY[key].unit, value.mean if largest is None else largest
    mean = _sized(unit, value.mean, scale)
    if value.half is None or (unit is Unit.COUNT and value.half == 0.0):
        return mean
    return f"{mean} ±{_sized(unit, value.half, scale, bare=True)}"


def largest_of(values: Iterable[Interval | float | None]) -> float | None:
    """The largest size among means or figures; None without any."""
    sizes = [abs(value.mean if isinstance(value, Interval) else value) for value in values if value is not None]
    return max(sizes, default=None)


def _sized(unit: Unit, value: float, scale: float, bare: bool = False) -> str:
    """`scale`: whose size decides between seconds, minutes and hours. `bare`: leave the unit out."""
    match unit:
        case Unit.SECONDS:
            size, name = next((s, n) for s, n in ((3600.0, "h"), (60.0, "min"), (0.0, "s")) if abs(scale) >= 2 * s)
            return f"{value / (size or 1.0):.4g}{'' if bare else ' ' + name}"
        case Unit.SHARE:
            return f"{value * 100:.2f}{'' if bare else ' %'}"
        case Unit.COUNT:
            return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
        case Unit.GPU_HOURS:
            return f"{value:,.1f}{'' if bare else ' GPU-h'}"
        case Unit.NODE_HOURS:
            return f"{value:,.1f}{'' if bare else ' node-h'}"
        case Unit.RATE:
            return f"{value:,.0f}{'' if bare else ' /s'}"
        case Unit.RATIO:
            return f"{value:.4g}"


def load_name(load: float | None) -> str:
    """A load as a heading."""
    return "as in the trace" if load is None else f"{load:g}"


def change(value: Difference) -> str:
    """A difference in per cent of the first profile's mean, with half its interval: "-12.3 % ±1.2"."""
    if value.relative is None:
        return with_interval(value.key, value.by)
    half = value.by.half
    known = half is not None and value.by.mean
    size = f" ±{_plain(abs(half / value.by.mean * value.relative) * 100, 2)}" if half is not None and known else ""
    return f"{'+' if value.relative >= 0 else ''}{_plain(value.relative * 100, 3)} %{size}"


def _plain(value: float, digits: int) -> str:
    """So many significant digits, never with an exponent above."""
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def difference(value: Difference) -> str:
    """The same with its verdict."""
    return f"{change(value)} ({value.verdict.value})" if value.verdict is not Verdict.UNKNOWN else change(value)


def notes(runs: Sequence[Summary]) -> tuple[str, ...]:
    """What a reader has to know of these runs beside their figures."""
    said: list[str] = []
    if not runs:
        return ("no run has finished",)
    first = runs[0]
    if first.refused_rows:
        why = rows_in_words(first.refused, first.refused_rows)
        said.append(f"{_counted(first.refused_rows, 'row')} of the trace could not be used: {why}")
    most = max(runs, key=lambda run: run.figures["too_large"] or 0)
    if count := int(most.figures["too_large"] or 0):
        more = f" and {count - len(most.too_large)} more" if count > len(most.too_large) else ""
        names = f"{', '.join(most.too_large)}{more}"
        said.append(
            f"{_counted(count, 'job', 'is', 'are')} too large for the empty cluster or of models that it lacks,"
            f" and not played: {names}"
        )
    most = max(runs, key=lambda run: run.figures["refused"] or 0)
    if count := int(most.figures["refused"] or 0):
        why = jobs_in_words(most.turned_away, count)
        said.append(f"{_counted(count, 'job', 'was', 'were')} refused at the door and never waited: {why}")
    if failed := int(max(run.figures["failed"] or 0 for run in runs)):
        said.append(f"{_counted(failed, 'job')} ended as failed or cancelled, as in the trace, and in no JCT")
    turned_away = {f"{s.service} was refused at the door: {s.refused}" for r in runs for s in r.services if s.refused}
    said += [f"the application {one}" for one in sorted(turned_away)]
    counts = [int(run.figures["jobs"] or 0) for run in runs]
    if max(counts) > 2 * min(counts):
        said.append(f"the traces that were drawn are very unlike: they have {min(counts):,} to {max(counts):,} jobs")
    for group in groups(runs):
        said += _of_group(group)
        if cut_short := max(run.cut_short for run in group.runs):
            name = f"{group.profile}, load {load_name(group.load)}"
            said.append(
                f"{name}: in up to {cut_short} moments decisions undid each other, until the loop let time pass"
            )
    if seeds_change_nothing(runs):
        said.append("the seeds gave the same logs: nothing is drawn in these runs, so that intervals have no width")
    if len({run.seed for run in runs}) == 1:
        said.append("one seed: no confidence intervals")
    return tuple(said)


def _of_group(group: Group) -> list[str]:
    name = f"{group.profile}, load {load_name(group.load)}"
    open_jobs = [int((r.figures["unfinished"] or 0) + (r.figures["never_started"] or 0)) for r in group.runs]
    if not any(open_jobs):
        return []
    limits = {run.stopped_at_s for run in group.runs if run.stopped_at_s is not None}
    why = f" when the time limit of {max(limits):g} s was reached" if limits else ""
    what = f"up to {_counted(max(open_jobs), 'job')} had not ended{why}"
    return [f"{name}: {what}; they count in no JCT, and in no wait unless they started"]


def _counted(count: int, noun: str, one: str = "", more: str = "") -> str:
    """A number and its noun, with the verb for one or more of them where there is one."""
    return f"{count} {noun} {one}".rstrip() if count == 1 else f"{count} {noun}s {more}".rstrip()
