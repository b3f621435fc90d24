"""The invariants of the system as code: each looks at facts and answers with what violates it.

They run after every step of every simulated test. Those that need no history (`check_live`) also run, sampled, on a
live cluster, whose facts are never read at one instant: there a violation counts when two samples running show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rayorch.core.adoption import WorldGroup, parse_group_name
from rayorch.core.codec import decode, encode
from rayorch.core.decisions import Plan, Reserve, Resize, Start, Stop
from rayorch.core.device_binding import split_devices
from rayorch.core.ordering import OrderView
from rayorch.core.planning.takings import OWED_S
from rayorch.core.policy import REPAIR_HOLD_S, Profile
from rayorch.core.sharing import asks_of_ray, device_shares, uses_devices
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import (
    LIVE,
    UNIT,
    Allocation,
    Kind,
    Member,
    MemberPhase,
    NodeHealth,
    NodeId,
    QueueId,
    Resources,
    State,
    StopCause,
    Workload,
    WorkloadId,
    total,
)

EVICTIONS = (StopCause.PREEMPTED, StopCause.RECLAIMED)

GRACE_S = 60.0
"""How long a drain or a start may overrun before the live check says so: stops have grace, starts have retries."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong. `invariant`: its number in the list of the design, 1 to 14."""

    invariant: int
    subject: str
    detail: str


# ---------------------------------------------------------------- without history


def check_live(snapshot: Snapshot, groups: tuple[WorldGroup, ...], instance: str = "main") -> tuple[Violation, ...]:
    """All that can be judged from one snapshot and the placement groups that exist."""
    return (
        *check_devices(snapshot),
        *check_groups_fit(snapshot, groups),
        *check_named_devices(snapshot, groups),
        *check_gangs(snapshot, groups, instance),
        *check_models(snapshot),
        *check_charges(snapshot),
        *check_caps(snapshot),
        *check_single_attempt(snapshot, groups, instance),
        *check_drained(snapshot),
        *check_orphans(snapshot, groups, instance),
    )


def check_devices(snapshot: Snapshot) -> tuple[Violation, ...]:
    """1: no device above its capacity, by our books."""
    charged: dict[tuple[NodeId, int], int] = {}
    for member in _members(snapshot.allocations):
        for device, part in device_shares(member.bundle, member.devices):
            charged[member.node, device] = charged.get((member.node, device), 0) + part
    return tuple(
        Violation(1, f"{node} device {device}", f"{units / UNIT:g} of 1 GPU is charged")
        for (node, device), units in sorted(charged.items())
        if units > UNIT
    )


def check_named_devices(snapshot: Snapshot, groups: Iterable[WorldGroup]) -> tuple[Violation, ...]:
    """1: the devices that a group takes by name are among those that the books charge it with (`check_devices`)."""
    named = {group.group_id: group for group in groups if group.created}
    found = []
    for member in _members(snapshot.allocations):
        group = named.get(member.group_id)
        if group is None:
            continue
        devices = group.devices(member.bundle_index)
        if bool(devices) != member.exact or not set(devices) <= set(member.devices if member.exact else ()):
            what = f"it names the devices {devices} of {member.node}, the books say {member.devices}"
            found.append(Violation(1, group.name, what))
    return tuple(found)


def check_groups_fit(snapshot: Snapshot, groups: Iterable[WorldGroup]) -> tuple[Violation, ...]:
    """1: no node above its capacity, by our books and by the groups that exist."""
    found = []
    held: dict[NodeId, list[Resources]] = {}
    for group in groups:
        for node, bundle in group.bundles:
            if group.created:
                held.setdefault(node, []).append(split_devices(bundle)[0])
    booked: dict[NodeId, list[Resources]] = {}
    for member in _members(snapshot.allocations):
        booked.setdefault(member.node, []).append(asks_of_ray(member.bundle, member.devices))
    for spec in snapshot.nodes:
        if spec.health is NodeHealth.LOST:
            continue
        for what, amounts in (("groups", held), ("books", booked)):
            amount = total(amounts.get(spec.id, []))
            if not amount.fits_in(spec.ray_total):
                found.append(Violation(1, spec.id, f"{what} hold {amount.to_floats()} of {spec.total.to_floats()}"))
    return tuple(found)


