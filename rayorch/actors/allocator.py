"""The actor that owns what is held: it alone creates and removes placement groups.

Its rules are in `core.allocations`. What it holds in memory is only a copy of the world: after a restart it reads
the groups that exist and the queue owner's records, adopts what belongs to a live attempt and removes the rest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ray

from rayorch.actors import wire as wire
from rayorch.actors.collecting import collect_seldom
from rayorch.actors.names import allocator_name, find, inventory_name, owner_options, queues_name
from rayorch.actors.poke import Poker, controller_sender
from rayorch.adapters.ray_groups import (
    create_group,
    group_rows,
    held_by_node,
    remove_group,
    row_bundles,
)
from rayorch.adapters.ray_nodes import used_by_node
from rayorch.adapters.ray_serve import app_spec, seats_in_use
from rayorch.core.adoption import WorldGroup, adopt_world, parse_group_name
from rayorch.core.allocations import AllocationChanges, Allocations
from rayorch.core.bound_devices import bundle_of, named
from rayorch.core.device_binding import devices_of
from rayorch.core.errors import ClusterError, SpecError, StalePlanError
from rayorch.core.pickling import register
from rayorch.core.reports import SeatInUse
from rayorch.core.requests import AttemptRef
from rayorch.core.sharing import asks_of_ray
from rayorch.core.types import (
    GPU,
    LIVE,
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeId,
    NodeSpec,
    Workload,
    WorkloadId,
    group_name,
    total,
)

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 10.0
"""How long another owner may take to answer."""
VISIBLE_TIMEOUT_S = 1.5
"""How long we wait for Ray's nodes to report what a removed group gave back. Creating a group before that costs a
retry of about a second inside Ray."""
VISIBLE_POLL_S = 0.02
SYNC_RETRY_S = 0.5
LATE_S = 5.0
"""Who makes a group gives it up at its deadline; this much later, so does the comparison, for groups that were being
made when the allocator was restarted."""
GROUP_THREADS = 32


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """`period_s`: time between two comparisons of the books with the world. `start_deadline_s`: how long groups that
    were being made when the allocator restarted may still take."""

    instance: str = "main"
    period_s: float = 2.0
    start_deadline_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """A request for seats: a new attempt's, or more surplus seats of a running one (`grow`)."""

    workload: WorkloadId
    attempt: int
    members: tuple[Member, ...]
    deadline_s: float
    inventory_version: int
    grow: bool = False
    gang: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class GroupsOf:
    """Some groups of an attempt, by surplus number (0: the gang's minimum)."""

    workload: WorkloadId
    attempt: int
    surpluses: tuple[int, ...]


register((Reservation, GroupsOf))


