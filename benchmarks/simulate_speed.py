"""How fast whole traces run, beside AccaSim on the same jobs in the same run, and whether a million jobs fit.

    events_per_cpu_s   submissions, starts and ends per second of CPU: 2,000 jobs of Philly on 64 nodes of 8 GPUs, FIFO
    ratio_accasim      that over AccaSim's on the same jobs with the same schedule (nothing where it is not installed)
    million_jobs_min   minutes of CPU for 1,000,000 jobs on 10,000 nodes, FIFO, on one core
    peak_gib           the most memory that took

Beside these: `events_per_cpu_s_default` with the default profile, the same two on 20,000 jobs and 256 nodes; in the
part `saturated` these 20,000 jobs on 64 nodes, where the queue grows long (`ratio_accasim_saturated`: AccaSim's cost
grows with it, so it is cut off after `--limit` seconds of CPU, and then the ratio is that at least); with `--growth` a
table over nodes and jobs. `--part` runs only the parts that it names. AccaSim 1.1.3 is asked for in an
environment of its own, whose Python is given by --accasim PATH or $RAYORCH_ACCASIM (`python -m venv V; V/bin/pip
install accasim==1.1.3`): it needs old names in `collections`, which are put there for it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import report, say
from benchmarks.played.philly import FIFO, GPUS_OF_A_NODE, nodes, trace, wait_s
from benchmarks.played.traces import data_folder
from rayorch.core.types import Resources
from rayorch.policies.default import DEFAULT
from rayorch.sim.trace.model import Ask, Trace, TraceJob
from rayorch.sim.trace.outcome import Progress
from rayorch.sim.trace.run import run

GIB = 1024**2  # ru_maxrss is in KiB
CASES = (("philly_2k", 64), ("philly_20k", 256))
GROWTH = ((100, 5_000), (1_000, 5_000), (10_000, 5_000), (1_000, 20_000), (1_000, 80_000))
SATURATED = ("philly_20k", 64)
LIMIT_S = 180
"""Seconds of CPU that AccaSim gets for the saturated case."""
PARTS = ("philly", "million", "saturated", "growth")
TOLD_EVERY = 50_000
"""Events between two lines of progress."""

ACCASIM = """
import collections, collections.abc, json, resource, sys
for name in ("Mapping", "MutableMapping", "Sequence", "Iterable", "Callable", "Hashable"):
    if not hasattr(collections, name):
        setattr(collections, name, getattr(collections.abc, name))
from accasim.base.allocator_class import FirstFit
from accasim.base.scheduler_class import FirstInFirstOut
from accasim.base.simulator_class import Simulator
simulator = Simulator(sys.argv[1], sys.argv[2], FirstInFirstOut(FirstFit()), scheduling_output=True)
def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
before_s = cpu_s()
if len(sys.argv) > 3:
    most_s = int(before_s) + 1 + int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 5))
simulator.start_simulation()
print(json.dumps({"cpu_s": cpu_s() - before_s}))
"""
"""What its own manual does, with the names that it imports from where they were until Python 3.9."""


def accasim(python: str, swf: Path, count: int, limit_s: int | None = None) -> tuple[float, str] | None:
    """(seconds of CPU, what it says of waiting times) of AccaSim on a trace; None: it was not done in `limit_s`."""
    with tempfile.TemporaryDirectory() as folder:
        system = {
            "system_name": "gpus",
            "start_time": 0,
            "equivalence": {"processor": {"core": 1}},
            "groups": {"node": {"core": GPUS_OF_A_NODE}},
            "resources": {"node": count},
        }
        work, config, script = (Path(folder, name) for name in ("work.swf", "system.json", "run.py"))
        work.write_bytes(gzip.decompress(swf.read_bytes()))
        config.write_text(json.dumps(system))
        script.write_text(ACCASIM)
        command = [python, str(script), str(work), str(config), *([] if limit_s is None else [str(limit_s)])]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if limit_s is not None and done.returncode == -signal.SIGXCPU:
            return None
        done.check_returncode()
    lines = (done.stdout + done.stderr).splitlines()
    waits = next((line.split(":")[-1].strip() for line in lines if "waiting times" in line), "?")
    return float(json.loads(done.stdout.splitlines()[-1])["cpu_s"]), waits


def synthetic(jobs: int, gpus: int, seed: int = 1, load: float = 0.9) -> Trace:
    """Jobs as Philly's are: nine in ten ask for one GPU, run times spread over four orders of magnitude."""
    rng = random.Random(seed)
    asks = {size: Ask(size, Resources.of({"GPU": 1})) for size in (1, 2, 4, 8, 16)}
    sizes = rng.choices(list(asks), (0.93, 0.015, 0.015, 0.03, 0.01), k=jobs)
    runs_s = [min(max(rng.lognormvariate(6.9, 1.6), 10.0), 500_000.0) for _ in range(jobs)]
    offered = sum(size * run_s for size, run_s in zip(sizes, runs_s, strict=True))
    rate = jobs / (offered / (load * gpus))
    made, now_s = [], 0.0
    for n in range(jobs):
        now_s += rng.expovariate(rate)
        made.append(TraceJob(f"j{n:07}", round(now_s, 3), round(runs_s[n], 3), asks[sizes[n]]))
    return Trace(f"synthetic {jobs}", tuple(made))