def check_gangs(snapshot: Snapshot, groups: Iterable[WorldGroup], instance: str) -> tuple[Violation, ...]:
    """2: a gang is whole or absent, or its start or end is under way within its bound."""
    found = []
    held = {(a.workload, a.attempt): a for a in snapshot.allocations}
    exist = {parse_group_name(instance, group.name): group for group in groups if group.created}
    for workload in snapshot.workloads:
        if workload.state not in LIVE:
            continue
        allocation = held.get((workload.id, workload.attempt))
        if allocation is None:
            continue
        gang = [m for m in workload.placement if m.surplus in allocation.gang]
        booked = {(m.surplus, m.bundle_index) for m in allocation.members}
        there = [m for m in gang if (m.surplus, m.bundle_index) in booked]
        own = [m for m in allocation.members if m.surplus in allocation.gang]
        if not own or any(m.phase is MemberPhase.RELEASING for m in own):
            continue  # its end is under way
        if workload.state is State.RUNNING and workload.ready_s is not None and len(there) not in (0, len(gang)):
            found.append(Violation(2, workload.id, f"{len(there)} of {len(gang)} members of its gang are held"))
        overdue_s = snapshot.now_s - allocation.deadline_s - GRACE_S
        starting = workload.state is State.RUNNING and workload.spec.kind is not Kind.SERVE
        if starting and not allocation.ready and not allocation.failed and overdue_s > 0:
            found.append(Violation(2, workload.id, f"its gang is overdue by {overdue_s:.0f} s"))
        base = exist.get((workload.id, workload.attempt, 0))
        want = len([m for m in workload.placement if m.surplus == 0])
        if base is not None and want and len(base.bundles) != want:
            found.append(Violation(2, workload.id, f"its group has {len(base.bundles)} bundles for {want} members"))
    return tuple(found)


def check_models(snapshot: Snapshot) -> tuple[Violation, ...]:
    """2: the GPUs of a gang are all of one accelerator model, and of one that its workload names, if it names any."""
    found = []
    models = {node.id: node.model for node in snapshot.nodes}
    wishes = {w.id: w.spec.accelerators for w in snapshot.workloads if w.spec.accelerators}
    for allocation in snapshot.allocations:
        wished = wishes.get(allocation.workload)
        staying = [m for m in allocation.members if m.phase is not MemberPhase.RELEASING]
        used = {models[m.node] for m in staying if uses_devices(m.bundle) and m.node in models}
        if wished is not None and (len(used) > 1 or not used <= set(wished)):
            detail = f"holds GPUs of {sorted(used)}, and wants one of {list(wished)}"
            found.append(Violation(2, allocation.workload, detail))
    return tuple(found)


def check_charges(snapshot: Snapshot) -> tuple[Violation, ...]:
    """3: every member is charged once, to one allocation of its workload."""
    found = []
    seen: dict[WorkloadId, int] = {}
    for allocation in snapshot.allocations:
        places = [(m.surplus, m.bundle_index) for m in allocation.members]
        if len(set(places)) != len(places):
            found.append(Violation(3, allocation.workload, "two of its members have the same place"))
        if allocation.workload in seen:
            both = f"{seen[allocation.workload]} and {allocation.attempt}"
            found.append(Violation(3, allocation.workload, f"attempts {both} both hold seats"))
        seen[allocation.workload] = allocation.attempt
    return tuple(found)


def check_caps(snapshot: Snapshot) -> tuple[Violation, ...]:
    """3: of an array no more entries run at a time than it says."""
    running: dict[WorkloadId, list[int]] = {}
    for workload in snapshot.workloads:
        entry = workload.spec.entry
        if entry is not None and entry.max_running is not None and workload.state in LIVE:
            running.setdefault(entry.array, []).append(entry.max_running)
    return tuple(
        Violation(3, array, f"{len(caps)} of its entries run, {min(caps)} may")
        for array, caps in sorted(running.items())
        if len(caps) > min(caps)
    )


def check_single_attempt(snapshot: Snapshot, groups: Iterable[WorldGroup], instance: str) -> tuple[Violation, ...]:
    """4: no workload has groups of two attempts."""
    attempts: dict[WorkloadId, set[int]] = {}
    for group in groups:
        key = parse_group_name(instance, group.name)
        if key is not None:
            attempts.setdefault(key[0], set()).add(key[1])
    return tuple(
        Violation(4, id, f"groups of attempts {sorted(numbers)} exist")
        for id, numbers in sorted(attempts.items())
        if len(numbers) > 1
    )


def check_drained(snapshot: Snapshot) -> tuple[Violation, ...]:
    """5: nothing is left on a draining node long after its deadline."""
    late = {
        node.id: snapshot.now_s - node.drain_deadline_s
        for node in snapshot.nodes
        if node.health is NodeHealth.DRAINING
        and node.drain_deadline_s is not None
        and snapshot.now_s > node.drain_deadline_s + GRACE_S
    }
    return tuple(
        Violation(5, allocation.workload, f"on draining node {member.node} {late[member.node]:.0f} s too long")
        for allocation in snapshot.allocations
        for member in allocation.members
        if member.node in late
    )


