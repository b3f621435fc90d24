"""Changes with pods that come and go as the played operator obeys. Fake server only: the real one has no pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayorch.adapters.kuberay import KubeRayClient
from rayorch.adapters.kuberay.models import Pod, RayCluster
from rayorch.adapters.kuberay.patch import patch_of
from rayorch.core.capacity import GroupName, Instance, InstancePhase, NodeGroup
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, ClusterError, StalePlanError
from tests.kuberay.fake_api import FakeApi
from tests.kuberay.objects import ray_cluster, worker_group
from tests.kuberay.operator import PlayedOperator, StoreApi
from tests.kuberay.store import Store, Thing, json_patched


@dataclass
class Clock:
    """Time that passes when it is told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """A cluster, its operator and our client."""

    fake: FakeApi
    client: KubeRayClient
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.started: list[tuple[str, str]] = []
        self.stopped: list[str] = []
        self.operator = PlayedOperator(
            StoreApi(self.fake.store), start_node=self._start, stop_node=self.stopped.append, clock=self.clock
        )

    def _start(self, group: str, pod: str) -> str:
        self.started.append((group, pod))
        return f"10.0.1.{len(self.started)}"

    def make(self, *groups: Thing) -> None:
        """The cluster with these groups, settled."""
        self.fake.create("rayclusters", ray_cluster(*groups))
        self.settle()

    def settle(self) -> None:
        """Let the operator finish what it can."""
        for _ in range(4):
            self.operator.step()

    def group(self, name: str = "gpu") -> NodeGroup:
        """The group as our client sees it."""
        return next(group for group in self.client.observe().groups if group.name == name)

    def scale(self, before: int, after: int, *instances: str, group: str = "gpu") -> None:
        """One change."""
        self.client.scale(GroupChange(GroupName(group), before, after, "because", instances=instances))

    def named(self) -> list[str]:
        """What stands in workersToDelete of the first group."""
        spec = self.fake.get("rayclusters", "demo")["spec"]["workerGroupSpecs"][0]
        return list(spec.get("scaleStrategy", {}).get("workersToDelete", []))


@pytest.fixture
def world(fake: FakeApi, tmp_path: Path) -> World:
    return World(fake, KubeRayClient(fake.settings(tmp_path)))


def names(instances: tuple[Instance, ...], phase: InstancePhase | None = None) -> list[str]:
    return [instance.name for instance in instances if phase in (None, instance.phase)]


def test_what_is_asked_for_comes_and_exactly_what_is_named_goes(world: World) -> None:
    world.make(worker_group("gpu", 1))
    world.scale(1, 4)
    world.settle()
    before = names(world.group().instances)
    assert len(before) == 4
    world.scale(4, 2, before[3], before[0])
    world.settle()

    assert names(world.group().instances) == before[1:3]
    assert sorted(world.stopped) == sorted([before[0], before[3]])
    assert world.operator.chosen_by_operator == []


def test_addresses_join_pods_to_ray_nodes(world: World) -> None:
    world.make(worker_group("gpu", 2))
    pods = [pod for _, pod in world.started]
    assert dict(world.client.observe().addresses) == {pods[0]: "10.0.1.1", pods[1]: "10.0.1.2"}


def test_instances_say_how_far_they_have_come_and_why_not_further(world: World) -> None:
    world.operator.out_of_stock["gpu"] = "0/12 nodes are available: 12 Insufficient nvidia.com/gpu."
    world.make(worker_group("gpu", 1))
    (waiting,) = world.group().instances
    assert (waiting.phase, waiting.ready_s) == (InstancePhase.PENDING, None)
    assert waiting.reason == "Unschedulable: 0/12 nodes are available: 12 Insufficient nvidia.com/gpu."

    del world.operator.out_of_stock["gpu"]
    world.settle()
    (ready,) = world.group().instances
    assert (ready.name, ready.phase, ready.reason) == (waiting.name, InstancePhase.RUNNING, "")
    assert ready.ready_s is not None and ready.ready_s >= ready.created_s > 1.7e9

    world.operator.fail_pod(ready.name, "Evicted", "The node was low on resource: memory.")
    (failed,) = world.group().instances
    assert (failed.phase, failed.reason) == (InstancePhase.FAILED, "Evicted: The node was low on resource: memory.")
    world.settle()
    assert names(world.group().instances) != [failed.name]  # replaced
    assert names(world.group().instances, InstancePhase.RUNNING) == names(world.group().instances)


