"""Kueue's three performance configurations, replayed through the live queue owner, allocator and controller.

Queues, quotas, arrivals and run times are those of Kueue's generators (`*.generator.yaml`, read as they are). No work
is started: nodes, placement groups and runners are played (`benchmarks/played/owners.py`); every submission, start and
end is durable in the journal and goes through the actors' calls. An admission is a workload that has run to its end.

    baseline, large_scale, tas  admissions a second, from the first arrival to the last end
    ceiling_ratio               the worst of the three: the time that it took / the least time that run times, quotas
                                and arrivals allow
    verdict_s                   from the submission of a gang of 10 that can't be placed to the reasons, on 500 nodes

The least time is printed for each: of every cohort, for every arrival the work that arrives from then on, divided by
the cohort's quota, after it; and no less than the last arrival with its run time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import yaml

from benchmarks import idle
from benchmarks.harness import report, say
from benchmarks.played.owners import start_played
from rayorch.actors.controller import ControllerSettings
from rayorch.actors.journal import ensure_journal
from rayorch.actors.names import NAMESPACE
from rayorch.actors.queues import QueueSettings, start_queue_owner
from rayorch.actors.runner import RunnerSettings
from rayorch.core.types import (
    Kind,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    State,
    TopologyRequest,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.policies.default import DEFAULT

CONFIGURATIONS = {"baseline": "baseline", "large_scale": "large-scale", "tas": "tas"}
KUEUE_S = {"baseline": 351.1, "large_scale": 1_179.4, "tas": 401.5}
"""What Kueue takes in its own CI, on average: as its `*.rangespec.yaml` say."""
TICK_S = 0.05
MOST_AT_ONCE = 1_000
"""Workloads in one call, of those that have arrived since the last one."""
ANSWER_S = 120.0
RACKS, NODES_IN_RACK, CPUS = 10, 64, 96


@dataclass(frozen=True, slots=True)
class Arrival:
    """One workload of a generator: when it comes, to which cohort, how long it runs and how much it takes."""

    at_s: float
    cohort: str
    runtime_s: float
    cpus: float
    spec: WorkloadSpec


def amount(text: object) -> float:
    """A Kubernetes quantity of CPUs."""
    value = str(text)
    return float(value[:-1]) / 1000 if value.endswith("m") else float(value)


def read(path: Path) -> tuple[tuple[QueueSpec, ...], list[Arrival]]:
    """The queues and the arrivals, by time, of a generator's file."""
    queues: list[QueueSpec] = []
    arrivals: list[Arrival] = []
    for cohorts in yaml.safe_load(path.read_text())["cohorts"]:
        for c in range(cohorts["count"]):
            cohort = f"{cohorts['className']}{c}"
            own: list[QueueSpec] = []
            for sets in cohorts["queuesSets"]:
                for q in range(sets["count"]):
                    id = QueueId(f"{cohort}/{sets['className']}{q:03d}")
                    nominal, borrow = amount(sets["nominalQuota"]), amount(sets["borrowingLimit"])
                    cpus = Resources.of({"CPU": nominal})
                    own.append(QueueSpec(id, cpus, borrow_limit=Resources.of({"CPU": borrow})))
                    arrivals += _arrivals(sets["workloadsSets"], cohort, id)
            units = sum(queue.deserved.units("CPU") for queue in own)
            queues.append(QueueSpec(QueueId(cohort), Resources.of_units({"CPU": units})))
            queues += own
    return tuple(queues), sorted(arrivals, key=lambda arrival: (arrival.at_s, arrival.spec.id))


def _arrivals(sets: list[dict[str, Any]], cohort: str, queue: QueueId) -> Iterator[Arrival]:
    for s, one in enumerate(sets):
        for n in range(one["count"]):
            for w, kind in enumerate(one["workloads"]):
                pods, each = int(kind.get("podCount", 1)), amount(kind["request"])
                runtime_s = kind["runtimeMs"] / 1000
                name = f"{queue.replace('/', '-')}-{s}-{n}-{w}"
                spec = WorkloadSpec(
                    id=WorkloadId(name),
                    name=name,
                    kind=Kind.JOB,
                    queue=queue,
                    roles=(Role("pod", Resources.of({"CPU": each}), pods, pods),),
                    priority=kind["priority"],
                    topology=_topology(kind),
                    payload=payload(runtime_s),
                )
                yield Arrival((n + 1) * one["creationIntervalMs"] / 1000, cohort, runtime_s, pods * each, spec)


