"""What is held: the seats of every attempt and how far their placement groups have come. One owner, no journal.

The books follow from the world: after a restart they are built again from the groups that exist and from what the
queue owner committed (`adoption.py`). Every reservation is checked against the newest books and nodes; one that was
planned on older facts and no longer fits is refused, and planned again.

    reserve ─▶ creating ─▶ ready ─▶ release ─▶ removed (the last one drops the allocation)
                   └────▶ fail (the gang: the start is given up; a surplus seat: it is released)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rayorch.core.bound_devices import devices_in, give_way, observe_devices
from rayorch.core.changes import ChangeLog
from rayorch.core.errors import StalePlanError
from rayorch.core.reports import SeatInUse
from rayorch.core.sharing import device_need
from rayorch.core.slot_books import SlotBooks
from rayorch.core.types import Allocation, Kind, Member, MemberPhase, NodeId, NodeSpec, WorkloadId, WorkloadSpec
from rayorch.core.values import changed

Key = tuple[WorkloadId, int]
"""A workload and its attempt."""

Nodes = Mapping[NodeId, NodeSpec] | Iterable[NodeSpec]
"""All nodes; by id, where many are known, so that only those of the seats are looked at."""


@dataclass(frozen=True, slots=True)
class AllocationChanges:
    """What changed for a reader of an older version; with `full`, `allocations` is everything that is held."""

    version: int
    full: bool
    allocations: tuple[Allocation, ...]
    removed: tuple[Key, ...]


class Allocations:
    """See the module's docstring.

    `version` must start above that of any former incarnation (milliseconds since the epoch do).
    """

    def __init__(self, version: int = 0) -> None:
        self._version = version
        self._held: dict[Key, Allocation] = {}
        self._attempts: dict[WorkloadId, set[int]] = {}
        self._on_node: dict[NodeId, set[Key]] = {}
        self._log: ChangeLog[Key] = ChangeLog(floor=version)
        self._slots = SlotBooks()

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._version

    @property
    def allocations(self) -> Mapping[Key, Allocation]:
        """All that is held or reserved."""
        return self._held

    def is_free(self, node: NodeId) -> bool:
        """Whether nobody holds a seat there."""
        return node not in self._on_node

    def changes_since(self, version: int) -> AllocationChanges:
        """What a reader with this version lacks; one with a version of another incarnation gets everything."""
        changed = self._log.since(version)
        if changed == () and version <= self._version:
            return AllocationChanges(self._version, False, (), ())
        if changed is None or version > self._version:
            return AllocationChanges(self._version, True, tuple(self._held[k] for k in sorted(self._held)), ())
        keys = sorted(changed)
        return AllocationChanges(
            version=self._version,
            full=False,
            allocations=tuple([self._held[k] for k in keys if k in self._held]),
            removed=tuple([k for k in keys if k not in self._held]),
        )

    def served_on(self, node: NodeId) -> tuple[Member, ...]:
        """The seats on the node whose groups Serve makes, under names of its own, without those that are leaving."""
        served = [m for held in self._held.values() if 0 not in held.gang for m in held.members]
        return tuple(m for m in served if m.node == node and m.phase is not MemberPhase.RELEASING)

    # ------------------------------------------------------------ taking seats

    def reserve(
        self,
        workload: WorkloadId,
        attempt: int,
        members: tuple[Member, ...],
        nodes: Nodes,
        now_s: float,
        deadline_s: float,
        gang: tuple[int, ...] = (0,),
        made: str = "",
    ) -> Allocation:
        """Charge an attempt's seats, all or none. `gang`: see `gang_of`. `made`: the id of the groups, where these are
        there at once and nobody has to wait for them (in a world that is only played).

        The same seats again are nothing new. StalePlanError when they don't fit any more, when another reservation
        of this attempt exists, or when a former attempt of the workload still holds seats.
        """
        known = self._held.get((workload, attempt))
        if known is not None:
            if [_place(m) for m in known.members] == [_place(m) for m in _ordered(members)]:
                return known
            raise StalePlanError(f"attempt {attempt} of {workload} is reserved already, on other seats")
        if former := self._attempts.get(workload):
            raise StalePlanError(f"attempt {min(former)} of {workload} still holds seats")
        charged = self._charge(workload, members, nodes, now_s, made)
        allocation = Allocation(workload, attempt, charged, now_s, deadline_s, "", gang)
        self._set(allocation)
        return allocation

    def grow(
        self,
        workload: WorkloadId,
        attempt: int,
        members: tuple[Member, ...],
        nodes: Nodes,
        now_s: float,
        deadline_s: float,
    ) -> Allocation:
        """Charge further seats of a held attempt. StalePlanError as for `reserve`, or when it is not held."""
        allocation = self._of(workload, attempt)
        known = {(m.surplus, m.bundle_index): m for m in allocation.members}
        numbers = {m.surplus for m in allocation.members}
        added = tuple(m for m in members if m.surplus not in numbers)
        for member in members:
            if member.surplus not in numbers:
                continue
            seat = known.get((member.surplus, member.bundle_index))
            if seat is None or _place(seat) != _place(member):
                raise StalePlanError(f"surplus seat {member.surplus} of {workload} is another one")
            if seat.phase is MemberPhase.RELEASING:
                raise StalePlanError(f"surplus seat {member.surplus} of {workload} is being given back")
        if not added:
            return allocation
        charged = self._charge(workload, added, nodes, now_s)
        return self._set(changed(allocation, members=_ordered((*allocation.members, *charged)), deadline_s=deadline_s))

    def adopt(self, allocation: Allocation) -> None:
        """Take over what the world already holds, unchecked: the world is right."""
        self._set(changed(allocation, members=_ordered(allocation.members)))

    # ------------------------------------------------------------ groups

    def creating(self, workload: WorkloadId, attempt: int, surplus: int) -> bool:
        """The seat's group is being asked for. False when that has been done; StalePlanError when it must not be."""
        members = self._members(workload, attempt, surplus)
        if not members or any(m.phase is MemberPhase.RELEASING for m in members):
            raise StalePlanError(f"attempt {attempt} of {workload} holds no seat +{surplus} to make a group for")
        if any(m.phase is not MemberPhase.RESERVED for m in members):
            return False
        self._rewrite(workload, attempt, surplus, MemberPhase.CREATING, None)
        return True

    def ready(
        self, workload: WorkloadId, attempt: int, surplus: int, group_id: str, devices: tuple[int, ...] = ()
    ) -> None:
        """The seat's group exists. One that is being given back stays so, with its group known.

        A group that another seat has already stays there: Serve names its groups for seats that it then may change.
        `devices`: those that a group of Serve's names. It may have been made by a grant that is older than these books.
        """
        members = self._members(workload, attempt, surplus)
        held = self._held.get((workload, attempt))
        if held is not None and any(m.group_id == group_id and m.surplus != surplus for m in held.members):
            return
        leaving = any(m.phase is MemberPhase.RELEASING for m in members)
        phase = MemberPhase.RELEASING if leaving else MemberPhase.READY
        self._rewrite(workload, attempt, surplus, phase, group_id)
        if held is not None and any(m.exact and not set(devices) <= set(m.devices) for m in members):
            self._follow(held, tuple(changed(m, devices=devices) for m in self._members(workload, attempt, surplus)))

    def fail(self, workload: WorkloadId, attempt: int, surplus: int, reason: str) -> None:
        """The seat's group could not be made, or is gone.

        For the gang the start has failed; a further seat is given back. Where Serve makes the groups itself, the
        seat is only empty again: Serve replaces replicas on its own.
        """
        allocation = self._held.get((workload, attempt))
        if allocation is None:
            return
        if 0 not in allocation.gang:
            leaving = any(m.surplus == surplus and m.phase is MemberPhase.RELEASING for m in allocation.members)
            phase = MemberPhase.RELEASING if leaving else MemberPhase.RESERVED
            self._rewrite(workload, attempt, surplus, phase, "")
        elif surplus in allocation.gang:
            self._set(changed(allocation, failed=allocation.failed or reason))
        else:
            self._rewrite(workload, attempt, surplus, MemberPhase.RELEASING, None)

    def give_up_late(self, now_s: float) -> tuple[tuple[WorkloadId, int, int], ...]:
        """Fail every group that was being made and is not there by its deadline; answers with (workload, attempt,
        seat). Serve's seats have no deadline here."""
        late = [
            (*key, surplus)
            for key, held in sorted(self._held.items())
            if 0 in held.gang and now_s >= held.deadline_s and not held.failed
            for surplus in sorted({m.surplus for m in held.members if m.phase is MemberPhase.CREATING})
        ]
        for workload, attempt, surplus in late:
            self.fail(workload, attempt, surplus, "its placement group was not ready by its deadline")
        return tuple(late)

    # ------------------------------------------------------------ giving seats back

    def release(self, workload: WorkloadId, attempt: int, surpluses: tuple[int, ...] | None) -> None:
        """These seats (None: all) are to be given back; they stay charged until `removed`."""
        allocation = self._held.get((workload, attempt))
        if allocation is None:
            return
        for surplus in sorted({m.surplus for m in allocation.members}):
            if surpluses is None or surplus in surpluses:
                self._rewrite(workload, attempt, surplus, MemberPhase.RELEASING, None)

    def rebind(self, workload: WorkloadId, attempt: int, in_use: tuple[SeatInUse, ...]) -> None:
        """The books follow what is: Serve chose where its replicas are (`bind_seats`), and Ray which devices others
        got (`observe_devices`)."""
        allocation = self._held.get((workload, attempt))
        if allocation is None:
            return
        if 0 not in allocation.gang:
            self._follow(allocation, bind_seats(allocation, in_use))
            return
        for held in observe_devices(self._held, (workload, attempt), in_use).values():
            self._set(held)

    def removed(self, workload: WorkloadId, attempt: int, surplus: int) -> None:
        """The seat's group is gone and its room free; with the last seat the allocation goes."""
        allocation = self._held.get((workload, attempt))
        if allocation is None:
            return
        left = tuple(m for m in allocation.members if m.surplus != surplus)
        if left:
            self._set(changed(allocation, members=left))
        else:
            self._drop((workload, attempt))

    def all_removed(self, workload: WorkloadId, attempt: int) -> None:
        """All groups of the attempt are gone in one moment."""
        if (workload, attempt) in self._held:
            self._drop((workload, attempt))

    # ------------------------------------------------------------ the books

    def _follow(self, before: Allocation, seats: tuple[Member, ...]) -> None:
        """These members are as Serve has them now; who was promised their GPUs and has no group yet gets others."""
        news = {(m.surplus, m.bundle_index): m for m in seats}
        held = self._held[before.workload, before.attempt]
        after = changed(held, members=tuple(news.get((m.surplus, m.bundle_index), m) for m in held.members))
        for allocation in give_way(self._held, before, after).values():
            self._set(allocation)

    def _charge(
        self, workload: WorkloadId, members: tuple[Member, ...], nodes: Nodes, now_s: float, made: str = ""
    ) -> tuple[Member, ...]:
        """The members with the devices that they get, if all of them fit now."""
        phase = MemberPhase.READY if made else MemberPhase.RESERVED
        if not members:
            raise StalePlanError(f"{workload}: a reservation without seats")
        wanted = {member.node for member in members}
        if isinstance(nodes, Mapping):
            known = {id: nodes[id] for id in sorted(wanted) if id in nodes}
        else:
            known = {node.id: node for node in nodes if node.id in wanted}
        room = self._slots.room(known, now_s, self._holding)
        charged = []
        self._check_channels(workload, members)
        for member in _ordered(members):
            id, bundle = member.node, member.bundle
            if not room.fits(id, bundle):
                raise StalePlanError(f"{workload}: {member.role} {member.index} does not fit on node {id} any more")
            devices, exact = devices_in(member, known.get(id), room)
            if device_need(bundle).share_mib and room.slot(id).realised(bundle, devices) != bundle:
                raise StalePlanError(f"{workload}: its share of memory is another part of the GPUs of {id} now")
            charged.append(changed(member, devices=devices, exact=exact, phase=phase, group_id=made))
        return tuple(charged)

    def _holding(self, node: NodeId) -> list[Allocation]:
        return [self._held[key] for key in sorted(self._on_node.get(node, ()))]

    def _check_channels(self, workload: WorkloadId, members: tuple[Member, ...]) -> None:
        """StalePlanError when somebody holds an NVLink channel that one of these seats is to get."""
        if all(m.channel is None for m in members):
            return
        wanted = {m.channel for m in members if m.channel is not None}
        for held in self._held.values() if wanted else ():
            taken = next((m.channel for m in held.members if m.channel in wanted), None)
            if taken is not None:
                raise StalePlanError(f"{workload}: channel {taken.number} of {taken.domain} is {held.workload}'s")

    def _of(self, workload: WorkloadId, attempt: int) -> Allocation:
        allocation = self._held.get((workload, attempt))
        if allocation is None:
            raise StalePlanError(f"attempt {attempt} of {workload} holds nothing")
        return allocation

    def _members(self, workload: WorkloadId, attempt: int, surplus: int) -> tuple[Member, ...]:
        allocation = self._held.get((workload, attempt))
        return () if allocation is None else tuple(m for m in allocation.members if m.surplus == surplus)

    def _rewrite(
        self, workload: WorkloadId, attempt: int, surplus: int, phase: MemberPhase, group_id: str | None
    ) -> None:
        allocation = self._held.get((workload, attempt))
        if allocation is None:
            return
        members = tuple(
            changed(m, phase=phase, group_id=m.group_id if group_id is None else group_id)
            if m.surplus == surplus
            else m
            for m in allocation.members
        )
        self._set(changed(allocation, members=members))

    def _set(self, allocation: Allocation) -> Allocation:
        key = (allocation.workload, allocation.attempt)
        old = self._held.get(key)
        if old is None or old != allocation:
            self._unlist(key)
            self._slots.change(old.members if old is not None else (), allocation.members)
            self._held[key] = allocation
            self._attempts.setdefault(key[0], set()).add(key[1])
            for member in allocation.members:
                self._on_node.setdefault(member.node, set()).add(key)
            self._touch(key)
        return allocation

    def _drop(self, key: Key) -> None:
        self._unlist(key)
        self._slots.change(self._held.pop(key).members, ())
        self._touch(key)

    def _unlist(self, key: Key) -> None:
        """Take an allocation out of the indexes, by its node and workload."""
        held = self._held.get(key)
        for id in {member.node for member in held.members} if held is not None else ():
            self._on_node[id].discard(key)
            if not self._on_node[id]:
                del self._on_node[id]
        if held is not None:
            self._attempts[key[0]].discard(key[1])
            if not self._attempts[key[0]]:
                del self._attempts[key[0]]

    def _touch(self, key: Key) -> None:
        self._version += 1
        if key in self._held:
            self._log.touch(key, self._version)
        else:
            self._log.drop(key, self._version)


