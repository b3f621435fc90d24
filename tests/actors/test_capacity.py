"""Capacity that follows whole gangs, on real Ray: nodes come and go as a played operator obeys our patches.

The operator acts when the test lets it (`Stage.until`), so that what lies between a patch and its pods can be looked
at. The tests share one cluster, run in their order, and each gives back what it was given. With
RAYORCH_CAPACITY_API=real they run on the real API server for custom resources, which keeps no pods.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.core.generated import common_pb2
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayorch.actors.node_groups import GroupSettings
from rayorch.actors.start import InstanceSettings, start_instance, stop_instance
from rayorch.adapters.ray_drain import drain_preempted
from rayorch.core.capacity import Capacity
from rayorch.core.events import AttemptEnded, Started
from rayorch.core.lifecycle import Move
from rayorch.core.node_groups import GroupKnobs
from rayorch.core.types import NodeHealth, NodeId, Resources, Role, State, StopCause, WorkloadSpec
from tests.instance import PATIENCE_S, POLL_S, Instance, ProgressFile, eventually, job_spec, short_profile
from tests.kuberay.crd_server import CrdServer, start_server
from tests.kuberay.fake_api import FakeApi
from tests.kuberay.objects import ray_cluster as raycluster
from tests.kuberay.objects import worker_group
from tests.kuberay.operator import OperatorApi, PlayedOperator, StoreApi
from tests.kuberay.store import Thing
from tests.ray_cluster import EmulatedCluster

pytestmark = pytest.mark.ray

GROUP, GPUS, CPUS, MOST = "h100", 2, 4, 3
IDLE_S = 2.0
NOTICE_S = 25.0
STEPS = 20


@dataclass
class OwnPods:
    """What the operator needs of a server that keeps no pods: it keeps them itself, and nobody else sees them."""

    server: CrdServer
    kept: dict[str, Thing] = field(default_factory=dict)

    def clusters(self) -> list[Thing]:
        return self.server.list("rayclusters")

    def write_status(self, name: str, status: Thing) -> None:
        self.server.change("rayclusters", name, lambda thing: thing.update(status=status), status=True)

    def pods(self, cluster: str) -> list[Thing]:
        ours = [pod for pod in self.kept.values() if pod["metadata"]["labels"].get("ray.io/cluster") == cluster]
        return copy.deepcopy(ours)

    def create_pod(self, pod: Thing) -> None:
        self.kept[pod["metadata"]["name"]] = copy.deepcopy(pod)

    def write_pod(self, name: str, edit: Callable[[Thing], None]) -> None:
        edit(self.kept[name])

    def delete_pod(self, name: str) -> None:
        del self.kept[name]


@dataclass
class Machines:
    """The Ray nodes of the operator's pods, as KubeRay starts them: their names are in the raylet's environment."""

    cluster: EmulatedCluster
    running: dict[str, NodeId] = field(default_factory=dict)
    ever: dict[str, NodeId] = field(default_factory=dict)

    def start(self, group: str, pod: str) -> str:
        """The pod's container starts; answers with its address."""
        environment = {"RAY_NODE_TYPE_NAME": group, "RAY_CLOUD_INSTANCE_ID": pod}
        node = NodeId(self.cluster.add_node(GPUS, CPUS, env_vars=environment))
        self.running[pod] = self.ever[pod] = node
        return f"10.0.0.{len(self.ever)}"

    def stop(self, pod: str) -> None:
        """The pod ends, whatever runs in it."""
        self.cluster.kill_node(self.running.pop(pod))

    def let_go(self, pod: str) -> bool:
        """Whether Ray had let the pod's node go, idle, before the pod ended."""
        rows = {row["NodeID"]: row for row in ray.nodes()}
        row = rows[self.ever[pod]]
        return not row["Alive"] and row["DeathReason"] == common_pb2.NodeDeathInfo.AUTOSCALER_DRAIN_IDLE


