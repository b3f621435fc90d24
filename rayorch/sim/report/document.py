"""A report as JSON: the runs, the means over seeds and the paired differences, under a version of their own."""

from __future__ import annotations

from collections.abc import Sequence

from rayorch.sim.report.compare import LEVEL, Interval, differences, groups
from rayorch.sim.report.measures import MEASURES
from rayorch.sim.report.summary import Summary
from rayorch.sim.report.text import notes

SCHEMA = "rayorch/report/v1"


def document(runs: Sequence[Summary], version: str) -> dict[str, object]:
    """Everything that the report knows, as plain JSON values. `version`: rayorch's."""
    return {
        "schema": SCHEMA,
        "rayorch": version,
        "confidence": LEVEL,
        "notes": list(notes(runs)),
        "measures": [
            {"key": m.key, "unit": m.unit.value, "better": m.better.value or None, "meaning": m.meaning}
            for m in MEASURES
        ],
        "groups": [
            {
                "profile": group.profile,
                "load": group.load,
                "seeds": [run.seed for run in group.runs],
                "figures": {m.key: _interval(group.of(m.key)) for m in MEASURES},
            }
            for group in groups(runs)
        ],
        "differences": [
            {
                "measure": found.key,
                "load": found.load,
                "profile": found.profile,
                "baseline": found.baseline,
                "difference": _interval(found.by),
                "relative": found.relative,
                "verdict": found.verdict.value or None,
            }
            for found in differences(runs, [m.key for m in MEASURES])
        ],
        "runs": [run.to_dict() for run in runs],
    }


def _interval(value: Interval | None) -> dict[str, float | int | None] | None:
    if value is None:
        return None
    known = value.half is not None
    low, high = (value.low, value.high) if known else (None, None)
    return {"mean": value.mean, "low": low, "high": high, "count": value.count}
