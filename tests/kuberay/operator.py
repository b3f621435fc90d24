"""KubeRay's operator, played: makes and deletes pods as a RayCluster's groups say, and writes its status.

It follows the real one's rules where they matter to us: counts are clamped to the group's limits; pods named in
workersToDelete go, with all of their replica; pods that have failed are replaced; a pod that is ending counts until it
is gone, unless it is named; what a count has too many without names goes by the operator's own choice
(`chosen_by_operator`, which tests want empty); the names stay in the object.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from rayorch.adapters.kuberay.models import RayCluster, WorkerGroup
from tests.kuberay.store import Store, Thing, timestamp

log = logging.getLogger(__name__)

REPLICA = "ray.io/worker-group-replica-name"
LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # what Kubernetes makes names from


class OperatorApi(Protocol):
    """What the operator needs of an API server. `StoreApi` is the fake's; the real CRD server keeps no pods."""

    def clusters(self) -> list[Thing]: ...
    def write_status(self, name: str, status: Thing) -> None: ...
    def pods(self, cluster: str) -> list[Thing]: ...
    def create_pod(self, pod: Thing) -> None: ...
    def write_pod(self, name: str, edit: Callable[[Thing], None]) -> None: ...
    def delete_pod(self, name: str) -> None: ...


@dataclass
class StoreApi:
    """Straight into a fake server's store."""

    store: Store

    def clusters(self) -> list[Thing]:
        return self.store.list("rayclusters")

    def write_status(self, name: str, status: Thing) -> None:
        self.store.change("rayclusters", name, lambda thing: thing.update(status=status), status=True)

    def pods(self, cluster: str) -> list[Thing]:
        return self.store.list("pods", chosen=lambda pod: pod["metadata"]["labels"].get("ray.io/cluster") == cluster)

    def create_pod(self, pod: Thing) -> None:
        self.store.create("pods", pod)

    def write_pod(self, name: str, edit: Callable[[Thing], None]) -> None:
        self.store.change("pods", name, edit)

    def delete_pod(self, name: str) -> None:
        self.store.delete("pods", name)