@dataclass
class Stage:
    """A server of rayorch on a cluster that is only a head, an API server with one RayCluster, and its operator."""

    api: FakeApi | CrdServer
    operator: PlayedOperator
    machines: Machines
    instance: Instance
    folder: Path
    counts: list[int] = field(default_factory=list)  # as the operator has seen them, each change once

    def until(self, what: str, check: Callable[[], Any]) -> Any:
        """Let the operator act until `check` is true, and answer what it says."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (value := check()):
            assert time.monotonic() < deadline_s, f"never came: {what}\n{self.capacity()}\n{self.instance.facts()}"
            if self.counts[-1:] != [self.replicas()]:
                self.counts.append(self.replicas())
            self.operator.step()
            time.sleep(POLL_S)
        return value

    def ended(self, *names: str) -> None:
        """Let the operator act until these have ended, well."""
        for name in names:
            self.until(f"{name} has ended", lambda name=name: self.instance.workload(name).state.terminal)
            assert self.instance.workload(name).state is State.SUCCEEDED, self.instance.workload(name)

    def emptied(self) -> None:
        """Let the operator act until all nodes have been given back: each was drained first, none was chosen by it."""
        self.until("no pods", lambda: not self.pods() and not self.machines.running)
        assert self.operator.chosen_by_operator == []
        self.until("the inventory has seen it", lambda: len(self.instance.facts().nodes) == 1)

    def replicas(self) -> int:
        """The count in the RayCluster."""
        return int(self.api.get("rayclusters", "demo")["spec"]["workerGroupSpecs"][0]["replicas"])

    def pods(self) -> list[str]:
        """The worker pods that exist."""
        return self.operator.pods("demo")

    def capacity(self) -> Capacity:
        """What the controller saw in its last turn."""
        view = self.instance.ask(self.instance.controller.overview.remote())
        assert isinstance(view.capacity, Capacity)
        return view.capacity

    def progress(self, name: str) -> ProgressFile:
        """What a workload writes."""
        return ProgressFile(self.folder / name)

    def wide(self, name: str, nodes: int, steps: int = STEPS, **changes: Any) -> WorkloadSpec:
        """A command whose gang fills so many nodes."""
        role = Role("worker", Resources.of({"GPU": GPUS}), nodes, nodes)
        return replace(job_spec(name, self.progress(name).command(steps), **changes), roles=(role,))


@pytest.fixture(scope="module")
def api(crds_dir: Path, tools_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeApi | CrdServer]:
    """The fake API server, or the real one."""
    if os.environ.get("RAYORCH_CAPACITY_API") == "real":
        server = start_server(tmp_path_factory.mktemp("crd"), crds_dir, tools_dir)
        yield server
        server.stop()
    else:
        with FakeApi(crds_dir) as fake:
            yield fake


@pytest.fixture(scope="module")
def stage(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory, api: FakeApi | CrdServer) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("capacity")
    cluster: EmulatedCluster = ray_cluster(nodes=0)
    # What is learned from nodes that start in seconds must not make the next one late on a busy machine.
    profile = replace(short_profile(), node_idle_s=IDLE_S, provision_s=60.0, provision_deadline_factor=60.0)
    limits = {"cpu": str(CPUS), "nvidia.com/gpu": str(GPUS)}
    api.create("rayclusters", raycluster(worker_group(GROUP, 0, 0, MOST, limits=limits)))
    machines = Machines(cluster)
    operator_api: OperatorApi = StoreApi(api.store) if isinstance(api, FakeApi) else OwnPods(api)
    operator = PlayedOperator(operator_api, machines.start, machines.stop)
    groups = GroupSettings(api.settings(folder), GroupKnobs.of(profile))
    start_instance(InstanceSettings(profile, folder / "home", groups=groups))
    instance = Instance()
    try:
        yield Stage(api, operator, machines, instance, folder)
    finally:
        instance.close()
        stop_instance("main")


def test_exactly_the_nodes_of_a_gang_appear_it_runs_and_they_go_again(stage: Stage) -> None:
    stage.instance.submit(stage.wide("wide", nodes=2))
    eventually("the patch", lambda: stage.replicas() == 2)
    assert stage.pods() == []  # the operator has not acted yet
    order = eventually("the order is shown", lambda: [state.order for state in stage.capacity().groups if state.order])[
        0
    ]
    assert (order.from_replicas, order.to_replicas, order.beneficiaries) == (0, 2, ("wide",))
    eventually("it says why", lambda: "Provisioning" in stage.instance.waits("wide"))

    stage.instance.kill(stage.instance.inventory)  # what it knew of the order is lost; the count is not
    stage.ended("wide")

    assert stage.progress("wide").attempts() == (1,)
    assert len(stage.operator.created) == 2
    stage.emptied()
    assert sorted(stage.operator.deleted) == sorted(stage.operator.created)
    assert all(stage.machines.let_go(pod) for pod in stage.operator.created)
    assert stage.counts[0] == 2 and stage.counts[-1] == 0 and stage.counts == sorted(stage.counts, reverse=True)
    if isinstance(stage.api, FakeApi):
        assert len(stage.api.sent("PATCH")) == len(stage.counts)
    stage.instance.assert_whole()


def test_two_gangs_that_both_want_the_last_node_never_hold_one_another_and_both_finish(stage: Stage) -> None:
    before = len(stage.operator.created)
    gangs = [stage.wide(name, nodes=2, steps=100) for name in ("one", "two")]  # three nodes can be had
    stage.instance.submit(*gangs)

    stage.until("one of them runs", lambda: stage.progress("one").step or stage.progress("two").step)
    runs, waits = ("one", "two") if stage.progress("one").step else ("two", "one")
    assert stage.instance.workload(waits).placement == ()
    stage.until("it says why", lambda: "CapacityLimit" in stage.instance.waits(waits))
    assert stage.replicas() == 2  # a third node would help nobody
    stage.ended("one", "two")

    assert len(stage.operator.created) - before == 2
    (end,), (start,) = stage.instance.endings(runs), stage.instance.starts(waits)
    assert isinstance(end, AttemptEnded) and isinstance(start, Started)
    assert start.at_s >= end.at_s
    assert stage.progress(waits).attempts() == (1,)
    stage.emptied()
    stage.instance.assert_whole()


def test_a_spot_node_that_is_taken_back_costs_a_requeue_and_is_replaced_once(stage: Stage) -> None:
    before = len(stage.operator.created)
    progress = stage.progress("spot")
    stage.instance.submit(stage.wide("spot", nodes=1, steps=1_000_000, grace_s=10.0))
    stage.until("it runs", lambda: progress.step > 5)
    (pod,) = stage.pods()
    taken = stage.machines.running[pod]

    deadline_s = time.time() + NOTICE_S
    stage.operator.notice(pod, NOTICE_S)
    assert drain_preempted(taken, "the pod got SIGTERM", deadline_s) == ""  # as `ray start` does it
    stage.until("it runs elsewhere", lambda: 2 in progress.attempts())
    step = progress.step
    stage.until("it goes on", lambda: progress.step > step)

    assert stage.instance.node_of("spot") != taken
    (end,) = stage.instance.endings("spot")
    assert (end.move, end.cause) == (Move.REQUEUED, StopCause.DRAINED)
    assert stage.instance.workload("spot").failures == 0
    stage.until("the pod is gone", lambda: pod not in stage.pods())
    assert len(stage.operator.created) - before == 2, (stage.operator.created, stage.counts)
    stage.instance.cancel("spot")
    stage.until("it has ended", lambda: stage.instance.workload("spot").state.terminal)
    stage.emptied()
    stage.instance.assert_whole()


def test_a_node_with_somebodys_actor_that_asks_for_nothing_is_idle_to_us_but_not_to_ray_and_stays(stage: Stage) -> None:
    progress = stage.progress("last")
    stage.instance.submit(stage.wide("last", nodes=1))
    stage.until("it runs", lambda: progress.step)
    ((pod, node),) = stage.machines.running.items()
    somebody = _squat(node)
    stage.ended("last")

    kept = stage.until("its group keeps it", lambda: [s for s in stage.capacity().groups if s.stays])
    assert kept[0].stays == (pod,)
    assert (stage.replicas(), stage.pods()) == (1, [pod])
    assert ray.get(somebody.ping.remote(), timeout=PATIENCE_S) is None
    stage.until("it takes work again", lambda: _health(stage, node) is NodeHealth.OK)
    stage.instance.submit(stage.wide("later", nodes=1))
    stage.ended("later")
    assert stage.instance.starts("later")[0].members[0].node == node
    ray.kill(somebody)


def _squat(node: NodeId) -> Any:
    class Somebody:
        def ping(self) -> None:
            """A sign of life."""

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    handle = ray.remote(num_cpus=0)(Somebody).options(scheduling_strategy=where).remote()
    ray.get(handle.ping.remote(), timeout=PATIENCE_S)
    return handle


def _health(stage: Stage, node: NodeId) -> NodeHealth:
    return next(seen.health for seen in stage.instance.facts().nodes if seen.id == node)
