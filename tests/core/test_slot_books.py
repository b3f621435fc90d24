"""What is kept of the nodes' books is what they would be if they were made anew."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.allocations import Allocations
from rayorch.core.errors import StalePlanError
from rayorch.core.room import Room
from rayorch.core.types import Allocation, Member, NodeId, NodeSpec, Resources, WorkloadId
from tests.build import gpus, node

Asked = list[tuple[str, float, int]]
"""Of each seat: the node, GPUs and CPUs."""

WHERE = st.sampled_from(("n0", "n1"))
SEATS = st.lists(
    st.tuples(WHERE, st.sampled_from((0.0, 0.25, 0.5, 1.0, 2.0)), st.integers(0, 2)), min_size=1, max_size=3
)
COMMANDS = st.one_of(
    st.tuples(st.sampled_from(("reserve", "adopt", "ready")), st.integers(0, 4), SEATS),
    st.tuples(st.just("removed"), st.integers(0, 4), st.just([])),
    st.tuples(st.sampled_from(("changed", "used")), st.integers(0, 1), st.just([])),
)


def _members(asked: Asked) -> tuple[Member, ...]:
    bundles = [Resources.of({"GPU": gpu, "CPU": cpu}) for _, gpu, cpu in asked]
    return tuple(Member("w", n, NodeId(asked[n][0]), bundle, 0, n) for n, bundle in enumerate(bundles))


def _apply(books: Allocations, nodes: dict[NodeId, NodeSpec], what: str, n: int, asked: Asked) -> None:
    id = WorkloadId(f"w{n}")
    match what:
        case "reserve":
            try:
                books.reserve(id, 1, _members(asked), nodes, 0.0, 30.0)
            except StalePlanError:
                return
        case "adopt":  # of what Ray has made nobody says on which devices it is
            if (id, 1) not in books.allocations:
                books.adopt(Allocation(id, 1, _members(asked), 0.0, 30.0))
        case "ready":
            books.ready(id, 1, 0, "g")
        case "removed":
            books.removed(id, 1, 0)
        case "changed":
            there = nodes[NodeId(f"n{n}")]
            nodes[there.id] = replace(there, foreign=Resources(), labels=(*there.labels, ("x", str(len(there.labels)))))
        case "used":
            there = nodes[NodeId(f"n{n}")]
            nodes[there.id] = replace(there, foreign=gpus(1))


@given(st.lists(COMMANDS, max_size=16))
def test_the_room_is_that_of_books_made_anew(commands: list[tuple[str, int, Asked]]) -> None:
    nodes = {NodeId(f"n{n}"): node(f"n{n}", gpu=2, cpu=4) for n in range(2)}
    books = Allocations()
    for what, n, asked in commands:
        _apply(books, nodes, what, n, asked)
        fresh = Room.of(nodes.values(), [books.allocations[key] for key in sorted(books.allocations)], 0.0)
        kept = books._slots.room(nodes, 0.0, books._holding)
        for id in nodes:
            assert kept.free(id) == fresh.free(id)
            assert kept.slot(id).left == fresh.slot(id).left
        assert kept.free_gpu_units == fresh.free_gpu_units