@dataclass
class PlayedOperator:
    """`start_node(group, pod) -> IP address` makes the Ray node of a pod, `stop_node(pod)` ends it; both may take long.

    `step` does one reconciliation of every cluster; `start` repeats it in a thread until `stop`.

    `delay_s`: from a pod's creation to its node's start. `ending_s`: from a pod's deletion to its end.
    `out_of_stock`: group → the scheduler's message; its pods stay pending. `refused`: group → why no pods of it can be
    created (a quota). `multi_host_labels`: KubeRay 1.5's labels.
    """

    api: OperatorApi
    start_node: Callable[[str, str], str] = lambda group, pod: "10.0.0.1"
    stop_node: Callable[[str], None] = lambda pod: None
    delay_s: float = 0.0
    ending_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    multi_host_labels: bool = True
    out_of_stock: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    chosen_by_operator: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(0)
        self._born: dict[str, float] = {}
        self._running: set[str] = set()
        self._notices: dict[str, float] = {}
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------ for tests

    def start(self, period_s: float = 0.1) -> None:
        """Repeat `step` in a thread."""
        self._thread = threading.Thread(target=self._loop, args=(period_s,), name="operator", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and raise what ended it before."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)
        if self.error is not None:
            raise self.error

    def step(self) -> None:
        """Bring every cluster nearer to what it asks for."""
        with self._lock:
            for raw in self.api.clusters():
                self._reconcile(RayCluster.model_validate(raw))

    def notice(self, pod: str, after_s: float) -> None:
        """Spot capacity is taken back: the pod is marked for deletion now and gone `after_s` later."""
        with self._lock:
            self._notices[pod] = self.clock() + after_s
            self.api.write_pod(pod, lambda thing: thing["metadata"].update(deletionTimestamp=timestamp()))

    def fail_pod(self, pod: str, reason: str = "Evicted", message: str = "") -> None:
        """The pod ends by itself; its node with it."""
        with self._lock:
            self.api.write_pod(pod, lambda thing: _fail(thing, reason, message))
            self._end_node(pod)

    def pods(self, cluster: str, group: str = "") -> list[str]:
        """Names of the workers that exist, of one group or all."""
        return [
            pod["metadata"]["name"]
            for pod in self.api.pods(cluster)
            if _kind(pod) == "worker" and group in ("", _group(pod))
        ]

    # ------------------------------------------------------------ reconciliation

    def _loop(self, period_s: float) -> None:
        while not self._stop.wait(period_s):
            try:
                self.step()
            except BaseException as error:
                log.exception("the played operator failed")
                self.error = error
                return

    def _reconcile(self, cluster: RayCluster) -> None:
        name = cluster.metadata.name
        self._take_back()
        if cluster.spec.suspend:
            for pod in self.api.pods(name):
                self._delete(pod["metadata"]["name"])
        else:
            if not any(_kind(pod) == "head" for pod in self.api.pods(name)):
                self._create(cluster, None, {"ray.io/node-type": "head", "ray.io/group": "headgroup"})
            for group in cluster.groups:
                self._reconcile_group(cluster, group)
            self._advance(name)
        self._write_status(cluster)

    def _reconcile_group(self, cluster: RayCluster, group: WorkerGroup) -> None:
        pods = [pod for pod in self.api.pods(cluster.metadata.name) if _group(pod) == group.group_name]
        ended = [pod for pod in pods if pod["status"]["phase"] in ("Failed", "Succeeded")]
        broken = {pod["metadata"]["name"] for pod in (pods if group.suspend else ended)}
        broken |= _incomplete(pods, group.hosts)
        if broken:  # replaced in the next round, as the real operator does
            for pod in sorted(_with_replicas(pods, broken)):
                self._delete(pod)
            return
        named = set(_with_replicas(pods, frozenset(group.to_delete)))
        for pod in sorted(named):
            self._delete(pod)
        left = [pod for pod in pods if pod["metadata"]["name"] not in named]
        surplus = len(left) - group.asked * group.hosts
        if surplus > 0 and not cluster.spec.enable_in_tree_autoscaling:
            # In any order, says Kubernetes: the worst one is that those which are ending come last.
            for pod in sorted(left, key=_leaving)[:surplus]:
                if not _leaving(pod):
                    self.chosen_by_operator.append(pod["metadata"]["name"])
                self._delete(pod["metadata"]["name"])
        elif surplus < 0 and group.group_name not in self.refused:
            self._create_pods(cluster, group, -surplus)

    def _create_pods(self, cluster: RayCluster, group: WorkerGroup, count: int) -> None:
        replica = ""
        for number in range(count):
            labels = {"ray.io/node-type": "worker", "ray.io/group": group.group_name}
            if group.hosts > 1 and self.multi_host_labels:
                host = number % group.hosts
                replica = replica if host else f"{group.group_name}-{self._suffix()}"
                labels |= {REPLICA: replica, "ray.io/replica-host-index": str(host)}
            self._create(cluster, group, labels)

    def _create(self, cluster: RayCluster, group: WorkerGroup | None, labels: dict[str, str]) -> None:
        middle = f"{group.group_name}-worker" if group is not None else "head"
        name = f"{cluster.metadata.name}-{middle}-{self._suffix()}"[-63:]
        pod: Thing = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"ray.io/cluster": cluster.metadata.name, **labels}},
            "spec": {"containers": [{"name": "ray"}]},
            "status": {"phase": "Pending"},
        }
        self.api.create_pod(pod)
        self._born[name] = self.clock()
        if group is None:
            self.api.write_pod(name, lambda thing: _ready(thing, "10.0.0.1"))
            self._running.add(name)
        else:
            self.created.append(name)

    def _advance(self, cluster: str) -> None:
        """Pending pods get their machine, and become ready when their Ray node has started."""
        for pod in self.api.pods(cluster):
            name, group = pod["metadata"]["name"], _group(pod)
            if name in self._running or _leaving(pod) or pod["status"]["phase"] != "Pending":
                continue
            if (message := self.out_of_stock.get(group)) is not None:
                if not pod["status"].get("conditions"):
                    self.api.write_pod(name, lambda thing, message=message: _unschedulable(thing, message))
            elif self.clock() - self._born.get(name, 0.0) >= self.delay_s:
                address = self.start_node(group, name)
                self._running.add(name)
                self.api.write_pod(name, lambda thing, address=address: _ready(thing, address))

    def _take_back(self) -> None:
        for pod in [pod for pod, due in self._notices.items() if due <= self.clock()]:
            del self._notices[pod]
            self._remove(pod)

    def _delete(self, pod: str) -> None:
        if pod not in self._born or pod in self._notices:
            return
        self.deleted.append(pod)
        if self.ending_s > 0:
            self._notices[pod] = self.clock() + self.ending_s
            self.api.write_pod(pod, lambda thing: thing["metadata"].update(deletionTimestamp=timestamp()))
            self._end_node(pod)
        else:
            self._remove(pod)

    def _remove(self, pod: str) -> None:
        self._end_node(pod)
        del self._born[pod]
        self.api.delete_pod(pod)

    def _end_node(self, pod: str) -> None:
        if pod in self._running:
            self._running.discard(pod)
            self.stop_node(pod)

    def _suffix(self) -> str:
        return "".join(self._random.choice(LETTERS) for _ in range(5))

    def _write_status(self, cluster: RayCluster) -> None:
        pods = [pod for pod in self.api.pods(cluster.metadata.name) if _kind(pod) == "worker"]
        running = sum(1 for pod in pods if pod["status"]["phase"] == "Running" and not _leaving(pod))
        status: Thing = {
            "observedGeneration": cluster.metadata.generation,
            "desiredWorkerReplicas": sum(group.asked * group.hosts for group in cluster.groups),
            "availableWorkerReplicas": running,
            "readyWorkerReplicas": running,
            "state": "suspended" if cluster.spec.suspend else "ready",
        }
        if self.refused:
            status["reason"] = "; ".join(f"{group}: {why}" for group, why in sorted(self.refused.items()))
        self.api.write_status(cluster.metadata.name, status)


