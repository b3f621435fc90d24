"""Whether a run of a trace does the same work as the simulators of others: their figures on their own traces.

    worst_fgd_gap     points by which our FGD, BestFit and Random are off the allocation that FGD's authors published
    tiresias_w6_s     average completion time of Tiresias on workload 6 of Pollux; published: 3,469.69 s
    tiresias_golden_missed  of nine schedules of Tiresias' simulator on its own workload, those with other figures
    fifo_wait_s       average wait of strict first in, first out on 2,000 jobs of Philly; AccaSim: 79,522.35 s
    fifo_makespan_s   from the first submission to the last end there; AccaSim: 5,944,538 s

The data is looked for in $RAYORCH_DATA, else in ../shared/data (docs/data.md says where it is published).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness import arguments, report, say
from benchmarks.played import openb, philly, pollux, tiresias
from benchmarks.played.traces import data_folder


def tiresias_figures(data: Path) -> dict[str, float]:
    """On the workloads of Pollux and on its own."""
    took_s = pollux.tiresias_w6_s(data)
    return {
        "tiresias_w6_s": took_s,
        "tiresias_w6_off": abs(took_s / pollux.published_s(data, 6) - 1),
        "tiresias_golden_missed": float(len(tiresias.misses(data))),
    }


PARTS: Mapping[str, Callable[[Path], Mapping[str, float]]] = {
    "placement": lambda data: openb.fidelity_figures(),
    "fifo": philly.fifo_figures,
    "tiresias": tiresias_figures,
}
"""What is played, one after the other: its figures, and how far they are off what is published (which is bounded)."""


def main() -> int:
    """Play all of it; a part at a time is told as it is done."""
    given = arguments("fidelity", {}, {})
    data = data_folder()
    figures: dict[str, float] = {}
    for name, part in PARTS.items():
        found = part(data)
        say(f"{name}: " + ", ".join(f"{key} {value:.4f}" for key, value in found.items()))
        figures.update(found)
    return report("fidelity", figures, given.check)


if __name__ == "__main__":
    sys.exit(main())
