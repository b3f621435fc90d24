"""What is typically asked for, learned from what was admitted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core import asked
from rayorch.core.asked import FEWEST, SEAT, AskedBook, AskedClass, AskedState, task_classes
from rayorch.core.codec import decode_as, encode
from rayorch.core.decisions import Start
from rayorch.core.events import Submitted
from rayorch.core.placement import class_of
from rayorch.core.planner import plan
from rayorch.core.queues import QueueTree
from rayorch.core.types import UNIT, WorkloadSpec
from rayorch.policies.default import DEFAULT
from rayorch.policies.place import fgd
from tests.build import apply, queue, tree, workload
from tests.scenes import gpus, node, pending, snapshot


def spec(id: str, gpu: float = 1.0, seats: int = 1, models: tuple[str, ...] = ()) -> WorkloadSpec:
    """So many seats of one shape."""
    found = workload(id)
    role = replace(found.roles[0], bundle=gpus(gpu), min_count=seats, max_count=seats)
    return replace(found, roles=(role,), accelerators=models)


def told(book: AskedBook) -> dict[tuple[int, int, frozenset[str]], int]:
    """What readers are told: seats by (each, count, models)."""
    return {(c.each, c.count, c.models): c.weight // SEAT for c in task_classes(book.changes_since(0) or ())}


def test_nothing_is_typical_at_first_and_then_what_came_most() -> None:
    book = AskedBook()
    for i in range(FEWEST - 1):
        book.came(spec(f"w{i}"), i + 1)
    assert book.changes_since(0) == ()
    book.came(spec("x", 0.5, 1, ("T4",)), FEWEST)
    assert told(book) == {(UNIT, 1, frozenset()): 15, (UNIT // 2, 1, frozenset({"T4"})): 1}
    assert book.changes_since(FEWEST) is None
    assert book.changes_since(FEWEST - 1) == book.changes_since(0)


def test_each_seat_counts_and_a_rare_class_is_not_typical() -> None:
    book = AskedBook()
    book.came(spec("gang", 4, 199), 1)
    book.came(spec("one", 2), 2)
    book.came(spec("gang2", 4, 100), 3)
    assert told(book) == {(UNIT, 4, frozenset()): 299}


def test_what_came_a_window_ago_counts_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "WINDOW", 50)
    book = AskedBook()
    book.came(spec("old", 1, 60), 1)
    book.came(spec("new", 2, 40), 2)  # now there are two windows
    assert {(c.count, c.weight // SEAT) for c in book.state().counts} == {(1, 30), (2, 20)}
    for i in range(40):
        book.came(spec(f"n{i}", 2, 10), 3 + i)
    assert told(book).keys() == {(UNIT, 2, frozenset())}  # by now the old are less than a twentieth


def test_classes_are_bounded_and_the_rarest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "MOST_CLASSES", 10)
    book = AskedBook()
    for i in range(1, 40):
        book.came(spec(f"w{i}", i, 50 if i == 3 else 1), i)
        assert len(book.state().counts) <= 10
    assert any(c.count == 3 for c in book.state().counts)


def test_one_workload_of_very_many_seats_is_not_all_that_is_typical() -> None:
    book = AskedBook()
    book.came(spec("sea", 1, 10**6), 1)
    book.came(spec("others", 2, 500), 2)
    assert told(book).keys() == {(UNIT, 1, frozenset()), (UNIT, 2, frozenset())}


@given(st.lists(st.tuples(st.sampled_from([0.25, 0.5, 1, 2]), st.integers(1, 9)), max_size=40), st.integers(0, 40))
def test_it_survives_the_journal_at_any_point(came: list[tuple[float, int]], at: int) -> None:
    whole, halted = AskedBook(), AskedBook()
    for i, (gpu, seats) in enumerate(came):
        if i == at:
            state = decode_as(AskedState, encode(halted.state()))
            halted = AskedBook(state, i)
        for book in (whole, halted):
            book.came(spec(f"w{i}", gpu, seats), i + 1)
    assert halted.state() == whole.state()
    assert halted.changes_since(0) == whole.changes_since(0)


@given(st.lists(st.integers(1, 30), max_size=30), st.sets(st.integers(0, 29)))
def test_a_reader_that_looks_now_and_then_knows_what_one_that_looks_once_knows(
    seats: list[int], looks: set[int]
) -> None:
    book, known, version = AskedBook(), tuple[AskedClass, ...](), 0
    for i, count in enumerate(seats):
        book.came(spec(f"w{i}", 1 + i % 3, count), i + 1)
        if i in looks or i == len(seats) - 1:
            news = book.changes_since(version)
            known, version = (known if news is None else news), i + 1
    assert known == (book.changes_since(0) if seats else ())


def test_the_queue_owner_learns_it_and_keeps_it() -> None:
    owner = tree(queue("q"))
    for i in range(FEWEST):
        apply(owner, [Submitted(spec(f"w{i:02d}", 1), float(i))])
    before = owner.changes_since(0).asked
    assert task_classes(before or ()) == (class_of(gpus(1), (), FEWEST * SEAT),)
    assert QueueTree.restore(owner.dump()).changes_since(0).asked == before


def test_fgd_places_by_what_was_learned_and_best_fit_is_not_asked_anew() -> None:
    nodes, work = [node("a", 2), node("b", 1)], [pending("w", gpu=1)]
    learned = (AskedClass(0, UNIT, 2, (), 1),)  # pairs: the single device is of no use to them anyway
    for profile in (DEFAULT, replace(DEFAULT, score=fgd.score, device=fgd.device)):
        made = plan(replace(snapshot(nodes, work), asked=learned), profile)
        assert [d.members[0].node for d in made.decisions if isinstance(d, Start)] == ["b"]
    shares = (AskedClass(0, UNIT, 1, ("none",), 1), AskedClass(0, UNIT, 1, (), 1))
    made = plan(replace(snapshot(nodes, work), asked=shares), replace(DEFAULT, score=fgd.score))
    assert [d.members[0].node for d in made.decisions if isinstance(d, Start)] == ["a"]  # equal: the first by name
    made = plan(replace(snapshot(nodes, work), asked=shares), DEFAULT)
    assert [d.members[0].node for d in made.decisions if isinstance(d, Start)] == ["b"]
