"""The plan: from what is known to what should happen, in numbered stages, the least disruptive first.

Pure: the same snapshot and profile give the same plan. What each stage does and why is in its module and in
docs/planner.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rayorch.core.decisions import Decision, Plan, Resize, Scale, WaitReason
from rayorch.core.ordering import OrderView, SortKey, basis_of
from rayorch.core.planning.adapt import adapt
from rayorch.core.planning.admit import admit, key_of
from rayorch.core.planning.backfill import backfill
from rayorch.core.planning.by_place import reclaim_by_place
from rayorch.core.planning.cells import CellBook, cell_wait, count_cells, keeping
from rayorch.core.planning.charges import barred, fits_quota
from rayorch.core.planning.claims import Claim, Gang
from rayorch.core.planning.consolidate import consolidate, defragment, keep_moved
from rayorch.core.planning.doorkeeper import Doorkeeper
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.evict import evict, take_surplus
from rayorch.core.planning.flavors import Served, fall_through, in_free_order
from rayorch.core.planning.heal import heal, protect
from rayorch.core.planning.in_cells import serve_in_cells
from rayorch.core.planning.lend import lend
from rayorch.core.planning.lines import Docket
from rayorch.core.planning.memory import Memory
from rayorch.core.planning.moves import move
from rayorch.core.planning.outrank import evict_by_order
from rayorch.core.planning.passes import run_passes
from rayorch.core.planning.place import expect, hold, place, promise
from rayorch.core.planning.queue_gates import queue_gate, reopens_s
from rayorch.core.planning.repair import breaking, keep_seats, return_seats, take_back_seats
from rayorch.core.planning.rights import delay_left_s, delay_wait
from rayorch.core.planning.scale import NOBODY_LISTENS, scale
from rayorch.core.planning.set_aside import reservation_full, set_aside, spares_for, start_inside
from rayorch.core.planning.single_file import Filed, single_file
from rayorch.core.planning.stale import retire
from rayorch.core.planning.standstill import again, standing, still, told
from rayorch.core.planning.unpack import unpack
from rayorch.core.planning.upgrade import keep_promises, upgrade
from rayorch.core.planning.waiting import Estimates, Positions, Verdict
from rayorch.core.planning.waits import (
    awaited_groups,
    behind_head,
    hopeless,
    provisioning_wait,
    quota_waits,
    reasons,
    releasing_wait,
    room_waits,
)
from rayorch.core.planning.walk import Walk
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import StopCause, Workload, WorkloadId


def plan(snapshot: Snapshot, profile: Profile, memory: Memory | None = None) -> Plan:
    """All decisions of one turn of the loop, and for every workload that does not start, why.

    `memory`: of the planner's last turn, so that this one costs what has changed since; the plan is the same without.
    """
    memory = memory if memory is not None else Memory()
    try:
        memory.take(snapshot, profile)
        if memory.nobody_waits and memory.calm(snapshot, profile):  # all stages would find nothing
            return Plan(snapshot.versions, snapshot.now_s, (NOBODY_LISTENS,))
        if _stands_still(snapshot, profile, memory):
            assert memory.standing is not None
            return again(memory.standing, snapshot, lambda: plan(snapshot, profile))
        draft = Draft.on(memory.facts(snapshot, profile), memory)
        filed = single_file(draft, lambda: _lined_up(snapshot, profile, memory, draft.view))
        made = _planned(draft) if filed is Filed.NOT else _arbitrate(draft, NOBODY_LISTENS)
    except BaseException:
        memory.forget()
        raise
    draft.release()
    memory.standing = standing(draft, made) if memory.lends else None
    return told(made, lambda: plan(snapshot, profile)) if filed is Filed.BLOCKED else made


def _planned(draft: Draft) -> Plan:
    """All stages."""
    _seated(draft)  # 1 to 7
    return_seats(draft)
    capacity = scale(draft)  # 8: whole gangs to make room for
    take_back_seats(draft)
    return _arbitrate(draft, capacity)  # 9: one consistent list, in the order in which it must happen


def seated(snapshot: Snapshot, profile: Profile, memory: Memory | None = None) -> Draft:
    """Stages 1 to 7: who gets which of the seats that there are."""
    return _seated(Draft.of(snapshot, profile, memory))


def _seated(draft: Draft) -> Draft:
    profile = draft.facts.profile
    protect(draft)  # 1: whom no eviction may touch
    heal(draft)  # 2: attempts that can't, or must not, go on
    count_cells(draft)
    keep_promises(draft)
    keep_moved(draft)
    draft.keeping = draft.cells.keep if draft.cells is not None else frozenset()
    set_aside(draft)
    draft.keeping = frozenset()
    walk = draft.walk = _admitted(draft)  # 3: what is asked for, and what can't be looked at yet
    for request in walk.gated():
        draft.gated.append(request.claim)
        draft.waits.put(request.claim.id, request.gate)
        if request.claim.id in draft.facts.repairs:
            draft.unrepaired.append(request.claim)
    serve_in_cells(draft, walk)
    draft.unrepaired += breaking(draft)
    keep_seats(draft)
    if profile.eviction.passes:
        run_passes(draft, walk)  # 4 to 7, action by action
        return draft
    walk.turn_away = Doorkeeper(draft, walk)
    for request in walk:  # 4: who goes first, compared anew after each decision
        if draft.cells is not None and _in_cells(draft, walk, draft.cells, request.claim):
            continue
        if draft.unrepaired and request.claim.id not in draft.facts.owed:
            keep_seats(draft)  # before new work, and after all that lost a part have been looked at
        if not _shut(draft, walk, request.claim) and not _kept_behind(draft, walk, request.claim):
            _serve_anyhow(draft, walk, request.claim)  # 5 place, 6 reclaim, then preempt, else hold room for a head
            _note_head(draft, request.claim)
    draft.keeping = frozenset()
    keep_seats(draft)
    if draft.timeline is not None:
        backfill(draft, walk, draft.timeline)  # 5 again: who has left before the heads need their nodes
    lend(draft, walk)  # and what is idle until nobody knows when, to those whom the heads may evict
    retire(draft)  # 6 at last: who has lacked a part of its minimum for too long
    adapt(draft)  # 7: surplus members, where nobody who waits could use the room
    unpack(draft)  # those apart that hinder each other on one GPU
    upgrade(draft)  # and better GPU models
    defragment(draft)  # and whole nodes
    move(draft)  # and whatever else is less stranded
    return draft


def _admitted(draft: Draft) -> Walk:
    facts, memory = draft.facts, draft.memory
    return admit(draft, _lined_up(facts.snapshot, facts.profile, memory, draft.view), draft.view)


def _lined_up(snapshot: Snapshot, profile: Profile, memory: Memory, view: OrderView) -> Docket:
    """All that wait, in lines, in the profile's order."""

    def key(workload: Workload, gang: Gang) -> SortKey:
        return key_of(profile, workload, view, gang.first)

    return memory.line_up(key, basis_of(profile.order), snapshot.history.classes)


