"""Any gang of groups and segments: what starts keeps to its domains, and equal units start whenever they fit."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.decisions import Start
from rayorch.core.planner import plan
from rayorch.core.planning.groups import layouts
from rayorch.core.planning.repair import keeps_to
from rayorch.core.topology import Topology
from rayorch.core.types import GroupSpec, NodeSpec, Role, Segment, TopologyRequest, Workload, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.scenes import gpus, node, pending, snapshot

LEVELS = st.sampled_from([None, "node", "rack", "zone"])


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeSpec]:
    """Up to eight nodes in up to four racks of two zones; some of them in none."""
    nodes = []
    for number in range(draw(st.integers(1, 8))):
        rack = draw(st.sampled_from(["r0", "r1", "r2", "r3", None]))
        zone = None if rack is None else f"z{int(rack[1]) // 2}"
        nodes.append(node(f"n{number}", draw(st.integers(0, 4)), rack, zone))
    return nodes


def topologies() -> st.SearchStrategy[TopologyRequest]:
    return st.builds(TopologyRequest, LEVELS, LEVELS, st.booleans())


@st.composite
def gangs(draw: st.DrawFn, id: str) -> Workload:
    """Up to three roles, some in segments, in up to three groups, one of which may need one child only."""
    names = [f"g{n}" for n in range(draw(st.integers(0, 3)))]
    parents = ["" if n == 0 else draw(st.sampled_from(["", *names[:n]])) for n in range(len(names))]
    roles: list[Role] = []
    for number in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 3))
        segments = draw(st.sampled_from([(), (Segment(size, "rack", True),), (Segment(size, "node"),)]))
        count = size * draw(st.integers(1, 2))
        group = draw(st.sampled_from(["", *names]))
        roles.append(Role(f"w{number}", gpus(draw(st.sampled_from([0.5, 1, 2]))), count, count, group, segments))
    inside = {role.group for role in roles} | set(parents)
    groups = tuple(
        GroupSpec(name, parent, draw(st.sampled_from([None, 1])), draw(topologies()))
        for name, parent in zip(names, parents, strict=True)
        if name in inside
    )
    kept = {group.name for group in groups}
    groups = tuple(group for group in groups if not group.parent or group.parent in kept)
    return pending(id, roles=tuple(roles), groups=groups, topology=draw(topologies()))


@settings(max_examples=120, deadline=None)
@given(clusters(), gangs("a"), gangs("b"))
def test_what_starts_lies_where_it_must_and_nobody_gets_a_channel_twice(
    nodes: list[NodeSpec], one: Workload, other: Workload
) -> None:
    work = [one, other]
    made = plan(snapshot(nodes, list(work)), DEFAULT)
    topology, used = Topology.of(nodes), Counter[str]()
    specs = {workload.id: workload.spec for workload in work}
    holders: dict[Any, set[tuple[str, str, int]]] = {}
    for start in (d for d in made.decisions if isinstance(d, Start)):
        spec = specs[start.workload]
        by_place = {(m.role, m.index): m for m in start.members}
        chosen = [way for way in layouts(spec) if set(way.places) <= by_place.keys()]
        assert any(keeps_to(way.cell, tuple(by_place[place].node for place in way.places), topology) for way in chosen)
        for m in start.members:
            used[m.node] += m.bundle.gpu_units
            if m.channel is not None:
                size = spec.role(m.role).segments[0].size
                holders.setdefault(m.channel, set()).add((start.workload, m.role, m.index // size))
    assert all(len(segments) == 1 for segments in holders.values())
    assert all(used[n.id] <= n.total.gpu_units for n in nodes)


@settings(max_examples=80, deadline=None)
@given(clusters(), st.integers(1, 3), st.integers(1, 4), st.sampled_from(["node", "rack", "zone"]))
def test_equal_segments_start_exactly_if_they_fit(nodes: list[NodeSpec], size: int, count: int, level: str) -> None:
    role = Role("w", gpus(1), size * count, size * count, segments=(Segment(size, level),))
    made = plan(snapshot(nodes, [pending("g", roles=(role,))]), DEFAULT)
    free: Counter[str] = Counter()
    for entry in nodes:
        domain = Topology.of(nodes).domain_of(level, entry.id)
        if domain is not None:
            free[domain.name] += entry.total.gpu_units // 10_000
    fits = sum(amount // size for amount in free.values()) >= count
    assert fits == (WorkloadId("g") not in made.waits)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=3), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_groups_of_any_size_find_racks_whenever_there_is_a_way(racks: list[int], sizes: list[int]) -> None:
    nodes = [node(f"n{n}", free, f"r{n}") for n, free in enumerate(racks)]
    rack = TopologyRequest(required="rack")
    groups = tuple(GroupSpec(f"g{n}", topology=rack) for n in range(len(sizes)))
    roles = tuple(Role(f"w{n}", gpus(1), size, size, f"g{n}") for n, size in enumerate(sizes))
    made = plan(snapshot(nodes, [pending("g", roles=roles, groups=groups)]), DEFAULT)

    def works(way: tuple[int, ...]) -> bool:
        taken = Counter[int]()
        for size, where in zip(sizes, way, strict=True):
            taken[where] += size
        return all(taken[where] <= racks[where] for where in taken)

    fits = any(works(way) for way in product(range(len(racks)), repeat=len(sizes)))
    assert fits == (WorkloadId("g") not in made.waits)
