"""Turns in single file, and turns that find all as it was, decide and say what the long way would."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from benchmarks.played.philly import FIFO
from rayorch.core import planner
from rayorch.core.decisions import Plan, WaitReason
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.planning.single_file import Filed
from rayorch.core.policy import BackfillKnobs, Profile
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import MemberPhase, State, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from rayorch.sim.trace.cluster import FIXED
from tests.core.test_planner_memory import HAPPENINGS, Remembering, parts
from tests.core.test_planner_properties import World, worlds
from tests.scenes import node, pending, queue, reasons

PLAIN = replace(FIFO, lease_s=1e12)
PROFILES = (PLAIN, replace(PLAIN, backfill=BackfillKnobs()), replace(PLAIN, preemption=True), DEFAULT)
"""The one that goes in single file; such that need the time, or evict; and one without strict order."""


def the_long_way(seen: Snapshot, profile: Profile) -> Plan:
    """All stages, nothing remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "single_file", lambda *_: Filed.NOT)
        made = plan(seen, profile)
        return replace(made, waits=dict(made.waits), estimates=dict(made.estimates), positions=dict(made.positions))


class Lending(Remembering):
    """Plans every turn with a memory that lends, and the long way."""

    def __init__(self, world: World, profile: Profile) -> None:
        super().__init__(world)
        self.memory, self.profile = Memory(lends=True), profile
        self.ways: Counter[str] = Counter()

    def see(self) -> Snapshot:
        return replace(super().see(), capacity=FIXED)

    def turn(self) -> Plan:
        seen = self.see()
        made = self.planned(seen)
        assert parts(made) == parts(the_long_way(seen, self.profile))
        self.carry_out(made)
        return made

    def planned(self, seen: Snapshot) -> Plan:
        """The plan, and which way it was made."""
        with pytest.MonkeyPatch.context() as patch:
            short, still = planner.single_file, planner.again

            def filed(*given: object) -> Filed:
                found = short(*given)  # type: ignore[arg-type]
                self.ways[found.value] += 1
                return found

            def stood(*given: object) -> Plan:
                self.ways["still"] += 1
                return still(*given)  # type: ignore[arg-type]

            patch.setattr(planner, "single_file", filed)
            patch.setattr(planner, "again", stood)
            return plan(seen, self.profile, self.memory)

    def _pass(self) -> None:
        """Leases are not renewed, so that nothing changes while nothing happens."""
        kept = {id: (w, self.held[id]) for id, w in self.workloads.items() if w.state is State.RUNNING}
        super()._pass()
        for id, (workload, held) in kept.items():
            if all(member.phase is MemberPhase.READY for member in held.members):
                self.workloads[id], self.held[id] = workload, held

    def comes(self) -> None:
        """The next of those that are still to come."""
        if self.later:
            workload = self.later.pop(0)
            self.workloads[workload.id] = workload


Happened = list[tuple[str, int]]
happenings = st.lists(
    st.tuples(st.sampled_from((*HAPPENINGS, *("submit",) * 12, *("finish",) * 4)), st.integers(0, 5)), max_size=14
)


@st.composite
def files(draw: st.DrawFn) -> World:
    """One queue, often with a share, sometimes with work that is not plain."""
    nodes = [node(f"n{n}", draw(st.sampled_from((2, 4)))) for n in range(draw(st.integers(1, 4)))]
    share = draw(st.sampled_from((None, None, None, 6)))
    queues = [queue("q") if share is None else queue("q", share, borrow=0)]
    work: list[Workload] = []
    for n in range(draw(st.integers(1, 12))):
        members: int | tuple[int, int] = draw(st.sampled_from((1, 1, 2, 3, (1, 3))))
        made = pending(f"w{n:02}", members, float(draw(st.integers(0, 20))), gpu=draw(st.sampled_from((1, 1, 2, 4))))
        spec = replace(made.spec, expected_s=draw(st.sampled_from((None, None, 40.0))))
        work.append(replace(made, spec=spec, sequence=n, not_before_s=draw(st.sampled_from((0.0,) * 9 + (1e9,)))))
    first = draw(st.integers(0, len(work)))
    return World(nodes, queues, {w.id: w for w in work[:first]}, later=work[first:])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(files(), st.sampled_from((PLAIN, PLAIN, *PROFILES)), happenings)
def test_one_queue_is_planned_as_by_the_long_way(
    world: World, profile: Profile, happened: list[tuple[str, int]]
) -> None:
    played = Lending(world, profile)
    played.turn()
    for what, index in happened:
        if what == "submit":
            played.comes()
        else:
            played.happens(what, index)
        played.turn()
    for way in played.ways:
        event(f"{profile.name} {way}")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.sampled_from(PROFILES), happenings)
def test_any_world_is_planned_as_by_the_long_way(
    world: World, profile: Profile, happened: list[tuple[str, int]]
) -> None:
    played = Lending(world, profile)
    played.turn()
    for what, index in happened[:6]:
        if what == "submit":
            played.comes()
        else:
            played.happens(what, index)
        played.turn()


def test_what_comes_behind_a_blocked_head_is_told_so_and_changes_nothing() -> None:
    head, late = pending("head", 3, gpu=4), pending("late", submitted_s=5.0)
    played = Lending(World([node("n1", 4)], [queue("q")], {head.id: head}, later=[late]), PLAIN)
    first = played.turn()
    played.comes()
    made = played.planned(played.see())
    assert played.ways == {Filed.NOT.value: 1, "still": 1}
    assert made.decisions == first.decisions
    assert reasons(made, "late") == [WaitReason.BEHIND_HEAD]
    assert made.positions[WorkloadId("late")] == 2