def _topology(kind: dict[str, Any]) -> TopologyRequest:
    level = str(kind.get("tasLevel", "")).rpartition("topology-")[2]
    match kind.get("tasConstraint"):
        case "required":
            return TopologyRequest(required=level)
        case "preferred":
            return TopologyRequest(preferred=level)
        case "balanced":
            return TopologyRequest(preferred=level, balanced=True)
        case _:
            return TopologyRequest()


def payload(runtime_s: float) -> str:
    """What the played runner reads its time from."""
    return json.dumps({"entrypoint": "true", "metadata": {"runtime_s": str(runtime_s)}})


def least_s(queues: tuple[QueueSpec, ...], arrivals: list[Arrival]) -> float:
    """The least time that run times, quotas and arrivals allow."""
    quota = {queue.id: queue.deserved.units("CPU") / 10_000 for queue in queues}
    worst = max(arrival.at_s + arrival.runtime_s for arrival in arrivals)
    for cohort in {arrival.cohort for arrival in arrivals}:
        left = 0.0
        for arrival in reversed([a for a in arrivals if a.cohort == cohort]):
            left += arrival.runtime_s * arrival.cpus
            worst = max(worst, arrival.at_s + left / quota[QueueId(cohort)])
    return worst


def nodes(count: int, in_rack: int = NODES_IN_RACK) -> tuple[NodeSpec, ...]:
    """One block of racks."""
    return tuple(
        NodeSpec(
            NodeId(f"n{i:04d}"),
            f"node-{i:04d}",
            Resources.of({"CPU": CPUS}),
            topology=(("block", "b0"), ("rack", f"r{i // in_rack:03d}")),
        )
        for i in range(count)
    )


