"""The allocator without Ray: what it makes of the groups that Ray lists."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rayorch.actors import allocator
from rayorch.actors.allocator import AllocatorSettings, AllocatorShell, Reservation
from rayorch.core.errors import ClusterError
from rayorch.core.inventory import InventoryChanges
from rayorch.core.payload import Payload
from rayorch.core.queues import QueueChanges
from rayorch.core.reports import SeatInUse
from rayorch.core.types import Allocation, Kind, MemberPhase, NodeId, Resources, State, Workload, WorkloadId
from tests.build import gpus, node, seat, seats, workload

APP = WorkloadId("app")
SEATS = (seat("n1", 0, surplus=1), seat("n2", 1, surplus=2))
REPLICAS = (
    SeatInUse("Model", "n1", "aa", "SERVE_REPLICA::app#Model#x"),
    SeatInUse("Model", "n2", "bb", "SERVE_REPLICA::app#Model#y"),
)


@dataclass
class World:
    """What Ray and the queue owner answer."""

    rows: tuple[Mapping[str, Any], ...] = ()
    workloads: tuple[Workload, ...] = ()
    replicas: tuple[SeatInUse, ...] = ()
    removed: list[str] = field(default_factory=list)
    used: dict[NodeId, Resources] = field(default_factory=dict)

    @property
    def changes_since(self) -> Any:
        return self

    async def remote(self, version: int) -> Any:
        """The queue owner is asked from version 0 on, the inventory from -1."""
        if version < 0:
            return InventoryChanges(5, True, (node("n1"), node("n2")), ())
        return QueueChanges(1, True, (), self.workloads, ())


@contextlib.asynccontextmanager
async def shell(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AllocatorShell]:
    """An allocator that has compared nothing yet."""
    monkeypatch.setattr(allocator, "find", lambda name: world)
    monkeypatch.setattr(allocator, "group_rows", lambda prefix: world.rows)
    monkeypatch.setattr(allocator, "remove_group", world.removed.append)
    monkeypatch.setattr(allocator, "seats_in_use", lambda app: world.replicas)
    monkeypatch.setattr(allocator, "used_by_node", lambda: world.used)
    monkeypatch.setattr(allocator, "controller_sender", lambda instance: lambda: None)
    made = object.__new__(AllocatorShell)
    await AllocatorShell.__init__(made, AllocatorSettings())  # type: ignore[misc]
    made._watch.cancel()
    yield made


def application() -> Workload:
    payload = Payload(import_path="serving:app").to_text()
    spec = workload("app", 2, 4, kind=Kind.SERVE, payload=payload)
    return Workload(spec, State.RUNNING, 0.0, attempt=1, placement=SEATS, started_s=1.0, ready_s=2.0)


async def test_a_serve_application_outlives_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(workloads=(application(),), replicas=REPLICAS)
    async with shell(world, monkeypatch) as made:
        await made._compare()
        held = made._books.allocations[APP, 1]
    assert [(m.node, m.group_id, m.phase) for m in held.members] == [
        ("n1", "aa", MemberPhase.READY),
        ("n2", "bb", MemberPhase.READY),
    ]
    assert world.removed == []


async def test_replicas_are_not_taken_for_removed_because_their_groups_have_serves_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shell(World(), monkeypatch) as made:
        await made._compare()
        made._books.adopt(Allocation(APP, 1, SEATS, 0.0, 30.0, "", (1, 2)))
        made._books.rebind(APP, 1, tuple(replace(replica, role="worker") for replica in REPLICAS))
        assert {m.phase for m in made._books.allocations[APP, 1].members} == {MemberPhase.READY}
        before = made._books.version
        await made._compare()
        assert made._books.version == before


async def test_a_start_that_was_under_way_goes_on_after_a_restart_and_is_given_up_when_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = workload("w", 2)
    starting = Workload(spec, State.RUNNING, 0.0, attempt=1, placement=seats("n1", 2), started_s=1.0)
    async with shell(World(workloads=(starting,)), monkeypatch) as made:
        await made._compare()
        held = made._books.allocations[spec.id, 1]
        assert {m.phase for m in held.members} == {MemberPhase.RESERVED}
        made._books.creating(spec.id, 1, 0)
        monkeypatch.setattr(allocator, "LATE_S", -1_000.0)
        await made._compare()
        assert "deadline" in made._books.allocations[spec.id, 1].failed


async def test_a_replica_that_does_not_leave_in_time_is_removed_with_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(workloads=(application(),), replicas=REPLICAS)
    async with shell(world, monkeypatch) as made:
        await made._compare()
        await made._remove(APP, 1, 2)
        assert world.removed == ["bb"]
        assert [m.surplus for m in made._books.allocations[APP, 1].members] == [1]


async def test_what_replicas_use_does_not_look_like_room_that_is_still_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shell(World(workloads=(application(),), replicas=REPLICAS), monkeypatch) as made:
        await made._compare()
        used = {NodeId("n1"): gpus(1), NodeId("n2"): gpus(2)}
        assert [made._settled(NodeId(n), used, {}) for n in ("n1", "n2", "gone")] == [True, False, True]
        made._books.release(APP, 1, (1,))
        assert not made._settled(NodeId("n1"), used, {})


async def test_where_the_nodes_can_not_be_asked_for_what_was_entered_before_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    async def refresh(version: int) -> None:
        asked.append(version)
        made._nodes = {NodeId("n1"): node("n1")}
        if version > 1:
            raise ClusterError("nobody is there")

    def reservation(id: str, version: int, gpu: float = 1) -> Reservation:
        return Reservation(WorkloadId(id), 1, seats("n1", 1, gpu=gpu), 1e12, version)

    async with shell(World(), monkeypatch) as made:
        made._synced = True
        monkeypatch.setattr(made, "_refresh_nodes", refresh)
        many = (reservation("a", 1), reservation("b", 1, gpu=9), reservation("c", 2), reservation("d", 1))
        first, second, third, fourth = await made.reserve_many(many)
        assert first == "" and second and "nobody is there" in third and third == fourth
        assert asked == [1, 1, 2]
        assert [key[0] for key in made._books.allocations] == ["a"]


async def test_a_defect_in_one_reservation_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def reservation(id: str) -> Reservation:
        return Reservation(WorkloadId(id), 1, seats("n1", 1, gpu=1), 1e12, 0)

    async with shell(World(), monkeypatch) as made:
        made._synced, made._nodes, made._nodes_version = True, {NodeId("n1"): node("n1")}, 0
        sound = made._books.reserve

        def defect(workload: WorkloadId, *given: Any) -> Any:
            if workload == "b":
                raise ValueError("a defect")
            return sound(workload, *given)

        monkeypatch.setattr(made._books, "reserve", defect)
        first, second, third = await made.reserve_many(tuple(map(reservation, "abc")))
        assert first == third == "" and "a defect" in second
        assert [key[0] for key in made._books.allocations] == ["a", "c"]
