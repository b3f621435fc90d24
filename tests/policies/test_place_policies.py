"""Where seats go by each placement policy: worked examples, and the openb lists in small."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from benchmarks.played.openb import QUEUES, Fill, Scene, filled, profile_of, read_pods, spec_of
from benchmarks.played.traces import data_folder
from rayorch.core.decisions import Start
from rayorch.core.placement import NodeView, PlacementView, TaskClass
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import PlacementKnobs, Profile
from rayorch.core.slot import Slot
from rayorch.core.types import UNIT, NodeSpec, Resources
from rayorch.policies.default import DEFAULT
from rayorch.policies.place import (
    apart,
    at_random,
    best_fit,
    clustering,
    dot_product,
    fgd,
    fragmentation,
    packing,
    weighted_best_fit,
)
from rayorch.sim.trace.cluster import TraceCluster
from tests.core.test_fragmentation import task
from tests.scenes import gpus, node, pending, running, snapshot, started

ALL = (at_random, clustering, dot_product, fgd, fragmentation, packing, weighted_best_fit)


def seen(*free: float, cpu: float = 96, model: str = "") -> NodeView:
    """A node with so much free of each of its devices."""
    spec: NodeSpec = node("n", len(free), cpu=cpu, model=model)
    slot = Slot.empty(spec)
    for index, part in enumerate(free):
        slot = slot.minus(gpus(1 - part), (index,))
    return NodeView(spec, slot, spec.model)


def share(units: float, cpu: float = 1) -> Resources:
    """A share of one GPU."""
    return gpus(units, CPU=cpu)


def test_gradients_are_those_of_the_worked_examples() -> None:
    tied = PlacementView((task(4, 0.5, 1, 5), task(8, 1, 1, 3), task(8, 1, 2, 2)))
    assert fgd.gradient(share(0.5, 4), seen(0.5, 1, cpu=8), tied) == (48, 0)  # the same on both: the first
    clear = PlacementView((task(1, 0.5, 1), task(1, 1, 1)))
    assert fgd.gradient(share(0.5), seen(0.5, 1), clear) == (56, 0)
    assert fgd.gradient(share(0.5), seen(1, 0.5), clear) == (56, 1)
    assert fgd.gradient(share(0.5), seen(1), clear) == (43, 0)
    assert fgd.score(share(0.5), seen(0.5, 1), clear) < fgd.score(share(0.5), seen(1, 1), clear)


def test_without_typical_classes_it_is_best_fit() -> None:
    bundle, none = gpus(2), PlacementView()
    for policy in (fgd, fragmentation):
        assert policy.score(bundle, seen(1, 1), none) < policy.score(bundle, seen(1, 1, 1, 1), none)
        assert policy.device(share(0.5), seen(0.5, 1), none) is None


def test_a_model_that_much_demand_is_locked_to_has_a_price() -> None:
    capacity = {"T4": 10 * UNIT, "G2": 90 * UNIT}
    classes = (task(1, 1, 1, 8), task(1, 1, 1, 2, "T4"))
    view = PlacementView(classes, capacity)
    assert fragmentation.pressures(view) == {"T4": pytest.approx(2.0), "G2": 0.0}
    assert fragmentation.prices(view) == {"T4": 24, "G2": 0}
    at = {model: fragmentation.score(gpus(1, CPU=1), seen(1, 1, model=model), view) for model in capacity}
    assert at["G2"] < at["T4"]
    assert (
        fragmentation.score(Resources.of({"CPU": 1}), seen(1, model="T4"), view)[0] <= 0
    )  # work without GPUs pays none
    little = PlacementView((task(1, 1, 1, 99), task(1, 1, 1, 1, "T4")), capacity)
    assert set(fragmentation.prices(little).values()) == {0}


def test_equal_scores_go_where_a_gpu_is_left_with_least() -> None:
    view = PlacementView((task(1, 0.1, 1),))  # whatever is left can be used
    assert fgd.score(share(0.4), seen(0.5), view) == fgd.score(share(0.4), seen(0.9), view)
    assert fragmentation.score(share(0.4), seen(0.5), view) < fragmentation.score(share(0.4), seen(0.9), view)


def test_the_others_by_their_rules() -> None:
    view = PlacementView()

    def first(policy: ModuleType, bundle: Resources, *nodes: NodeView) -> int:
        return min(range(len(nodes)), key=lambda n: (policy.score(bundle, nodes[n], view), n))

    assert first(weighted_best_fit, gpus(1, CPU=1), seen(1, 1), seen(1)) == 1
    assert first(dot_product, gpus(4, CPU=8), seen(*[1] * 8), seen(*[1] * 4)) == 1
    assert first(packing, share(0.4), seen(1, 1), seen(1, 0), seen(0.5, 0.9)) == 2
    assert first(packing, gpus(1), seen(1, 1), seen(1, 0)) == 1
    assert first(clustering, share(0.25), seen(0.7, 1), seen(1, 1), seen(0.5, 1)) == 2
    assert clustering.device(share(0.25), seen(0.7, 0.5, 1), view) == 1


def exact(policy: ModuleType, classes: tuple[TaskClass, ...] = (), seed: int = 0) -> Profile:
    """The default profile with a placement policy."""
    knobs = PlacementKnobs(classes, seed)
    return replace(DEFAULT, score=policy.score, device=policy.device, placement=knobs)


def test_at_random_follows_from_the_seed_and_who_asks() -> None:
    nodes = [node(f"n{i}") for i in range(8)]
    work = [pending(f"w{i:02d}", submitted_s=float(i)) for i in range(40)]
    plans = {seed: started(plan(snapshot(nodes, work), exact(at_random, seed=seed))) for seed in (0, 1)}
    assert plans[0] == started(plan(snapshot(nodes, work), exact(at_random)))
    assert plans[0] != plans[1]
    assert len({seats[0] for seats in plans[0].values()}) == 8


@pytest.mark.parametrize(("chosen", "expected"), [(True, (0,)), (False, (1,))])
def test_a_share_gets_the_device_of_the_policy_where_devices_can_be_chosen(
    chosen: bool, expected: tuple[int, ...]
) -> None:
    there = replace(node("n", 2), exact=chosen)
    held = []
    for device, part in enumerate((0.25, 0.35)):
        workload, allocation = running(f"r{device}", ["n"], gpu=part)
        members = tuple(replace(member, devices=(device,)) for member in allocation.members)
        held.append((workload, replace(allocation, members=members)))
    profile = exact(fgd, (task(0, 0.6, 1),))  # on the tighter device it would leave too little for one of these
    made = plan(snapshot([there], [*held, pending("w", gpu=0.1)]), profile)
    assert [d.members[0].devices for d in made.decisions if isinstance(d, Start)] == [expected]


# ---------------------------------------------------------------- the openb lists, in small


@pytest.fixture(scope="module")
def scene() -> Scene:
    """A list with shares, several models and several GPUs on a few nodes that it fills."""
    try:
        data_folder()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    whole = Scene.of(read_pods("gpuspec33"), 1)
    nodes = whole.nodes[:: len(whole.nodes) // 24]
    capacity = sum(node.total.gpu_units for node in nodes)
    pods = [pod for pod in whole.pods if _fits(pod.models, pod.bundle, nodes)]
    return Scene(nodes, tuple(pods[:260]), whole.classes, capacity)


def _fits(models: tuple[str, ...], bundle: Resources, nodes: tuple[NodeSpec, ...]) -> bool:
    able = [node for node in nodes if not models or node.model in models]
    return any(bundle.fits_in(node.total) for node in able)


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.__name__.rpartition(".")[2])
def test_pods_that_come_together_go_where_they_go_one_by_one(policy: ModuleType, scene: Scene) -> None:
    profile = profile_of(policy, scene, 1)
    together, used = filled(scene, profile, burst=16)
    alone = Fill(scene, profile)
    expected = []
    for number, pod in enumerate(scene.pods):
        alone.arrive(number, (pod,))
        expected.append(alone.used)
    assert used == expected
    assert 0.7 < used[-1] / scene.capacity <= 1
    books = [
        {key[0]: [(m.node, m.devices) for m in held.members] for key, held in fill.cluster.books.allocations.items()}
        for fill in (together, alone)
    ]
    assert books[0] == books[1]


@pytest.mark.parametrize("policy", [at_random, fragmentation], ids=["at_random", "fragmentation"])
def test_a_plan_is_the_same_without_memory(policy: ModuleType, scene: Scene) -> None:
    cluster, memory = TraceCluster(scene.nodes, QUEUES, profile_of(policy, scene, 1)), Memory(lends=True)
    for number, pod in enumerate(scene.pods[:80]):
        cluster.now_s += 1.0
        cluster.submit(spec_of(number, pod))
        seen = cluster.snapshot()
        made = plan(seen, cluster.planned, memory)
        if number % 8 == 0:
            assert made.decisions == plan(seen, cluster.planned).decisions
        cluster.commit(made)


def test_parts_are_kept_apart_while_a_gpu_is_free_and_whole_gpus_go_by_best_fit() -> None:
    view = PlacementView(())
    assert apart.device(share(0.5), seen(0.5, 1, 1), view) == 1, "a free GPU, though the first would take it"
    assert apart.device(share(0.5), seen(0.5, 0.6), view) == 1
    assert apart.device(share(0.7), seen(0.5, 0.6), view) is None
    assert apart.device(share(0.7), seen(), view) is None
    assert apart.score(share(0.5), seen(0, 1), view) < apart.score(share(0.5), seen(0.5, 0.5), view)
    assert apart.score(share(0.5), seen(0, 1), view) < apart.score(share(0.5), seen(1, 1), view), "fewest left"
    whole, nodes = gpus(1, CPU=1), (seen(0, 1), seen(0.5, 1), seen(1, 1), seen(1, 1, cpu=8))
    assert [apart.score(whole, n, view)[1:] for n in nodes] == [best_fit.score(whole, n, view) for n in nodes]
