"""Particular GPUs by name: arithmetic, choice, what is known after a restart, and following what Ray bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.admission import check_queue, check_workload
from rayorch.core.adoption import WorldGroup, adopt_world
from rayorch.core.allocations import Allocations, bind_seats
from rayorch.core.bound_devices import bundle_of, merge_observed, news_of
from rayorch.core.device_binding import (
    deal,
    device_index,
    devices_of,
    is_exact,
    is_spread,
    split_devices,
    with_devices,
)
from rayorch.core.errors import SpecError
from rayorch.core.inventory import UNNAMED_USE, Inventory
from rayorch.core.reports import SeatInUse
from rayorch.core.room import Room
from rayorch.core.types import (
    UNIT,
    Allocation,
    Device,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    NodeSpec,
    Resources,
    State,
    Workload,
    WorkloadId,
    group_name,
)
from tests.build import gpus, queue, seat, seats, workload

A = NodeId("a")
W = WorkloadId("w")


def node(exact: bool = True, gpu: int = 4, sick: tuple[int, ...] = (), **changes: object) -> NodeSpec:
    devices = tuple(Device(i, sick="hot" if i in sick else "") for i in range(gpu))
    spec = NodeSpec(A, "a", Resources.of({"GPU": gpu, "CPU": 16}), devices, exact=exact)
    return replace(spec, **changes)  # type: ignore[arg-type]


def held(books: Allocations, workload: str = "w") -> tuple[Member, ...]:
    return books.allocations[WorkloadId(workload), 1].members


# ---------------------------------------------------------------- names


def test_names_of_gpus_are_told_from_other_resources() -> None:
    assert [device_index(name) for name in ("gpu0", "gpu12", "gpu", "gpu01", "GPU", "gpus", "gpu1_group_2")] == [
        0, 12, None, None, None, None, None,
    ]  # fmt: skip
    total = Resources.of({"GPU": 2, "CPU": 4, "gpu0": 1, "gpu1": 1})
    assert split_devices(total) == (Resources.of({"GPU": 2, "CPU": 4}), ((0, UNIT), (1, UNIT)))
    assert is_exact(total)
    for other in ({"GPU": 2}, {"GPU": 2, "gpu0": 1}, {"GPU": 2, "gpu1": 1, "gpu2": 1}, {"GPU": 1, "gpu0": 2}, {}):
        assert not is_exact(Resources.of(other))


def test_a_bundle_names_whole_gpus_and_shares_one_for_a_fraction() -> None:
    assert with_devices(gpus(2, 1), (5, 1)) == Resources.of({"GPU": 2, "CPU": 1, "gpu1": 1, "gpu5": 1})
    assert with_devices(gpus(0.25), (3,)) == Resources.of({"GPU": 0.25, "gpu3": 0.25})
    assert devices_of(Resources.of({"GPU": 1.5, "gpu0": 0.5, "gpu7": 1})) == (7, 0)
    with pytest.raises(ValueError, match="not enough"):
        with_devices(gpus(2), (1,))


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.0]), max_size=6))
def test_bundles_are_dealt_what_they_ask_for_and_no_gpu_more_than_once(amounts: list[float]) -> None:
    bundles = [gpus(amount) for amount in amounts]
    dealt = deal(bundles, range(sum(int(amount) or bool(amount) for amount in amounts)))
    taken: dict[int, int] = {}
    for bundle, named in zip(bundles, dealt, strict=True):
        rest, shares = split_devices(named)
        assert rest == bundle and sum(units for _, units in shares) == bundle.gpu_units
        for index, units in shares:
            taken[index] = taken.get(index, 0) + units
    assert all(units <= UNIT for units in taken.values())


def test_the_door_refuses_a_gpu_by_name() -> None:
    spec = workload("w")
    named = replace(spec.roles[0], bundle=Resources.of({"GPU": 1, "gpu3": 1}))
    with pytest.raises(SpecError, match="ask for GPU") as refused:
        check_workload(replace(spec, roles=(named,)))
    assert refused.value.field == "roles.worker.bundle.gpu3"
    with pytest.raises(SpecError, match=r"deserved\.gpu0"):
        check_queue(replace(queue("q"), deserved=Resources.of({"gpu0": 1})))


# ---------------------------------------------------------------- the books choose


def test_seats_on_an_exact_node_name_the_devices_that_the_books_chose() -> None:
    books = Allocations()
    books.reserve(W, 1, seats("a", 2), [node(sick=(0, 2))], 0.0, 30.0)
    assert [(m.devices, m.exact) for m in held(books)] == [((1,), True), ((3,), True)]
    assert [bundle_of(m) for m in held(books)] == [with_devices(gpus(1), (1,)), with_devices(gpus(1), (3,))]
    books.removed(W, 1, 0)
    books.reserve(W, 2, seats("a", 2), [node(exact=False)], 0.0, 30.0)
    members = books.allocations[W, 2].members
    assert not any(m.exact for m in members)
    assert [bundle_of(m) for m in members] == [gpus(1), gpus(1)]


def test_a_seat_without_gpus_names_none() -> None:
    books = Allocations()
    books.reserve(W, 1, (Member("driver", 0, A, Resources.of({"CPU": 1})),), [node()], 0.0, 30.0)
    (member,) = held(books)
    assert (member.devices, member.exact, bundle_of(member)) == ((), False, Resources.of({"CPU": 1}))


@pytest.mark.parametrize("gpu", [1.0, 2.0, 0.5])
def test_the_books_after_a_restart_have_the_devices_that_the_groups_name(gpu: float) -> None:
    books = Allocations()
    books.reserve(W, 1, seats("a", 2, gpu), [node(gpu=8, sick=(0,))], 0.0, 30.0)
    before = held(books)
    bundles = tuple((m.node, bundle_of(m)) for m in before)
    world = WorldGroup(group_name("main", W, 1), "ab", bundles, created=True)
    placement = tuple(replace(m, devices=(), exact=False) for m in before)
    current = Workload(workload("w", 2, gpu=gpu), State.RUNNING, 0.0, attempt=1, placement=placement, ready_s=1.0)
    (adopted,) = adopt_world([world], {W: current}, "main", 5.0, 35.0, [node(gpu=8, sick=(0,))]).adopt
    assert [(m.devices, m.exact, m.bundle) for m in adopted.members] == [(m.devices, True, m.bundle) for m in before]


def test_a_seat_whose_group_is_not_there_yet_is_chosen_anew_beside_the_others() -> None:
    one = WorldGroup(group_name("main", W, 1), "ab", ((A, with_devices(gpus(1), (0,))),), created=True)
    placement = (seat("a"), seat("a", 1, surplus=1))
    current = Workload(workload("w", 1, 2), State.RUNNING, 0.0, attempt=1, placement=placement, ready_s=1.0)
    (adopted,) = adopt_world([one], {W: current}, "main", 5.0, 35.0, [node()]).adopt
    assert [(m.devices, m.exact) for m in adopted.members] == [((0,), True), ((1,), True)]


def test_a_replica_that_serve_left_takes_its_devices_along() -> None:
    members = (
        replace(seat("a", 0, 1), devices=(0,), exact=True),
        replace(seat("a", 1, 2), devices=(3,), exact=True),
    )
    serve = Allocation(W, 1, members, 0.0, 30.0, gang=(1, 2))
    there = (SeatInUse("worker", "a", "g3", devices=(3,), exact=True),)
    assert [(m.group_id, m.devices) for m in bind_seats(serve, there)] == [("", (0,)), ("g3", (3,))]
    moved = (SeatInUse("worker", "b", "g3", devices=(1,), exact=True), SeatInUse("worker", "b", "g4"))
    assert [(m.group_id, m.node, m.devices, m.exact) for m in bind_seats(serve, moved)] == [
        ("g3", "b", (1,), True),
        ("g4", "b", (), False),
    ]


@given(st.data())
def test_whatever_seats_replicas_come_and_go_in_no_two_have_one_device(data: st.DataObject) -> None:
    places = [(NodeId(n), d) for n in ("a", "b") for d in range(3)]
    count = data.draw(st.integers(1, 6))
    chosen = data.draw(st.permutations(places))[:count]
    held = Allocation(
        W,
        1,
        tuple(replace(seat(n, i, i + 1), devices=(d,), exact=True) for i, (n, d) in enumerate(chosen)),
        0.0,
        0.0,
        gang=tuple(range(1, count + 1)),
    )
    for turn in range(data.draw(st.integers(1, 4))):
        leaving = data.draw(st.sets(st.integers(1, count)))
        held = replace(
            held,
            members=tuple(
                replace(m, phase=MemberPhase.RELEASING if m.surplus in leaving else m.phase) for m in held.members
            ),
        )
        used = data.draw(st.sets(st.sampled_from(chosen)))
        there = tuple(
            SeatInUse("worker", n, f"g{n}{d}-{turn if turn % 2 else 0}", devices=(d,), exact=True)
            for n, d in sorted(used)
        )
        held = replace(held, members=bind_seats(held, there))
        assert sorted((m.node, *m.devices) for m in held.members) == sorted(chosen)
        bound = {m.group_id: (m.node, *m.devices) for m in held.members if m.group_id}
        assert bound == {g.group_id: (g.node_id, *g.devices) for g in there}


# ---------------------------------------------------------------- others on the node


def seen_foreign(used: Resources, exact: bool = True, ours: Resources | None = None) -> NodeSpec:
    inventory = Inventory()
    inventory.observe((node(exact=exact),), 0.0)
    for _ in range(2):
        inventory.observe_foreign({A: used}, {A: ours or Resources()}, {})
    return inventory.nodes[A]


def test_somebody_who_names_his_gpus_is_charged_those() -> None:
    there = seen_foreign(
        Resources.of({"GPU": 2.5, "gpu0": 1, "gpu1": 1, "gpu2": 0.5}), ours=with_devices(gpus(1), (0,))
    )
    assert there.foreign == gpus(1.5)
    assert there.foreign_devices == ((1, UNIT), (2, UNIT // 2))
    assert (there.foreign_unnamed, there.reason) == (0, "")
    ours = Allocation(W, 1, (replace(seat("a"), devices=(0,), exact=True),), 0.0, 0.0)
    room = Room.of([there], [ours], 0.0)
    assert room.take(A, gpus(0.5)) == (2,)
    assert room.take(A, gpus(1)) == (3,)
    assert not room.fits(A, gpus(0.5))


def test_our_own_groups_that_come_and_go_between_two_looks_are_not_foreign() -> None:
    inventory = Inventory()
    inventory.observe((node(),), 0.0)
    for index in (0, 3, 1):  # each time a group was made after the groups were read and before the use was
        inventory.observe_foreign({A: with_devices(gpus(1), (index,))}, {A: Resources()}, {})
        assert inventory.nodes[A].foreign == Resources()
        assert not inventory.nodes[A].foreign_unnamed


def test_somebody_who_does_not_name_them_closes_the_node_but_only_an_exact_one() -> None:
    there = seen_foreign(Resources.of({"GPU": 2, "gpu3": 1}))
    assert (there.foreign_unnamed, there.reason) == (UNIT, UNNAMED_USE)
    assert not Room.of([there], [], 0.0).fits(A, gpus(1))
    plain = seen_foreign(Resources.of({"GPU": 1}), exact=False)
    assert (plain.foreign_unnamed, plain.reason) == (0, "")
    assert Room.of([plain], [], 0.0).take(A, gpus(3)) == (1, 2, 3)


# ---------------------------------------------------------------- following Ray


def place(group: str, *devices: int, index: int = 0, on: str = "a") -> SeatInUse:
    return SeatInUse("", on, group, bundle_index=index, devices=devices)


def two_gangs(gpu: float = 1) -> Allocations:
    """w and v with a seat each on a node that is not exact, charged as Ray would bind them one after the other."""
    books = Allocations()
    for name in ("w", "v"):
        books.reserve(WorkloadId(name), 1, seats("a", 1, gpu), [node(exact=False)], 0.0, 30.0)
        books.ready(WorkloadId(name), 1, 0, f"g{name}")
    return books


def test_two_gangs_that_ray_bound_the_other_way_round_change_places_in_the_books() -> None:
    books = two_gangs(2)
    assert [held(books, name)[0].devices for name in ("w", "v")] == [(0, 1), (2, 3)]
    books.rebind(W, 1, (place("gw", 1, 2),))
    assert [held(books, name)[0].devices for name in ("w", "v")] == [(1, 2), (0, 3)]
    version = books.version
    books.rebind(W, 1, (place("gw", 2, 1),))
    books.rebind(WorkloadId("v"), 1, (place("gv", 0, 3),))
    assert books.version == version, "what is known already is no news"


def test_places_that_say_too_little_change_nothing() -> None:
    books = two_gangs(2)
    version = books.version
    books.rebind(W, 1, (place("gw", 3), place("gw", 2, 3, index=1), place("gv", 0, 1), place("gw", 2, 3, on="b")))
    assert books.version == version


def test_shared_devices_are_noted_and_nobody_is_moved() -> None:
    books = two_gangs(0.5)
    assert [held(books, name)[0].devices for name in ("w", "v")] == [(0,), (0,)]
    books.rebind(W, 1, (place("gw", 2),))
    assert [held(books, name)[0].devices for name in ("w", "v")] == [(2,), (0,)]


def test_a_group_that_names_its_devices_is_not_asked() -> None:
    books = Allocations()
    books.reserve(W, 1, seats("a", 1), [node()], 0.0, 30.0)
    books.ready(W, 1, 0, "gw")
    assert not news_of(books.allocations[W, 1], (place("gw", 3),))


def served(name: str) -> Allocations:
    """w and v with a seat of Serve's each on an exact node; nothing of them is made."""
    books = Allocations()
    for id in ("w", "v"):
        members = (replace(seats("a", 1)[0], surplus=1),)
        books.reserve(WorkloadId(id), 1, members, [node()], 0.0, 30.0, gang=(1,))
    assert [held(books, id)[0].devices for id in ("w", "v")] == [(0,), (1,)], name
    return books


