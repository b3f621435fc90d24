"""From submit to all workers up, through rayorch and through raw Ray in turn, on one cluster in one run.

Both sides make a placement group of the same bundles and in each bundle one actor that does nothing, and the clock
stops when every actor has answered. With rayorch the group comes from `with client.gang(...)`, over HTTP; with raw
Ray from `ray.util.placement_group`. Every worker is a fresh process on both sides: a runtime environment of its own
in each round keeps idle workers of an earlier one from being taken. Rounds alternate, the side that goes first too,
and each begins only when Ray and rayorch both call the whole cluster free.

    ratio_N        median of rayorch's time over median of raw Ray's time, N bundles
    overhead_ms_N  median over the pairs of (rayorch's time - raw Ray's time)
    granted_ms_N   median time from submit to the group in hand
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import rayorch
from benchmarks.harness import arguments, rayorch_up, report, say
from rayorch import Client

SIZES = (1, 8, 32)
BUNDLE = {"GPU": 1.0, "CPU": 1.0}
ROUND_TIMEOUT_S = 300.0
FREE_TIMEOUT_S = 60.0
FREE_POLL_S = 0.1
QUIET_S = 1.5
"""Pause after the cluster is free: longer than rayorch's look at its nodes, so neither side meets the other's rest."""


class Idle:
    """A worker that does nothing."""

    @ray.method
    def up(self) -> bool:
        """Whether it is there."""
        return True


@dataclass(frozen=True, slots=True)
class Pair:
    """Times of one round on either side [s]. `granted_s`: from submit to rayorch's group in hand."""

    raw_s: float
    ours_s: float
    granted_s: float


def workers_up(group: PlacementGroup, count: int, mark: str) -> list[Any]:
    """One actor in each bundle, all of them up."""
    actor = ray.remote(num_gpus=BUNDLE["GPU"], num_cpus=BUNDLE["CPU"])(Idle)
    environment = {"env_vars": {"RAYORCH_BENCHMARK_ROUND": mark}}
    actors = [
        actor.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index), runtime_env=environment
        ).remote()
        for index in range(count)
    ]
    assert all(ray.get([a.up.remote() for a in actors], timeout=ROUND_TIMEOUT_S))
    return actors


def raw_round(count: int) -> float:
    """Raw Ray's time [s]."""
    mark = uuid.uuid4().hex
    began = time.perf_counter()
    group = placement_group([dict(BUNDLE)] * count, strategy="PACK")
    assert group.wait(ROUND_TIMEOUT_S)
    actors = workers_up(group, count, mark)
    took = time.perf_counter() - began
    end(actors)
    remove_placement_group(group)
    return took


def our_round(client: Client, count: int) -> tuple[float, float]:
    """(until all workers are up, until the group was in hand) with rayorch [s]."""
    mark = uuid.uuid4().hex
    began = time.perf_counter()
    with client.gang([dict(BUNDLE)] * count, timeout=ROUND_TIMEOUT_S) as group:
        granted = time.perf_counter() - began
        actors = workers_up(group, count, mark)
        took = time.perf_counter() - began
        end(actors)
    return took, granted


def end(actors: list[Any]) -> None:
    """Let the workers go, so that the next round finds no half-ended ones."""
    for actor in actors:
        ray.kill(actor)


def until_free(client: Client, total: float) -> None:
    """Wait until all GPUs are free for Ray and for rayorch, then a little longer. RuntimeError when they stay taken."""
    give_up = time.monotonic() + FREE_TIMEOUT_S
    while not _is_free(client, total):
        if time.monotonic() > give_up:
            raise RuntimeError(f"the cluster did not become free: {ray.available_resources()}, {list(client.nodes())}")
        time.sleep(FREE_POLL_S)
    time.sleep(QUIET_S)


def _is_free(client: Client, total: float) -> bool:
    if ray.available_resources().get("GPU", 0.0) < total:
        return False
    return all(not _gpus(node["used"]) and not _gpus(node["foreign"]) for node in client.nodes())


def _gpus(amounts: Any) -> float:
    return float(amounts.get("GPU", 0.0))


def pairs_of(client: Client, count: int, rounds: int) -> list[Pair]:
    """`rounds` pairs, the side that goes first in turn."""
    total = ray.cluster_resources()["GPU"]
    pairs: list[Pair] = []
    for number in range(rounds):
        taken: dict[str, tuple[float, float]] = {}
        sides: list[tuple[str, Callable[[], tuple[float, float]]]] = [
            ("raw", lambda: (raw_round(count), 0.0)),
            ("ours", lambda: our_round(client, count)),
        ]
        for side, measure in sides if number % 2 == 0 else reversed(sides):
            until_free(client, total)
            taken[side] = measure()
        pair = Pair(taken["raw"][0], *taken["ours"])
        say(f"{count} bundles: raw {pair.raw_s:.3f} s, rayorch {pair.ours_s:.3f} s, granted {pair.granted_s:.3f} s")
        pairs.append(pair)
    return pairs


def figures_of(pairs: dict[int, list[Pair]]) -> dict[str, float]:
    """The keys that the module's docstring names; sizes without pairs are left out."""
    figures: dict[str, float] = {}
    for count, found in pairs.items():
        figures[f"ratio_{count}"] = median(p.ours_s for p in found) / median(p.raw_s for p in found)
        figures[f"overhead_ms_{count}"] = median(p.ours_s - p.raw_s for p in found) * 1000
        figures[f"granted_ms_{count}"] = median(p.granted_s for p in found) * 1000
        figures[f"raw_ms_{count}"] = median(p.raw_s for p in found) * 1000
    return figures


def measure(gateway_url: str, given: argparse.Namespace) -> dict[str, float]:
    """All figures; one unmeasured pair of the smallest size goes first."""
    rounds = {1: given.rounds_1, 8: given.rounds_8, 32: given.rounds_32}
    with rayorch.connect(gateway_url) as client:
        say("one pair to warm up")
        pairs_of(client, 1, 1)
        return figures_of({count: pairs_of(client, count, rounds[count]) for count in SIZES})


def main() -> int:
    """Run and report."""
    given = arguments(
        "gang_start", {"rounds_1": 2, "rounds_8": 1, "rounds_32": 1}, rounds_1=11, rounds_8=9, rounds_32=5
    )
    with rayorch_up("4x8") as running:
        figures = measure(running.gateway_url, given)
    return report("gang_start", figures, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