def test_a_spot_notice_shows_as_leaving_before_the_node_goes(world: World) -> None:
    world.make(worker_group("gpu", 2))
    (first, second) = names(world.group().instances)
    world.operator.notice(first, after_s=30)
    assert names(world.group().instances, InstancePhase.LEAVING) == [first]
    world.settle()
    assert world.stopped == []

    world.clock.now = 31
    world.settle()
    assert world.stopped == [first]
    assert second in names(world.group().instances) and len(world.group().instances) == 2
    assert world.operator.chosen_by_operator == []


def test_names_stay_as_long_as_their_pods_do(world: World) -> None:
    """A pod that takes long to end counts as running, for the operator, unless it is still named."""
    world.operator.ending_s = 60
    world.make(worker_group("gpu", 4))
    first, second, third, fourth = names(world.group().instances)
    world.scale(4, 3, first)
    world.settle()
    assert names(world.group().instances, InstancePhase.LEAVING) == [first]
    world.scale(3, 2, second)
    world.settle()

    assert world.named() == [first, second]
    assert world.operator.chosen_by_operator == []
    world.clock.now = 61
    world.settle()
    world.scale(2, 3)
    assert world.named() == []  # cleaned up on the way
    world.settle()
    assert {third, fourth} < set(names(world.group().instances))


def test_two_changes_before_the_operator_looks_lose_nothing(world: World) -> None:
    world.make(worker_group("gpu", 4))
    first, second, third, fourth = names(world.group().instances)
    world.scale(4, 3, first)
    world.scale(3, 2, third)
    world.settle()

    assert names(world.group().instances) == [second, fourth]
    assert world.operator.chosen_by_operator == []


def test_pods_that_never_came_are_given_up_without_names(world: World) -> None:
    world.make(worker_group("gpu", 1))
    world.operator.refused["gpu"] = "exceeded quota: gpus"
    world.scale(1, 3)
    world.settle()
    assert len(world.group().instances) == 1
    world.scale(3, 1)
    world.settle()

    assert len(world.group().instances) == 1
    assert world.operator.deleted == []


def test_pods_that_wait_are_given_up_by_name(world: World) -> None:
    world.make(worker_group("gpu", 1))
    (kept,) = names(world.group().instances)
    world.operator.out_of_stock["gpu"] = "0/3 nodes are available"
    world.scale(1, 3)
    world.settle()
    pending = names(world.group().instances, InstancePhase.PENDING)
    world.scale(3, 1, *pending)
    world.settle()

    assert names(world.group().instances) == [kept]
    assert world.stopped == []


def test_a_pod_that_is_gone_is_not_named_again(world: World) -> None:
    world.make(worker_group("gpu", 2))
    gone = names(world.group().instances)[0]
    world.operator.fail_pod(gone)
    world.settle()
    with pytest.raises(StalePlanError, match=gone):
        world.scale(2, 1, gone)
    assert world.named() == []


def test_a_pod_of_another_group_is_never_named(world: World) -> None:
    """The operator deletes whatever is named, whosever it is."""
    world.make(worker_group("gpu", 2), worker_group("cpu", 2))
    other = names(world.group("cpu").instances)[0]
    head = next(pod["metadata"]["name"] for pod in world.fake.list("pods") if "head" in pod["metadata"]["name"])
    for victim in (other, head):
        with pytest.raises(StalePlanError, match="has no pods"):
            world.scale(2, 1, victim)
    world.settle()
    assert world.operator.deleted == []


def test_a_shrink_that_leaves_the_choice_to_the_operator_is_refused(world: World) -> None:
    world.make(worker_group("gpu", 3))
    with pytest.raises(AdmissionError, match="3 pods of group gpu would be left for 2"):
        world.scale(3, 2)
    world.settle()
    assert world.operator.deleted == []


@pytest.mark.parametrize("labelled", [True, False])
def test_replicas_of_several_hosts_are_one(world: World, labelled: bool) -> None:
    world.operator.multi_host_labels = labelled
    world.make(worker_group("gpu", 2, numOfHosts=3))
    replicas: dict[str, list[str]] = {}
    for instance in world.group().instances:
        replicas.setdefault(instance.replica, []).append(instance.name)
    assert sorted(len(pods) for pods in replicas.values()) == [3, 3]
    one, other = replicas.values()
    with pytest.raises(AdmissionError, match="names replicas without their pods"):
        world.scale(2, 1, one[0], one[1], other[0])
    world.scale(2, 1, *one)
    world.settle()

    assert names(world.group().instances) == sorted(other)
    assert world.operator.chosen_by_operator == []


