"""Whether a run of a trace does the same work as the simulators of others: their figures on their own traces.

    worst_fgd_gap     points by which our FGD, BestFit and Random are off the allocation that FGD's authors published
    tiresias_w6_s     average completion time of Tiresias on workload 6 of Pollux; published: 3,469.69 s
    tiresias_golden_missed  of nine schedules of Tiresias' simulator on its own workload, those with other figures
    fifo_wait_s       average wait of strict first in, first out on 2,000 jobs of Philly; AccaSim: 79,522.35 s
    fifo_makespan_s   from the first submission to the last end there; AccaSim: 5,944,538 s

Of the placement policies as many seeds are played as it takes to know the mean to a tenth of a point. `--keep FILE`
writes each of these runs that is done to a file and does not play again what is in it; `--part` plays only some of it.

The data is looked for in $RAYORCH_DATA, else in ../shared/data (docs/data.md says where it is published).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness import report, say
from benchmarks.played import openb, philly, pollux, tiresias
from benchmarks.played.kept import Kept
from benchmarks.played.traces import data_folder


def tiresias_figures(data: Path) -> dict[str, float]:
    """On the workloads of Pollux and on its own."""
    took_s = pollux.tiresias_w6_s(data)
    return {
        "tiresias_w6_s": took_s,
        "tiresias_w6_off": abs(took_s / pollux.published_s(data, 6) - 1),
        "tiresias_golden_missed": float(len(tiresias.misses(data))),
    }


PARTS: Mapping[str, Callable[[Path, Kept], Mapping[str, float]]] = {
    "placement": lambda data, kept: openb.fidelity_figures(kept),
    "fifo": lambda data, kept: philly.fifo_figures(data),
    "tiresias": lambda data, kept: tiresias_figures(data),
}
"""What is played, one after the other: its figures, and how far they are off what is published (which is bounded)."""


def main() -> int:
    """Play all of it; a part at a time is told as it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bound of ranges.yaml is missed")
    parser.add_argument("--keep", type=Path, help="where runs of placement policies that are done are kept")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part, and any other so named")
    given = parser.parse_args()
    data, kept = data_folder(), Kept(given.keep)
    figures: dict[str, float] = {}
    for name in given.part or PARTS:
        found = PARTS[name](data, kept)
        say(f"{name}: " + ", ".join(f"{key} {value:.4f}" for key, value in found.items()))
        figures.update(found)
    if given.part:
        print(json.dumps(figures))  # bounds are looked at where all of it has run
        return 0
    return report("fidelity", figures, given.check)


if __name__ == "__main__":
    sys.exit(main())
