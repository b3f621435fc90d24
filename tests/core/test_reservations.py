"""Reservations: windows, what is set aside, who may use it, hot spares, and what the owner keeps of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.codec import decode, encode
from rayorch.core.decisions import Plan, Start, WaitReason
from rayorch.core.errors import AdmissionError, SpecError
from rayorch.core.gang_shape import TopologyRequest
from rayorch.core.planner import plan
from rayorch.core.policy import ReservationKnobs
from rayorch.core.queues import QueueTree
from rayorch.core.reservations import KEPT_S, ReservationView, Window, bundles_in, window_of
from rayorch.core.room import Room
from rayorch.core.snapshot import Snapshot
from rayorch.core.timing import ReservationSpec
from rayorch.core.types import Allocation, QueueId, Resources, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from rayorch.sim.checkers import check_plan
from tests.build import apply, gpus, queue, tree, workload
from tests.scenes import NOW, node, pending, reasons, running, snapshot, started
from tests.scenes import queue as scene_queue

EIGHT = Resources.of({"GPU": 8})
HOUR = 3600.0


def booked(
    id: str = "r",
    count: int = 1,
    gpu: float = 4,
    start_s: float = NOW - 10,
    end_s: float | None = NOW + HOUR,
    queue: str = "q",
    **asked: object,
) -> ReservationSpec:
    return ReservationSpec(id, QueueId(queue), gpus(gpu), count, start_s, end_s, **asked)  # type: ignore[arg-type]


def spares(count: int = 1, gpu: float = 4) -> ReservationSpec:
    return booked("spares", count, gpu, end_s=None, standing=True)


def planned(reservations: list[ReservationSpec], nodes: int, *work: object, **more: object) -> tuple[Plan, Snapshot]:
    seen = snapshot([node(f"n{i}", 4) for i in range(nodes)], work, **more)  # type: ignore[arg-type]
    seen = replace(seen, reservations=tuple(reservations))
    made = plan(seen, DEFAULT)
    assert check_plan(seen, made) == ()
    return made, seen


def view(made: Plan, id: str = "r") -> ReservationView:
    return next(v for v in made.reservations if v.spec.id == id)


# ---------------------------------------------------------------- windows


def test_windows_are_the_present_one_else_the_next() -> None:
    once = booked(start_s=100.0, end_s=200.0)
    assert [window_of(once, t) for t in (0.0, 100.0, 199.0)] == [Window(100.0, 200.0)] * 3
    assert window_of(once, 200.0) is None
    daily = replace(once, every_s=1000.0)
    assert window_of(daily, 150.0) == Window(100.0, 200.0)
    assert window_of(daily, 200.0) == Window(1100.0, 1200.0)
    assert window_of(daily, 1199.0) == Window(1100.0, 1200.0)
    assert window_of(spares(), 1e12) == Window(NOW - 10, None)


@given(st.integers(0, 10_000), st.integers(1, 50), st.integers(50, 100))
def test_a_repeated_window_is_the_first_of_its_row_that_has_not_ended(now: int, length: int, every: int) -> None:
    spec = booked(start_s=1000.0, end_s=1000.0 + length, every_s=float(every))
    naive = next(s for s in (1000.0 + n * every for n in range(10_000)) if now < s + length)
    assert window_of(spec, float(now)) == Window(naive, naive + length)


def test_amounts_use_up_as_many_bundles_as_their_scarcest_part() -> None:
    assert bundles_in([], gpus(4)) == 0
    assert bundles_in([gpus(1), gpus(4)], gpus(4)) == 2
    assert bundles_in([gpus(1, 8)], gpus(4, 4)) == 2


# ---------------------------------------------------------------- what is set aside


def test_nobody_else_takes_what_is_set_aside_and_those_who_wait_are_told() -> None:
    made, _ = planned([booked()], 2, pending("a", gpu=4), pending("b", gpu=4, submitted_s=1))
    assert sorted(started(made)) == ["a"]
    assert WaitReason.SET_ASIDE in reasons(made, "b")
    assert (view(made).set_aside, view(made).missing, view(made).in_use) == (1, 0, 0)


def test_who_names_it_starts_in_it_and_nowhere_else() -> None:
    made, _ = planned([booked()], 3, pending("mine", 2, gpu=2, reservation="r"), pending("b", gpu=4))
    assert len(set(started(made)["mine"])) == 1
    assert set(started(made)["mine"]).isdisjoint(started(made)["b"])
    made, _ = planned([booked()], 3, pending("mine", 2, gpu=4, reservation="r"))
    assert started(made) == {}
    assert reasons(made, "mine") == [WaitReason.RESERVATION]


def test_what_it_uses_counts_and_the_rest_stays_set_aside() -> None:
    held = running("mine", ["n0"], gpu=4, reservation="r")
    made, _ = planned([booked(count=2)], 3, held, pending("a", gpu=4), pending("b", gpu=4, submitted_s=1))
    assert (view(made).in_use, view(made).set_aside) == (1, 1)
    assert sorted(started(made)) == ["a"]


def test_less_than_a_node_leaves_the_rest_to_others() -> None:
    made, _ = planned([booked(gpu=1)], 1, pending("a", gpu=3), pending("mine", gpu=1, reservation="r", submitted_s=1))
    assert started(made) == {"a": ["n0"], "mine": ["n0"]}


def test_it_evicts_nobody_and_holds_what_comes_free() -> None:
    work = [running(f"b{i}", [f"n{i}"], gpu=4, priority=0) for i in range(2)]
    made, _ = planned([booked()], 2, *work, pending("mine", gpu=4, reservation="r", priority=100))
    assert started(made) == {}
    assert view(made).missing == 1
    free = [work[0], running("b1", ["n1"], gpu=2)]
    made, _ = planned([booked()], 2, *free, pending("other", gpu=2, submitted_s=1))
    assert started(made) == {}, "n1 is held until it is whole"


def test_before_it_begins_only_who_has_left_in_time_may_use_its_nodes() -> None:
    later = booked(count=2, start_s=NOW + 600, end_s=NOW + 900)
    quick = pending("quick", gpu=4, wall_limit_s=500.0, grace_s=0.0)
    slow = pending("slow", gpu=4, wall_limit_s=700.0, grace_s=0.0, submitted_s=1)
    unknown = pending("unknown", gpu=4, submitted_s=2)
    made, _ = planned([later], 2, quick, slow, unknown)
    assert sorted(started(made)) == ["quick"]
    assert WaitReason.RESERVED_FOR_HEAD in reasons(made, "unknown")
    far = replace(later, start_s=NOW + 5 * HOUR, end_s=NOW + 6 * HOUR)
    assert len(started(planned([far], 2, quick, slow, unknown)[0])) == 2, "it holds nothing yet"


def test_what_will_be_free_at_its_start_counts_and_what_will_not_is_said() -> None:
    later = booked(count=2, start_s=NOW + 600, end_s=NOW + 900)
    ends = running("ends", ["n0"], started_s=NOW - 100, gpu=4, wall_limit_s=400.0, grace_s=0.0)
    stays = running("stays", ["n1"], started_s=NOW - 100, gpu=4)
    assert view(planned([later], 2, ends, stays)[0]).missing == 1
    assert view(planned([later], 3, ends, stays)[0]).missing == 0


def test_work_that_names_it_waits_for_its_beginning_and_knows_when() -> None:
    later = booked(start_s=NOW + 600, end_s=NOW + 900)
    made, _ = planned([later], 1, pending("mine", gpu=4, reservation="r"))
    assert reasons(made, "mine") == [WaitReason.RESERVATION]
    assert made.estimates[WorkloadId("mine")] == NOW + 600
    made, _ = planned([], 1, pending("mine", gpu=4, reservation="r"))
    assert (started(made), reasons(made, "mine")) == ({}, [WaitReason.RESERVATION])


def test_quota_counts_inside_too() -> None:
    seen_queue = [scene_queue("q", 2, 0)]
    made, _ = planned([booked()], 1, pending("mine", gpu=4, reservation="r"), queues=seen_queue)
    assert started(made) == {}
    assert WaitReason.QUOTA in reasons(made, "mine")


# ---------------------------------------------------------------- hot spares


def test_spares_are_replaced_when_they_are_used() -> None:
    held = running("mine", ["n0"], gpu=4, reservation="spares")
    made, _ = planned([spares()], 3, held, pending("a", gpu=4), pending("b", gpu=4, submitted_s=1))
    assert (view(made, "spares").in_use, view(made, "spares").set_aside) == (1, 1)
    assert sorted(started(made)) == ["a"]


def test_who_has_lost_a_node_gets_a_spare_and_nobody_else_does() -> None:
    hurt = replace(pending("hurt", gpu=4, submitted_s=5), node_losses=1)
    made, _ = planned([spares()], 1, pending("older", gpu=4), hurt)
    assert started(made) == {"hurt": ["n0"]}
    elsewhere = [scene_queue("q"), scene_queue("p")]
    other = replace(pending("hurt", gpu=4, queue="p"), node_losses=1)
    assert started(planned([spares()], 1, other, queues=elsewhere)[0]) == {}


# ---------------------------------------------------------------- the owner


def settle(built: QueueTree, spec: ReservationSpec, now_s: float = NOW) -> None:
    apply(built, built.set_reservation(spec, now_s))


def test_the_owner_keeps_them_and_they_survive_a_restart() -> None:
    built = tree()
    settle(built, booked())
    assert built.set_reservation(booked(), NOW) == ()
    settle(built, booked(count=3))
    again = QueueTree.restore(decode(encode(built.dump())))  # type: ignore[arg-type]
    assert again.changes_since(0).reservations == (booked(count=3),)
    apply(again, again.delete_reservation("r", NOW))
    assert again.changes_since(0).reservations == ()
    with pytest.raises(AdmissionError, match="no reservation"):
        again.delete_reservation("r", NOW)


def test_one_that_is_over_is_removed_after_a_day() -> None:
    built = tree()
    settle(built, booked())
    assert built.due(NOW + HOUR + KEPT_S) == ()
    apply(built, built.due(NOW + HOUR + KEPT_S + 1))
    assert built.changes_since(0).reservations == ()


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("id", booked("")),
        ("id", booked("a/b")),
        ("count", booked(count=0)),
        ("bundle", booked(gpu=0)),
        ("end_s", booked(end_s=None)),
        ("end_s", booked(end_s=NOW - 10)),
        ("standing", booked(standing=True)),
        ("every_s", booked(every_s=60.0)),
        ("start_s", booked(start_s=float("nan"))),
        ("owners", booked(owners=["x"])),
        ("accelerators", booked(accelerators=("not a model!",))),
        ("topology.required", booked(topology=TopologyRequest(required=7))),  # type: ignore[arg-type]
        ("topology.balanced", booked(topology=TopologyRequest(balanced="yes"))),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused_with_the_field(field: str, spec: ReservationSpec) -> None:
    with pytest.raises(SpecError) as error:
        tree().set_reservation(spec, NOW)
    assert error.value.field.startswith(field)


def test_the_door_refuses_what_could_never_run_in_it() -> None:
    built = tree(queue("q"), queue("q/a"), queue("p"))
    with pytest.raises(AdmissionError, match="does not exist"):
        built.set_reservation(booked(queue="nowhere"), NOW)
    with pytest.raises(AdmissionError, match="past"):
        built.set_reservation(booked(start_s=1.0, end_s=2.0), NOW)
    settle(built, booked(owners=("ann",)))
    good = workload("w", reservation="r", owner="ann", queue="q/a")
    assert built.submit(good, NOW)
    for wrong in (
        replace(good, reservation="x"),
        replace(good, owner="bob"),
        replace(good, queue=QueueId("p")),
        workload("w", 5, reservation="r", owner="ann"),
    ):
        with pytest.raises(AdmissionError) as error:
            built.submit(wrong, NOW)
        assert error.value.field == "reservation"
    with pytest.raises(AdmissionError, match="over"):
        built.submit(good, NOW + HOUR)


# ---------------------------------------------------------------- the property


@settings(max_examples=80, deadline=None)
@given(
    nodes=st.integers(1, 4),
    count=st.integers(1, 4),
    gpu=st.sampled_from((1, 2, 4)),
    standing=st.booleans(),
    asked=st.lists(st.tuples(st.integers(1, 3), st.sampled_from((1, 2, 4)), st.booleans()), max_size=8),
)
def test_after_any_plan_the_rest_of_a_reservation_still_fits(
    nodes: int, count: int, gpu: int, standing: bool, asked: list[tuple[int, int, bool]]
) -> None:
    """Carry out the plan, then count what is free: what was set aside is there for whoever comes for it."""
    spec = spares(count, gpu) if standing else booked(count=count, gpu=gpu)
    work: list[Workload] = [
        pending(f"w{n}", members, gpu=size, reservation=spec.id if inside else "", submitted_s=float(n))
        for n, (members, size, inside) in enumerate(asked)
    ]
    made, seen = planned([spec], nodes, *work)
    starts = [d for d in made.decisions if isinstance(d, Start)]
    held: dict[str, list[Resources]] = {}
    for start in starts:
        if next(w for w in work if w.id == start.workload).spec.reservation:
            for member in start.members:
                held.setdefault(member.node, []).append(member.bundle)
    used = sum(bundles_in(amounts, spec.bundle) for amounts in held.values())
    taken = [Allocation(start.workload, 1, start.members, NOW, NOW + 30) for start in starts]
    room = Room.of(seen.nodes, taken, NOW)
    free = sum(room.pieces(n.id, spec.bundle) for n in seen.nodes)
    possible = min(count, nodes * (4 // gpu))
    assert free >= min(count if standing else count - used, possible - used)


def test_the_lead_is_a_knob() -> None:
    later = booked(start_s=NOW + 600, end_s=NOW + 900)
    seen = replace(snapshot([node("n0", 4)], [pending("a", gpu=4)]), reservations=(later,))
    assert started(plan(seen, replace(DEFAULT, reservations=ReservationKnobs(lead_s=599)))) == {"a": ["n0"]}
    assert started(plan(seen, replace(DEFAULT, reservations=ReservationKnobs(lead_s=601)))) == {}
