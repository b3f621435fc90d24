"""From submit to all workers up, through rayorch and through raw Ray in turn, on one cluster in one run.

Both sides make a placement group of the same bundles and in each bundle one actor that does nothing, and the clock
stops when every actor has answered. With rayorch the group comes from `with client.gang(...)`, over HTTP; with raw
Ray from `ray.util.placement_group`. Rounds alternate, the side that goes first too, and each begins only when Ray and
rayorch both call the whole cluster free. There are two kinds of rounds, and in a pair both sides have the same kind:

    fresh    every worker is a new process (a runtime environment of its own keeps idle ones from being taken), as in
             real gangs: the ratio is taken from these
    waiting  the processes have been started before and wait: what rayorch adds is taken from these, because the time
             of many process starts on few cores varies by more than that

    ratio_N        median of rayorch's time over median of raw Ray's time, N bundles, fresh workers
    overhead_ms_N  median over the pairs of (rayorch's time - raw Ray's time), waiting workers
    granted_ms_N   median time from submit to the group in hand, all rounds
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import rayorch
from benchmarks.harness import arguments, rayorch_up, report, say
from rayorch import Client
from rayorch.adapters.ray_workers import NodeWorkers

SIZES = (1, 8, 32)
NODES, NODE_GPUS = 4, 8
BUNDLE = {"GPU": 1.0, "CPU": 1.0}
ROUND_TIMEOUT_S = 300.0
FREE_TIMEOUT_S = 60.0
FREE_POLL_S = 0.1
QUIET_S = 1.5
"""Pause after the cluster is free: longer than rayorch's look at its nodes, so neither side meets the other's rest."""
ASK_AGAIN_S, LOOK_S = 15.0, 0.2
"""A raylet starts as many workers at once as the machine has cores, and forgets the rest of a request: it is asked
again when some have come, or when none has for this time."""
TRIES = 3
"""A round whose workers turn out to be of the wrong kind is done again, this many times at most."""
KEEP_S = 3600
"""How long a waiting worker stays when nobody takes it: longer than any run."""


class Idle:
    """A worker that does nothing."""

    @ray.method
    def pid(self) -> int:
        """Its process."""
        return os.getpid()


@dataclass(frozen=True, slots=True)
class Pair:
    """Times of one round on either side [s]. `granted_s`: from submit to rayorch's group in hand."""

    raw_s: float
    ours_s: float
    granted_s: float


@dataclass(frozen=True, slots=True)
class Up:
    """Workers that are up: their handles and processes."""

    actors: list[Any]
    pids: frozenset[int]


# ---------------------------------------------------------------- workers


