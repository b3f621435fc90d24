"""How the openb lists are played with moves, on pods made by hand."""

from __future__ import annotations

from benchmarks.played.openb import Pod, Scene, classes, node_of, profile_of
from benchmarks.played.openb_moves import MovingFill
from rayorch.core.types import UNIT, NodeId, Resources
from rayorch.policies.moves import greedy_gradient, sampled_search
from rayorch.policies.place import fragmentation

NODES = tuple(node_of("", (f"n{i}", 8_000, 1_024, 2, "T4")) for i in range(3))


def pod(name: str, gpu: float, cpu: int = 1) -> Pod:
    """A part of a GPU, or whole ones."""
    units = round(gpu * UNIT)
    whole = max(1, units // UNIT)
    return Pod(name, Resources.of({"GPU": gpu, "CPU": cpu}), whole, units // whole, ())


def scene() -> Scene:
    """Pairs of GPUs are half of what is typical."""
    pods = [pod(f"s{n}", 0.5) for n in range(3)] + [pod(f"pair{n}", 2) for n in range(3)]
    return Scene(NODES, tuple(pods), classes(pods), 6 * UNIT)


def close(fill: MovingFill, *nodes: NodeId) -> None:
    """These take nothing new; what runs there goes on."""
    cluster = fill.cluster
    for node in nodes:
        cluster.record(cluster.tree.cordon(node, "closed", None, cluster.now_s))
    cluster.inventory.set_cordons(cluster.tree.cordons)


def reopen(fill: MovingFill) -> None:
    """All of them are open again."""
    cluster = fill.cluster
    for node in sorted(cluster.tree.cordons):
        cluster.record(cluster.tree.uncordon(node, "open", cluster.now_s))
    cluster.inventory.set_cordons(cluster.tree.cordons)


def test_pods_move_together_so_that_a_pair_of_gpus_is_free() -> None:
    for policy in (greedy_gradient, sampled_search):
        played = scene()
        fill = MovingFill(played, profile_of(fragmentation, played, 1), policy, 1)
        for number, node in enumerate(NODES):  # one on each node: the others take nothing new meanwhile
            close(fill, *(other.id for other in NODES if other.id != node.id))
            assert fill.arrive(number, (played.pods[number],)) == [True]
            reopen(fill)
        assert fill.arrive(3, (played.pods[3],)) == [False]
        fill.move(0)
        assert fill.moves == 0
        fill.move(1)
        assert fill.moves == 1
        assert fill.arrive(4, (played.pods[4],)) == [True]
        assert fill.used == 3.5 * UNIT
