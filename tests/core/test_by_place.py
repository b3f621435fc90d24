"""Reclaim by place: whose work goes is told by where it lies, where seniority finds no room."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rayorch.core.planner import plan
from rayorch.core.planning.by_place import reclaim_by_place
from rayorch.core.planning.claims import gang_of, start_claim
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.heal import protect
from rayorch.core.room import Room
from rayorch.core.types import (
    Checkpoint,
    QueueSpec,
    Resources,
    Role,
    State,
    StopCause,
    Workload,
)
from rayorch.policies.default import DEFAULT
from tests.core.test_planner_properties import World
from tests.scenes import NOW, changes, gpus, node, pending, queue, reserved, running, shrunk, snapshot, stopped

PROFILE = replace(DEFAULT, eviction=replace(DEFAULT.eviction, by_place=True))
TWO = [node("n0"), node("n1")]
SHARES = [queue("a", 8), queue("b", 8)]


def alternating(gangs: int = 8, each: float = 2, queue: str = "b") -> list[tuple[Workload, object]]:
    """Gangs that lie in turn on the one and the other node."""
    return [running(f"{queue}{i}", [f"n{i % 2}"], gpu=each, queue=queue, started_s=float(i)) for i in range(gangs)]


# ---------------------------------------------------------------- the worked example


def test_a_whole_node_is_found_among_scattered_borrowed_work() -> None:
    made = plan(snapshot(TWO, [*alternating(), pending("w", gpu=8, queue="a")], SHARES), PROFILE)
    (where,) = reserved(made)["w"]
    assert sorted(stopped(made)) == [f"b{i}" for i in range(8) if f"n{i % 2}" == where]
    assert set(stopped(made).values()) == {StopCause.RECLAIMED}


def test_only_where_the_profile_says_so() -> None:
    work = [*alternating(), pending("w", gpu=8, queue="a")]
    assert changes(plan(snapshot(TWO, work, SHARES), DEFAULT)) == []


def test_six_of_a_node_take_no_more_than_three_gangs() -> None:
    made = plan(snapshot(TWO, [*alternating(), pending("w", gpu=6, queue="a")], SHARES), PROFILE)
    (where,) = reserved(made)["w"]
    assert len(stopped(made)) == 3
    assert all(f"n{int(id[1:]) % 2}" == where for id in stopped(made))


def test_nobody_goes_when_the_side_holds_no_more_than_its_share() -> None:
    work = [*alternating(4), pending("w", gpu=8, queue="a")]
    assert changes(plan(snapshot(TWO, work, SHARES), PROFILE)) == []


def test_no_side_ends_below_its_share() -> None:
    """b holds 12 of 8, so that only 4 may go, wherever they lie."""
    work = [*alternating(8, 1.5), pending("w", gpu=8, queue="a")]
    assert changes(plan(snapshot(TWO, work, SHARES), PROFILE)) == []


def test_a_claim_beyond_its_own_share_takes_nothing() -> None:
    shares = [queue("a", 4), queue("b", 8)]
    assert changes(plan(snapshot(TWO, [*alternating(), pending("w", gpu=8, queue="a")], shares), PROFILE)) == []


def test_what_seniority_finds_stays_as_it_is() -> None:
    """Where b's younger gangs lie together they go, though others would lose less."""
    work = [running(f"b{i}", [f"n{i // 4}"], gpu=2, queue="b", started_s=float(i)) for i in range(8)]
    work = [(_saved(w) if w.id < "b4" else w, held) for w, held in work]
    made = plan(snapshot(TWO, [*work, pending("w", gpu=8, queue="a")], SHARES), PROFILE)
    assert sorted(stopped(made)) == ["b4", "b5", "b6", "b7"]


def _saved(workload: Workload) -> Workload:
    return replace(workload, checkpoint=Checkpoint(1, "file:///c", NOW - 1, workload.attempt))


# ---------------------------------------------------------------- where least is lost


def test_the_node_goes_where_least_is_lost() -> None:
    for cheap in (0, 1):
        work = [(_saved(w) if int(w.id[1:]) % 2 == cheap else w, held) for w, held in alternating()]
        made = plan(snapshot(TWO, [*work, pending("w", gpu=8, queue="a")], SHARES), PROFILE)
        assert reserved(made) == {"w": [f"n{cheap}"]}


