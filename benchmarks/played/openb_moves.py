"""The openb lists with moves: what runs changes its node now and then, at most 2 % of the pods in all.

The protocol is that of `openb.py`. When `BEGINS` of the capacity has been asked for, every `EVERY` pods a turn is
planned with a moves policy, again and again until it moves nobody. Each move goes the whole way: the pod is told to
stop, ends, waits and is started on the node that was kept for it, all before the next pod arrives; a pod that did not
come back there would be an error. A pod is moved at most once, and when n pods have come at most 2 % of n have been
moved, each move counted. What a move costs does not count here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from benchmarks.played.openb import Fill, Scene, allocation, profile_of, read_pods
from benchmarks.played.openb_ceiling import before_the_first_dropped, ceiling
from rayorch.core.decisions import Start, Stop
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import DefragmentKnobs, Profile

BEGINS = 0.85
EVERY = 50
MOST = 0.02
KNOBS = DefragmentKnobs(
    every_s=0.0,
    most=MOST,
    window_s=1e12,
    per_turn=8,
    cooldown_s=0.0,
    most_lost_s=1e12,
    worth_s=1e12,
    least_gain=0.02,
    across_models=True,
)


@dataclass(frozen=True, slots=True)
class Moved:
    """One run. `shares`: allocated GPUs [%] by load, `ceiling`: what any number of moves could not have exceeded, with
    everybody placed who was placed before the first one was dropped; `moves`: how many pods were moved, of `pods`."""

    shares: dict[int, float]
    ceiling: dict[int, float]
    moves: int
    pods: int


class MovingFill(Fill):
    """A cluster that is filled, and in which pods are moved."""

    def __init__(self, scene: Scene, profile: Profile, moves: ModuleType, seed: int) -> None:
        super().__init__(scene, profile)
        self.moves = 0
        self._apart = Memory(lends=True)  # the planner sees the profile with moves as another one
        self._moving = replace(
            self.cluster.planned,
            moves=moves.moves,
            defragment=replace(KNOBS, seed=seed),
            preemption=True,
            eviction=replace(profile.eviction, consolidate=False),
        )

    def move(self, most: int) -> None:
        """Move until the policy moves nobody, or so many have been moved in all."""
        cluster = self.cluster
        while self.moves < most:
            cluster.now_s += 1.0
            knobs = self._moving.defragment
            if most - self.moves < knobs.per_turn:
                fewer = replace(knobs, per_turn=most - self.moves)
                made = plan(cluster.snapshot(), replace(self._moving, defragment=fewer))
            else:
                made = plan(cluster.snapshot(), self._moving, self._apart)
            stops = [decision for decision in made.decisions if isinstance(decision, Stop)]
            if not stops:
                return
            cluster.commit(made)
            self.moves += len(stops)
            for stop in stops:
                cluster.end(stop.workload, stop.attempt, 1)
            self._come_back(stops)

    def _come_back(self, stops: Sequence[Stop]) -> None:
        """All of them start where they were moved to."""
        cluster = self.cluster
        made = plan(cluster.snapshot(), cluster.planned, self._memory)
        cluster.commit(made)
        starts = {decision.workload: decision for decision in made.decisions if isinstance(decision, Start)}
        for stop in stops:
            start = starts[stop.workload]
            (_, _, node), *_ = stop.order.seats
            assert [member.node for member in start.members] == [node], f"{stop.workload} came back elsewhere"
            cluster.ready(start.workload, start.attempt)


def moved(name: str, policy: ModuleType, moves: ModuleType, seed: int, loads: Sequence[int] = (100, 130)) -> Moved:
    """What a placement policy with a moves policy allocates of a list."""
    scene = Scene.of(read_pods(name), seed)
    fill, used, arrived = MovingFill(scene, profile_of(policy, scene, seed), moves, seed), list[int](), 0
    for number, pod in enumerate(scene.pods):
        fill.arrive(number, (pod,))
        used.append(fill.used)
        arrived += pod.gpu_units
        if number % EVERY == EVERY - 1 and arrived > BEGINS * scene.capacity:
            fill.move(int(MOST * (number + 1)))
    assert fill.moves <= MOST * len(scene.pods)
    most = ceiling(scene, before_the_first_dropped(scene, used), loads)
    return Moved(allocation(scene, used, loads), most, fill.moves, len(scene.pods))
