"""What each setting wins and loses: the same jobs under each, against the default profile, on samples of three traces.

    default_best   the default's average completion time over that of the best setting which differs from it in one
                   thing, is certainly better over the loads of 0.8 and more, and makes large gangs wait no longer; the
                   worst of all kinds of work (1: there is none)

Printed to stderr is a table for each kind of work (`benchmarks.played.parts`) and load, and one of all loads, in which
all but the completion times is over the loads of 0.8 and more: the geometric mean over the samples of each figure over
the default's, with its 95 % interval (Student's t on logarithms, samples as samples). Below 1 is better. `jct`: average
completion time; `slow`: average bounded slowdown (of at least a minute's work); `gang`: average wait of jobs of 8 GPUs
and more; `stops`: stopped runs per hundred jobs, and `lost`: % of the GPU-time that was lost by that (neither is a
ratio); `fair`: Jain's index over queues of what they got of their quota. Every stop costs two minutes and the work
since the last checkpoint, half an hour apart.

`--kinds`, `--groups`: some of the kinds of work, and of the settings (`benchmarks.played.settings`), by commas.
`--processes N`: so many runs at once. `--keep FILE`: every finished run goes there as a line of JSON, and those that
are there are not run again (whatever the code was then).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from functools import cache, partial
from pathlib import Path

from benchmarks.harness import arguments, report, say
from benchmarks.las import mean
from benchmarks.played.parts import GPUS_PER_NODE, KINDS, Sample, sample
from benchmarks.played.settings import BASE, GROUPS, Setting, chosen
from rayorch.sim.report import compare
from rayorch.sim.report.fairness import jain, queue_shares
from rayorch.sim.trace.run import run

LOADS = (1.0, 1.3, 0.8, 0.5)
HIGH = 0.8
"""Below this load hardly anybody waits, and nothing is told apart."""
WHOLE = ("profiles", "by order")
"""Groups whose settings differ from the default in more than one thing."""
ALIKE = (
    *("fifo", "ageing", "lost work alike at any priority"),  # nobody has a priority
    *("weighted_best_fit", "packing", "clustering", "fgd"),  # nodes are alike, and nobody asks for a part of a GPU
    "gittins",  # of no kind have 200 finished
    *("las with promotion", "profile finish-time", "profile shortest", "profile kai"),  # as `las`, `finish_time`, …
)
"""In Philly."""
SKIPPED: Mapping[str, tuple[str, ...]] = {
    "openb": ("queues", "profiles", "growth"),  # it has one queue
    "elastic": ("queues", "profiles", "models", "place", "backfill", "victims", "fifo", "ageing"),  # one queue, too
    "told": ("queues", "place", "models", "eviction", "victims", "profiles", "growth", *ALIKE),  # as in `gangs`
    "gangs": ("models", "growth", *ALIKE),
    "philly": ("models", "growth", *ALIKE),
}
"""Groups, and settings, that would only be the default again, or another setting."""
JOBS = {"gangs": 1, "told": 1, "philly": 2, "openb": 2, "elastic": 1}
"""Work of one GPU needs more jobs until somebody waits: so many times `--jobs`."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run: see the module's docstring."""

    jct_s: float
    slowdown: float
    gang_wait_s: float
    stops: float
    lost: float
    fair: float


def play(setting: Setting, part: Sample) -> Figures:
    """One setting on one sample."""
    made = run(part.trace, part.nodes, setting.profile, queues=part.queues, models=part.models, seed=part.seed)
    took = {job.id: job.duration_s for job in part.trace.jobs}
    jct: list[float] = []
    slow: list[float] = []
    waits: list[float] = []
    held = sum((ran.to_s - ran.from_s) * ran.gpus for record in made.records for ran in record.runs)
    for record in made.records:
        assert record.ended_s is not None and record.started_s is not None, f"{setting.name}: {record.id} has not ended"
        jct.append(record.ended_s - record.submit_s)
        slow.append(max(1.0, jct[-1] / max(60.0, took[record.id])))
        if record.gpus >= GPUS_PER_NODE:
            waits.append(record.started_s - record.submit_s)
    stops = 100.0 * sum(record.preemptions for record in made.records) / len(jct)
    lost = 100.0 * sum(record.lost_gpu_s for record in made.records) / held
    last_s = max(record.ended_s or 0.0 for record in made.records)
    got = [share.got for share in queue_shares(made.records, part.queues, part.gpus, last_s) if share.got is not None]
    return Figures(mean(jct), mean(slow), mean(waits), stops, lost, jain(got) or 0.0)


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """(geometric mean, lower, upper end of the 95 % interval)."""
    found = compare.interval([math.log(ratio) for ratio in ratios])
    assert found is not None, "there is a sample at least"
    low, high = (0.0, math.inf) if found.half is None else (math.exp(found.low), math.exp(found.high))
    return math.exp(found.mean), low, high


def ratios(ours: Sequence[Figures], base: Sequence[Figures], name: str) -> list[float]:
    """Of a figure over the default's, by sample; a minute is added to waits, so that none is over next to nothing."""
    extra = 60.0 if name == "gang_wait_s" else 0.0
    return [(getattr(a, name) + extra) / (getattr(b, name) + extra) for a, b in zip(ours, base, strict=True)]


COMPARED = ("jct_s", "slowdown", "gang_wait_s")
Ratios = Mapping[str, Sequence[float]]


def cell(of: Sequence[float]) -> str:
    """A ratio with its interval, in bold where it is certainly below or above 1."""
    middle, low, high = interval(of)
    text = f"{middle:.3f} ({low:.2f}-{high:.2f})"
    return f"**{text}**" if high < 1 or low > 1 else text