def test_important_work_is_dearer() -> None:
    work = [running(f"b{i}", [f"n{i % 2}"], gpu=2, queue="b", priority=200 * (i % 2 == 0)) for i in range(8)]
    made = plan(snapshot(TWO, [*work, pending("w", gpu=8, queue="a")], SHARES), PROFILE)
    assert reserved(made) == {"w": ["n1"]}


def test_a_gang_across_both_nodes_counts_whole() -> None:
    """Two gangs of 2 x 2 free 4 GPUs on each node; with two more on n0 that would be 12 GPUs of 16: too much."""
    work = [running(f"b{i}", ["n0", "n1"], gpu=2, queue="b") for i in range(4)]
    assert changes(plan(snapshot(TWO, [*work, pending("w", gpu=8, queue="a")], SHARES), PROFILE)) == []
    made = plan(snapshot(TWO, [*work, pending("w", gpu=4, queue="a")], SHARES), PROFILE)
    assert len(stopped(made)) == 2


def test_surplus_seats_go_before_attempts() -> None:
    """b's one job may shrink from eight seats of 2 to four, and gives those of one node."""
    work = [
        running("b0", ["n0", "n0", "n1", "n1", "n0", "n1", "n0", "n1"], members=(4, 8), gpu=2, queue="b"),
        pending("w", gpu=4, queue="a"),
    ]
    made = plan(snapshot(TWO, work, SHARES), PROFILE)
    assert stopped(made) == {}
    assert len(shrunk(made)["b0"]) == 2


def test_a_gang_of_two_nodes_in_one_rack() -> None:
    nodes = [node(f"n{i}", rack=f"r{i // 2}") for i in range(4)]
    work = [running(f"b{i:02}", [f"n{i % 4}"], gpu=2, queue="b", started_s=float(i)) for i in range(16)]
    shares = [queue("a", 16), queue("b", 16)]
    made = plan(snapshot(nodes, [*work, pending("w", 2, gpu=8, queue="a", rack="required")], shares), PROFILE)
    assert sorted(reserved(made)["w"]) in (["n0", "n1"], ["n2", "n3"])
    assert len(stopped(made)) == 8


def test_what_is_not_preemptible_stays() -> None:
    work = [running(f"b{i}", [f"n{i % 2}"], gpu=2, queue="b", started_s=float(i), preemptible=i != 1) for i in range(8)]
    made = plan(snapshot(TWO, [*work, pending("w", gpu=8, queue="a")], SHARES), PROFILE)
    assert reserved(made) == {"w": ["n0"]}


def test_two_sides_give_each_what_it_borrowed() -> None:
    shares = [queue("a", 8), queue("b", 4), queue("c", 4)]
    work = [*alternating(4, queue="b"), *alternating(4, queue="c"), pending("w", gpu=8, queue="a")]
    made = plan(snapshot(TWO, work, shares), PROFILE)
    assert sorted(id[0] for id in stopped(made)) == ["b", "b", "c", "c"]
    assert len({int(id[1:]) % 2 for id in stopped(made)}) == 1


def test_a_child_within_its_share_gives_nothing_of_what_its_sibling_borrowed() -> None:
    shares = [queue("a", 8), queue("b", 8), queue("b/x", 4), queue("b/y", 4)]
    x = [running(f"x{i}", [f"n{i % 2}"], gpu=2, queue="b/x") for i in range(2)]
    y = [running(f"y{i}", [f"n{i % 2}"], gpu=2, queue="b/y") for i in range(6)]
    made = plan(snapshot(TWO, [*x, *y, pending("w", gpu=6, queue="a")], shares), PROFILE)
    assert len(stopped(made)) == 3
    assert {id[0] for id in stopped(made)} == {"y"}
    assert changes(plan(snapshot(TWO, [*x, *y, pending("w", gpu=8, queue="a")], shares), PROFILE)) == []


def test_what_a_queue_holds_less_of_than_its_share_does_not_protect_its_gpus() -> None:
    """b holds 32 CPUs of 64, but all GPUs: it gives GPUs, and CPUs with them."""
    shares = [replace(queue(name, 8), deserved=gpus(8, CPU=64)) for name in ("a", "b")]
    work = [running(f"b{i}", [f"n{i % 2}"], gpu=2, cpu=4, queue="b", started_s=float(i)) for i in range(8)]
    made = plan(snapshot(TWO, [*work, pending("w", gpu=8, cpu=8, queue="a")], shares), PROFILE)
    assert len(stopped(made)) == 4