# ---------------------------------------------------------------- pure parts


def gang_of(spec: WorkloadSpec, members: tuple[Member, ...]) -> tuple[int, ...]:
    """The surplus numbers of the groups that make up the minimum.

    One common group, 0, but for Serve: it makes a group per replica, so the first `min_count` of each role count.
    """
    if spec.kind is not Kind.SERVE:
        return (0,)
    chosen: list[int] = []
    for role in spec.roles:
        ours = sorted((m for m in members if m.role == role.name), key=lambda m: (m.surplus, m.index))
        chosen += [m.surplus for m in ours[: role.min_count]]
    return tuple(sorted(set(chosen)))


def bind_seats(allocation: Allocation, in_use: tuple[SeatInUse, ...]) -> tuple[Member, ...]:
    """The members after Serve said which groups its replicas use.

    Each group goes to the member that has it already, else to one of its role without a group, on its node if there
    is one; that member is then on the group's node. Seats that are used must be those that stay: a leaving seat that
    is in use changes places with a staying one that is not. A group that nobody uses any more is forgotten.
    """
    members = {m.surplus: m for m in allocation.members}
    used = {seat.group_id: seat for seat in sorted(in_use, key=lambda s: s.group_id)}
    for number, member in sorted(members.items()):
        if member.group_id and member.group_id not in used:
            phase = MemberPhase.RESERVED if member.phase is MemberPhase.READY else member.phase
            members[number] = replace(member, group_id="", phase=phase)
    bound = {m.group_id for m in members.values() if m.group_id}
    for group_id, seat in used.items():
        if group_id in bound:
            continue
        free = [m for m in members.values() if m.role == seat.role and not m.group_id]
        if not free:
            continue  # a group beyond our books shows as foreign use
        leaving = MemberPhase.RELEASING
        best = min(free, key=lambda m: (m.node != seat.node_id, not _same(m, seat), m.phase is leaving, m.surplus))
        members[best.surplus] = _seated(best, seat)
    for number, member in sorted(members.items()):
        if member.phase is not MemberPhase.RELEASING or not member.group_id:
            continue
        empty = [
            m
            for m in members.values()
            if m.role == member.role and not m.group_id and m.phase is not MemberPhase.RELEASING
        ]
        if empty:
            other = min(empty, key=lambda m: m.surplus)
            ours = replace(other, group_id=member.group_id, phase=MemberPhase.READY)
            members[other.surplus] = replace(ours, node=member.node, devices=member.devices, exact=member.exact)
            members[number] = replace(member, node=other.node, devices=other.devices, exact=other.exact, group_id="")
    return tuple(members[number] for number in sorted(members))


def _seated(member: Member, seat: SeatInUse) -> Member:
    phase = MemberPhase.RELEASING if member.phase is MemberPhase.RELEASING else MemberPhase.READY
    # Devices that nobody has named are not known on another node: Room charges them as Ray would bind them.
    moved = seat.node_id != member.node
    devices = seat.devices if moved or (seat.exact and not _same(member, seat)) else member.devices
    seated = replace(member, group_id=seat.group_id, phase=phase)
    return replace(seated, node=NodeId(seat.node_id), devices=devices, exact=seat.exact)


def _same(member: Member, seat: SeatInUse) -> bool:
    """Whether the seat's GPUs are the member's; a replica may ask for less than its seat has."""
    return seat.exact and set(seat.devices) <= set(member.devices)


def _place(member: Member) -> tuple[object, ...]:
    return (member.surplus, member.bundle_index, member.role, member.index, member.node, member.bundle)


def _ordered(members: tuple[Member, ...]) -> tuple[Member, ...]:
    if len(members) == 1:
        return members
    return tuple(sorted(members, key=lambda m: (m.surplus, m.bundle_index, m.role, m.index)))