def row(name: str, of: Ratios, rest: Sequence[Figures]) -> str:
    """A line of a table."""
    cells = [cell(of[part]) for part in COMPARED]
    cells += [f"{mean([getattr(f, part) for f in rest]):.1f}" for part in ("stops", "lost")]
    return f"| {name} | {' | '.join(cells)} | {mean([f.fair for f in rest]):.3f} |"


def table(title: str, found: Mapping[str, tuple[Ratios, Sequence[Figures]]]) -> None:
    """Print one."""
    say(f"\n| {title} | jct | slow | gang | stops | lost | fair |\n|---|---|---|---|---|---|---|")
    for name, (of, rest) in found.items():
        say(row(name, of, rest))


def whole_table(kind: str, found: Mapping[str, Mapping[float, tuple[Ratios, Sequence[Figures]]]]) -> None:
    """Print the one of all loads: completion times at each, and the rest over those of `HIGH` and more."""
    loads = sorted(next(iter(found.values())))
    heads = " | ".join(f"jct {load:g}" for load in loads)
    say(f"\n| {kind} | {heads} | jct | slow | gang | stops | lost | fair |\n|{'---|' * (len(loads) + 7)}")
    for name, at in found.items():
        high = [at[load] for load in loads if load >= HIGH]
        cells = " | ".join(cell(at[load][0]["jct_s"]) for load in loads)
        rest = row("", pooled([of for of, _ in high]), [one for _, figures in high for one in figures])
        say(f"| {name} | {cells} {rest.removeprefix('|  ')}")


def pooled(of: Sequence[Ratios]) -> Ratios:
    """Each sample's geometric mean over loads: what a sample says at one load, it says much alike at the next."""
    return {
        part: [math.exp(mean([math.log(r) for r in at])) for at in zip(*(one[part] for one in of), strict=True)]
        for part in COMPARED
    }


def better(of: Ratios) -> float:
    """The default's average over this one's where it is certainly better and does large gangs no harm; else 1."""
    middle, _, high = interval(of["jct_s"])
    return max(1.0, 1 / middle) if high < 1 and interval(of["gang_wait_s"])[0] <= 1 else 1.0


@cache
def _sample(kind: str, seed: int, count: int) -> Sample:
    return sample(kind, seed, count)


Task = tuple[str, str, float, int]
"""(setting, kind, load, seed)."""


def played(task: Task, jobs: int) -> Figures:
    """One run by its name: what a process of its own can be told."""
    setting, kind, load, seed = task
    return play(chosen("")[setting], _sample(kind, seed, JOBS[kind] * jobs).at(load))


Map = Callable[[Callable[[Task], Figures], Sequence[Task]], Iterable[Figures]]


class Kept:
    """Runs that are done, and the file that they go to; without one they are only remembered."""

    def __init__(self, path: Path | None, runs: Map, jobs: int) -> None:
        self._path = path
        self._runs = runs
        self._jobs = jobs
        self._done: dict[str, Figures] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                name, figures = json.loads(line)
                self._done[name] = Figures(*figures)

    def of(self, tasks: Sequence[Task]) -> list[Figures]:
        """What came out of each."""
        missing = [task for task in tasks if self._name(task) not in self._done]
        for task, figures in zip(missing, self._runs(partial(played, jobs=self._jobs), missing), strict=True):
            self._done[self._name(task)] = figures
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([self._name(task), astuple(figures)]) + "\n")
        return [self._done[self._name(task)] for task in tasks]

    def _name(self, task: Task) -> str:
        setting, kind, load, seed = task
        return f"{kind} {seed}, {self._jobs} jobs, load {load:g}: {setting}"


def compared(kind: str, loads: Sequence[float], seeds: int, groups: str, kept: Kept) -> float:
    """All tables of one kind of work; answers `default_best`."""
    settings = [s for s in chosen(groups).values() if not {s.name, s.group} & set(SKIPPED[kind])]
    every: dict[str, dict[float, tuple[Ratios, Sequence[Figures]]]] = {setting.name: {} for setting in settings}
    for load in loads:
        tasks = [(setting.name, kind, load, seed) for setting in settings for seed in range(seeds)]
        flat = kept.of(tasks)
        by = {setting.name: flat[n * seeds : (n + 1) * seeds] for n, setting in enumerate(settings)}
        found = {name: ({p: ratios(f, by[BASE], p) for p in COMPARED}, f) for name, f in by.items()}
        table(f"{kind}, load {load:g}", found)
        for name, one in found.items():
            every[name][load] = one
    whole_table(kind, every)
    alike = [setting.name for setting in settings if setting.group not in WHOLE]
    high = {name: [of for load, (of, _) in every[name].items() if load >= HIGH] for name in alike}
    return max((better(pooled(of)) for of in high.values() if of), default=1.0)


def main() -> int:
    """Run it; see the module's docstring."""
    words = argparse.ArgumentParser(add_help=False)
    words.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    words.add_argument("--groups", default="", help=f"of {', '.join(GROUPS)}; default all")
    if "--help" in sys.argv or "-h" in sys.argv:
        say(words.format_help())
    words.add_argument("--keep", type=Path, help="file for finished runs, which are not run again")
    given, others = words.parse_known_args()
    quick = {"seeds": 2, "jobs": 60, "loads": 1}
    args = arguments("policies_table", quick, {"seeds": 5, "jobs": 120, "loads": 4, "processes": 1}, others)
    loads, worst = LOADS[: args.loads], 1.0
    with ProcessPoolExecutor(args.processes) as pool:
        kept = Kept(given.keep, pool.map if args.processes > 1 else map, args.jobs)
        for kind in given.kinds.split(","):
            worst = max(worst, compared(kind, loads, args.seeds, given.groups, kept))
    return report("policies_table", {"default_best": worst}, args.check)


if __name__ == "__main__":
    sys.exit(main())
