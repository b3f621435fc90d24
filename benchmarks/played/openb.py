"""The openb lists as the FGD paper plays them, driven through `plan()`: pods arrive one by one and none leaves.

Weng et al. (ATC'23), after the scripts of its artifact. Pods are sorted by name and shuffled by the seed. Uniform
re-draws follow until the GPUs that were asked for come to `LOAD` of the capacity; of a list that has more, random pods
are left out. Nodes get a random order, which is the order of their names. A pod that finds no node is dropped at once.
The typical classes are those of the list itself. What is measured at x % is the mean of the allocated GPUs over all
pods with round(100 * arrived / capacity) = x.

The generator is ours, so a seed is not pod for pod that of the artifact.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rayorch.core.decisions import Start
from rayorch.core.events import Forgotten
from rayorch.core.fragmentation import typical
from rayorch.core.placement import TaskClass
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import Profile
from rayorch.core.types import (
    MODEL_LABEL,
    UNIT,
    Device,
    Kind,
    NodeId,
    NodeSpec,
    QueueId,
    QueueSpec,
    Resources,
    Role,
    WorkloadId,
    WorkloadSpec,
)
from rayorch.sim.trace.cluster import TraceCluster

LOAD = 1.3
MIB = 2**20
QUEUE = QueueId("all")
ANYTHING = 10**9
"""A quota that nobody reaches."""

LISTS = (
    "default",
    *(f"cpu{part}" for part in ("037", "050", "072", "100", "200", "235", "250", "300")),
    *(f"gpushare{part}" for part in (20, 40, 60, 80, 100)),
    *(f"gpuspec{part}" for part in ("05", "10", "20", "25", "33")),
    *(f"multigpu{part}" for part in (20, 30, 40, 50)),
)


def folder() -> Path:
    """Where the data lies: $RAYORCH_DATA, else ../shared/data beside the project."""
    given = os.environ.get("RAYORCH_DATA")
    return Path(given) if given else Path(__file__).resolve().parents[2].parent / "shared" / "data"


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod: what it asks for, and when it came and went where its list says so [s].

    `each`: GPU units on each of `gpus` devices. `models`: those that will do, none: any.
    """

    name: str
    bundle: Resources
    gpus: int
    each: int
    models: tuple[str, ...]
    created_s: float | None = None
    deleted_s: float | None = None

    @property
    def gpu_units(self) -> int:
        """All that it takes of GPUs."""
        return self.gpus * self.each


def _rows(name: str) -> list[dict[str, str]]:
    with gzip.open(folder() / "openb" / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(io.StringIO(file.read())))


def read_nodes() -> list[tuple[str, int, int, int, str]]:
    """(name, CPU in 1/1000, memory in MiB, GPUs, model) of all nodes with GPUs, by name."""
    rows = [row for row in _rows("openb_node_list_gpu_node") if int(row["gpu"])]
    return sorted((r["sn"], int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]), r["model"]) for r in rows)