def test_a_replica_that_was_made_by_an_older_grant_has_the_gpu_that_it_names() -> None:
    books = served("the group by its name")
    books.ready(W, 1, 1, "gw", (1,))
    assert [held(books, id)[0].devices for id in ("w", "v")] == [(1,), (0,)]
    books = served("the group as Serve says it")
    books.rebind(W, 1, (SeatInUse("worker", "a", "gw", devices=(1,), exact=True),))
    assert [held(books, id)[0].devices for id in ("w", "v")] == [(1,), (0,)]
    books.rebind(WorkloadId("v"), 1, (SeatInUse("worker", "a", "gv", devices=(3,), exact=True),))
    assert [held(books, id)[0].devices for id in ("w", "v")] == [(1,), (3,)]
    books.ready(W, 1, 1, "gw", (1,))
    assert held(books, "w")[0].devices == (1,)


def test_the_processes_of_a_seat_tell_what_they_see_of_it_one_after_the_other() -> None:
    known = merge_observed((), (place("gw", 3),))
    known = merge_observed(known, (place("gw", 1), place("gx", 0)))
    assert known == (place("gw", 1, 3), place("gx", 0))
    assert merge_observed(known, (place("gw", 2, on="b"),))[0] == place("gw", 2, on="b"), "the bundle has moved"