class AllocatorShell:
    """Carries out reservations, creations and removals; every method may be repeated."""

    async def __init__(self, settings: AllocatorSettings) -> None:  # type: ignore[misc]  # Ray awaits it
        self._settings = settings
        collect_seldom()
        self._prefix = f"rayorch/{settings.instance}/"
        self._strays: frozenset[str] = frozenset()
        # Milliseconds since the epoch: above every version of a former incarnation, so no reader's copy seems new.
        self._books = Allocations(version=int(time.time() * 1000))
        self._nodes: dict[NodeId, NodeSpec] = {}
        self._nodes_version = -1
        self._synced = False
        self._poker = Poker(controller_sender(settings.instance))
        self._threads = ThreadPoolExecutor(GROUP_THREADS, thread_name_prefix="groups")
        self._at_work: dict[tuple[WorkloadId, int, int, str], asyncio.Task[None]] = {}
        self._watch = asyncio.create_task(self._compare_forever())

    # ------------------------------------------------------------ what others read

    @ray.method
    async def changes_since(self, version: int) -> tuple[AllocationChanges, bool]:
        """What changed after `version`, and whether the books have been compared with the world since the restart."""
        return self._books.changes_since(version), self._synced

    @ray.method
    async def held(self, attempt: AttemptRef) -> Allocation | None:
        """What one attempt holds, None when that is nothing."""
        return self._books.allocations.get((attempt.workload, attempt.attempt))

    @ray.method
    async def ping(self) -> int:
        """The version, as a sign of life."""
        return self._books.version

    # ------------------------------------------------------------ what the controller asks for

    @ray.method
    async def reserve(self, request: Reservation) -> Allocation:
        """Enter seats into the books, all or none. StalePlanError when they are no longer free."""
        return await self._reserve(request)

    async def _reserve(self, request: Reservation) -> Allocation:
        if not self._synced:
            raise StalePlanError("the allocator is still comparing its books with the world")
        await self._refresh_nodes(request.inventory_version)
        seats = (request.workload, request.attempt, request.members, self._nodes, time.time())
        if request.grow:
            return self._books.grow(*seats, request.deadline_s)
        return self._books.reserve(*seats, request.deadline_s, request.gang)

    @ray.method
    async def reserve_many(self, requests: tuple[Reservation, ...]) -> tuple[str, ...]:
        """Each on its own, in this order; answers of each why it was refused, empty for what was entered.

        When the nodes can't be asked for, that is the answer of the first that needs them and of all after it: what was
        entered before is kept, and nobody waits for the same call again.
        """
        answers: list[str] = []
        for request in requests:
            try:
                await self._reserve(request)
                answers.append("")
            except StalePlanError as error:
                answers.append(str(error))
            except (ClusterError, ray.exceptions.RayError, TimeoutError) as error:
                why = f"the nodes could not be asked for: {str(error) or type(error).__name__}"
                answers += [why] * (len(requests) - len(answers))
                break
            except Exception as error:  # a defect in one must not take the others with it
                log.exception("a reservation failed")
                answers.append(f"not entered: {type(error).__name__}: {error}")
        return tuple(answers)

    @ray.method
    async def create_many(self, groups: tuple[GroupsOf, ...]) -> None:
        """Begin to make the groups of reserved seats of several attempts; the outcome shows in the books."""
        for one in groups:
            for surplus in one.surpluses:
                self._spawn("create", one.workload, one.attempt, surplus)

    @ray.method
    async def remove_many(self, groups: tuple[GroupsOf, ...]) -> None:
        """Begin to give back groups of several attempts; they leave the books when Ray reports the room as free."""
        for one in groups:
            self._books.release(one.workload, one.attempt, one.surpluses)
            for surplus in one.surpluses:
                self._spawn("remove", one.workload, one.attempt, surplus)

    @ray.method
    async def release(self, groups: GroupsOf) -> None:
        """Mark seats as leaving; their groups stay until `remove_many`."""
        self._books.release(groups.workload, groups.attempt, groups.surpluses)

    @ray.method
    async def rebind(self, request: tuple[WorkloadId, int, tuple[SeatInUse, ...]]) -> None:
        """(workload, attempt, seats in use): Serve chose which seat it left; the books follow."""
        self._books.rebind(*request)

    # ------------------------------------------------------------ making and removing groups

    def _spawn(self, verb: str, workload: WorkloadId, attempt: int, surplus: int) -> None:
        key = (workload, attempt, surplus, verb)
        if key in self._at_work:
            return
        work = self._create if verb == "create" else self._remove
        task = asyncio.create_task(work(workload, attempt, surplus))
        self._at_work[key] = task
        task.add_done_callback(lambda done: self._finished(key, done))

    def _finished(self, key: tuple[WorkloadId, int, int, str], done: asyncio.Task[None]) -> None:
        self._at_work.pop(key, None)
        if not done.cancelled() and done.exception() is not None:
            log.error("%s of group %s failed", key[3], key[:3], exc_info=done.exception())
        self._poker.poke()

    def _seats(self, workload: WorkloadId, attempt: int, surplus: int) -> tuple[Member, ...]:
        held = self._books.allocations.get((workload, attempt))
        members = () if held is None else tuple(m for m in held.members if m.surplus == surplus)
        return tuple(sorted(members, key=lambda m: m.bundle_index))

    async def _create(self, workload: WorkloadId, attempt: int, surplus: int) -> None:
        try:
            if not self._books.creating(workload, attempt, surplus):
                return
        except StalePlanError as error:
            log.info("group not made: %s", error)
            return
        seats = self._seats(workload, attempt, surplus)
        deadline_s = self._books.allocations[workload, attempt].deadline_s
        name = group_name(self._settings.instance, workload, attempt, surplus)
        try:
            group = create_group(name, tuple(bundle_of(s) for s in seats), tuple(s.node for s in seats))
            ready = await self._call(group.wait, max(0.1, deadline_s - time.time()))
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, the seats were not got
            self._books.fail(workload, attempt, surplus, f"placement group {name} could not be made: {error}")
            return
        if ready:
            self._books.ready(workload, attempt, surplus, group.id.hex())
            log.info("group %s is ready", name)
            return
        remove_group(group.id.hex())
        self._books.fail(workload, attempt, surplus, f"placement group {name} was not ready by its deadline")

    async def _remove(self, workload: WorkloadId, attempt: int, surplus: int) -> None:
        creating = self._at_work.get((workload, attempt, surplus, "create"))
        if creating is not None:  # never leave a group behind that is being made right now
            await asyncio.wait([creating])
        name = group_name(self._settings.instance, workload, attempt, surplus)
        seats = self._seats(workload, attempt, surplus)
        found = {row["placement_group_id"] for row in await self._call(group_rows, name) if row["name"] == name}
        found |= {seat.group_id for seat in seats if seat.group_id}  # Serve names its groups itself
        for group_id in sorted(found):
            remove_group(group_id)
        if found:
            await self._until_visible(frozenset(seat.node for seat in seats))
        self._books.removed(workload, attempt, surplus)
        log.info("group %s is gone", name)

    async def _until_visible(self, nodes: frozenset[NodeId]) -> None:
        """Wait (bounded) until the nodes report no more GPUs in use than our groups and foreign users hold."""
        give_up_s = time.monotonic() + VISIBLE_TIMEOUT_S
        while time.monotonic() < give_up_s:
            used, held = await self._call(used_by_node), held_by_node(await self._call(group_rows, self._prefix))
            if all(self._settled(node, used, held) for node in nodes):
                return
            await asyncio.sleep(VISIBLE_POLL_S)

    def _settled(self, node: NodeId, used: dict[NodeId, Any], held: dict[str, Any]) -> bool:
        if node not in used:
            return True  # the node is gone, and with it what was used there
        known = self._nodes.get(node)
        foreign = known.foreign.units(GPU) if known is not None else 0
        ours = held[node].units(GPU) if node in held else 0
        ours += total(bundle_of(m) for m in self._books.served_on(node)).units(GPU)
        return bool(used[node].units(GPU) <= ours + foreign)

    async def _call(self, function: Any, *arguments: Any) -> Any:
        """Run a blocking call to Ray beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    # ------------------------------------------------------------ books and world

    async def _refresh_nodes(self, version: int) -> None:
        if self._nodes_version >= version:
            return
        handle = find(inventory_name(self._settings.instance))
        changes = await asyncio.wait_for(handle.changes_since.remote(self._nodes_version), CALL_TIMEOUT_S)
        if changes.full:
            self._nodes.clear()
        self._nodes.update({node.id: node for node in changes.nodes})
        for gone in changes.removed:
            self._nodes.pop(gone, None)
        self._nodes_version = changes.version

    async def _compare_forever(self) -> None:
        while True:
            pause_s = self._settings.period_s
            try:
                await self._compare()
            except (ClusterError, ray.exceptions.RayError, TimeoutError) as error:
                log.info("books not compared with the world yet: %s", error)
                pause_s = SYNC_RETRY_S
            except Exception:
                log.exception("comparing the books with the world failed")
            await asyncio.sleep(pause_s)

    async def _compare(self) -> None:
        """Adopt groups of live attempts, remove those of none, and note groups that have come or gone."""
        if not self._synced:
            await self._sync()
            return
        # Only groups that were known before Ray was asked: one that has become ready meanwhile is not in its answer.
        known = [
            (*key, surplus, {m.group_id for m in held.members if m.surplus == surplus and m.group_id})
            for key, held in self._books.allocations.items()
            if 0 in held.gang  # Serve's groups have Serve's names, and it tells itself which of them it uses
            for surplus in sorted({m.surplus for m in held.members})
        ]
        rows = await self._call(group_rows, self._prefix)
        before = self._books.version
        alive = {row["placement_group_id"] for row in rows}
        for workload, attempt, surplus, group_ids in known:
            held_now = {seat.group_id for seat in self._seats(workload, attempt, surplus)}
            if (group_ids & held_now) - alive and not self._busy(workload, attempt, surplus):
                self._books.fail(workload, attempt, surplus, "its placement group was removed by somebody else")
        for row in rows:
            self._note_created(row)
        for late in self._books.give_up_late(time.time() - LATE_S):
            log.warning("group %s is given up: it was not ready by its deadline", late)
        self._remove_strays(rows)
        if self._books.version != before:
            self._poker.poke()

    def _remove_strays(self, rows: tuple[Mapping[str, Any], ...]) -> None:
        """Remove groups of attempts that hold nothing, when two comparisons running have found them.

        The books name every attempt before a group of it is asked for, so such a group is a leftover: of a request
        that Ray carried out after its attempt had ended, or made by somebody else under our name.
        """
        found = {}
        for row in rows:
            key = parse_group_name(self._settings.instance, row["name"])
            if key is not None and key[:2] not in self._books.allocations and not self._busy(*key):
                found[row["placement_group_id"]] = row["name"]
        for group_id in sorted(found.keys() & self._strays):
            log.warning("removing group %s (%s): its attempt holds nothing", found[group_id], group_id)
            remove_group(group_id)
        self._strays = frozenset(found)

    def _busy(self, workload: WorkloadId, attempt: int, surplus: int) -> bool:
        return any((workload, attempt, surplus, verb) in self._at_work for verb in ("create", "remove"))

    def _note_created(self, row: Mapping[str, Any]) -> None:
        """Enter a group that Serve's controller made on a granted seat, or that was being made at our restart."""
        found = parse_group_name(self._settings.instance, row["name"])
        if found is None or row["state"] != "CREATED" or self._busy(*found):
            return
        workload, attempt, surplus = found
        seats = self._seats(workload, attempt, surplus)
        if seats and all(seat.phase in (MemberPhase.RESERVED, MemberPhase.CREATING) for seat in seats):
            serve = 0 not in self._books.allocations[workload, attempt].gang
            named = devices_of(row_bundles(row)[0][1]) if serve else ()
            self._books.ready(workload, attempt, surplus, row["placement_group_id"], named)

    async def _sync(self) -> None:
        """Rebuild the books from the world and the journal. Nothing is removed before the queue owner has answered."""
        owner = find(queues_name(self._settings.instance))
        records = await asyncio.wait_for(owner.changes_since.remote(0), CALL_TIMEOUT_S)
        rows = await self._call(group_rows, self._prefix)
        groups = [
            WorldGroup(
                name=row["name"],
                group_id=row["placement_group_id"],
                bundles=tuple((NodeId(node), bundle) for node, bundle in row_bundles(row)),
                created=row["state"] in ("CREATED", "RESCHEDULING"),
            )
            for row in rows
        ]
        now_s = time.time()
        workloads = {workload.id: workload for workload in records.workloads}
        groups += await self._call(serve_groups, self._settings.instance, records.workloads)
        deadline_s = now_s + self._settings.start_deadline_s
        await self._refresh_nodes(0)
        nodes = tuple(self._nodes.values())
        adoption = adopt_world(groups, workloads, self._settings.instance, now_s, deadline_s, nodes)
        for allocation in adoption.adopt:
            self._books.adopt(allocation)
        for group_id in adoption.remove:
            log.warning("removing group %s: it belongs to no live attempt", group_id)
            remove_group(group_id)
        self._synced = True
        log.info("books in step with the world: %d adopted, %d removed", len(adoption.adopt), len(adoption.remove))
        self._poker.poke()