def test_a_claim_without_gpus_leaves_everybody_its_shares() -> None:
    """b borrows CPUs and holds its share of GPUs: only what has no GPUs goes for a's CPUs."""
    shares = [replace(queue(name, 8), deserved=gpus(8, CPU=64)) for name in ("a", "b")]
    roles = (Role("worker", Resources.of({"CPU": 64}), 1, 1),)
    for gpu, found in ((1.0, False), (0.0, True)):
        role = (Role("worker", gpus(gpu, CPU=16) if gpu else Resources.of({"CPU": 16}), 1, 1),)
        work = [running(f"b{i}", [f"n{i % 2}"], queue="b", started_s=float(i), roles=role) for i in range(8)]
        made = plan(snapshot(TWO, [*work, pending("w", queue="a", roles=roles)], shares), PROFILE)
        assert bool(stopped(made)) is found


# ---------------------------------------------------------------- nobody takes back in turn

shares = st.sampled_from(
    [
        (queue("a", 4), queue("b", 4)),
        (queue("a", 4), queue("b", 2), queue("c", 2)),
        (queue("a", 3), queue("b", 1), queue("c", 2)),
        (queue("a", 4), queue("b", 4), queue("b/x", 2), queue("b/y", 2)),
    ]
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Full nodes, the work of each queue scattered over them; and then everybody asks for more."""
    nodes = [node(f"n{i}", 4, rack=f"r{i % 2}") for i in range(draw(st.integers(2, 3)))]
    queues: tuple[QueueSpec, ...] = draw(shares)
    leaves = [q.id for q in queues if not any(other.parent == q.id for other in queues)]
    early = [
        pending(f"e{i}" + "x" * (i % 2), gpu=draw(st.sampled_from([1, 1, 2])), queue=draw(st.sampled_from(leaves[1:])))
        for i in range(draw(st.integers(4, 10)))
    ]
    later = [
        pending(
            f"l{i}" + "x" * (i % 2),
            draw(st.sampled_from([1, 1, 2])),
            gpu=draw(st.sampled_from([1, 2, 3, 4])),
            queue=draw(st.sampled_from(leaves)),
            rack=draw(st.sampled_from(["", "", "required"])),
        )
        for i in range(draw(st.integers(1, 4)))
    ]
    return World(nodes, queues, {w.id: w for w in early}, later=later, profile=PROFILE)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_reclaims_end_and_leave_nobody_below_its_share(world: World) -> None:
    """Rounds until nothing changes: no pair evicts each other, who gains stays within its share, who gives keeps it."""
    world.turn()
    world.submit()
    quiet = 0
    for _ in range(30):
        made = world.turn()
        quiet = 0 if changes(made) or any(w.state is State.STOPPING for w in world.workloads.values()) else quiet + 1
        if quiet == 3:
            break
    event(f"evictions: {min(len(world.evictions), 4)}")
    assert quiet == 3
    assert not {(b, a) for a, b in world.evictions} & set(world.evictions)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_who_gains_stays_within_its_share_and_who_gives_keeps_it(world: World) -> None:
    """Each claim by itself, by place alone; the seats that it is promised are free once the victims have left."""
    world.turn()
    world.submit()
    seen = world.see()
    for workload in world.later:
        draft = Draft.of(seen, PROFILE)
        protect(draft)
        before = draft.soon.quota.copy()
        claim = start_claim(workload, gang_of(workload.spec))
        found = reclaim_by_place(draft, claim)
        event(f"found: {found}")
        if not found:
            continue
        assert draft.stops
        after, room = draft.soon.quota, Room.of(seen.nodes, seen.allocations, seen.now_s)
        for above in after.path(workload.spec.queue):
            assert after.used(above.id).gpu_units <= above.deserved.gpu_units or not above.deserved.gpu_units
        for id in draft.stops:
            for member in world.held[id].members:
                room.give(member.node, member.bundle, member.devices)
            for above in after.path(world.workloads[id].spec.queue):
                assert after.used(above.id).gpu_units >= above.deserved.gpu_units
                assert before.used(above.id).gpu_units > above.deserved.gpu_units
        for member in draft.reserves[-1].members:
            room.take(member.node, member.bundle)
