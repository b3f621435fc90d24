"""Backfill: what is short starts on nodes that are held for a head, and no head is ever delayed by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.decisions import Plan, Reserve, Start
from rayorch.core.planner import plan
from rayorch.core.policy import BackfillKnobs, Profile
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import Allocation, NodeSpec, State, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from rayorch.sim.checkers import check_plan
from tests.scenes import NOW, node, pending, running, snapshot, started

FOUR = [node(f"n{i}", 4) for i in range(4)]
"""Four nodes of four GPUs."""


def held_until(made: Plan, id: str) -> float | None:
    return next(d.at_s for d in made.decisions if isinstance(d, Reserve) and d.workload == id)


def busy(id: str, on: str, left_s: float, gpu: float = 4) -> tuple[Workload, Allocation]:
    """It runs and will end in `left_s` exactly."""
    return running(id, [on], started_s=NOW - 100, gpu=gpu, wall_limit_s=100 + left_s, grace_s=0.0)


def waits(id: str, members: int = 1, gpu: float = 4, lasts_s: float | None = None, at_s: float = 0.0) -> Workload:
    limits = {} if lasts_s is None else {"wall_limit_s": lasts_s, "grace_s": 0.0}
    return pending(id, members, submitted_s=at_s, gpu=gpu, **limits)


def planned(*work: object, nodes: list[NodeSpec] = FOUR, profile: Profile = DEFAULT) -> Plan:
    seen = snapshot(nodes, work)
    made = plan(seen, profile)
    assert check_plan(seen, made) == ()
    return made


# ---------------------------------------------------------------- what the head holds


def test_a_head_holds_the_nodes_that_take_it_first_from_the_time_when_they_do() -> None:
    work = [busy(f"b{i}", f"n{i}", left_s) for i, left_s in enumerate((10, 500, 40, 30))]
    made = planned(*work, waits("head", 2))
    assert held_until(made, "head") == NOW + 30
    assert made.estimates[WorkloadId("head")] == NOW + 30
    (hold,) = [d for d in made.decisions if isinstance(d, Reserve)]
    assert sorted({m.node for m in hold.members}) == ["n0", "n3"]


def test_who_has_left_before_starts_on_held_nodes_and_who_has_not_does_not() -> None:
    work = [busy(f"b{i}", f"n{i}", 100) for i in range(3)]
    made = planned(*work, waits("head", 4), waits("long", at_s=1, lasts_s=101), waits("short", at_s=2, lasts_s=99))
    assert started(made) == {"short": ["n3"]}
    (start,) = [d for d in made.decisions if isinstance(d, Start)]
    assert start.ends_s == NOW + 99
    assert WorkloadId("short") not in made.waits
    assert WorkloadId("short") not in made.positions
    assert made.positions[WorkloadId("long")] == 2


def test_the_grace_after_a_limit_counts() -> None:
    work = [busy(f"b{i}", f"n{i}", 100) for i in range(3)]
    short = pending("short", submitted_s=1, gpu=4, wall_limit_s=90.0, grace_s=30.0)
    assert started(planned(*work, waits("head", 4), short)) == {}


def test_two_do_not_share_one_hole() -> None:
    work = [busy(f"b{i}", f"n{i}", 100) for i in range(3)]
    two = [waits(f"s{i}", at_s=1 + i, lasts_s=50) for i in range(2)]
    assert started(planned(*work, waits("head", 4), *two)) == {"s0": ["n3"]}


def test_what_is_not_held_is_open_to_everybody() -> None:
    nodes = [*FOUR, node("n4", 4)]
    work = [busy(f"b{i}", f"n{i}", 10 * (i + 1)) for i in range(4)]
    made = planned(*work, waits("head", 4), waits("long", at_s=1), nodes=nodes)
    assert held_until(made, "head") == NOW + 30
    (hold,) = [d for d in made.decisions if isinstance(d, Reserve)]
    assert "n4" in {m.node for m in hold.members}, "it is free already"
    assert started(made) == {}


def test_where_nothing_is_known_nobody_is_let_in() -> None:
    work = [running(f"b{i}", [f"n{i}"], gpu=4) for i in range(3)]
    made = planned(*work, waits("head", 4), waits("short", at_s=1, lasts_s=1))
    assert started(made) == {}
    assert held_until(made, "head") is None


def test_one_that_never_ends_is_not_counted_on() -> None:
    work = [*(busy(f"b{i}", f"n{i}", 10) for i in range(2)), running("b2", ["n2"], gpu=4)]
    assert held_until(planned(*work, waits("head", 3)), "head") == NOW + 10
    assert held_until(planned(*work, waits("head", 4)), "head") is None


def test_an_owner_s_guess_is_taken_for_half_and_for_the_worst() -> None:
    """What the head waits for should end in 100 s, so that is when it comes. Who should run 60 s may take 120."""
    work = [running(f"b{i}", [f"n{i}"], started_s=NOW - 100, gpu=4, expected_s=200.0) for i in range(3)]
    made = planned(*work, waits("head", 4), pending("guess", submitted_s=1, gpu=4, expected_s=60.0))
    assert (held_until(made, "head"), started(made)) == (NOW + 100, {})
    made = planned(*work, waits("head", 4), pending("guess", submitted_s=1, gpu=4, expected_s=49.0))
    assert started(made) == {"guess": ["n3"]}


def test_the_knobs_say_for_how_many_heads_and_how_many_are_tried() -> None:
    work = [busy(f"b{i}", f"n{i}", 100) for i in range(3)]
    shorts = [waits(f"s{i}", at_s=1 + i, gpu=1, lasts_s=50 + i) for i in range(4)]
    none = replace(DEFAULT, backfill=BackfillKnobs(heads=0))
    assert started(planned(*work, waits("head", 4), *shorts, profile=none)) == {}
    one = replace(DEFAULT, backfill=BackfillKnobs(most_tries=1))
    assert list(started(planned(*work, waits("head", 4), *shorts, profile=one))) == ["s0"]
    few = replace(DEFAULT, backfill=BackfillKnobs(most_looks=3))
    assert list(started(planned(*work, waits("head", 4), *shorts, profile=few))) == ["s0", "s1"]


@pytest.mark.parametrize("lasts_s", [1.0, 5.0])
def test_a_stream_of_small_work_does_not_starve_a_gang(lasts_s: float) -> None:
    """Four nodes, a gang of four, and single nodes' work without end: the gang starts within the longest of them."""
    world = World(FOUR, [waits("gang", 4, lasts_s=10, at_s=1.0)])
    for n in range(60):
        world.arrive(waits(f"s{n:02}", at_s=float(n) / 4, lasts_s=lasts_s))
    world.run(30)
    assert world.began["gang"] <= 1.0 + lasts_s + 1


