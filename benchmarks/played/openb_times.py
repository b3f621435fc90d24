"""The openb lists by their own times: pods come when they were created and run as long as they did, and who finds no
node waits.

At no time do the lists ask for more than 66 GPUs, of the 6,212 that the nodes have, so on all of them nobody would ever
wait. They are played on few nodes: the first of the seed's order until there are enough GPUs, at least one node of 8
among them. Pods that no node of these could ever take are turned away at the door, by every policy the same ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from benchmarks.played.openb import QUEUES, Pod, Scene, profile_of, read_pods, spec_of
from rayorch.core.decisions import Start
from rayorch.core.errors import AdmissionError
from rayorch.core.events import Forgotten
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import PlacementKnobs, Profile
from rayorch.core.types import UNIT, NodeSpec, WorkloadId
from rayorch.sim.trace.cluster import TraceCluster


@dataclass(frozen=True, slots=True)
class Waits:
    """What one run gave. `refused`: pods that no node could take. `waited`: pods that did not start at once.

    `mean_wait_s`: over all pods that started. `waiting_gpu_h`: GPU-hours asked for by those that waited, while they
    did. `unallocated`: the part [%] of the GPUs that was free on average while any pod with GPUs waited.
    """

    pods: int
    refused: int
    waited: int
    mean_wait_s: float
    waiting_gpu_h: float
    unallocated: float


def few(nodes: Sequence[NodeSpec], gpus: int) -> tuple[NodeSpec, ...]:
    """The first of the nodes, the first of 8 GPUs before all, until they have so many GPUs."""
    large = next(node for node in nodes if len(node.devices) == 8)
    found = [large]
    for node in nodes:
        if sum(len(taken.devices) for taken in found) >= gpus:
            break
        if node is not large:
            found.append(node)
    return tuple(sorted(found, key=lambda node: node.id))


class Timed:
    """One run: a turn of the loop at each moment at which a pod comes or goes."""

    def __init__(self, nodes: tuple[NodeSpec, ...], profile: Profile, pods: Sequence[Pod]) -> None:
        self.cluster = TraceCluster(nodes, QUEUES, profile)
        self.pods = {spec_of(number, pod).id: (spec_of(number, pod), pod) for number, pod in enumerate(pods)}
        self.capacity = sum(node.total.gpu_units for node in nodes)
        self.waiting: dict[WorkloadId, float] = {}
        self.waits_s: list[float] = []
        self.refused = self.waited = self.used = 0
        self._going: list[tuple[float, WorkloadId, int]] = []
        self._memory = Memory(lends=True)
        self._waiting_unit_s = self._free_unit_s = self._contended_s = 0.0

    def run(self) -> Waits:
        """Until the last has gone."""
        coming = iter(sorted((pod.created_s or 0.0, id) for id, (_, pod) in self.pods.items()))
        ahead = next(coming, None)
        while ahead is not None or self._going:
            moment = min([*([ahead[0]] if ahead is not None else []), *([self._going[0][0]] if self._going else [])])
            self._pass(moment)
            while self._going and self._going[0][0] <= moment:
                self._leave()
            while ahead is not None and ahead[0] <= moment:
                self._come(ahead[1])
                ahead = next(coming, None)
            self._turn()
        pods, waits = len(self.pods), self.waits_s
        assert len(waits) + self.refused == pods, f"{len(self.waiting)} pods never started"
        unallocated = self._free_unit_s / (self._contended_s * self.capacity) if self._contended_s else 0.0
        hours = self._waiting_unit_s / UNIT / 3600
        return Waits(pods, self.refused, self.waited, sum(waits) / len(waits), hours, 100 * unallocated)

    def _pass(self, moment: float) -> None:
        asked = sum(self.pods[id][1].gpu_units for id in self.waiting)
        passed_s = moment - self.cluster.now_s
        self._waiting_unit_s += asked * passed_s
        if asked:
            self._contended_s += passed_s
            self._free_unit_s += (self.capacity - self.used) * passed_s
        self.cluster.now_s = moment

    def _leave(self) -> None:
        _, id, attempt = heapq.heappop(self._going)
        self.used -= self.pods[id][1].gpu_units
        self.cluster.end(id, attempt, 0)
        self.cluster.record((Forgotten((id,), self.cluster.now_s),))

    def _come(self, id: WorkloadId) -> None:
        try:
            self.cluster.submit(self.pods[id][0])
        except AdmissionError:
            self.refused += 1
        else:
            self.waiting[id] = self.cluster.now_s

    def _turn(self) -> None:
        cluster, before = self.cluster, set(self.waiting)
        for start in self._starts():
            cluster.ready(start.workload, start.attempt)
            pod = self.pods[start.workload][1]
            self.waits_s.append(cluster.now_s - self.waiting.pop(start.workload))
            runs_s = (pod.deleted_s or 0.0) - (pod.created_s or 0.0)
            heapq.heappush(self._going, (cluster.now_s + max(1.0, runs_s), start.workload, start.attempt))
            self.used += pod.gpu_units
        self.waited += sum(self.pods[id][1].created_s == cluster.now_s for id in before & self.waiting.keys())

    def _starts(self) -> Iterator[Start]:
        made = plan(self.cluster.snapshot(), self.cluster.planned, self._memory)
        self.cluster.commit(made)
        return (decision for decision in made.decisions if isinstance(decision, Start))


def timed(name: str, policy: ModuleType, seed: int, gpus: int, first: int, learned: bool = False) -> Waits:
    """The `first` pods of a list to come, by their own times, on so many GPUs.

    `learned`: with the classes that the queue owner learns, not those of the list.
    """
    pods = read_pods(name)
    scene = Scene.of(pods, seed)
    pods = sorted(pods, key=lambda pod: (pod.created_s or 0.0, pod.name))[:first]
    profile = profile_of(policy, scene, seed)
    if learned:
        profile = replace(profile, placement=PlacementKnobs((), seed))
    return Timed(few(scene.nodes, gpus), profile, pods).run()
