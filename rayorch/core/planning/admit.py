"""Stage 3. Admit: what is asked for in this turn, and what can't be looked at yet. The order is in `walk.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.joint import JointKey, joint_key
from rayorch.core.planning.claims import Claim, growth_claim, held_models, removable, start_claim
from rayorch.core.planning.draft import Draft, Removal
from rayorch.core.planning.gates import array_wait, beyond_caps, timing_gate
from rayorch.core.planning.growth import missing
from rayorch.core.planning.lines import Docket
from rayorch.core.planning.queue_gates import growth_closed, queue_gate
from rayorch.core.planning.set_aside import reservation_gate
from rayorch.core.planning.together import joint_wait, running_members, together
from rayorch.core.planning.waiting import Verdict
from rayorch.core.planning.walk import Request, Walk
from rayorch.core.policy import OrderView, Profile, SortKey
from rayorch.core.types import Kind, Member, Role, Workload, WorkloadId

SYNCING = Wait(
    WaitReason.SYNCING,
    "the books are being compared with the world after a restart",
    unblocks="the comparison ends by itself",
)


def admit(draft: Draft, docket: Docket, view: OrderView) -> Walk:
    """All starts that are asked for, seats that running work lacks; surplus replicas are given back.

    `docket`: all pending workloads.
    """
    facts = draft.facts
    walk = Walk(draft, docket, view)
    former = {gone.workload for gone in facts.leaving}
    ordered = {id for gangs in facts.orders.values() for id in gangs}
    capped = beyond_caps(docket.special, facts.workloads, facts.held, facts.now_s)
    for record in docket.arrays.values():
        draft.waits.put(record.id, array_wait(record, facts.now_s))
    joint: dict[JointKey, list[tuple[SortKey, Request]]] = {}
    for id in sorted({*docket.special, *former, *facts.owed, *ordered}):
        place = docket.place(id)
        if place is not None:
            line, key, workload = place
            claim = start_claim(workload, draft.prices.of_gang(line.gang))
            request = Request(claim, _gate(draft, workload, former) or capped.get(id, ()))
            first = (0, *key[1:]) if id in facts.owed else key
            if (name := joint_key(workload.spec)) is not None:
                joint.setdefault(name, []).append((first, request))
            else:
                walk.alone(request, first)
    if joint:
        _join(draft, walk, joint)
    for workload in (facts.workloads[id] for id in facts.asking):
        for claim in _asked(draft, workload):
            walk.alone(Request(claim), key_of(facts.profile, workload, view, claim.place[1], workload.id in facts.owed))
    if not facts.snapshot.synced:
        walk.close_all(Verdict(lambda: (SYNCING,), False))
    return walk


def _join(draft: Draft, walk: Walk, joint: Mapping[JointKey, list[tuple[SortKey, Request]]]) -> None:
    """The waiting members of each joint gang as one claim; none of them while one can't be looked at yet."""
    running = running_members([workload for workload, _ in draft.facts.live()])
    for name, entries in sorted(joint.items()):
        entries.sort(key=lambda entry: entry[0])
        members = [*(request.claim.workload for _, request in entries), *running.get(name, ())]
        gates: dict[str, bool] = {request.claim.id: bool(request.gate) for _, request in entries}
        waits = [joint_wait(request.claim, gates, members) for _, request in entries]
        if any(gates.values()) or any(wait is not None for wait in waits):
            for (key, request), wait in zip(entries, waits, strict=True):
                gate = (*request.gate, wait) if wait is not None else request.gate
                walk.alone(Request(request.claim, gate), key)
            continue
        claim = together([request.claim for _, request in entries])
        walk.alone(Request(claim), entries[0][0], [(key, request.claim) for key, request in entries[1:]])


def key_of(profile: Profile, workload: Workload, view: OrderView, surplus: int, owed: bool = False) -> SortKey:
    """The key within the queue. Of equals the one that was accepted first goes first; a.9 before a.10."""
    spec = workload.spec
    index = spec.entry.index if spec.entry is not None else 0
    own = profile.order(workload, view)
    return (int(not owed), *own, workload.sequence, index, spec.id, surplus)


def _asked(draft: Draft, workload: Workload) -> Iterator[Claim]:
    return iter(_serve(draft, workload) if workload.spec.kind is Kind.SERVE else _lacking(draft, workload))