def teller() -> Callable[[Progress], None]:
    """Who says how far a long run has come, and how long the rest may take."""
    told = 0

    def tell(progress: Progress) -> None:
        nonlocal told
        if progress.events < told + TOLD_EVERY:
            return
        told = progress.events
        left_s = progress.cpu_s * (progress.jobs - progress.ended) / max(progress.ended, 1)
        say(
            f"  {progress.ended} of {progress.jobs} jobs, {progress.events} events, {progress.cpu_s:.0f} s of CPU,"
            f" about {left_s:.0f} s more, {_peak_gib():.2f} GiB"
        )

    return tell


def million(jobs: int, count: int) -> dict[str, float]:
    """So many jobs on so many nodes, first in, first out; minutes as for a million."""
    say(f"{jobs} jobs on {count} nodes, FIFO")
    made = synthetic(jobs, count * GPUS_OF_A_NODE)
    done = run(made, nodes(count), FIFO, on_progress=teller())
    say(f"{jobs} jobs: {done.events} events in {done.cpu_s:.0f} s of CPU, {_peak_gib():.2f} GiB, log {done.log_sha256}")
    return {"million_jobs_min": done.cpu_s / 60 * (1_000_000 / jobs), "peak_gib": _peak_gib()}


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB


def philly(python: str, data: Path) -> dict[str, float]:
    """Both simulators on the same jobs, one after the other."""
    figures: dict[str, float] = {}
    for name, count in CASES:
        jobs = trace(data, name)
        suffix = "" if name == CASES[0][0] else f"_{name.removeprefix('philly_')}"
        plain = run(jobs, nodes(count), FIFO)
        rate = plain.events / plain.cpu_s
        say(f"{name} on {count} nodes, FIFO: {rate:.0f} events a second, average wait {wait_s(plain):.2f} s")
        figures[f"events_per_cpu_s{suffix}"] = rate
        ours = run(jobs, nodes(count), DEFAULT)
        figures[f"events_per_cpu_s_default{suffix}"] = ours.events / ours.cpu_s
        say(f"{name}, default: {ours.events / ours.cpu_s:.0f} events a second, average wait {wait_s(ours):.2f} s")
        theirs = accasim(python, data / "philly" / f"{name}.swf.gz", count) if python else None
        if theirs is not None:
            cpu_s, waits = theirs
            say(f"{name}, AccaSim: {plain.events / cpu_s:.0f} events a second, average wait {waits} s")
            figures[f"ratio_accasim{suffix}"] = rate * cpu_s / plain.events
    return figures


def saturated(python: str, data: Path, limit_s: int) -> dict[str, float]:
    """More work than a small cluster can do for long: ours whole, AccaSim for so many seconds of CPU at most."""
    name, count = SATURATED
    ours = run(trace(data, name), nodes(count), FIFO)
    rate = ours.events / ours.cpu_s
    say(f"{name} on {count} nodes, FIFO: {rate:.0f} events a second, average wait {wait_s(ours):.2f} s")
    figures = {"events_per_cpu_s_saturated": rate}
    if not python:
        return figures
    theirs = accasim(python, data / "philly" / f"{name}.swf.gz", count, limit_s)
    cpu_s, waits = theirs if theirs is not None else (float(limit_s), "")
    if theirs is None:
        most = ours.events / cpu_s
        say(
            f"{name} on {count} nodes, AccaSim: cut off after {limit_s} s of CPU, so at most {most:.0f} events a second"
        )
    else:
        say(f"{name} on {count} nodes, AccaSim: {ours.events / cpu_s:.0f} events a second, average wait {waits} s")
    return figures | {"ratio_accasim_saturated": rate * cpu_s / ours.events}


def growth() -> None:
    """A table over nodes and jobs, for the documentation."""
    say("nodes | jobs | events per CPU-second, FIFO | default")
    for count, jobs in GROWTH:
        made = synthetic(jobs, count * GPUS_OF_A_NODE)
        rates = [(done := run(made, nodes(count), profile)).events / done.cpu_s for profile in (FIFO, DEFAULT)]
        say(f"{count} | {jobs} | {rates[0]:.0f} | {rates[1]:.0f}")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate_speed")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bound of ranges.yaml is missed")
    parser.add_argument("--quick", action="store_true", help="20,000 jobs on 1,000 nodes in place of the million")
    parser.add_argument("--growth", action="store_true", help="also the table over nodes and jobs")
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="seconds of CPU for AccaSim in the saturated case")
    parser.add_argument("--accasim", default=os.environ.get("RAYORCH_ACCASIM", ""), help="the Python that has AccaSim")
    parser.add_argument(
        "--part",
        action="append",
        choices=PARTS,
        help="only this part, and any other so named; all but growth where none is",
    )
    given = parser.parse_args()
    parts = given.part or [*PARTS[:3], *(["growth"] if given.growth else [])]
    figures: dict[str, float] = {}
    if "philly" in parts:
        if not given.accasim:
            say("no AccaSim: say by --accasim or $RAYORCH_ACCASIM which Python has it; ratio_accasim is left at 0")
        figures |= {"ratio_accasim": 0.0, **philly(given.accasim, data_folder())}
    if "million" in parts:
        figures |= million(*((20_000, 1_000) if given.quick else (1_000_000, 10_000)))
    if "saturated" in parts:
        figures |= saturated(given.accasim, data_folder(), given.limit)
    if "growth" in parts:
        growth()
    if given.part:
        print(json.dumps(figures))  # bounds are looked at where all of it has run
        return 0
    return report("simulate_speed", figures, given.check)


if __name__ == "__main__":
    sys.exit(main())
