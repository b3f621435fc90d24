"""Ranks and NVLink channels: who is beside whom, and who has which number."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from rayorch.core.allocations import Allocations
from rayorch.core.decisions import Start
from rayorch.core.errors import StalePlanError
from rayorch.core.planner import plan
from rayorch.core.planning.channels import give
from rayorch.core.planning.groups import layouts
from rayorch.core.ranks import ranks
from rayorch.core.runners import grant_for
from rayorch.core.topology import Topology
from rayorch.core.types import (
    Allocation,
    Channel,
    Member,
    MemberPhase,
    NodeId,
    Role,
    Segment,
    State,
    Workload,
    WorkloadId,
)
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, gpus, node, pending, snapshot, spec

NODES = [node(f"n{i}", 4, f"r{i // 2}", f"z{i // 4}") for i in range(8)]
SEGMENTED = Role("w", gpus(1), 8, 8, segments=(Segment(4, "rack", channel=True),))


def start_of(*work: Workload, held: tuple[tuple[Workload, Allocation], ...] = ()) -> dict[str, tuple[Member, ...]]:
    made = plan(snapshot(NODES, [*held, *work]), DEFAULT)
    return {d.workload: d.members for d in made.decisions if isinstance(d, Start)}


def test_ranks_follow_the_domains_whatever_order_seats_were_taken_in() -> None:
    made = spec("g", 8)
    seats = [
        replace(Member("worker", i, NodeId(f"n{i}"), gpus(1), 0, i), path=f"z{i // 4}/r{i // 2}") for i in range(8)
    ]
    Random(7).shuffle(seats)
    moved = [replace(seat, index=i, bundle_index=i) for i, seat in enumerate(seats)]
    by_rank = sorted(moved, key=lambda m: ranks(made, moved)[0, m.bundle_index])
    assert [m.node for m in by_rank] == [f"n{i}" for i in range(8)]


def test_ranks_count_each_role_for_itself_and_take_further_seats_in_where_they_are() -> None:
    made = spec("g", roles=(Role("head", gpus(1), 1, 1), Role("w", gpus(1), 2, 3)))
    seats = (
        Member("head", 0, NodeId("n7"), gpus(1), 0, 0, path="z1/r3"),
        Member("w", 0, NodeId("n0"), gpus(1), 0, 1, path="z0/r0"),
        Member("w", 1, NodeId("n4"), gpus(1), 0, 2, path="z1/r2"),
        Member("w", 2, NodeId("n1"), gpus(1), 1, 0, path="z0/r0"),
    )
    assert ranks(made, seats) == {(0, 0): 0, (0, 1): 0, (1, 0): 1, (0, 2): 2}


def test_a_grant_carries_rank_place_and_channel_of_each_seat() -> None:
    members = start_of(pending("g", roles=(SEGMENTED,)))["g"]
    ready = tuple(replace(m, phase=MemberPhase.READY, group_id="aa") for m in members)
    work = Workload(spec("g", roles=(SEGMENTED,)), State.RUNNING, 0.0, 1, placement=members, started_s=NOW)
    grant = grant_for(work, Allocation(WorkloadId("g"), 1, ready, NOW, NOW + 30.0), 10.0)
    assert [(seat.rank, seat.path, seat.channel) for seat in grant.seats] == [
        *((rank, "z0/r0", 0) for rank in range(4)),
        *((rank, "z0/r0", 1) for rank in range(4, 8)),
    ]


def test_segments_that_share_a_domain_get_different_channels_those_of_other_domains_may_get_the_same() -> None:
    role = Role("w", gpus(1), 16, 16, segments=(Segment(4, "rack", channel=True),))
    members = start_of(pending("g", roles=(role,)))["g"]
    found = {m.index // 4: m.channel for m in members}
    assert len({m.channel for m in members}) == 4
    assert sorted((c.domain, c.number) for c in found.values() if c is not None) == [
        ("rack:z0/r0", 0),
        ("rack:z0/r0", 1),
        ("rack:z0/r1", 0),
        ("rack:z0/r1", 1),
    ]


def test_a_channel_is_taken_until_its_seat_is_gone() -> None:
    four = Role("w", gpus(1), 4, 4, segments=(Segment(4, "rack", channel=True),))
    members = tuple(replace(m, phase=MemberPhase.RELEASING) for m in start_of(pending("a", roles=(four,)))["a"])
    leaving = Workload(spec("a", roles=(four,)), State.RUNNING, 0.0, 1, placement=members, started_s=0.0, ready_s=0.0)
    held = (leaving, Allocation(WorkloadId("a"), 1, members, 0.0, 30.0))
    starts = start_of(pending("b", roles=(four,)), pending("c", roles=(four,)), held=(held,))
    numbers = {id: seats[0].channel for id, seats in starts.items()}
    assert numbers == {"b": Channel("rack:z0/r0", 1), "c": Channel("rack:z0/r1", 0)}


def test_the_owner_refuses_a_channel_that_somebody_holds() -> None:
    books = Allocations()
    seat = Member("w", 0, NodeId("n0"), gpus(1), channel=Channel("rack:z0/r0", 3))
    books.reserve(WorkloadId("a"), 1, (seat,), NODES, NOW, NOW + 30.0)
    with pytest.raises(StalePlanError, match="channel 3 of rack:z0/r0 is a's"):
        books.reserve(WorkloadId("b"), 1, (replace(seat, node=NodeId("n1")),), NODES, NOW, NOW + 30.0)


def test_inner_segments_get_the_channels_where_only_they_ask() -> None:
    role = Role("w", gpus(1), 8, 8, segments=(Segment(8, "zone"), Segment(4, "rack", channel=True)))
    (layout,) = layouts(spec("g", roles=(Role("head", gpus(1), 1, 1), role)))
    nodes = [NodeId(name) for name in ("n7", *["n0"] * 4, *["n2"] * 4)]
    given = give(layout.cell, nodes, Topology.of(NODES), {"rack:z0/r1": {0, 1, 3}})
    assert {place: (c.domain, c.number) for place, c in given.items()} == {
        **dict.fromkeys(range(1, 5), ("rack:z0/r0", 0)),
        **dict.fromkeys(range(5, 9), ("rack:z0/r1", 2)),
    }