def _lacking(draft: Draft, workload: Workload) -> list[Claim]:
    """The seats that a running attempt lacks of its minimum, all of them or none; it goes on without them meanwhile."""
    kept = draft.staying(workload.id)
    if not kept or not draft.facts.snapshot.synced:
        return []
    claim = missing(workload, kept, draft.facts.topology.models)
    return [draft.prices.of_claim(claim)] if claim is not None else []


def _gate(draft: Draft, workload: Workload, former: set[WorkloadId]) -> tuple[Wait, ...]:
    now_s = draft.facts.now_s
    found: list[Wait] = []
    if not draft.facts.snapshot.synced:
        found.append(SYNCING)
    if now_s < workload.not_before_s:
        found.append(_not_yet(workload, workload.not_before_s - now_s))
        draft.estimates[workload.id] = workload.not_before_s
    found += timing_gate(workload, now_s)
    if workload.spec.reservation:
        waits, begins_s = reservation_gate(workload, draft)
        found += waits
        if begins_s is not None:
            draft.estimates[workload.id] = max(begins_s, workload.not_before_s)
    found += queue_gate(draft, workload.spec.queue, bool(workload.spec.min_resources.gpu_units))
    if workload.spec.begin_s is not None and now_s < workload.spec.begin_s:
        draft.estimates[workload.id] = max(workload.spec.begin_s, workload.not_before_s)
    if workload.id in former:
        found.append(
            Wait(
                WaitReason.RELEASING,
                "its former attempt still holds seats",
                blockers=(workload.id,),
                unblocks="the removal of its former placement groups",
            )
        )
    return tuple(found)


def _not_yet(workload: Workload, left_s: float) -> Wait:
    """Back-off after a failure (of its own, or of its start), or the lease of an attempt that may still run."""
    unblocks = f"{left_s:.0f} s of waiting"
    failed = bool(workload.exit_code) or (workload.start_failures > 0 and workload.node_losses == 0)
    if failed:
        count = workload.failures + workload.start_failures
        detail = f"it failed {count} times and waits {left_s:.0f} s before the next attempt"
        return Wait(WaitReason.BACK_OFF, detail, need=left_s, unit="s", unblocks=unblocks)
    detail = f"a former attempt that contact was lost with may still run for {left_s:.0f} s"
    return Wait(WaitReason.LEASE, detail, need=left_s, unit="s", unblocks=unblocks)


# ---------------------------------------------------------------- Serve


def _serve(draft: Draft, workload: Workload) -> list[Claim]:
    """One claim per replica that the application lacks; what it has too much is given back after the delay."""
    role = workload.spec.elastic_role or (workload.spec.roles[0] if workload.spec.roles else None)
    kept = draft.staying(workload.id)
    if role is None or not kept or not draft.facts.snapshot.synced:
        return []
    closed = growth_closed(draft, workload.spec.queue, bool(role.bundle.gpu_units))
    ours = tuple(m for m in kept if m.role == role.name)
    wanted = role.min_count
    if workload.spec.resizable:
        wanted = max(role.min_count, min(role.max_count, draft.facts.profile.serve_size(workload, draft.facts.now_s)))
    if len(ours) > wanted:
        _give_back(draft, workload, role, kept, len(ours) - wanted)
        return []
    everything = draft.facts.held[workload.id].members
    models = draft.facts.topology.models
    count = 0 if closed else wanted - len(ours)
    if len(held_models(workload.spec, everything, models)) > 1:
        count = min(count, 1)  # the first one decides the model of the others
    return [draft.prices.of_claim(growth_claim(workload, role, everything, models, nth)) for nth in range(count)]


def _give_back(draft: Draft, workload: Workload, role: Role, kept: tuple[Member, ...], count: int) -> None:
    low_since_s = workload.demand_low_since_s
    if low_since_s is None or draft.facts.now_s - low_since_s < draft.facts.profile.scale_down_delay_s:
        return
    numbers = {m.surplus for m in removable(workload.spec, kept) if m.role == role.name}
    chosen = sorted(numbers, reverse=True)[:count]
    low_s = draft.facts.now_s - low_since_s
    removal = Removal(set(), draft.facts.now_s + workload.spec.grace_s, None, f"demand has been low for {low_s:.0f} s")
    if chosen:
        draft.remove(workload, set(chosen), removal)
