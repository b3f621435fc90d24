"""Stages 3 and 4. Admit: what is asked for in this turn, and what can't be looked at yet. Order: who goes first.

First of all who is owed room that is being freed for it. Within a queue then the profile's `order`, then the id. Across
queues the heads are compared anew after each start: the profile's `queue_order`, then the heads' own keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.planning.claims import Claim, Gang, gang_of, growth_claim, held_models, removable, start_claim
from rayorch.core.planning.draft import Draft, Removal
from rayorch.core.planning.gates import timing_gate
from rayorch.core.planning.growth import missing
from rayorch.core.policy import OrderView, QueueHead, SortKey
from rayorch.core.types import Kind, Member, QueueId, Role, State, Workload, WorkloadId


@dataclass(frozen=True, slots=True)
class Request:
    """A claim, and what keeps it from being looked at now (empty: nothing does)."""

    claim: Claim
    gate: tuple[Wait, ...] = ()


def admit(draft: Draft) -> list[Request]:
    """All starts that are asked for, replicas that Serve applications lack; surplus replicas are given back."""
    former = {gone.workload for gone in draft.facts.leaving}
    requests: list[Request] = []
    gangs: dict[tuple[object, ...], Gang] = {}
    for workload in draft.facts.snapshot.workloads:
        if workload.state is State.PENDING:
            spec = workload.spec
            key = (spec.roles, spec.groups, spec.kind, spec.topology, spec.accelerators)
            if key not in gangs:
                gangs[key] = gang_of(spec)
            requests.append(Request(draft.priced(start_claim(workload, gangs[key])), _gate(draft, workload, former)))
        elif workload.state is State.RUNNING and workload.spec.kind is Kind.SERVE:
            requests += [Request(claim) for claim in _serve(draft, workload)]
        elif workload.state is State.RUNNING and _is_short(workload):
            requests += [Request(claim) for claim in _lacking(draft, workload)]
    return requests


def _is_short(workload: Workload) -> bool:
    return any(workload.members(role.name) < role.min_count for role in workload.spec.roles)


def _lacking(draft: Draft, workload: Workload) -> list[Claim]:
    """The seats that a running attempt lacks of its minimum, all of them or none; it goes on without them meanwhile."""
    kept = draft.staying(workload.id)
    if not kept or not draft.facts.snapshot.synced:
        return []
    claim = missing(workload, kept, draft.facts.topology.models)
    return [draft.priced(claim)] if claim is not None else []


def _gate(draft: Draft, workload: Workload, former: set[WorkloadId]) -> tuple[Wait, ...]:
    now_s = draft.facts.now_s
    found: list[Wait] = []
    if not draft.facts.snapshot.synced:
        found.append(
            Wait(
                WaitReason.SYNCING,
                "the books are being compared with the world after a restart",
                unblocks="the comparison ends by itself",
            )
        )
    if now_s < workload.not_before_s:
        found.append(_not_yet(workload, workload.not_before_s - now_s))
        draft.estimates[workload.id] = workload.not_before_s
    found += timing_gate(workload, now_s)
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
    ours = tuple(m for m in kept if m.role == role.name)
    wanted = role.min_count
    if workload.spec.resizable:
        wanted = max(role.min_count, min(role.max_count, draft.facts.profile.serve_size(workload, draft.facts.now_s)))
    if len(ours) > wanted:
        _give_back(draft, workload, role, kept, len(ours) - wanted)
        return []
    everything = draft.facts.held[workload.id].members
    models = draft.facts.topology.models
    count = wanted - len(ours)
    if len(held_models(workload.spec, everything, models)) > 1:
        count = min(count, 1)  # the first one decides the model of the others
    return [draft.priced(growth_claim(workload, role, everything, models, nth)) for nth in range(count)]


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


# ---------------------------------------------------------------- order


def order(draft: Draft, requests: list[Request]) -> Iterator[Request]:
    """The requests, the one that goes first first. Later ones are compared after earlier ones have been decided."""
    facts = draft.facts
    snapshot = facts.snapshot
    queues = {spec.id: spec for spec in snapshot.queues}
    view = OrderView(facts.now_s, facts.profile.ordering, queues, snapshot.nodes, snapshot.history)
    lines: dict[QueueId, list[tuple[SortKey, Request]]] = {}
    for request in requests:
        lines.setdefault(request.claim.queue, []).append((_within_queue(draft, request.claim, view), request))
    heap: list[tuple[SortKey, QueueId, int]] = []
    for queue, line in lines.items():
        line.sort(key=lambda entry: entry[0])
        heap.append((_across_queues(draft, line[0], view), queue, 0))
    heapq.heapify(heap)
    while heap:
        key, queue, position = heapq.heappop(heap)
        line = lines[queue]
        fresh = _across_queues(draft, line[position], view)
        if fresh > key:  # its queue has taken more since; others may go first now
            heapq.heappush(heap, (fresh, queue, position))
            continue
        yield line[position][1]
        if position + 1 < len(line):
            heapq.heappush(heap, (_across_queues(draft, line[position + 1], view), queue, position + 1))


def _within_queue(draft: Draft, claim: Claim, view: OrderView) -> SortKey:
    own = draft.facts.profile.order(claim.workload, view)
    owed = int(claim.id not in draft.facts.owed)
    return (owed, *own, claim.id, claim.asks[0].surplus if claim.asks else 0)


def _across_queues(draft: Draft, entry: tuple[SortKey, Request], view: OrderView) -> SortKey:
    within, request = entry
    claim, quota = request.claim, draft.soon.quota
    # What can't start anyway keeps nobody waiting who stands behind it in its queue.
    idle = bool(request.gate) or quota.capped(claim.queue, claim.resources)
    borrows = not idle and quota.borrows(claim.queue, claim.resources)
    head = QueueHead(claim.workload, claim.resources, borrows, quota)
    return (within[0], *draft.facts.profile.queue_order(head, view), *within[1:])
