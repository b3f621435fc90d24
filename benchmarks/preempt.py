"""From the decision to preempt to free GPUs, with the demo's training script and an acknowledged checkpoint.

The digits classifier trains as an elastic gang of 2 to 4 workers on a cluster of 4 GPUs. In turn, a gang of a higher
priority asks for 2 GPUs, for which the training shrinks, and for 4, for which it is evicted whole; each time it gets
its GPUs back and goes on until the next round. The clock runs from the decision (the time of the event Resized or
StopOrdered in the journal) until Ray's available resources show the GPUs free.

    free_s_median  over all rounds [s]; also of the shrinks and of the evictions alone
    steps_lost     training steps that were run twice, by the script's own history
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import ray

import rayorch
from benchmarks.harness import Running, arguments, rayorch_up, report, say
from rayorch import Client
from rayorch.client.handle import ENDED, WorkloadHandle

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "demo" / "train_digits.py"
LEAST, MOST = 2, 4
STEPS = 100_000
"""More than a run can take: the benchmark ends the training."""
CHECKPOINT_EVERY = 50
STEPS_BETWEEN = 15
"""Steps at full size before a round, so that something would be lost without a checkpoint."""
UP_TIMEOUT_S = 240.0
GANG_TIMEOUT_S = 120.0
HELD_S = 1.0
LOOK_S = 0.01
DECISIONS = ("Resized", "StopOrdered")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the script's history."""

    step: int
    world: int


@dataclass(slots=True)
class FreeWatch:
    """When Ray's available resources first showed each number of GPUs free: [(time, GPUs)]."""

    seen: list[tuple[float, float]] = field(default_factory=list)

    def first(self, gpus: float, after_s: float) -> float | None:
        """The first time after `after_s` with at least that many free, None when there was none."""
        return next((at_s for at_s, free in self.seen if at_s >= after_s and free >= gpus), None)


@contextmanager
def watching() -> Iterator[FreeWatch]:
    """Look at Ray's available resources all the time, in a thread."""
    watch, over = FreeWatch(), threading.Event()

    def look() -> None:
        while not over.is_set():
            free = ray.available_resources().get("GPU", 0.0)
            watch.seen.append((time.time(), free))
            over.wait(LOOK_S)

    thread = threading.Thread(target=look, name="free-watch")
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def history(path: Path) -> list[Step]:
    """What the script has written; a line that is being written is left out."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [Step(row["step"], row["world"]) for row in rows]


def steps_lost(steps: Sequence[Step]) -> int:
    """Steps that were run twice."""
    return len(steps) - len({step.step for step in steps})


def until_full_size(training: WorkloadHandle, path: Path) -> None:
    """Wait until the training has made some steps in a row at its full size. RuntimeError when it does not."""
    give_up = time.monotonic() + UP_TIMEOUT_S
    since = len(history(path))
    while True:
        steps = history(path)[since:]
        if len(steps) >= STEPS_BETWEEN and all(step.world == MOST for step in steps[-STEPS_BETWEEN:]):
            return
        info = training.info()
        if info["state"] in ENDED or time.monotonic() > give_up:
            output = "\n".join(list(training.logs())[-30:])
            raise RuntimeError(f"no steps at size {MOST}: {info['state']} {info['reason']}, {steps[-3:]}\n{output}")
        time.sleep(0.2)


def decision(training: WorkloadHandle, after_s: float) -> tuple[str, float]:
    """The first decision to take seats from the training after that time: its event and its time."""
    for event in training.events():
        at_s = float(str(event["at"]))
        if event["type"] in DECISIONS and at_s >= after_s:
            return str(event["type"]), at_s
    raise RuntimeError(f"nothing was taken from {training.id}")


def one_round(client: Client, training: WorkloadHandle, gpus: int) -> float:
    """Preempt for a gang of that many GPUs and give them back; returns the time until they were free [s]."""
    began_s = time.time()
    with watching() as watch:
        with client.gang([{"GPU": 1.0}] * gpus, priority=10, timeout=GANG_TIMEOUT_S, name="urgent") as _:
            granted_s = time.time()
            time.sleep(HELD_S)
    kind, decided_s = decision(training, began_s)
    free_s = watch.first(gpus, decided_s)
    # The gang may take them before anyone sees them free: then they were free at the latest when it had them.
    free_s = granted_s if free_s is None else min(free_s, granted_s)
    say(f"{kind} for {gpus} GPUs: decided after {decided_s - began_s:.2f} s, free {free_s - decided_s:.2f} s later")
    return free_s - decided_s


def measure(client: Client, folder: Path, rounds: int) -> dict[str, float]:
    """Rounds of both kinds in turn, then the training's end."""
    path = folder / "history.jsonl"
    command = [sys.executable, str(SCRIPT), "--steps", STEPS, "--checkpoint-every", CHECKPOINT_EVERY]
    command += ["--min-workers", LEAST, "--max-workers", MOST]
    command += ["--storage", folder / "training", "--history", path]
    environment = {"PYTHONPATH": str(ROOT)}
    training = client.submit(
        [str(word) for word in command], kind="train", name="digits", workers=(LEAST, MOST), gpus_per_worker=1,
        env=environment,
    )  # fmt: skip
    shrinks: list[float] = []
    evictions: list[float] = []
    for number in range(rounds):
        for gpus, times in ((MOST - LEAST, shrinks), (MOST, evictions)):
            say(f"round {number + 1}: waiting for {STEPS_BETWEEN} steps at size {MOST}")
            until_full_size(training, path)
            times.append(one_round(client, training, gpus))
    until_full_size(training, path)  # the steps after the last resume count too
    lost = steps_lost(history(path))
    training.cancel("the benchmark is over")
    return {
        "free_s_median": median(shrinks + evictions),
        "steps_lost": float(lost),
        "shrink_s_median": median(shrinks),
        "evict_s_median": median(evictions),
        "free_s_max": max(shrinks + evictions),
        "steps": float(len(history(path))),
    }


def run(running: Running, rounds: int) -> dict[str, float]:
    """With a client."""
    with rayorch.connect(running.gateway_url) as client:
        return measure(client, running.home, rounds)


def main() -> int:
    """Run and report."""
    given = arguments("preempt", {"rounds": 1}, {"rounds": 3})
    with rayorch_up(f"2x{MOST // 2}") as running:
        figures = run(running, given.rounds)
    return report("preempt", figures, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
