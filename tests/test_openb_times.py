"""How the openb lists are played by their own times, on pods made by hand."""

from __future__ import annotations

from benchmarks.played.openb import Pod, Scene, node_of, profile_of
from benchmarks.played.openb_times import Timed, few
from rayorch.core.types import UNIT, Resources
from rayorch.policies.place import weighted_best_fit

NODES = tuple(node_of("", (f"n{i}", 8_000, 1_024, gpus, "T4")) for i, gpus in enumerate((2, 8, 2, 1)))


def pod(name: str, gpus: int, created_s: float, deleted_s: float, *models: str) -> Pod:
    """Whole GPUs and no CPUs."""
    return Pod(name, Resources.of({"GPU": gpus}), gpus, UNIT, models, created_s, deleted_s)


def test_few_nodes_have_one_of_eight_gpus_and_then_the_first() -> None:
    assert [node.id for node in few(NODES, 8)] == ["n1"]
    assert [node.id for node in few(NODES, 10)] == ["n0", "n1"]


def test_a_pod_waits_until_another_goes_and_runs_as_long_as_it_did() -> None:
    pods = [pod("a", 2, 10.0, 110.0), pod("b", 1, 20.0, 60.0), pod("c", 1, 115.0, 120.0), pod("d", 1, 1.0, 2.0, "A100")]
    scene = Scene(NODES[:1], tuple(pods), (), 2 * UNIT)
    found = Timed(scene.nodes, profile_of(weighted_best_fit, scene, 0), pods).run()
    assert (found.pods, found.refused, found.waited) == (4, 1, 1)
    assert found.mean_wait_s == (0 + 90 + 0) / 3
    assert found.waiting_gpu_h == 90 / 3600
    assert found.unallocated == 0.0  # both GPUs are a's while b waits
