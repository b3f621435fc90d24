"""The books of what is held, Serve's choice of seats, and the sync from the world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.adoption import WorldGroup, adopt_world, leftovers, parse_group_name
from rayorch.core.allocations import Allocations, bind_seats, gang_of
from rayorch.core.errors import StalePlanError
from rayorch.core.reports import SeatInUse
from rayorch.core.types import (
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeHealth,
    NodeId,
    State,
    Workload,
    WorkloadId,
    group_name,
)
from tests.build import gpus, node, seat, seats, workload

W, V = WorkloadId("w"), WorkloadId("v")
NODES = (node("n1"), node("n2"))


def reserved(count: int = 2) -> Allocations:
    books = Allocations(version=1000)
    books.reserve(W, 1, seats("n1", count), NODES, 0.0, 30.0)
    return books


def phases(books: Allocations, attempt: int = 1) -> list[tuple[int, str]]:
    return [(m.surplus, m.phase.value) for m in books.allocations[W, attempt].members]


# ---------------------------------------------------------------- seats


def test_a_reservation_is_charged_once_with_its_devices() -> None:
    books = reserved()
    again = books.reserve(W, 1, seats("n1", 2), NODES, 5.0, 99.0)
    assert [m.devices for m in again.members] == [(0,), (1,)]
    assert again.deadline_s == 30.0 and len(books.allocations) == 1


def test_what_no_longer_fits_is_refused_and_charges_nothing() -> None:
    books = reserved(3)
    before = books.version
    for members in (seats("n1", 2), (*seats("n2", 4), replace(seat("n2", 4), bundle_index=4)), (seat("gone"),), ()):
        with pytest.raises(StalePlanError):
            books.reserve(V, 1, members, NODES, 0.0, 30.0)
    with pytest.raises(StalePlanError, match="other seats"):
        books.reserve(W, 1, seats("n2", 3), NODES, 0.0, 30.0)
    assert books.version == before


def test_a_new_attempt_waits_for_the_seats_of_the_former_one() -> None:
    books = reserved()
    with pytest.raises(StalePlanError, match="attempt 1"):
        books.reserve(W, 2, seats("n2", 2), NODES, 0.0, 30.0)
    books.removed(W, 1, 0)
    assert books.reserve(W, 2, seats("n2", 2), NODES, 0.0, 30.0).attempt == 2


def test_the_way_of_a_group() -> None:
    books = reserved()
    assert books.creating(W, 1, 0) and not books.creating(W, 1, 0)
    assert not books.allocations[W, 1].ready
    books.ready(W, 1, 0, "ab")
    assert books.allocations[W, 1].ready
    books.release(W, 1, None)
    assert phases(books) == [(0, "releasing"), (0, "releasing")]
    with pytest.raises(StalePlanError):
        books.reserve(V, 1, seats("n1", 3), NODES, 0.0, 30.0)  # still charged
    books.removed(W, 1, 0)
    assert not books.allocations


def test_a_group_that_got_ready_while_it_is_given_back_stays_so() -> None:
    books = reserved()
    books.creating(W, 1, 0)
    books.release(W, 1, None)
    books.ready(W, 1, 0, "ab")
    assert phases(books) == [(0, "releasing")] * 2
    with pytest.raises(StalePlanError):
        books.creating(W, 1, 0)


def test_no_group_is_made_for_seats_that_are_not_held() -> None:
    with pytest.raises(StalePlanError):
        Allocations().creating(W, 1, 0)
    with pytest.raises(StalePlanError):
        reserved().creating(W, 1, 7)


def test_growth_and_shrink_never_touch_the_minimum() -> None:
    books = reserved()
    more = (seat("n2", 2, surplus=1),)
    books.grow(W, 1, more, NODES, 1.0, 40.0)
    before = books.version
    books.grow(W, 1, more, NODES, 1.0, 40.0)
    assert books.version == before
    books.release(W, 1, (1,))
    with pytest.raises(StalePlanError, match="given back"):
        books.grow(W, 1, more, NODES, 1.0, 40.0)
    assert phases(books) == [(0, "reserved"), (0, "reserved"), (1, "releasing")]
    books.removed(W, 1, 1)
    assert phases(books) == [(0, "reserved"), (0, "reserved")]
    with pytest.raises(StalePlanError):
        books.grow(V, 1, more, NODES, 1.0, 40.0)


def test_a_failed_gang_fails_the_start_and_a_failed_surplus_seat_is_given_back() -> None:
    books = reserved()
    books.grow(W, 1, (seat("n2", 2, surplus=1),), NODES, 1.0, 40.0)
    books.fail(W, 1, 1, "no room")
    assert books.allocations[W, 1].failed == "" and phases(books)[-1] == (1, "releasing")
    books.fail(W, 1, 0, "too late")
    books.fail(W, 1, 0, "again")
    assert books.allocations[W, 1].failed == "too late"


def test_the_gang_of_serve_is_its_first_replicas() -> None:
    spec = workload("s", 2, 4, kind=Kind.SERVE)
    members = tuple(seat("n1", i, surplus=i + 1) for i in range(4))
    assert gang_of(spec, members) == (1, 2)
    assert gang_of(workload("t", 2, 4), seats("n1", 2)) == (0,)


def test_a_copy_of_a_former_life_is_replaced_as_a_whole() -> None:
    changes = Allocations(version=9000).changes_since(reserved().version)
    assert changes.full and changes.allocations == ()
    books = reserved()
    seen = books.changes_since(-1)
    books.removed(W, 1, 0)
    assert books.changes_since(seen.version).removed == ((W, 1),)


def test_groups_that_nobody_waits_for_are_given_up_after_their_deadline() -> None:
    books = reserved(1)
    books.grow(W, 1, (seat("n2", 1, surplus=1),), NODES, 1.0, 30.0)
    for surplus in (0, 1):
        books.creating(W, 1, surplus)
    books.ready(W, 1, 0, "aa")
    assert books.give_up_late(29.9) == ()
    assert books.give_up_late(30.0) == ((W, 1, 1),)
    assert phases(books) == [(0, "ready"), (1, "releasing")] and not books.allocations[W, 1].failed
    assert books.give_up_late(31.0) == ()


# ---------------------------------------------------------------- Serve chooses


def replica(number: int, where: str, phase: MemberPhase = MemberPhase.READY, group: str = "") -> Member:
    return replace(seat(where, number - 1, surplus=number), phase=phase, group_id=group)


def used(group: str, where: str) -> SeatInUse:
    return SeatInUse("worker", where, group)


def test_serve_left_another_seat_than_the_one_that_was_taken() -> None:
    held = Allocation(
        W,
        1,
        (replica(1, "n1", group="g1"), replica(2, "n1", group="g2"), replica(3, "n2", MemberPhase.RELEASING, "g3")),
        0.0,
        30.0,
        gang=(1,),
    )
    after = bind_seats(held, (used("g1", "n1"), used("g3", "n2")))
    assert [(m.surplus, m.node, m.phase.value, m.group_id) for m in after] == [
        (1, "n1", "ready", "g1"),
        (2, "n2", "ready", "g3"),
        (3, "n1", "releasing", ""),
    ]


def test_a_replica_that_serve_made_takes_the_seat_on_its_node() -> None:
    held = Allocation(W, 1, (replica(1, "n1", MemberPhase.RESERVED), replica(2, "n2", MemberPhase.RESERVED)), 0.0, 30.0)
    after = bind_seats(held, (used("g9", "n2"),))
    assert [(m.surplus, m.group_id, m.phase.value) for m in after] == [(1, "", "reserved"), (2, "g9", "ready")]
    moved = bind_seats(held, (used("g9", "n3"),))
    assert (moved[0].node, moved[0].group_id, moved[0].devices) == ("n3", "g9", ())


numbers = st.integers(1, 5)
members_of_serve = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), st.sampled_from(list(MemberPhase)), st.booleans()), min_size=1, max_size=5
)


@settings(max_examples=300, deadline=None)
@given(members_of_serve, st.sets(st.integers(1, 7), max_size=6))
def test_binding_keeps_the_seats_and_is_settled_after_once(
    shapes: list[tuple[str, MemberPhase, bool]], in_use: set[int]
) -> None:
    members = tuple(replica(i + 1, w, p, f"g{i + 1}" if g else "") for i, (w, p, g) in enumerate(shapes))
    held = Allocation(W, 1, members, 0.0, 30.0)
    seats_used = tuple(used(f"g{i}", "n1" if i % 2 else "n2") for i in sorted(in_use))
    once = bind_seats(held, seats_used)
    assert [m.surplus for m in once] == [m.surplus for m in members]
    assert bind_seats(replace(held, members=once), seats_used) == once
    groups = [m.group_id for m in once if m.group_id]
    assert len(set(groups)) == len(groups) and set(groups) <= {f"g{i}" for i in in_use}
    staying = [m for m in once if m.phase is not MemberPhase.RELEASING]
    if any(m.group_id for m in once if m.phase is MemberPhase.RELEASING):
        assert all(m.group_id for m in staying)  # a leaving seat is used only when no staying one is free


# ---------------------------------------------------------------- the sync from the world


def live(id: str = "w", state: State = State.RUNNING, ready: bool = True, most: int = 4) -> Workload:
    placement = (*seats("n1", 2), seat("n2", 2, surplus=1))
    return Workload(
        workload(id, 2, most), state, 0.0, attempt=3, placement=placement, started_s=1.0, ready_s=2.0 if ready else None
    )


def group(name: str, id: str, *nodes: str, created: bool = True) -> WorldGroup:
    return WorldGroup(name, id, tuple((NodeId(n), gpus(1)) for n in nodes), created)


BASE = group(group_name("main", W, 3), "b0", "n1", "n1")
SURPLUS = group(group_name("main", W, 3, 1), "b1", "n2")


def sync(*groups: WorldGroup, **states: Workload) -> tuple[list[Allocation], tuple[str, ...]]:
    known = {w.id: w for w in states.values()}
    adoption = adopt_world(groups, known, "main", 50.0, 80.0, NODES)
    return list(adoption.adopt), adoption.remove


def test_a_running_gang_is_adopted_as_it_is() -> None:
    (held,), remove = sync(BASE, SURPLUS, w=live())
    assert remove == ()
    assert [(m.surplus, m.group_id, m.phase.value) for m in held.members] == [
        (0, "b0", "ready"),
        (0, "b0", "ready"),
        (1, "b1", "ready"),
    ]


@pytest.mark.parametrize(
    "name",
    ["rayorch/main/unknown/1", "rayorch/main/w/2", "rayorch/main/w/4", "rayorch/main/done/1", "rayorch/main/waiting/1"],
)
def test_groups_of_nobody_are_removed(name: str) -> None:
    done = replace(live("done", State.SUCCEEDED), attempt=1, placement=())
    waiting = replace(live("waiting", State.PENDING), attempt=1, placement=())
    _, remove = sync(BASE, SURPLUS, group(name, "ff", "n2"), w=live(), done=done, waiting=waiting)
    assert remove == ("ff",)


@pytest.mark.parametrize("name", ["other/main/w/3", "rayorch/test/w/3", "rayorch/main/w", "rayorch/main/w/x", "SERVE"])
def test_groups_that_are_not_ours_are_left_alone(name: str) -> None:
    assert parse_group_name("main", name) is None
    assert sync(BASE, SURPLUS, group(name, "ff", "n1"), w=live())[1] == ()


def test_a_begun_attempt_without_its_gang_is_not_adopted() -> None:
    assert sync(SURPLUS, w=live()) == ([], ("b1",))
    assert sync(w=live(state=State.STOPPING)) == ([], ())


def test_a_start_that_was_under_way_goes_on() -> None:
    (held,), _ = sync(w=live(ready=False))
    assert {m.phase for m in held.members} == {MemberPhase.RESERVED} and held.deadline_s == 80.0
    (half,), _ = sync(replace(BASE, created=False), w=live(ready=False))
    assert [m.phase.value for m in half.members] == ["creating", "creating", "reserved"]


def test_a_start_whose_room_went_to_others_is_given_up() -> None:
    late = replace(live("late", ready=False), placement=seats("n1", 3))
    (held,), remove = sync(BASE, SURPLUS, w=live(), late=late)
    assert (held.workload, remove) == ("w", ())
    assert adopt_world((), {WorkloadId("w"): live(ready=False)}, "main", 50.0, 80.0).adopt == ()


def test_a_surplus_seat_whose_room_went_to_others_is_dropped() -> None:
    other = replace(live("other"), placement=seats("n2", 4))
    its = group(group_name("main", WorkloadId("other"), 3), "o0", "n2", "n2", "n2", "n2")
    _, held = sync(BASE, its, w=live(), other=other)[0]
    assert [m.surplus for m in held.members] == [0, 0]


def test_a_second_group_of_the_same_name_is_removed_and_the_created_one_kept() -> None:
    (held,), remove = sync(replace(BASE, group_id="a0", created=False), BASE, SURPLUS, w=live())
    assert remove == ("a0",) and held.members[0].group_id == "b0"


def test_a_shrink_that_was_under_way_goes_on() -> None:
    extra = group(group_name("main", W, 3, 2), "b2", "n2")
    (held,), remove = sync(BASE, SURPLUS, extra, w=live())
    assert remove == () and held.members[-1] == replace(
        seat("n2", 2, surplus=2), phase=MemberPhase.RELEASING, group_id="b2"
    )


def test_serve_is_adopted_by_where_its_groups_are_whatever_their_numbers() -> None:
    spec = workload("w", 2, 3, kind=Kind.SERVE)
    app = replace(live(), spec=spec, placement=(seat("n1", 0, surplus=1), seat("n2", 1, surplus=2)))
    groups = (group(group_name("main", W, 3, 2), "g2", "n1"), group(group_name("main", W, 3, 7), "g7", "n1"))
    (one,), remove = sync(groups[0], w=app)
    assert remove == ()
    assert [(m.surplus, m.node, m.phase.value, m.group_id) for m in one.members] == [
        (1, "n1", "ready", "g2"),
        (2, "n2", "reserved", ""),
    ]
    (two,), _ = sync(*groups, group(group_name("main", W, 3, 1), "g1", "n2"), w=app)
    assert [(m.surplus, m.node, m.phase.value, m.group_id) for m in two.members] == [
        (1, "n1", "ready", "g2"),
        (2, "n2", "ready", "g1"),
        (3, "n1", "releasing", "g7"),
    ]
    assert sync(w=app)[0] == []


@pytest.mark.parametrize(
    "news", [{"health": NodeHealth.CORDONED}, {"health": NodeHealth.DRAINING}, {"blocked_until_s": 99.0}]
)
def test_a_seat_keeps_its_room_on_a_node_that_takes_nothing_new(news: dict[str, Any]) -> None:
    spec = workload("w", 2, 3, kind=Kind.SERVE)
    app = replace(live(), spec=spec, placement=(seat("n1", 0, surplus=1), seat("n1", 1, surplus=2)))
    there = group(group_name("main", W, 3, 2), "g2", "n1")
    nodes = (replace(NODES[0], **news), NODES[1])
    (held,) = adopt_world((there,), {W: app}, "main", 50.0, 80.0, nodes).adopt
    assert [(m.surplus, m.node, m.group_id) for m in held.members] == [(1, "n1", "g2"), (2, "n1", "")]
    lost = (replace(NODES[0], health=NodeHealth.LOST), NODES[1])
    (held,) = adopt_world((there,), {W: app}, "main", 50.0, 80.0, lost).adopt
    assert [m.surplus for m in held.members] == [1]


def test_groups_of_attempts_that_hold_nothing_are_leftovers() -> None:
    other = group(group_name("test", W, 9), "x", "n1")
    assert leftovers((BASE, SURPLUS, other), [(W, 3)], "main") == ()
    assert leftovers((BASE, SURPLUS, other), [(W, 2)], "main") == ("b0", "b1")


def test_a_group_belongs_to_one_seat() -> None:
    books = Allocations(version=1)
    books.reserve(W, 1, (seat("n1", 0, surplus=1), seat("n1", 1, surplus=2)), NODES, 0.0, 30.0, gang=(1,))
    books.ready(W, 1, 1, "g")
    books.ready(W, 1, 2, "g")
    assert [m.group_id for m in books.allocations[W, 1].members] == ["g", ""]


def test_a_replica_that_is_gone_leaves_its_seat_empty_and_fails_nothing() -> None:
    books = Allocations(version=1)
    books.reserve(W, 1, (seat("n1", 0, surplus=1), seat("n1", 1, surplus=2)), NODES, 0.0, 30.0, gang=(1,))
    books.ready(W, 1, 1, "g")
    books.fail(W, 1, 1, "its group is gone")
    assert books.allocations[W, 1].failed == "" and phases(books) == [(1, "reserved"), (2, "reserved")]
