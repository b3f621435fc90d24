"""Groups inside gangs and segments inside roles: which members share which domain, and what that leaves to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rayorch.core.decisions import Start, WaitReason
from rayorch.core.planner import plan
from rayorch.core.types import GroupSpec, NodeId, NodeSpec, Resources, Role, Segment, TopologyRequest, Workload
from rayorch.policies.default import DEFAULT
from tests.scenes import gpus, node, pending, running, snapshot, started

ZONE, RACK, NODE = (TopologyRequest(required=level) for level in ("zone", "rack", "node"))


def seats_of(nodes: Iterable[NodeSpec], *work: Any) -> dict[str, list[tuple[str, str]]]:
    """(role and index, node) of every seat of each workload that starts."""
    made = plan(snapshot(list(nodes), list(work)), DEFAULT)
    return {
        d.workload: [(f"{m.role}{m.index}", m.node) for m in d.members] for d in made.decisions if isinstance(d, Start)
    }


def racks(nodes: list[NodeSpec], seats: list[tuple[str, str]], role: str = "") -> list[str | None]:
    """The rack of each seat of a role."""
    by_id = {entry.id: entry for entry in nodes}
    return [by_id[NodeId(where)].domain("rack") for who, where in seats if who.startswith(role)]


def four_racks(free: tuple[int, int, int, int] = (8, 8, 8, 8)) -> list[NodeSpec]:
    """Racks r0 to r3 of two nodes each, two racks in a zone, with so many GPUs in each rack."""
    return [
        node(f"n{rack}{half}", count // 2, f"r{rack}", f"z{rack // 2}")
        for rack, count in enumerate(free)
        for half in (0, 1)
    ]


def grouped(id: str, *roles: Role, groups: tuple[GroupSpec, ...] = (), **asked: Any) -> Workload:
    return pending(id, roles=roles, groups=groups, **asked)


# ---------------------------------------------------------------- groups


def test_each_group_keeps_to_its_own_domain_and_all_of_them_to_that_of_the_gang() -> None:
    nodes = four_racks((8, 4, 8, 8))
    groups = (GroupSpec("a", topology=RACK), GroupSpec("b", topology=RACK))
    roles = (Role("x", gpus(4), 2, 2, "a"), Role("y", gpus(4), 2, 2, "b"))
    seats = seats_of(nodes, grouped("g", *roles, groups=groups, topology=ZONE))["g"]
    assert racks(nodes, seats, "x") == ["r2", "r2"]
    assert racks(nodes, seats, "y") == ["r3", "r3"]


def test_groups_of_groups_each_keep_to_their_level() -> None:
    nodes = [node(f"n{i}", 2, f"r{i // 2}", f"z{i // 4}") for i in range(8)]
    groups = (
        *(GroupSpec(f"replica{i}", topology=RACK) for i in (0, 1)),
        *(GroupSpec(f"part{i}{j}", f"replica{i}", topology=NODE) for i in (0, 1) for j in (0, 1)),
    )
    roles = [Role(f"part{i}{j}", gpus(1), 2, 2, f"part{i}{j}") for i in (0, 1) for j in (0, 1)]
    work = [running("x", ["n0"], gpu=2), grouped("g", *roles, groups=groups, topology=ZONE)]
    seats = seats_of(nodes, *work)["g"]
    assert [where for _, where in seats] == ["n4", "n4", "n5", "n5", "n6", "n6", "n7", "n7"]


def test_a_gang_whose_groups_do_not_all_fit_does_not_start_at_all() -> None:
    nodes = four_racks((8, 2, 8, 2))
    groups = (GroupSpec("a", topology=RACK), GroupSpec("b", topology=RACK))
    roles = (Role("x", gpus(4), 2, 2, "a"), Role("y", gpus(4), 2, 2, "b"))
    assert seats_of(nodes, grouped("g", *roles, groups=groups, topology=ZONE)) == {}
    assert len(seats_of(nodes, grouped("g", *roles, groups=groups))["g"]) == 4


def test_a_group_that_needs_some_of_its_children_takes_the_first_that_fit() -> None:
    groups = (GroupSpec("any", min_children=1), GroupSpec("a", "any", topology=NODE), GroupSpec("b", "any"))
    roles = (Role("head", gpus(1), 1, 1), Role("x", gpus(1), 4, 4, "a"), Role("y", gpus(1), 2, 2, "b"))
    assert [who for who, _ in seats_of([node("n1", 5)], grouped("g", *roles, groups=groups))["g"]] == [
        "head0",
        "x0",
        "x1",
        "x2",
        "x3",
    ]
    small = [node("n1", 3), node("n2", 3)]
    assert [who for who, _ in seats_of(small, grouped("g", *roles, groups=groups))["g"]] == ["head0", "y0", "y1"]


def test_a_preferred_level_of_a_group_is_kept_where_it_can_be() -> None:
    prefer = TopologyRequest(preferred="rack")
    groups = (GroupSpec("a", topology=prefer), GroupSpec("b", topology=prefer))
    roles = (Role("x", gpus(4), 2, 2, "a"), Role("y", gpus(4), 2, 2, "b"))
    nodes = four_racks((8, 4, 4, 0))
    seats = seats_of(nodes, grouped("g", *roles, groups=groups))
    assert seats == {}, "there are no four GPUs on one node of r1 and r2"
    nodes = four_racks((8, 8, 0, 0))
    seats_then = seats_of(nodes, grouped("g", *roles, groups=groups))["g"]
    assert (racks(nodes, seats_then, "x"), racks(nodes, seats_then, "y")) == (["r0", "r0"], ["r1", "r1"])


def test_groups_of_different_size_find_the_one_way_to_lie() -> None:
    """Largest first into what is left over least would put 3 into the rack of 4, and then 4 nowhere."""
    nodes = [node("a1", 3, "a"), node("a2", 1, "a"), node("b1", 3, "b"), node("b2", 2, "b")]
    groups = (GroupSpec("p", topology=RACK), GroupSpec("q", topology=RACK))
    roles = (Role("x", gpus(1), 4, 4, "p"), Role("y", Resources.of({"GPU": 1, "CPU": 20}), 5, 5, "q"))
    seats = seats_of(nodes, grouped("g", *roles, groups=groups))["g"]
    assert Counter(racks(nodes, seats, "x")) == {"a": 4}
    assert Counter(racks(nodes, seats, "y")) == {"b": 5}


# ---------------------------------------------------------------- segments


def test_each_segment_lies_in_one_domain_and_members_are_numbered_along() -> None:
    nodes = four_racks((8, 6, 4, 4))
    role = Role("w", gpus(1), 12, 12, segments=(Segment(4, "rack"),))
    seats = seats_of(nodes, grouped("g", role))["g"]
    found = racks(nodes, seats)
    assert [who for who, _ in seats] == [f"w{i}" for i in range(12)]
    assert all(len(set(found[i : i + 4])) == 1 for i in (0, 4, 8))


def test_no_segment_lies_across_domains_even_if_members_would_fit() -> None:
    role = Role("w", gpus(1), 12, 12, segments=(Segment(4, "rack"),))
    assert seats_of(four_racks((6, 6, 6, 6)), grouped("g", role))["g"]
    assert seats_of(four_racks((6, 6, 2, 2)), grouped("g", role)) == {}


def test_segments_nest_three_levels_deep() -> None:
    nodes = [node(f"n{i:02}", 4, f"r{i // 4}", f"z{i // 8}") for i in range(16)]
    role = Role("w", gpus(1), 48, 48, segments=(Segment(24, "zone"), Segment(12, "rack"), Segment(4, "node")))
    seats = seats_of(nodes, running("x", ["n00"]), grouped("g", role))["g"]
    by_id = {entry.id: entry for entry in nodes}
    for size, level in ((24, "zone"), (12, "rack"), (4, "node")):
        for first in range(0, 48, size):
            assert len({by_id[NodeId(where)].domain(level) for _, where in seats[first : first + size]}) == 1


def test_jobs_smaller_than_an_nvlink_domain_leave_whole_domains_free() -> None:
    """NVL72: 18 nodes of 4 GPUs share a domain. Segments of 16 GPUs go where least is left, whole domains stay."""
    nodes = [node(f"d{d}n{i:02}", 4, f"d{d}") for d in range(3) for i in range(18)]
    busy = [running("x", [f"d1n{i:02}" for i in range(4)], gpu=4)]
    work = [grouped(f"g{i}", Role("w", gpus(4), 4, 4, segments=(Segment(4, "rack"),))) for i in range(4)]
    placed = seats_of(nodes, *busy, *work)
    used = Counter(where[:2] for seats in placed.values() for _, where in seats)
    assert used == {"d1": 12, "d0": 4}, "three of them fill what is left of d1 but two nodes"


# ---------------------------------------------------------------- fewest domains, balanced


def test_a_gang_larger_than_a_rack_uses_as_few_racks_as_it_can_and_the_tightest_last() -> None:
    nodes = four_racks((8, 6, 2, 8))
    seats = seats_of(nodes, pending("g", 10))["g"]
    assert Counter(racks(nodes, seats)) == {"r3": 8, "r2": 2} or Counter(racks(nodes, seats)) == {"r0": 8, "r1": 2}


def test_a_balanced_gang_is_split_in_equal_parts_where_one_domain_does_not_take_it() -> None:
    nodes = four_racks((8, 8, 2, 8))
    for required in (None, "zone"):
        wish = TopologyRequest(required, "rack", balanced=True)
        seats = seats_of(nodes, pending("g", 12, topology=wish))["g"]
        assert Counter(racks(nodes, seats)) == {"r0": 6, "r1": 6}


def test_a_balanced_gang_that_one_domain_takes_is_not_split() -> None:
    nodes = four_racks((8, 8, 8, 8))
    seats = seats_of(nodes, pending("g", 6, topology=TopologyRequest("zone", "rack", balanced=True)))["g"]
    assert Counter(racks(nodes, seats)) == {"r0": 6}
    assert Counter(where for _, where in seats) == {"n00": 3, "n01": 3}, "and the nodes of the rack share it equally"


def test_segments_of_a_balanced_gang_are_divided_equally_too() -> None:
    nodes = four_racks((8, 8, 8, 8))
    role = Role("w", gpus(1), 24, 24, segments=(Segment(2, "node"),))
    seats = seats_of(nodes, grouped("g", role, topology=TopologyRequest(balanced=True)))["g"]
    assert Counter(racks(nodes, seats)) == {"r0": 6, "r1": 6, "r2": 6, "r3": 6}


def test_nothing_goes_to_a_node_whose_value_of_a_required_level_is_not_known() -> None:
    nodes = [node("n1", 4), node("n2", 4), node("n3", 2, "r1")]
    assert seats_of(nodes, pending("g", 4, rack="required")) == {}
    role = Role("w", gpus(1), 4, 4, segments=(Segment(2, "rack"),))
    assert seats_of(nodes, grouped("g", role)) == {}
    assert started(plan(snapshot(nodes, [pending("g", 6)]), DEFAULT))["g"]


# ---------------------------------------------------------------- why it waits


def why(nodes: list[NodeSpec], *work: Any) -> list[tuple[str, float, float, str]]:
    waits = plan(snapshot(nodes, list(work)), DEFAULT).waits["g"]  # type: ignore[index]
    return [(w.detail, w.need, w.have, w.unit) for w in waits if w.reason is WaitReason.TOPOLOGY]


def test_the_segments_that_find_no_domain_are_counted() -> None:
    role = Role("w", gpus(1), 12, 12, segments=(Segment(4, "rack"),))
    assert why(four_racks((6, 6, 2, 2)), grouped("g", role)) == [
        ("3 segments of w are needed, 2 fit: 4 members of each in one rack", 3, 2, "segments")
    ]


def test_the_group_that_finds_no_domain_is_named() -> None:
    groups = (GroupSpec("a", topology=RACK), GroupSpec("b", topology=RACK))
    roles = (Role("x", gpus(2), 2, 2, "a"), Role("y", gpus(1), 6, 6, "b"))
    assert why(four_racks((4, 4, 4, 4)), grouped("g", *roles, groups=groups)) == [
        ("group b would not fit within one rack: the freest of 4 has 4 GPU free", 6, 4, "GPU")
    ]


def test_groups_that_would_fit_one_by_one_are_said_not_to_fit_together() -> None:
    groups = (GroupSpec("a", topology=RACK), GroupSpec("b", topology=RACK))
    roles = (Role("x", gpus(1), 4, 4, "a"), Role("y", gpus(1), 4, 4, "b"))
    assert why(four_racks((4, 2, 2, 2)), grouped("g", *roles, groups=groups)) == [
        ("each of its groups and segments would fit, all of them together do not", 2, 0, "groups")
    ]