class Instance:
    """An instance with played nodes, on a cluster of its own."""

    def __init__(self, name: str, folder: Path, there: tuple[NodeSpec, ...], queues: tuple[QueueSpec, ...]) -> None:
        profile = replace(DEFAULT, lease_s=3600.0)  # runners that are played give no signs of life
        path = folder / f"{name}.db"
        self.owner = start_queue_owner(QueueSettings(str(path), name, ensure_journal(path)))
        for queue in queues:
            assert ray.get(self.owner.set_queue.remote(queue), timeout=ANSWER_S).accepted, queue
        settings = ControllerSettings(profile, RunnerSettings(name), name)
        self.inventory, self.allocator, self.controller = start_played(name, there, settings)
        deadline = time.monotonic() + ANSWER_S
        while not ray.get(self.controller.status.remote(), timeout=ANSWER_S).synced:
            assert time.monotonic() < deadline, ray.get(self.controller.status.remote())
            time.sleep(0.05)

    def status(self) -> tuple[Any, Any]:
        """How its loop and its queue owner are."""
        return tuple(ray.get([self.controller.status.remote(), self.owner.status.remote()], timeout=ANSWER_S))

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds that each of its actors has used so far."""
        actors = {"owner": self.owner, "allocator": self.allocator, "controller": self.controller}
        pids = {name: actor.__ray_call__.remote(lambda _: os.getpid()) for name, actor in actors.items()}
        return {name: idle.cpu_s(ray.get(pid, timeout=ANSWER_S)) for name, pid in pids.items()}

    def end(self) -> None:
        """Its actors are ended."""
        for actor in (self.controller, self.allocator, self.inventory, self.owner):
            ray.kill(actor)


def _checked(calls: list[Any]) -> list[Any]:
    """Submissions that have not been answered yet; all others must have been accepted."""
    answered, open_calls = ray.wait(calls, num_returns=len(calls), timeout=0) if calls else ([], [])
    for results in ray.get(answered, timeout=ANSWER_S):
        refused = [result for result in results if not result.reply.accepted]
        assert not refused, refused[0]
    return list(open_calls)


def replay(name: str, path: Path, folder: Path) -> tuple[float, float]:
    """(admissions a second, time taken / least time) of one configuration."""
    queues, arrivals = read(path)
    least = least_s(queues, arrivals)
    instance = Instance(name, folder, nodes(RACKS * NODES_IN_RACK), queues)
    used = instance.cpu_s()
    began, position, asked = time.monotonic(), 0, 0.0
    calls: list[Any] = []
    done = 0
    while done < len(arrivals):
        now = time.monotonic() - began
        until = position
        while until < len(arrivals) and arrivals[until].at_s <= now:
            until += 1
        while position < until:
            some = arrivals[position : min(until, position + MOST_AT_ONCE)]
            calls.append(instance.owner.submit_many.remote(tuple(arrival.spec for arrival in some)))
            position += len(some)
        if now - asked > 1.0:
            asked = now
            calls = _checked(calls)
            counts = dict(ray.get(instance.owner.status.remote(), timeout=ANSWER_S).states)
            done = counts[State.SUCCEEDED]
            assert not counts[State.FAILED], counts
            if int(now) % 20 == 0:
                turn = ray.get(instance.controller.status.remote(), timeout=ANSWER_S)
                say(
                    f"{name}: {now:.0f} s: {done} of {len(arrivals)} have run; {turn.turns} turns, the last"
                    f" took {turn.last_took_s * 1000:.0f} ms; {turn.last_error}"
                )
        time.sleep(TICK_S)
    took = time.monotonic() - began
    cpu = {actor: (now - used[actor]) * 1000 / len(arrivals) for actor, now in instance.cpu_s().items()}
    instance.end()
    say(
        f"{name}: {len(arrivals)} in {took:.1f} s, {len(arrivals) / took:.1f}/s; the least time is {least:.1f} s, Kueue"
        f" takes {KUEUE_S[name]:.0f} s, {KUEUE_S[name] / least:.1f} times as long; CPU for each workload: "
        + ", ".join(f"{actor} {ms:.2f} ms" for actor, ms in cpu.items())
    )
    return len(arrivals) / took, took / least


def _gang(name: str, queue: QueueId, pods: int, rack: str | None = None) -> WorkloadSpec:
    role = Role("pod", Resources.of({"CPU": CPUS}), pods, pods)
    topology = TopologyRequest(required=rack)
    return WorkloadSpec(WorkloadId(name), name, Kind.JOB, queue, (role,), topology=topology, payload=payload(1e6))


def verdict(folder: Path) -> float:
    """From the submission of a gang of 10 on 500 nodes that are all in use to the reasons why it waits [s].

    One that could never be placed is refused at the door; how long that takes is printed beside it.
    """
    queue = QueueSpec(QueueId("all"), Resources.of({"CPU": 2 * 500 * CPUS}))
    instance = Instance("verdict", folder, nodes(500, in_rack=8), (queue,))
    never = _gang("never", queue.id, 10, "rack")
    while ray.get(instance.owner.check.remote(never), timeout=ANSWER_S).accepted:
        time.sleep(0.1)  # it was not told yet which nodes there are
    began = time.monotonic()
    refused = ray.get(instance.owner.submit.remote(never), timeout=ANSWER_S)
    say(f"at the door after {time.monotonic() - began:.3f} s: {refused.reply.message}")
    fill = tuple(_gang(f"fill-{i:03d}", queue.id, 1) for i in range(500))
    filled = ray.get(instance.owner.submit_many.remote(fill), timeout=ANSWER_S)
    assert all(result.reply.accepted for result in filled), filled[0]
    while dict(ray.get(instance.owner.status.remote(), timeout=ANSWER_S).states)[State.RUNNING] < len(fill):
        assert time.monotonic() - began < ANSWER_S, instance.status()
        time.sleep(0.2)
    time.sleep(2.0)
    spec = _gang("impossible", queue.id, 10)
    began = time.monotonic()
    result = ray.get(instance.owner.submit.remote(spec), timeout=ANSWER_S)
    assert result.reply.accepted, result
    reasons: tuple[Any, ...] = ()
    while not reasons and time.monotonic() - began < ANSWER_S:
        view = ray.get(instance.controller.explain.remote(spec.id), timeout=ANSWER_S)
        reasons = tuple(w for w in view.waits if w.reason.value != "Planning") if view is not None else ()
    took = time.monotonic() - began
    say(f"verdict after {took:.3f} s: {'; '.join(w.detail for w in reasons)}")
    instance.end()
    return took


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kueue_perf")
    parser.add_argument("folder", type=Path, help="the folder with Kueue's *.generator.yaml")
    parser.add_argument("--only", choices=sorted(CONFIGURATIONS), help="one configuration alone")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bound of ranges.yaml is missed")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kp-", dir="/tmp"))
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(
        num_cpus=4, include_dashboard=False, namespace=NAMESPACE, log_to_driver=False, _temp_dir=str(folder / "ray")
    )
    figures: dict[str, float] = {}
    try:
        figures["verdict_s"] = verdict(folder)
        ratios: list[float] = []
        for name, file in CONFIGURATIONS.items():
            if given.only in (None, name):
                figures[name], ratio = replay(name, given.folder / f"{file}.generator.yaml", folder)
                ratios.append(ratio)
        figures["ceiling_ratio"] = max(ratios)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    if given.only:
        print(json.dumps(figures))
        return 0
    return report("kueue_perf", figures, given.check)


if __name__ == "__main__":
    raise SystemExit(main())
