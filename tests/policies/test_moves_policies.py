"""The policies for moves, on boards small enough to try everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.moves import Board, Mover, MovesView, Step, fragmentation_of
from rayorch.core.placement import NodeView, PlacementView
from rayorch.core.policy import tightest
from rayorch.core.room import Room
from rayorch.core.slot import Slot
from rayorch.core.types import Device, Member, NodeId, NodeSpec, WorkloadId
from rayorch.policies.moves import greedy_gradient, sampled_search
from rayorch.policies.place import fgd
from tests.core.test_fragmentation import task
from tests.scenes import gpus, node

CLASSES = (task(1, 1, 1, 2), task(1, 0.5, 1), task(1, 1, 2))


def member(on: str, gpu: float, device: int, index: int = 0, cpu: float = 1) -> Member:
    """A seat."""
    return Member("worker", index, NodeId(on), gpus(gpu, CPU=cpu), devices=(device,))


def view(nodes: list[NodeSpec], *movers: Mover, **more: object) -> MovesView:
    """All nodes are open, and everybody may go anywhere."""
    room = Room.of(nodes, (), 0.0)
    for mover in movers:
        for seat in mover.members:
            assert room.take(seat.node, seat.bundle, seat.devices) == seat.devices
    seen = {spec.id: NodeView(spec, room.slot(spec.id), spec.model) for spec in nodes}
    made = MovesView(seen, frozenset(seen), movers, PlacementView(CLASSES), tightest, 9, 3600.0, 0.0)
    return replace(made, **more)  # type: ignore[arg-type]


def mover(id: str, *members: Member, cost_gpu_s: float = 30.0) -> Mover:
    """Somebody who may be moved."""
    return Mover(WorkloadId(id), members, cost_gpu_s)


def stranded(seen: Mapping[NodeId, NodeView]) -> float:
    """In GPUs."""
    return fragmentation_of(seen, PlacementView(CLASSES))


PAIR = [node("n1", 2, cpu=8, exact=True), node("n2", 2, cpu=8, exact=True)]


def test_a_step_brings_what_fragmentation_falls_by() -> None:
    seen = view(PAIR, mover("a", member("n1", 0.5, 0)), mover("b", member("n2", 0.5, 0)))
    # Half a GPU is of no use to 3 of 4, a node with one whole and a half of it has 1.5 of no use to the pair's quarter.
    assert stranded(seen.nodes) == pytest.approx(2 * (0.5 * 2 / 4 + 1.5 / 4))
    (step, *_) = Board(seen).options(9)
    assert (step.mover, step.node) == ("a", "n2")
    after = 1 / 4  # n2 has one whole GPU that the pair can't use; n1 is free
    assert step.gain == pytest.approx(1.25 - after)
    assert step.net_gpu_s == pytest.approx(3600 * step.gain - 30)
    assert greedy_gradient.moves(seen) == (step,)  # nothing is left to gain


def test_what_is_lost_counts_once_for_a_gang() -> None:
    nodes = [*PAIR, node("n3", 1, cpu=8, exact=True), node("n4", 1, cpu=8, exact=True)]
    gang = mover("g", member("n3", 0.5, 0), member("n4", 0.5, 0, 1), cost_gpu_s=1500.0)
    fixed = mover("x", member("n1", 0.5, 0), member("n1", 0.5, 1, 1), cost_gpu_s=1e9)
    steps = greedy_gradient.moves(view(nodes, gang, fixed))
    assert [(s.mover, s.node) for s in steps] == [("g", "n1"), ("g", "n1")]
    assert steps[0].net_gpu_s == pytest.approx(steps[0].gain * 3600 - 1500)
    assert steps[1].net_gpu_s == pytest.approx(steps[1].gain * 3600)
    assert greedy_gradient.moves(view(nodes, replace(gang, cost_gpu_s=1e6), fixed)) == ()


def test_a_seat_goes_only_where_there_is_room_before_anybody_has_left() -> None:
    nodes = [node("n1", 1, cpu=8, exact=True), node("n2", 1, cpu=8, exact=True)]
    seen = view(nodes, mover("a", member("n1", 0.6, 0)), mover("b", member("n2", 0.5, 0)))
    assert Board(seen).options(9) == []
    board = Board(view(PAIR, mover("a", member("n1", 0.5, 0)), mover("b", member("n2", 0.5, 0))))
    board.do(board.options(1)[0])
    assert [step.node for step in board.options(9)] == ["n1"]  # b may follow; a, which has moved, does not move again


def test_at_most_so_many_are_moved_and_none_that_brings_too_little() -> None:
    nodes = [node(f"n{n}", 1, cpu=8, exact=True) for n in range(6)]
    movers = [mover(f"w{n}", member(f"n{n}", 0.5, 0)) for n in range(6)]
    assert len(greedy_gradient.moves(view(nodes, *movers))) == 3
    assert len(greedy_gradient.moves(view(nodes, *movers, most=2))) == 2
    assert greedy_gradient.moves(view(nodes, *movers, least_gain=0.8)) == ()
    assert len(sampled_search.moves(view(nodes, *movers, most=2))) == 2


def test_what_leaves_a_sick_gpu_frees_nothing() -> None:
    target = node("n0", 1, cpu=8, exact=True)
    well = node("n1", 2, cpu=8, exact=True)  # two halves on its first GPU, so that it looks like the other
    sick = node("n2", 2, cpu=7, exact=True, devices=(Device(0, sick="broken"), Device(1)))
    slots = {spec.id: Slot.empty(spec) for spec in (target, well, sick)}
    movers = [mover(id, member(on, 0.5, 0)) for id, on in (("a", "n1"), ("b", "n1"), ("c", "n2"))]
    for one in movers:
        (seat,) = one.members
        slots[seat.node] = slots[seat.node].minus(seat.bundle, seat.devices)
    seen = {spec.id: NodeView(spec, slots[spec.id], spec.model) for spec in (target, well, sick)}
    base = MovesView(seen, frozenset({NodeId("n0")}), (), PlacementView(CLASSES), tightest, 9, 3600.0, 0.0)

    def gains(*movers: Mover) -> dict[str, float]:
        return {step.mover: step.gain for step in Board(replace(base, movers=movers)).options(9)}

    together = gains(*movers)
    assert together["a"] == gains(movers[0])["a"]
    base = replace(base, placement=PlacementView(CLASSES))
    assert together["c"] == gains(movers[2])["c"]


def test_without_typical_classes_there_are_no_steps() -> None:
    seen = view(PAIR, mover("a", member("n1", 0.5, 0)), mover("b", member("n2", 0.5, 0)), placement=PlacementView())
    assert greedy_gradient.moves(seen) == sampled_search.moves(seen) == ()


def test_sampling_finds_what_the_greedy_way_misses() -> None:
    # The best first step for the greedy one takes the room in which two others would bring more together.
    found = [
        (sum(s.net_gpu_s for s in greedy_gradient.moves(seen)), sum(s.net_gpu_s for s in sampled_search.moves(seen)))
        for seen in (_drawn(seed) for seed in range(12))
    ]
    assert all(sampled >= greedy for greedy, sampled in found)
    assert any(sampled > greedy for greedy, sampled in found)


def _drawn(seed: int) -> MovesView:
    """Six nodes and shares that a seed decides."""
    nodes = [node(f"n{n}", 2, cpu=8, exact=True) for n in range(6)]
    movers, sizes = list[Mover](), (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    for n in range(12):
        gpu = sizes[(seed * 7 + n * n * 5 + n * seed) % len(sizes)]
        movers.append(mover(f"w{n:02d}", member(f"n{n // 2}", gpu, n % 2), cost_gpu_s=10.0))
    return view(nodes, *movers, most=6)


Shares = st.lists(st.sampled_from([0.25, 0.3, 0.5, 0.7]), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(Shares, st.integers(1, 3), st.integers(0, 3))
def test_neither_is_better_than_trying_everything_and_sampling_is_not_worse(
    shares: list[float], most: int, seed: int
) -> None:
    nodes = [node(f"n{n}", 1, cpu=8, exact=True) for n in range(len(shares))]
    movers = [mover(f"w{n}", member(f"n{n}", gpu, 0)) for n, gpu in enumerate(shares)]
    seen = replace(view(nodes, *movers), most=most, seed=seed, device=fgd.device)
    greedy, sampled = greedy_gradient.moves(seen), sampled_search.moves(seen)
    best = max(_worth(seen, order) for count in range(most + 1) for order in permutations(range(len(movers)), count))
    for steps in (greedy, sampled):
        assert len({step.mover for step in steps}) <= most
        assert _replayed(seen, steps) == pytest.approx(sum(step.net_gpu_s for step in steps))
    assert sum(s.net_gpu_s for s in greedy) <= sum(s.net_gpu_s for s in sampled) <= best + 1e-6
    assert greedy == greedy_gradient.moves(seen) and sampled == sampled_search.moves(seen)


def _replayed(seen: MovesView, steps: tuple[Step, ...]) -> float:
    """What the steps are worth, by the fragmentation of all nodes before and after."""
    movers = {each.id: each for each in seen.movers}
    after = dict(seen.nodes)
    board = Board(seen)
    for step in steps:
        board.do(step)
    for id, slot in board._free.items():
        after[id] = NodeView(seen.nodes[id].spec, slot, seen.nodes[id].model)
    assert sum(s.slot.gpu_units for s in after.values()) == sum(s.slot.gpu_units for s in seen.nodes.values())
    lost = sum(movers[id].cost_gpu_s for id in {step.mover for step in steps})
    return (stranded(seen.nodes) - stranded(after)) * seen.worth_s - lost


def _worth(seen: MovesView, order: tuple[int, ...]) -> float:
    """The best that these movers can bring one after the other, each to any node."""
    boards = [Board(seen)]
    for place in order:
        id = seen.movers[place].id
        grown = []
        for board in boards:
            for target in sorted(seen.targets):
                narrow = replace(seen, targets=frozenset({target}))
                for step in _steps(board, narrow, id):
                    twin = board.copy()
                    twin.do(step)
                    grown.append(twin)
        boards = grown
    return max((board.net_gpu_s for board in boards), default=0.0)


def _steps(board: Board, narrow: MovesView, id: WorkloadId) -> list[Step]:
    """Its step to the one node of the narrow view, as the board stands."""
    trial = board.copy()
    trial.view = replace(trial.view, allows=lambda mover, nodes: nodes[0] in narrow.targets)
    return [step for step in trial.options(99) if step.mover == id]
