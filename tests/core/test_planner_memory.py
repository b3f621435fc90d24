"""A plan is the same with what is remembered of the last turn and without it, whatever has happened in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rayorch.core.decisions import Plan
from rayorch.core.planner import plan
from rayorch.core.planning import memory as memories
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import Allocation, NodeHealth, Resources, State, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.core.test_planner_properties import World, worlds
from tests.scenes import NOW, gpus, node, pending, queue, running, snapshot, started

HAPPENINGS = ("nothing", "finish", "cordon", "lose", "drain", "block", "foreign", "return", "cancel", "unbind", "queue")


def parts(made: Plan) -> tuple[object, ...]:
    """All of a plan; its mappings in their order do not count."""
    return (made.decisions, dict(made.waits), dict(made.estimates), dict(made.positions), made.now_s, made.versions)


class Remembering(World):
    """Plans every turn twice: with one memory for all turns, and with none."""

    profile: Profile = DEFAULT

    def __init__(self, world: World) -> None:
        super().__init__(world.nodes, world.queues, world.workloads, world.held, world.later)
        self.memory = Memory()
        self.objects: dict[object, object] = {}

    def see(self) -> Snapshot:
        """The same objects for what has not changed, as an owner's reader has them."""
        seen = super().see()
        keep = {
            "workloads": tuple(self._same("w", w.id, w) for w in seen.workloads),
            "nodes": tuple(self._same("n", n.id, n) for n in seen.nodes),
            "allocations": tuple(self._same("a", (a.workload, a.attempt), a) for a in seen.allocations),
        }
        return replace(seen, **keep)  # type: ignore[arg-type]

    def _same(self, kind: str, key: object, value: object) -> object:
        known = self.objects.get((kind, key))
        if known == value:
            return known
        self.objects[kind, key] = value
        return value

    def turn(self) -> Plan:
        seen = self.see()
        made = plan(seen, self.profile, self.memory)
        assert parts(made) == parts(plan(seen, self.profile))
        self.carry_out(made)
        return made

    def happens(self, what: str, index: int) -> None:
        """Something from outside."""
        nodes = list(self.nodes)
        at = index % len(nodes)
        changed: dict[str, Any] = {}
        match what:
            case "finish":
                self.finish(index)
            case "cordon":
                changed = {"health": NodeHealth.CORDONED}
            case "lose":
                changed = {"health": NodeHealth.LOST}
            case "drain":
                changed = {"health": NodeHealth.DRAINING, "drain_deadline_s": self.now_s + 30.0}
            case "block":
                changed = {"blocked_until_s": self.now_s + 25.0}
            case "foreign":
                changed = {"foreign": gpus(1)}
            case "return":
                changed = {"health": NodeHealth.OK, "foreign": Resources(), "drain_deadline_s": None}
            case "cancel":
                self._change(index, lambda w: replace(w, cancel_requested=w.state is not State.PENDING))
            case "unbind":
                for id in sorted(self.held)[:1]:
                    free = tuple(replace(m, devices=()) for m in self.held[id].members)
                    self.held[id] = replace(self.held[id], members=free)
            case "queue":
                self.queues = [replace(q, weight=q.weight + 1) for q in self.queues]
        if changed:
            nodes[at] = replace(nodes[at], **changed)
            self.nodes = nodes

    def _change(self, index: int, change: object) -> None:
        alive = sorted(id for id, w in self.workloads.items() if not w.state.terminal)
        if alive:
            id = alive[index % len(alive)]
            self.workloads[id] = change(self.workloads[id])  # type: ignore[operator]


happenings = st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 5)), max_size=8)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), happenings)
def test_a_plan_is_the_same_with_memory_and_without(world: World, happened: list[tuple[str, int]]) -> None:
    played = Remembering(world)
    played.turn()
    played.submit()
    for what, index in happened:
        played.turn()
        played.happens(what, index)
        event(what)
    played.turn()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), happenings)
def test_nobody_is_overlooked_who_would_have_to_end(world: World, happened: list[tuple[str, int]]) -> None:
    """With everybody looked at in stage 2 the plan is the same: `quiet_until_s` calls nobody quiet for too long."""
    played = Remembering(world)
    played.turn()
    played.submit()
    for what, index in happened:
        played.turn()
        played.happens(what, index)
        seen = played.see()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memories, "quiet_until_s", lambda *_: float("-inf"))
            thorough = parts(plan(seen, DEFAULT))
        assert parts(plan(seen, DEFAULT)) == thorough


def test_a_plan_can_be_explained_when_the_next_one_has_been_made() -> None:
    """What a plan says is worked out later from its own books, whatever the memory has seen since."""
    memory = Memory()
    first = snapshot([node("n1", 4)], [running("x", ["n1"], gpu=4), pending("a", gpu=2), pending("b", gpu=2)])
    made = plan(first, DEFAULT, memory)
    later = snapshot([node("n1", 4), node("n2", 4)], [pending("a", gpu=2), pending("b", gpu=2)])
    assert set(started(plan(later, DEFAULT, memory))) == {"a", "b"}
    fresh = plan(first, DEFAULT)
    assert parts(made) == parts(fresh)
    assert [wait.reason.value for wait in made.waits[WorkloadId("b")]] == ["Resources"]


def test_a_clock_that_goes_back_makes_the_memory_begin_anew() -> None:
    memory = Memory()
    work: list[Workload | tuple[Workload, Allocation]] = [running("x", ["n1"]), pending("a")]
    assert plan(snapshot([node("n1")], work, now_s=NOW + 50), DEFAULT, memory).decisions
    seen = snapshot([node("n1")], work, [queue("q", 1, borrow=0)], now_s=NOW)
    assert parts(plan(seen, DEFAULT, memory)) == parts(plan(seen, DEFAULT))


def test_a_plan_that_fails_leaves_nothing_half_known() -> None:
    memory = Memory()
    seen = snapshot([node("n1")], [pending("a")])

    def broken(*_: object) -> tuple[int]:
        raise RuntimeError("a policy with a defect")

    with pytest.raises(RuntimeError, match="defect"):
        plan(seen, replace(DEFAULT, score=broken), memory)
    assert parts(plan(seen, DEFAULT, memory)) == parts(plan(seen, DEFAULT))