def read_pods(name: str) -> list[Pod]:
    """The pods of a list, by name. Models that no node has are left out of what will do."""
    there = {model for *_, model in read_nodes()}
    interned: dict[tuple[int, int, int], Resources] = {}
    found = []
    for row in sorted(_rows(f"openb_pod_list_{name}"), key=lambda row: row["name"]):
        gpus = int(row["num_gpu"])
        milli = min(1000, int(float(row["gpu_milli"]))) if gpus else 0
        key = int(row["cpu_milli"]), int(row["memory_mib"]), gpus * milli
        bundle = interned.get(key)
        if bundle is None:
            units = {"CPU": key[0] * UNIT // 1000, "memory": key[1] * MIB * UNIT, "GPU": key[2] * UNIT // 1000}
            bundle = interned[key] = Resources.of_units(units)
        wanted = (row.get("gpu_spec") or "").split("|") if gpus else []
        times = [float(row[c]) if row.get(c) else None for c in ("creation_time", "deletion_time")]
        models = tuple(dict.fromkeys(model for model in wanted if model in there))
        found.append(Pod(row["name"], bundle, gpus, milli * UNIT // 1000, models, *times))
    return found


def classes(pods: Iterable[Pod]) -> tuple[TaskClass, ...]:
    """The typical classes of a list."""
    counts = Counter((pod.bundle.units("CPU"), pod.each, pod.gpus, frozenset(pod.models)) for pod in pods)
    return typical(TaskClass(*what, weight) for what, weight in counts.items())


@dataclass(frozen=True, slots=True)
class Scene:
    """What a seed makes of a list: the nodes in their order, and the pods that arrive."""

    nodes: tuple[NodeSpec, ...]
    pods: tuple[Pod, ...]
    classes: tuple[TaskClass, ...]
    capacity: int
    """GPU units of all nodes."""

    @staticmethod
    def of(pods: Sequence[Pod], seed: int, load: float = LOAD) -> Scene:
        """See the module."""
        rng = np.random.default_rng(seed)
        rows = read_nodes()
        capacity = sum(row[3] for row in rows) * UNIT
        arriving = [pods[i] for i in rng.permutation(len(pods))]
        asked, most = sum(pod.gpu_units for pod in arriving), load * capacity
        if asked > most:
            while asked > most:
                asked -= arriving.pop(int(rng.integers(len(arriving)))).gpu_units
        else:
            while asked + (pod := pods[int(rng.integers(len(pods)))]).each <= most:
                arriving.append(pod)
                asked += pod.gpu_units
        order = rng.permutation(len(rows))
        nodes = sorted((node_of(f"{place:04d}-", row) for place, row in zip(order, rows, strict=True)), key=_by_id)
        return Scene(tuple(nodes), tuple(arriving), classes(pods), capacity)


def _by_id(node: NodeSpec) -> NodeId:
    return node.id


def node_of(prefix: str, row: tuple[str, int, int, int, str]) -> NodeSpec:
    """A node whose devices can be chosen."""
    name, cpu, memory, gpus, model = row
    total = Resources.of_units({"CPU": cpu * UNIT // 1000, "memory": memory * MIB * UNIT, "GPU": gpus * UNIT})
    devices = tuple(Device(index, model) for index in range(gpus))
    return NodeSpec(NodeId(prefix + name), name, total, devices, ((MODEL_LABEL, model),), exact=True)


def spec_of(number: int, pod: Pod) -> WorkloadSpec:
    """A pod as a workload; of models that will do none is better than another."""
    return WorkloadSpec(
        id=WorkloadId(f"p{number:06d}"),
        name=pod.name,
        kind=Kind.JOB,
        queue=QUEUE,
        roles=(Role("pod", pod.bundle, 1, 1),),
        accelerators=pod.models,
        any_model=len(pod.models) > 1,
    )


QUEUES = (QueueSpec(QUEUE, Resources.of({"GPU": ANYTHING / UNIT})),)
"""One queue that holds nobody back."""


# ---------------------------------------------------------------- the engine, pod by pod


class Fill:
    """A cluster that is filled: one turn of the loop for each pod. No clock: a turn is a second.

    What decides is `plan()`, what checks and keeps the books are the owners' own classes. `turns_s`: CPU time of each
    turn, submission, decision and commit, or dropping, together; `plans_s`: of `plan()` alone.
    """

    def __init__(self, scene: Scene, profile: Profile) -> None:
        self.scene = scene
        self.cluster = TraceCluster(scene.nodes, QUEUES, profile)
        self.turns_s: list[float] = []
        self.plans_s: list[float] = []
        self.used = 0
        """GPU units."""
        self._memory = Memory(lends=True)

    def arrive(self, number: int, pod: Pod) -> Start | None:
        """One pod comes: it starts, or it is dropped."""
        spec, cluster = spec_of(number, pod), self.cluster
        cluster.now_s += 1.0
        began = time.thread_time()
        cluster.submit(spec)
        seen = cluster.snapshot()
        asked = time.thread_time()
        made = plan(seen, cluster.planned, self._memory)
        self.plans_s.append(time.thread_time() - asked)
        cluster.commit(made)
        start = next((decision for decision in made.decisions if isinstance(decision, Start)), None)
        if start is not None:
            cluster.ready(start.workload, start.attempt)
            self.used += pod.gpu_units
        else:
            cluster.record(cluster.tree.cancel(spec.id, "no room", cluster.now_s))
            cluster.record((Forgotten((spec.id,), cluster.now_s),))
        self.turns_s.append(time.thread_time() - began)
        return start