def _stands_still(snapshot: Snapshot, profile: Profile, memory: Memory) -> bool:
    """Whether this turn would decide what the last one did: a shortcut, see `standstill.py`."""
    if memory.standing is None or not memory.only_work_came:
        return False
    _lined_up(snapshot, profile, memory, OrderView.of(snapshot, profile.ordering))
    return still(memory.standing, memory, snapshot, profile)


def _in_cells(draft: Draft, walk: Walk, book: CellBook, claim: Claim) -> bool:
    """Whether it was looked at within the cells of its queue; all others leave them as they must."""
    if claim.id not in book.served or claim.grows:
        draft.keeping = keeping(draft, claim)
        return False
    verdict = book.served[claim.id]
    if verdict is not None:
        walk.tell(verdict)
    return True


def _serve_anyhow(draft: Draft, walk: Walk, claim: Claim) -> None:
    """In the reservation that it names, or with spares after the loss of a node, or like everybody else."""
    workload = claim.workload
    if workload.spec.reservation and not claim.grows:
        if not start_inside(draft, claim, workload.spec.reservation):
            walk.close(Verdict(lambda: (*quota_waits(draft, claim), reservation_full(draft, claim)), False))
    elif claim.grows or not any(start_inside(draft, claim, id) for id in spares_for(draft, workload)):
        _serve(draft, walk, claim)