def check_orphans(snapshot: Snapshot, groups: Iterable[WorldGroup], instance: str) -> tuple[Violation, ...]:
    """13: every group with our prefix belongs to a seat in the books. Judged only when the books are synced."""
    if not snapshot.synced:
        return ()
    kinds = {w.id: w.spec.kind for w in snapshot.workloads}
    attempts = {(a.workload, a.attempt) for a in snapshot.allocations}
    known = {(a.workload, a.attempt, m.surplus) for a in snapshot.allocations for m in a.members}
    found = []
    for group in groups:
        key = parse_group_name(instance, group.name)
        if key is None or key in known:
            continue
        if kinds.get(key[0]) is Kind.SERVE and key[:2] in attempts:
            continue  # Serve makes its groups itself, and says so a moment later
        found.append(Violation(13, group.name, f"group {group.group_id} belongs to nobody"))
    return tuple(found)


# ---------------------------------------------------------------- one plan


def check_plan(snapshot: Snapshot, plan: Plan, profile: Profile | None = None) -> tuple[Violation, ...]:
    """All that can be judged from a snapshot and the plan that was made on it, by this profile (the default's)."""
    heads = check_reserved_head(snapshot, plan, profile)
    return (*check_beneficiaries(snapshot, plan), *heads, *check_reasons(snapshot, plan))


def check_reserved_head(snapshot: Snapshot, plan: Plan, profile: Profile | None = None) -> tuple[Violation, ...]:
    """6: no start takes what is reserved for another.

    Room that is being freed (`from_release`), and seats that are kept, must hold the reservations and everything that
    starts beside them. On
    nodes that a head of a queue holds, nothing of lower priority of its queue starts, but for those for whom others are
    leaving: they were promised room before; for gangs that lost a part, for those that go first all the same by the
    profile's order, for what runs in a reservation (what is set aside for it no head holds), and for
    what is lent: preemptible work that need not be left alone for a while.
    """
    owed = {w.stop.beneficiary for w in snapshot.workloads if w.stop is not None}
    owed |= {w.release_for for w in snapshot.workloads}
    owed |= {w.yielded_to for w in snapshot.workloads if snapshot.now_s - (w.requeued_s or 0.0) <= OWED_S}
    owed |= {w.id for w in snapshot.workloads if w.former and snapshot.now_s - (w.requeued_s or 0.0) < REPAIR_HOLD_S}
    starts = [d for d in plan.decisions if isinstance(d, Start)]
    reserves = [d for d in plan.decisions if isinstance(d, Reserve)]
    found = []
    totals = {node.id: node.total - node.foreign for node in snapshot.nodes}
    promised = [m for r in reserves if r.from_release or r.kept for m in r.members]
    new = [m for s in starts for m in s.members]
    new += [m for d in plan.decisions if isinstance(d, Resize) for m in d.add]
    staying = staying_members(snapshot, plan)
    for node in sorted({m.node for m in promised}):
        amount = total(m.bundle for m in (*staying, *promised, *new) if m.node == node)
        if not amount.fits_in(totals.get(node, Resources())):
            found.append(Violation(6, node, f"starts and what is promised need {amount.to_floats()}"))
    known = {w.id: w for w in snapshot.workloads}
    view = OrderView.of(snapshot, profile.ordering) if profile is not None else None
    for reserve in reserves:
        head = known[reserve.workload]
        nodes = {m.node for m in reserve.members}
        for start in starts:
            other = known[start.workload]
            behind = other.spec.priority < head.spec.priority
            if behind and profile is not None and view is not None:
                behind = profile.order(other, view) > profile.order(head, view)
            if reserve.from_release or reserve.kept or other.id in owed or _has_its_own(plan, other):
                continue
            if start.ends_s is not None and reserve.at_s is not None and start.ends_s <= reserve.at_s:
                continue  # it has left when the head comes
            if reserve.at_s is None and head.id in start.lent_by:
                if not other.spec.preemptible or other.spec.min_runtime_s:
                    found.append(Violation(6, other.id, f"is lent room of {head.id}, which could not take it back"))
                continue
            if behind and other.spec.queue == head.spec.queue:
                taken = sorted({m.node for m in start.members} & nodes)
                found += [Violation(6, other.id, f"starts on {node}, which is held for {head.id}") for node in taken]
    return tuple(found)


def _has_its_own(plan: Plan, workload: Workload) -> bool:
    """Whether room is set aside for it, which no head holds: of a reservation, or spares after the loss of a node."""
    spares = workload.node_losses > 0 and any(view.spec.standing for view in plan.reservations)
    return bool(workload.spec.reservation) or spares


