"""How a running gang grows and shrinks when it has several roles, segments or groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rayorch.core.decisions import Resize, Start
from rayorch.core.planner import plan
from rayorch.core.planning.claims import by_number, removable
from rayorch.core.types import (
    Allocation,
    GroupSpec,
    Member,
    MemberPhase,
    NodeId,
    NodeSpec,
    Role,
    Segment,
    State,
    TopologyRequest,
    Workload,
)
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, gpus, node, pending, snapshot, spec

RACK = TopologyRequest(required="rack")


def holding(id: str, seats: list[tuple[str, int, str, int]], **asked: Any) -> tuple[Workload, Allocation]:
    """A running gang with these (role, index, node, surplus)."""
    made = replace(spec(id, **asked), resizable=True)
    members = tuple(
        Member(role, index, NodeId(where), made.role(role).bundle, surplus, n, MemberPhase.READY, f"g{surplus}")
        for n, (role, index, where, surplus) in enumerate(seats)
    )
    size = {role.name: sum(m.role == role.name for m in members) for role in made.roles}
    workload = Workload(
        made,
        State.RUNNING,
        0.0,
        1,
        size=tuple(size.items()),
        started_s=0.0,
        ready_s=0.0,
        lease_renewed_s=NOW,
        placement=members,
    )
    return workload, Allocation(made.id, 1, members, 0.0, 30.0)


def added(nodes: list[NodeSpec], *work: Any, profile: Any = DEFAULT) -> dict[str, list[tuple[str, int, str, int]]]:
    """(role, index, node, surplus) of every further seat of each running gang."""
    made = plan(snapshot(nodes, list(work)), profile)
    return {
        d.workload: [(m.role, m.index, m.node, m.surplus) for m in d.add]
        for d in made.decisions
        if isinstance(d, Resize)
    }


def test_every_role_grows_and_first_the_one_that_has_least_of_its_minimum() -> None:
    roles = (Role("a", gpus(1), 2, 4), Role("b", gpus(1), 1, 3))
    gang = holding("g", [("a", 0, "n", 0), ("a", 1, "n", 0), ("b", 0, "n", 0)], roles=roles)
    assert added([node("n", 7)], gang)["g"] == [("a", 2, "n", 1), ("b", 1, "n", 2), ("a", 3, "n", 3), ("b", 2, "n", 4)]


def test_a_role_in_segments_grows_by_whole_segments_under_one_number() -> None:
    role = Role("w", gpus(1), 2, 6, segments=(Segment(2, "rack"),))
    nodes = [node("n1", 3, "r1"), node("n2", 3, "r2"), node("n3", 1, "r3"), node("n4", 1, "r4")]
    gang = holding("g", [("w", 0, "n1", 0), ("w", 1, "n1", 0)], roles=(role,))
    assert added(nodes, gang)["g"] == [("w", 2, "n2", 1), ("w", 3, "n2", 1)], "no other rack has two free"


def test_growth_of_a_group_stays_in_its_domain_and_that_of_the_gang_in_its_own() -> None:
    groups = (GroupSpec("x", topology=RACK), GroupSpec("y", topology=RACK))
    roles = (Role("a", gpus(1), 1, 2, "x"), Role("b", gpus(1), 1, 2, "y"))
    nodes = [
        node("n1", 1, "r1", "z1"),
        node("n2", 1, "r1", "z1"),
        node("n3", 1, "r2", "z1"),
        node("n4", 4, "r3", "z1"),
    ]
    gang = holding("g", [("a", 0, "n1", 0), ("b", 0, "n3", 0)], roles=roles, groups=groups)
    assert added(nodes, gang)["g"] == [("a", 1, "n2", 1)], "there is no room left in the rack of b"


def test_a_group_that_the_gang_started_without_comes_whole_later() -> None:
    groups = (GroupSpec("any", min_children=1), GroupSpec("x", "any"), GroupSpec("y", "any", topology=RACK))
    roles = (Role("a", gpus(1), 1, 1, "x"), Role("b", gpus(1), 2, 2, "y"))
    gang = holding("g", [("a", 0, "n1", 0)], roles=roles, groups=groups)
    assert added([node("n1", 2, "r1"), node("n2", 1, "r2")], gang) == {}
    assert added([node("n1", 2, "r1"), node("n2", 2, "r2")], gang)["g"] == [("b", 0, "n2", 1), ("b", 1, "n2", 1)]


def test_what_came_as_a_group_goes_as_a_group_and_the_minimum_stays() -> None:
    groups = (GroupSpec("any", min_children=1), GroupSpec("x", "any"), GroupSpec("y", "any"))
    roles = (Role("a", gpus(1), 1, 1, "x"), Role("b", gpus(1), 2, 2, "y"))
    seats = [("a", 0, "n1", 0), ("b", 0, "n2", 1), ("b", 1, "n2", 1)]
    workload, allocation = holding("g", seats, roles=roles, groups=groups)
    going = by_number(removable(workload.spec, allocation.members))
    assert [[(m.role, m.index) for m in together] for together in going] == [[("b", 0), ("b", 1)]]


def test_gangs_grow_evenly_where_the_profile_says_so() -> None:
    work = [pending("old", (1, 4), submitted_s=1.0), pending("young", (1, 4), submitted_s=2.0)]

    def sizes(even: bool) -> list[int]:
        made = plan(snapshot([node("n", 5)], list(work)), replace(DEFAULT, even_growth=even))
        return [len(d.members) for d in made.decisions if isinstance(d, Start)]

    assert (sizes(False), sizes(True)) == ([4, 1], [3, 2])


def test_seats_that_a_running_gang_lacks_of_its_minimum_come_before_new_work() -> None:
    roles = (Role("a", gpus(1), 2, 4), Role("b", gpus(1), 2, 2))
    gang = holding("g", [("a", 0, "n", 0), ("a", 1, "n", 0)], roles=roles)
    assert added([node("n", 4)], gang)["g"] == [("b", 0, "n", 1), ("b", 1, "n", 1)]
    assert added([node("n", 3)], gang) == {}, "all of them or none, and nothing beyond the minimum before"