def _serve(draft: Draft, walk: Walk, claim: Claim) -> None:
    """Give one claim what it asks for by the mildest means, or record why it can't have it.

    A shape that found nothing in its queue is not tried again in this turn: room and quota only become less, and
    those behind it have no more rights.
    """
    claim = draft.narrowed(in_free_order(draft, claim))
    kind = draft.kind(claim)
    known = draft.verdicts.get(kind)
    if known is None:
        served = fall_through(draft, claim, _evict)
        if served is Served.STARTED or (served is Served.NOT and any(place(draft, way) for way in claim.ways)):
            return
        ordered = draft.facts.ordered_for(claim.id)  # who has waited for nodes evicts nobody while they come
        released = served is Served.RELEASING or any(promise(draft, way) for way in claim.ways)
        if not released and ordered and _expect(draft, walk, claim):
            return
        released = released or any(_moved_for(draft, way) for way in claim.ways)
        if released or any(_evict(draft, way) for way in claim.ways):
            wait, expected_s = releasing_wait(draft, draft.reserves[-1].members)
            walk.tell(Verdict(lambda: (*quota_waits(draft, claim), wait), False))
            _estimate(draft, claim, expected_s)
            return
        if not ordered and _expect(draft, walk, claim):
            return
        delay = delay_wait(claim.workload, draft.facts.now_s)
        cells = cell_wait(draft, claim)
        known = Verdict(
            lambda: (*reasons(draft, claim), *cells, *delay), fits_quota(claim, *(books.quota for books in draft.both))
        )
        if claim.id not in draft.facts.owed and not delay:  # it was looked at before its turn, or may do less
            draft.verdicts[kind] = known
    # What would not run if all others were gone, or if the queue were empty, keeps nobody else from evicting. Nor does
    # one whose owner has reached a limit, or who lacks a countable: room would not help it.
    if not hopeless(draft, claim.shape) and not barred(claim, draft.soon.quota):
        draft.waiting[claim.queue] = max(claim.priority, draft.waiting.get(claim.queue, claim.priority))
    others = walk.close(known)
    draft.unrepaired += [part for part in claim.parts or (claim,) if part.id in draft.facts.repairs]
    if known.lacks_room:
        draft.unplaced.append((claim.shape, claim.id, others))
        if not delay_left_s(claim.workload, draft.facts.now_s):  # who leaves others their room for a while holds none
            hold(draft, claim)


def _note_head(draft: Draft, claim: Claim) -> None:
    """In a queue with strict order, remember the first workload that did not start. A replica too few is none."""
    if claim.grows or claim.id in draft.starts or claim.queue in draft.blocking:
        return
    if draft.facts.strict(claim.queue):
        draft.blocking[claim.queue] = behind_head(claim)


def _shut(draft: Draft, walk: Walk, claim: Claim) -> bool:
    """Whether its queue starts nothing now; what runs there may still get back what it lacks."""
    waits = queue_gate(draft, claim.queue, bool(claim.resources.gpu_units)) if not claim.grows else ()
    if not waits:
        return False
    if all(wait.reason is WaitReason.BUDGET for wait in waits):
        _estimate(draft, claim, reopens_s(draft, claim.queue))
    walk.close(Verdict(lambda: waits, False))
    return True


def _kept_behind(draft: Draft, walk: Walk, claim: Claim) -> bool:
    """Whether a head of its queue keeps it waiting; nodes that were ordered for it stay its own."""
    waits = draft.blocking.get(claim.queue)
    if waits is None:
        return False
    if draft.facts.ordered_for(claim.id):
        draft.gated.append(claim)
    walk.close(Verdict(lambda: waits, False))
    return True


def _expect(draft: Draft, walk: Walk, claim: Claim) -> bool:
    """Promise it seats on nodes that are on their way, and say when they should come."""
    members = expect(draft, claim)
    if not members:
        return False
    draft.expected[claim.place] = members
    awaited = awaited_groups(draft, [member.node for member in members])
    wait, expected_s = provisioning_wait(draft, awaited)
    walk.tell(Verdict(lambda: (*room_waits(draft, claim.shape), wait), True))
    _estimate(draft, claim, expected_s)
    return True