def test_without_the_right_to_read_pods_a_growth_works_and_a_shrink_needs_all_names(world: World) -> None:
    world.make(worker_group("gpu", 2))
    victim = names(world.group().instances)[0]
    world.fake.forbidden.add("list pods")
    state = world.client.observe()
    assert (state.groups[0].instances, state.groups[0].replicas) == ((), 2)
    assert "403" in state.pods_error

    world.scale(2, 3)
    with pytest.raises(AdmissionError, match="can't be read"):
        world.scale(3, 1, victim)
    world.scale(3, 2, victim)
    assert world.named() == [victim]


def test_workers_that_nobody_shows_are_unknown_not_gone(world: World) -> None:
    world.make(worker_group("gpu", 2))
    for pod in world.fake.list("pods"):
        world.fake.delete("pods", pod["metadata"]["name"])
    with pytest.raises(ClusterError, match="reports 2 workers, but the API server shows no pod"):
        world.client.observe()


def test_pods_of_a_group_that_the_cluster_does_not_have_are_said(world: World) -> None:
    world.make(worker_group("gpu", 1), worker_group("old", 1))
    world.fake.change("rayclusters", "demo", lambda thing: thing["spec"]["workerGroupSpecs"].pop())
    assert "1 pod(s) belong to group 'old', which the cluster does not have" in world.client.observe().notes


Step = tuple[int, int, int, bool]


@settings(max_examples=100)
@example(hosts=1, ending_s=5.0, steps=[(-1, 0, 1, False), (-1, 0, 1, False)])
@given(
    hosts=st.integers(1, 3),
    ending_s=st.sampled_from([0.0, 5.0]),
    steps=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 99), st.integers(0, 3), st.booleans()), max_size=10),
)
def test_the_operator_never_has_to_choose(hosts: int, ending_s: float, steps: list[Step]) -> None:
    """Whatever is asked for in turn, settled or not: only named pods go, and the count is what was asked for."""
    clock, store = Clock(), Store({})
    operator = PlayedOperator(StoreApi(store), clock=clock, ending_s=ending_s)
    store.create("rayclusters", ray_cluster(worker_group("gpu", 4, high=6, numOfHosts=hosts)))
    operator.step()
    for delta, pick, rounds, fail in steps:
        raw = store.get("rayclusters", "demo")
        cluster = RayCluster.model_validate(raw)
        pods = [Pod.model_validate(pod) for pod in store.list("pods")]
        if change := _change(cluster, pods, delta, pick, hosts):
            try:
                store.update("rayclusters", "demo", json_patched(raw, patch_of(change, cluster, pods)))
            except AdmissionError as refused:
                assert "the operator would choose" in str(refused)
        if fail and (alive := operator.pods("demo", "gpu")):
            operator.fail_pod(alive[pick % len(alive)])
        for _ in range(rounds):
            clock.now += 4
            operator.step()
    for _ in range(12):
        clock.now += 4
        operator.step()

    assert operator.chosen_by_operator == []
    asked = RayCluster.model_validate(store.get("rayclusters", "demo")).groups[0].asked
    assert len(operator.pods("demo", "gpu")) == asked * hosts


def _change(cluster: RayCluster, pods: list[Pod], delta: int, pick: int, hosts: int) -> GroupChange | None:
    """A change by `delta` replicas within the limits; a shrink takes whole replicas, from the `pick`-th on."""
    from rayorch.adapters.kuberay.groups import node_groups

    (group,) = node_groups(cluster, pods).groups
    target = max(0, min(6, group.replicas + delta))
    if target == group.replicas:
        return None
    replicas: dict[str, list[str]] = {}
    for instance in group.instances:
        if instance.phase is not InstancePhase.LEAVING:
            replicas.setdefault(instance.replica, []).append(instance.name)
    whole = sorted(replica for replica, members in replicas.items() if len(members) == hosts)
    chosen = [whole[(pick + n) % len(whole)] for n in range(min(group.replicas - target, len(whole)))]
    victims = tuple(pod for replica in dict.fromkeys(chosen) for pod in replicas[replica])
    return GroupChange(group.name, group.replicas, target, "because", instances=victims)
