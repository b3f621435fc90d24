"""The allocator's books say what the naive reference says, after any sequence of commands."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.allocations import Allocations
from rayorch.core.errors import StalePlanError
from rayorch.core.types import UNIT, Member, MemberPhase, NodeId, Resources, WorkloadId
from tests.build import node
from tests.core.reference_allocator import ReferenceAllocator, Seat

NODES = (node("n0", gpu=2, cpu=4), node("n1", gpu=3, cpu=4))
WHERE = st.sampled_from(("n0", "n0", "n1", "n1", "gone"))
GPUS = st.sampled_from((0, 2_500, 5_000, 7_500, 10_000, 10_000, 20_000))

seats = st.tuples(WHERE, GPUS, st.sampled_from((0, 10_000, 10_020, 20_000)))
keys = st.tuples(st.sampled_from(("a", "b", "c")), st.integers(1, 2))
commands = st.one_of(
    st.tuples(st.just("reserve"), keys, st.lists(seats, max_size=3)),
    st.tuples(st.just("grow"), keys, st.lists(seats, min_size=1, max_size=2)),
    st.tuples(st.just("release"), keys, st.lists(st.integers(0, 2), max_size=2)),
    st.tuples(st.just("removed"), keys, st.lists(st.integers(0, 2), min_size=1, max_size=2)),
)


def _seats(asked: list[tuple[str, int, int]], first: int) -> list[Seat]:
    """The minimum's seats share group 0, surplus seats have one each."""
    return [Seat(where, gpu, cpu, n + first if first else 0) for n, (where, gpu, cpu) in enumerate(asked)]


def _members(asked: list[Seat]) -> tuple[Member, ...]:
    return tuple(
        Member(
            "worker",
            n,
            NodeId(seat.node),
            Resources.of_units({"GPU": seat.gpu, "CPU": seat.cpu}),
            seat.surplus,
            0 if seat.surplus else n,
        )
        for n, seat in enumerate(asked)
    )


def _accepted(books: Allocations, what: str, key: tuple[WorkloadId, int], asked: list[Seat]) -> bool:
    command = books.reserve if what == "reserve" else books.grow
    try:
        command(*key, _members(asked), NODES, 0.0, 30.0)
    except StalePlanError:
        return False
    return True


@settings(max_examples=250, deadline=None)
@given(st.lists(commands, max_size=14))
def test_the_books_are_those_of_the_reference(done: list[tuple[str, tuple[str, int], list]]) -> None:  # type: ignore[type-arg]
    books = Allocations()
    naive = ReferenceAllocator({"n0": 2, "n1": 3}, {"n0": 4 * UNIT, "n1": 4 * UNIT})
    for what, (workload, attempt), argument in done:
        key = (WorkloadId(workload), attempt)
        if what in ("reserve", "grow"):
            asked = _seats(argument, 1 if what == "grow" else 0)
            want = getattr(naive, what)(key, [Seat(s.node, s.gpu, s.cpu, s.surplus) for s in asked])
            assert _accepted(books, what, key, asked) == want, (what, key, argument)
        elif what == "release":
            books.release(*key, tuple(argument))
            naive.release(key, argument)
        else:
            for number in argument:
                books.removed(*key, number)
                if key in naive.seats:
                    naive.removed(key, number)
        found = {
            held: [(m.node, m.surplus, m.devices, m.phase is MemberPhase.RELEASING) for m in allocation.members]
            for held, allocation in books.allocations.items()
        }
        assert found == {
            held: [(s.node, s.surplus, s.devices, s.releasing) for s in sorted(those, key=lambda s: s.surplus)]
            for held, those in naive.seats.items()
        }


def test_nearly_enough_is_booked_for_nobody() -> None:
    books = Allocations()
    a, b = (WorkloadId("a"), 1), (WorkloadId("b"), 1)
    assert _accepted(books, "reserve", a, [Seat("n0", 0, 40, 0)])
    assert not _accepted(books, "reserve", b, [Seat("n0", 0, 4 * UNIT, 0)])
    assert _accepted(books, "reserve", b, [Seat("n0", 0, 4 * UNIT - 40, 0)])