def _kind(pod: Thing) -> str:
    return str(pod["metadata"]["labels"].get("ray.io/node-type", ""))


def _group(pod: Thing) -> str:
    return str(pod["metadata"]["labels"].get("ray.io/group", ""))


def _leaving(pod: Thing) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _with_replicas(pods: list[Thing], named: Set[str]) -> Iterator[str]:
    """The named pods and all that share their replica."""
    replicas = {pod["metadata"]["labels"].get(REPLICA) for pod in pods if pod["metadata"]["name"] in named} - {None}
    for pod in pods:
        if pod["metadata"]["name"] in named or pod["metadata"]["labels"].get(REPLICA) in replicas:
            yield pod["metadata"]["name"]


def _incomplete(pods: list[Thing], hosts: int) -> set[str]:
    """Pods of labelled replicas that have lost a member: the operator takes the rest away too."""
    sizes = Counter(pod["metadata"]["labels"].get(REPLICA) for pod in pods)
    labels = {pod["metadata"]["name"]: pod["metadata"]["labels"].get(REPLICA) for pod in pods}
    return {name for name, replica in labels.items() if replica is not None and sizes[replica] < hosts}


def _ready(thing: Thing, address: str) -> None:
    thing["status"] = {
        "phase": "Running",
        "podIP": address,
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": timestamp()},
        ],
        "containerStatuses": [{"name": "ray", "state": {"running": {"startedAt": timestamp()}}}],
    }


def _unschedulable(thing: Thing, message: str) -> None:
    condition: dict[str, Any] = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    thing["status"]["conditions"] = [{**condition, "message": message}]


def _fail(thing: Thing, reason: str, message: str) -> None:
    thing["status"] = {"phase": "Failed", "reason": reason, "message": message}