def staying_members(snapshot: Snapshot, plan: Plan) -> list[Member]:
    """The members that neither are on their way out nor are sent away by the plan."""
    leaving = {w.id for w in snapshot.workloads if w.state is State.STOPPING}
    leaving |= {d.workload for d in plan.decisions if isinstance(d, Stop)}
    taken = {(d.workload, n) for d in plan.decisions if isinstance(d, Resize) for n in d.remove}
    placed = {(w.id, m.surplus) for w in snapshot.workloads for m in w.placement}
    return [
        m
        for a in snapshot.allocations
        for m in a.members
        if a.workload not in leaving
        and (a.workload, m.surplus) not in taken
        and (a.workload, m.surplus) in placed
        and m.phase is not MemberPhase.RELEASING
    ]


def check_beneficiaries(snapshot: Snapshot, plan: Plan) -> tuple[Violation, ...]:
    """7: nobody is evicted or shrunk for somebody who then has no place.

    Who is stopping already may get another order, a shorter one where a node is lost: that decides nothing anew.
    """
    stopping = {w.id for w in snapshot.workloads if w.state is State.STOPPING}
    placed = {d.workload for d in plan.decisions if isinstance(d, Start | Reserve)}
    placed |= {d.workload for d in plan.decisions if isinstance(d, Resize) and d.add}
    found = []
    for decision in plan.decisions:
        beneficiary: WorkloadId | None = None
        if isinstance(decision, Stop) and decision.workload in stopping:
            continue
        if isinstance(decision, Stop) and decision.order.cause in EVICTIONS:
            beneficiary = decision.order.beneficiary
            if beneficiary is None:
                found.append(Violation(7, decision.workload, "evicted for nobody"))
        elif isinstance(decision, Resize) and decision.remove:
            beneficiary = decision.beneficiary
        if beneficiary is not None and beneficiary not in placed:
            found.append(Violation(7, str(beneficiary), f"has no place, but {_subject(decision)} was to yield for it"))
    return tuple(found)


def check_reasons(snapshot: Snapshot, plan: Plan) -> tuple[Violation, ...]:
    """10: every waiting workload that does not start has its reasons, and an entry among the estimates."""
    starting = {d.workload for d in plan.decisions if isinstance(d, Start)}
    found = []
    for workload in snapshot.workloads:
        if workload.state is not State.PENDING or workload.id in starting:
            continue
        if not plan.waits.get(workload.id):
            found.append(Violation(10, workload.id, "waits without a reason"))
        if workload.id not in plan.estimates:
            found.append(Violation(10, workload.id, "waits without an estimate"))
    return tuple(found)


def check_replay(snapshot: Snapshot, plan: Plan, again: Plan) -> tuple[Violation, ...]:
    """11: the plan of the stored snapshot is the plan that was made. `again`: the planner's answer to the copy."""
    found = []
    if decode(encode(snapshot)) != snapshot:
        found.append(Violation(11, "snapshot", "is not what was stored"))
    if again != plan:
        found.append(Violation(11, "plan", f"differs on the same snapshot at {snapshot.now_s:.1f}"))
    return tuple(found)


# ---------------------------------------------------------------- sums


def check_quota_charge(
    workloads: Mapping[WorkloadId, Workload], used: Mapping[QueueId, Resources]
) -> tuple[Violation, ...]:
    """3: a queue is charged what the live attempts in it and below were committed to."""
    found = []
    for queue, amount in sorted(used.items()):
        inside = [
            m.charge
            for w in workloads.values()
            if w.state in LIVE and (w.spec.queue == queue or w.spec.queue.startswith(f"{queue}/"))
            for m in w.placement
        ]
        if total(inside) != amount:
            found.append(Violation(3, queue, f"charged {amount.to_floats()}, live {total(inside).to_floats()}"))
    return tuple(found)


def check_ledger(allocated_gpu_s: float, classes: Mapping[str, float]) -> tuple[Violation, ...]:
    """9: the ledger's classes add up to the allocated time, to a thousandth of a GPU-second per part."""
    difference = abs(sum(classes.values()) - allocated_gpu_s)
    if difference <= 1e-3 * max(1, len(classes)) + 1e-9 * allocated_gpu_s:
        return ()
    return (Violation(9, "ledger", f"classes add up to {sum(classes.values())}, allocated {allocated_gpu_s}"),)


# ---------------------------------------------------------------- small parts


def _members(allocations: Iterable[Allocation]) -> list[Member]:
    return [m for a in allocations for m in a.members]


def _subject(decision: object) -> str:
    return str(getattr(decision, "workload", decision))
