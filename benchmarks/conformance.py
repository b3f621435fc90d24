"""Conformance: how many of a folder's cases of another scheduler come out as there, under the preset of its name.

`python -m benchmarks.conformance DIR` runs every case of the folder's files (schema "rayorch-conformance/kai/0.*")
through the planner and prints, as its last line, one JSON object: `cases`, `agree`, `stability_broken` and `by_action`
(action -> [agree, cases]). A known deviation counts as a disagreement. With `--verbose` each disagreement is named with
its tasks.

A case agrees when, for each task that its expectation speaks of,

    placed    it runs, is bound or is nominated at the end exactly if it is expected to
    evicted   having run at the beginning, it is being released or waits at the end exactly if it is expected to
    moved     having run at the beginning, it is nominated at the end: this counts as placed and as not evicted

and, where the case runs in rounds, what was placed and evicted is the same after every further round (if not, the case
is also counted in `stability_broken`). Which node a task is on is not compared.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.harness import bounds
from rayorch.core.errors import SpecError
from rayorch.sim.conformance.cases import read_cases
from rayorch.sim.conformance.run import Tally, Verdict, judge, kai_profile, tally


def as_json(found: Tally) -> str:
    """The one line."""
    by_action = {action: list(counts) for action, counts in found.by_action.items()}
    keys = {"cases": found.cases, "agree": found.agree, "stability_broken": found.stability_broken}
    return json.dumps({**keys, "by_action": by_action})


def shares(found: Tally) -> dict[str, float]:
    """The figures that have bounds: agreement in percent, overall and where it is least, and broken rounds."""
    return {
        "agree_pct": 100.0 * found.agree / found.cases if found.cases else 0.0,
        "least_action_pct": min((100.0 * a / n for a, n in found.by_action.values()), default=0.0),
        "stability_broken": float(found.stability_broken),
    }


def _tell(verdict: Verdict) -> None:
    differs = verdict.difference
    parts = [
        f"{level} {', '.join(tasks)}"
        for level, tasks in (("placed", differs.placed), ("evicted", differs.evicted))
        if tasks
    ]
    print(f"{verdict.case.id}: {'; '.join(parts)}{'; not stable' if verdict.unstable else ''}")


def main(argv: list[str] | None = None) -> int:
    """Run and report; 2 when the folder can't be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance")
    parser.add_argument("folder", type=Path, help="a folder with JSON files of cases")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bound of ranges.yaml is missed")
    parser.add_argument("--verbose", action="store_true", help="name each case that does not agree")
    given = parser.parse_args(argv)
    try:
        cases = read_cases(given.folder)
    except SpecError as error:
        print(error)
        return 2
    verdicts = [judge(case, kai_profile) for case in cases]
    if given.verbose:
        for verdict in verdicts:
            if not verdict.agrees:
                _tell(verdict)
    found = tally(verdicts)
    figures = shares(found)
    missed = [bound for bound in bounds("conformance") if not bound.holds(figures[bound.key])]
    for bound in missed:
        print(f"{bound.key} {figures[bound.key]:.2f}   {bound}   MISSED")
    print(as_json(found), flush=True)
    return 1 if missed and given.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