# ---------------------------------------------------------------- the property


class World:
    """Nodes and work whose ends are known exactly; time goes by in whole seconds."""

    def __init__(self, nodes: list[NodeSpec], jobs: list[Workload], profile: Profile = DEFAULT) -> None:
        self.nodes, self.profile = nodes, profile
        self.coming: list[Workload] = list(jobs)
        self.waiting: dict[str, Workload] = {}
        self.live: dict[str, tuple[Workload, Allocation]] = {}
        self.began: dict[str, float] = {}
        self.promised: dict[str, float] = {}
        self.filled: list[str] = []
        self.now_s = 0.0

    def arrive(self, workload: Workload) -> None:
        self.coming.append(workload)

    def seen(self) -> Snapshot:
        return snapshot(self.nodes, [*self.waiting.values(), *self.live.values()], now_s=self.now_s)

    def turn(self) -> None:
        for id, (workload, _) in list(self.live.items()):
            if self.now_s >= (workload.started_s or 0.0) + (workload.spec.wall_limit_s or 1e9):
                del self.live[id]
        for workload in [w for w in self.coming if w.submitted_s <= self.now_s]:
            self.coming.remove(workload)
            self.waiting[workload.id] = workload
        seen = self.seen()
        made = plan(seen, self.profile)
        assert check_plan(seen, made) == ()
        for decision in made.decisions:
            if isinstance(decision, Reserve) and decision.at_s is not None:
                before = self.promised.setdefault(decision.workload, decision.at_s)
                assert decision.at_s <= before, f"{decision.workload} was promised {before}, is now {decision.at_s}"
            if isinstance(decision, Start):
                workload = self.waiting.pop(decision.workload)
                live = replace(
                    workload,
                    state=State.RUNNING,
                    attempt=1,
                    started_s=self.now_s,
                    ready_s=self.now_s,
                    lease_renewed_s=1e9,
                    placement=decision.members,
                )
                allocation = Allocation(workload.id, 1, decision.members, self.now_s, self.now_s + 30)
                self.live[workload.id] = (live, allocation)
                self.began[workload.id] = self.now_s
                if decision.ends_s is not None:
                    self.filled.append(workload.id)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()
            self.now_s += 1.0


gang = st.tuples(st.integers(1, 3), st.sampled_from((1, 2, 4)), st.integers(1, 12), st.integers(0, 10))


@settings(max_examples=60, deadline=None)
@given(st.lists(gang, min_size=3, max_size=14), st.integers(2, 4))
def test_with_exact_estimates_no_head_ever_starts_later_than_it_was_promised(
    gangs: list[tuple[int, int, int, int]], nodes: int
) -> None:
    """Whoever is promised a time keeps it, as nobody more important comes; what is let in never moves it back."""
    jobs = [
        waits(f"j{n:02}", members, gpu, float(lasts_s), float(at_s))
        for n, (members, gpu, lasts_s, at_s) in enumerate(gangs)
        if members * gpu <= nodes * 4
    ]
    world = World([node(f"n{i}", 4) for i in range(nodes)], jobs)
    world.run(11 + sum(int(j.spec.wall_limit_s or 0) for j in jobs))
    assert set(world.began) == {j.id for j in jobs}, "everything has run in the end"
    for id, at_s in world.promised.items():
        assert world.began[id] <= at_s


def test_backfill_is_not_idle_in_that_property() -> None:
    small = [waits(f"s{n}", 1, 2, 3.0, 2.0) for n in range(4)]
    jobs = [waits("a", 2, 4, 9.0, 0.0), waits("head", 3, 4, 5.0, 1.0), *small]
    world = World([node(f"n{i}", 4) for i in range(3)], jobs)
    world.run(30)
    assert world.promised == {"head": 9.0}
    assert world.filled == ["s0", "s1", "s2", "s3"]
    assert world.began["head"] == 9.0
