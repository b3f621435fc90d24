"""What the benchmarks share: a whole rayorch on an emulated cluster, a journal full of work, bounds and the report.

Every benchmark prints what it does to stderr, its figures against the bounds of `ranges.yaml` to stdout, and as the
last line of stdout one JSON object. It fails (exit code 1) on a missed bound only with `--check`, because a bound is a
statement about a quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from rayorch.core.types import Kind, QueueId, Resources, Role, WorkloadId, WorkloadSpec

RANGES = Path(__file__).with_name("ranges.yaml")
UP_TIMEOUT_S = 300.0
DOWN_TIMEOUT_S = 60.0
RUN_VARIABLE = "RAYORCH_BENCHMARK_RUN"
"""Set in every process of a run's cluster, so that no process of another one is ever touched."""


# ---------------------------------------------------------------- figures and bounds


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure may be; `evidence`: why that number."""

    key: str
    unit: str
    evidence: str
    at_most: float | None = None
    at_least: float | None = None

    def holds(self, value: float) -> bool:
        """Whether the figure keeps the bound."""
        below = self.at_most is None or value <= self.at_most
        return below and (self.at_least is None or value >= self.at_least)

    def __str__(self) -> str:
        sign, limit = ("<=", self.at_most) if self.at_least is None else (">=", self.at_least)
        return f"{sign} {limit:g} {self.unit}".rstrip()


def bounds(benchmark: str) -> tuple[Bound, ...]:
    """The bounds of one benchmark; KeyError for a benchmark that has none."""
    entries = yaml.safe_load(RANGES.read_text())["benchmarks"][benchmark]["figures"]
    return tuple(Bound(key=key, **entry) for key, entry in entries.items())


def report(benchmark: str, figures: dict[str, float], check: bool) -> int:
    """Print the figures against their bounds and, last, all of them as JSON. Returns the exit code."""
    missed = 0
    for bound in bounds(benchmark):
        value = figures[bound.key]
        kept = bound.holds(value)
        missed += not kept
        print(f"{bound.key:>20} {value:12.2f}   {bound}   {'ok' if kept else 'MISSED'}")
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}), flush=True)
    return 1 if missed and check else 0


def arguments(
    benchmark: str, quick: Mapping[str, int], defaults: Mapping[str, int], argv: Sequence[str] | None = None
) -> argparse.Namespace:
    """`--check`, `--quick`, and one integer option for each default; `quick`: the defaults with `--quick`."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{benchmark}")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bound of ranges.yaml is missed")
    parser.add_argument(
        "--quick", action="store_true", help="a short run: it shows that all works, its figures are rough"
    )
    for name, default in defaults.items():
        shown = f"default {default}" + (f", {quick[name]} with --quick" if name in quick else "")
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=shown)
    given = parser.parse_args(argv)
    for name, default in defaults.items():
        if getattr(given, name) is None:
            setattr(given, name, quick.get(name, default) if given.quick else default)
    return given


def say(text: str) -> None:
    """A line of progress, beside the figures."""
    print(text, file=sys.stderr, flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values don't exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


# ---------------------------------------------------------------- a running rayorch


@dataclass(frozen=True, slots=True)
class Running:
    """A rayorch that runs, with this process connected to its cluster. `run`: the mark of its processes."""

    home: Path
    address: str
    gateway_url: str
    server_pid: int
    run: str
    log: Path

    @property
    def journal(self) -> Path:
        """The queue owner's journal."""
        return self.home / "main" / "journal.db"

    def processes(self) -> dict[int, str]:
        """The processes of this cluster: pid to title."""
        mark = f"{RUN_VARIABLE}={self.run}".encode()
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # it ended while we looked
                if mark in (entry / "environ").read_bytes():
                    title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    found[int(entry.name)] = title
        return found

    def pids_of(self, actor_class: str) -> tuple[int, ...]:
        """The processes of the actors of that class in this cluster."""
        return tuple(sorted(pid for pid, title in self.processes().items() if is_actor(title, actor_class)))

    def pid_of(self, actor_class: str) -> int:
        """The process of the one actor of that class in this cluster. LookupError when there is none."""
        found = self.pids_of(actor_class)
        if not found:
            raise LookupError(f"no process of {actor_class} in this cluster")
        return found[0]


def is_actor(title: str, actor_class: str) -> bool:
    """Whether a process title is that of an actor: "ray::Class", or "ray::[name:]Class.method" during a call."""
    left, _, right = title.partition("::")
    return left == "ray" and right.rpartition(":")[2].partition(".")[0].strip() == actor_class


@contextlib.contextmanager
def rayorch_up(emulate: str) -> Iterator[Running]:
    """`rayorch.server --emulate` in a process of its own, as `rayorch up` starts it; ended when the block is left."""
    import ray

    from rayorch.actors.names import NAMESPACE

    signal.signal(signal.SIGTERM, _leave)  # so that a run that is ended from outside cleans up as well
    folder = Path(tempfile.mkdtemp(prefix="rb", dir="/var/tmp"))  # a disk: /tmp may be memory, where fsync is free
    ray_folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))  # short: the path of a socket has 107 characters
    run = uuid.uuid4().hex
    environment = {
        **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        RUN_VARIABLE: run,
        "RAY_TMPDIR": str(ray_folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    log = folder / "server.log"
    command = [sys.executable, "-m", "rayorch.server", "--emulate", emulate, "--home", str(folder)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        state = _wait_for_state(process, folder / "main" / "server.json", log)
        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(address=state["address"], namespace=NAMESPACE, log_to_driver=False)
        yield Running(folder, state["address"], state["gateway_url"], state["pid"], run, log)
    finally:
        ray.shutdown()
        _end(process, log)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(ray_folder, ignore_errors=True)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _wait_for_state(process: subprocess.Popen[bytes], path: Path, log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + UP_TIMEOUT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"rayorch did not come up:\n{log.read_text()[-4000:]}")
        time.sleep(0.1)
    state: dict[str, Any] = json.loads(path.read_text())
    return state


def _end(process: subprocess.Popen[bytes], log: Path) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(DOWN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        say(f"the server did not end by itself:\n{log.read_text()[-2000:]}")
        process.kill()
        process.wait()


# ---------------------------------------------------------------- work


def gpu_nodes() -> list[str]:
    """The nodes with GPUs of the cluster that this process is connected to, by id."""
    import ray

    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) > 0)


def leased_gang(name: str, queue: QueueId, gpus: float, priority: int) -> WorkloadSpec:
    """The smallest workload: one bundle, no command."""
    role = Role("worker", Resources.of({"GPU": gpus}), 1, 1)
    return WorkloadSpec(id=WorkloadId(name), name=name, kind=Kind.GANG, queue=queue, roles=(role,), priority=priority)


def waiting_job(name: str, queue: QueueId, gpus: float = 1.0) -> WorkloadSpec:
    """Two to four workers of `gpus` GPUs, with a payload as a command has it."""
    role = Role("worker", Resources.of({"GPU": gpus, "CPU": 2}), 2, 4)
    payload = {
        "entrypoint": "python train.py --lr 3e-4 --epochs 40",
        "runtime_env": {"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip", "env_vars": {"SEED": "17"}},
        "metadata": {"contact": "ada"},
    }
    return WorkloadSpec(
        id=WorkloadId(name),
        name=name,
        kind=Kind.JOB,
        queue=queue,
        roles=(role,),
        payload=json.dumps(payload, sort_keys=True),
    )