def _moved_for(draft: Draft, claim: Claim) -> bool:
    """Move others for it, where nobody loses its place by that."""
    key = ("moved", draft.kind(claim))
    if key in draft.failed or delay_left_s(claim.workload, draft.facts.now_s):
        return False
    if consolidate(draft, claim):
        return True
    draft.failed.add(key)
    return False


def _evict(draft: Draft, claim: Claim) -> bool:
    """Reclaim what the queue deserves; else take the room of who ranks behind it in its queue, where the profile says
    so; else preempt lower priority; else shrink what is as important; else reclaim where it lies. A shape that failed
    in its queue fails again.

    While more important work of the same queue waits, less important work evicts nobody: it would only get the room
    to lose it to the former.
    """
    if draft.waiting.get(claim.queue, claim.priority) > claim.priority:
        return False
    if not draft.facts.profile.preemption:
        return False  # everybody is protected
    if delay_left_s(claim.workload, draft.facts.now_s):
        return False
    kind = draft.kind(claim)
    for name, means in MEANS.items():
        key = (name, kind)
        if key in draft.failed:
            continue
        if means(draft, claim):
            return True
        draft.failed.add(key)
    return False


MEANS: Mapping[str, Callable[[Draft, Claim], bool]] = {
    "reclaim": lambda draft, claim: evict(draft, claim, StopCause.RECLAIMED),
    "by order": evict_by_order,
    "preempt": lambda draft, claim: evict(draft, claim, StopCause.PREEMPTED),
    "surplus": take_surplus,
    "reclaim by place": reclaim_by_place,
}
"""How a claim may take the room of others, in this order."""


def _estimate(draft: Draft, claim: Claim, expected_s: float | None) -> None:
    """When it should start. A running one that lacks a seat is not waiting."""
    if expected_s is not None and not claim.grows:
        draft.estimates.setdefault(claim.id, expected_s)


# ---------------------------------------------------------------- 9: arbitrate


def _arbitrate(draft: Draft, capacity: Scale) -> Plan:
    """Stops, shrinks, starts, growths, reservations and the demand for capacity: what frees room comes first.

    A workload that is stopped is not resized as well, and each running one is resized by one decision.
    """
    sizes = {id: _resize(draft, id) for id in sorted({*draft.removals, *draft.added}) if id not in draft.stops}
    shrinks = [resize for resize in sizes.values() if resize.remove]
    grows = [resize for resize in sizes.values() if not resize.remove]
    reserves = [r for r in draft.reserves if r.workload not in draft.stops] + draft.moved
    decisions: list[Decision] = [
        *draft.stops.values(),
        *shrinks,
        *draft.starts.values(),
        *grows,
        *reserves,
        *draft.watches,
        capacity,
    ]
    facts = draft.facts
    return Plan(
        versions=facts.snapshot.versions,
        now_s=facts.now_s,
        decisions=tuple(decisions),
        waits=draft.waits,
        estimates=Estimates(draft.waits, draft.estimates),
        reservations=tuple(draft.reservations[id] for id in sorted(draft.reservations)),
        cells=draft.cells.views() if draft.cells is not None else (),
        positions=Positions(draft.walk.places if draft.walk is not None else lambda: iter(())),
    )


def _resize(draft: Draft, id: WorkloadId) -> Resize:
    removal = draft.removals.get(id)
    added = tuple(draft.added.get(id, ()))
    reasons = [removal.reason] if removal is not None else []
    if added:
        reasons.append(f"{len(added)} more seats")
    return Resize(
        workload=id,
        attempt=draft.facts.workloads[id].attempt,
        add=added,
        remove=tuple(sorted(removal.numbers)) if removal is not None else (),
        reason="; ".join(reasons),
        release_by_s=removal.release_by_s if removal is not None else None,
        beneficiary=removal.beneficiary if removal is not None else None,
        cost_gpu_s=removal.cost_gpu_s if removal is not None else 0.0,
    )