class WaitingWorkers:
    """Processes that were started ahead on every node with GPUs, for this driver's actors."""

    def __init__(self) -> None:
        rows = [row for row in ray.nodes() if row["Alive"] and row["Resources"].get("GPU")]
        self._nodes = [NodeWorkers(f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}") for row in rows]
        self._others = [node.pids() for node in self._nodes]
        self._mine: list[set[int]] = [set() for _ in self._nodes]
        self._job: str = ray.get_runtime_context().get_job_id()

    def close(self) -> None:
        """Let go of the nodes."""
        for node in self._nodes:
            node.close()

    def top_up(self, each: int) -> None:
        """Make sure that `each` wait on every node. RuntimeError when they don't come."""
        give_up = time.monotonic() + ROUND_TIMEOUT_S
        asked_s = float("-inf")
        asked_for: dict[int, int] = {}
        while missing := self._look(each):
            now_s = time.monotonic()
            if now_s > give_up:
                raise RuntimeError(f"{sum(missing.values())} workers were not started ahead")
            if missing != asked_for or now_s - asked_s > ASK_AGAIN_S:
                asked_s, asked_for = now_s, missing
                for index, count in missing.items():
                    self._nodes[index].prestart(self._job, count, KEEP_S)
            time.sleep(LOOK_S)

    def _look(self, each: int) -> dict[int, int]:
        """See who waits on each node; how many are missing where."""
        for index, node in enumerate(self._nodes):
            self._mine[index] = {pid for pid in node.pids() - self._others[index] if is_waiting(pid)}
        return {i: each - len(mine) for i, mine in enumerate(self._mine) if len(mine) < each}

    def took(self, up: Up) -> bool:
        """Whether all who are up waited here before; else the round was of the other kind."""
        return up.pids <= frozenset().union(*self._mine)


def is_waiting(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process is a worker of Ray that nobody has taken."""
    try:
        return (proc / str(pid) / "cmdline").read_bytes().startswith(b"ray::IDLE")
    except OSError:
        return False


def workers_up(group: PlacementGroup, count: int, fresh: bool) -> Up:
    """One actor in each bundle, all of them up."""
    kind = ray.remote(num_gpus=BUNDLE["GPU"], num_cpus=BUNDLE["CPU"])(Idle)
    options: dict[str, Any] = {}
    if fresh:
        options["runtime_env"] = {"env_vars": {"RAYORCH_BENCHMARK_ROUND": uuid.uuid4().hex}}
    actors = [
        kind.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, index), **options).remote()
        for index in range(count)
    ]
    return Up(actors, frozenset(ray.get([a.pid.remote() for a in actors], timeout=ROUND_TIMEOUT_S)))


def end(up: Up) -> None:
    """Let the workers go."""
    for actor in up.actors:
        ray.kill(actor)


# ---------------------------------------------------------------- rounds


def raw_round(count: int, fresh: bool) -> tuple[float, float, Up]:
    """With raw Ray: (until all workers are up, until the group was there) [s], and who was up."""
    began = time.perf_counter()
    group = placement_group([dict(BUNDLE)] * count, strategy="PACK")
    assert group.wait(ROUND_TIMEOUT_S)
    granted = time.perf_counter() - began
    up = workers_up(group, count, fresh)
    took = time.perf_counter() - began
    end(up)
    remove_placement_group(group)
    return took, granted, up


def our_round(client: Client, count: int, fresh: bool) -> tuple[float, float, Up]:
    """The same with rayorch."""
    began = time.perf_counter()
    with client.gang([dict(BUNDLE)] * count, timeout=ROUND_TIMEOUT_S) as group:
        granted = time.perf_counter() - began
        up = workers_up(group, count, fresh)
        took = time.perf_counter() - began
        end(up)
    return took, granted, up


def until_free(client: Client) -> None:
    """Wait until all GPUs are free for Ray and for rayorch, then a little longer. RuntimeError when they stay taken."""
    give_up = time.monotonic() + FREE_TIMEOUT_S
    while not _is_free(client):
        if time.monotonic() > give_up:
            raise RuntimeError(f"the cluster did not become free: {ray.available_resources()}, {list(client.nodes())}")
        time.sleep(FREE_POLL_S)
    time.sleep(QUIET_S)


def _is_free(client: Client) -> bool:
    if ray.available_resources().get("GPU", 0.0) < NODES * NODE_GPUS:
        return False
    return all(not _gpus(node["used"]) and not _gpus(node["foreign"]) for node in client.nodes())


def _gpus(amounts: Any) -> float:
    return float(amounts.get("GPU", 0.0))


def pairs_of(client: Client, waiting: WaitingWorkers | None, count: int, rounds: int) -> list[Pair]:
    """`rounds` pairs, the side that goes first in turn. `waiting` None: with fresh workers."""
    fresh = waiting is None
    sides: list[tuple[str, Callable[[], tuple[float, float, Up]]]] = [
        ("raw", lambda: raw_round(count, fresh)),
        ("ours", lambda: our_round(client, count, fresh)),
    ]
    pairs: list[Pair] = []
    for number in range(rounds):
        taken: dict[str, tuple[float, float]] = {}
        for side, measure in sides if number % 2 == 0 else reversed(sides):
            taken[side] = one_side(client, waiting, count, measure)
        pair = Pair(taken["raw"][0], *taken["ours"])
        say(
            f"{count} {'fresh' if fresh else 'waiting'}: raw {pair.raw_s:.3f} s (group {taken['raw'][1]:.3f}),"
            f" rayorch {pair.ours_s:.3f} s (group {pair.granted_s:.3f})"
        )
        pairs.append(pair)
    return pairs


def one_side(
    client: Client, waiting: WaitingWorkers | None, count: int, measure: Callable[[], tuple[float, float, Up]]
) -> tuple[float, float]:
    """One round of one side, with workers of the right kind: (until all are up, until the group was there) [s]."""
    for _ in range(TRIES):
        if waiting is not None:
            waiting.top_up(min(count, NODE_GPUS))
        until_free(client)
        took, granted, up = measure()
        if waiting is None or waiting.took(up):
            return took, granted
        say("some workers were not those that waited; once more")
    raise RuntimeError(f"in {TRIES} rounds running some of {count} workers were not those that waited")


def figures_of(fresh: Mapping[int, list[Pair]], waiting: Mapping[int, list[Pair]]) -> dict[str, float]:
    """The keys that the module's docstring names, and what they were made from."""
    figures: dict[str, float] = {}
    for count, pairs in fresh.items():
        figures[f"ratio_{count}"] = median(p.ours_s for p in pairs) / median(p.raw_s for p in pairs)
        figures[f"raw_ms_{count}"] = median(p.raw_s for p in pairs) * 1000
        figures[f"fresh_overhead_ms_{count}"] = median(p.ours_s - p.raw_s for p in pairs) * 1000
    for count, pairs in waiting.items():
        figures[f"overhead_ms_{count}"] = median(p.ours_s - p.raw_s for p in pairs) * 1000
        figures[f"granted_ms_{count}"] = median(p.granted_s for p in (*fresh[count], *pairs)) * 1000
    return figures


@contextmanager
def workers_ahead() -> Iterator[WaitingWorkers]:
    """Closed when the block is left."""
    waiting = WaitingWorkers()
    try:
        yield waiting
    finally:
        waiting.close()


def measure(gateway_url: str, given: argparse.Namespace) -> dict[str, float]:
    """All figures; one unmeasured pair of the smallest size goes first."""
    numbers = {1: (given.fresh_1, given.waiting_1), 8: (given.fresh_8, given.waiting_8)}
    numbers[32] = (given.fresh_32, given.waiting_32)
    fresh: dict[int, list[Pair]] = {}
    waiting: dict[int, list[Pair]] = {}
    with rayorch.connect(gateway_url) as client, workers_ahead() as ahead:
        say("one pair to warm up")
        pairs_of(client, None, 1, 1)
        for count in SIZES:
            fresh[count] = pairs_of(client, None, count, numbers[count][0])
            waiting[count] = pairs_of(client, ahead, count, numbers[count][1])
    return figures_of(fresh, waiting)


def main() -> int:
    """Run and report."""
    quick = {"fresh_1": 2, "waiting_1": 2, "fresh_8": 1, "waiting_8": 1, "fresh_32": 1, "waiting_32": 1}
    rounds = {"fresh_1": 7, "waiting_1": 15, "fresh_8": 5, "waiting_8": 9, "fresh_32": 3, "waiting_32": 5}
    given = arguments("gang_start", quick, rounds)
    with rayorch_up(f"{NODES}x{NODE_GPUS}") as running:
        figures = measure(running.gateway_url, given)
    return report("gang_start", figures, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