def test_a_controller_lets_the_books_follow_what_a_job_has_seen() -> None:
    from rayorch.core.reconcile import Rebind, _follow_devices
    from rayorch.core.runners import RunnerPhase, RunnerView

    books = two_gangs()
    view = RunnerView(W, 1, RunnerPhase.RUNNING, in_use=(place("gw", 1),))

    class Facts:
        workload = Workload(workload("w", kind=Kind.JOB), State.RUNNING, 0.0, attempt=1)

    facts = Facts()
    facts.view = view  # type: ignore[attr-defined]
    assert _follow_devices(facts, books.allocations[W, 1]) == [Rebind(W, 1, view.in_use)]  # type: ignore[arg-type]
    books.rebind(W, 1, view.in_use or ())
    assert _follow_devices(facts, books.allocations[W, 1]) == []  # type: ignore[arg-type]


def test_parts_of_several_gpus_are_told_from_a_whole_one_and_a_part() -> None:
    assert is_spread(Resources.of({"GPU": 1, "gpu0": 0.5, "gpu1": 0.5}))
    assert not is_spread(Resources.of({"GPU": 2, "gpu0": 1, "gpu1": 1}))
    assert not is_spread(Resources.of({"GPU": 0.5, "gpu1": 0.5}))
    assert not is_spread(Resources.of({"GPU": 1}))