def serve_groups(instance: str, workloads: Iterable[Workload]) -> list[WorldGroup]:
    """The groups of live Serve applications, under the names that they would have as ours: Serve names them itself.

    ClusterError when Ray's table can't be read.
    """
    found: list[WorldGroup] = []
    for workload in workloads:
        if workload.spec.kind is not Kind.SERVE or workload.state not in LIVE:
            continue
        try:
            app = app_spec(workload.spec)
        except SpecError as error:
            log.info("%s has no groups of Serve's: %s", workload.id, error)
            continue
        bundles = {deployment: role.bundle for role, deployment in app.roles}
        bundle = app.roles[0][0].bundle  # with one role its deployment may be unnamed
        for number, seat in enumerate(seats_in_use(app.name), start=1):
            name = group_name(instance, workload.id, workload.attempt, number)
            takes = bundles.get(seat.role, bundle)
            takes = named(takes, seat.devices) if seat.exact else asks_of_ray(takes, seat.devices or (0,))
            found.append(WorldGroup(name, seat.group_id, ((NodeId(seat.node_id), takes),), created=True))
    return found


GangAllocator = ray.remote(AllocatorShell)


def start_allocator(settings: AllocatorSettings, **options: Any) -> Any:
    """The instance's allocator, created if it does not run; `options` (where it must run) go to Ray."""
    return GangAllocator.options(**owner_options(allocator_name(settings.instance)), **options).remote(settings)
