"""Stages 5 to 7 action by action: each for all that waits, in the order of the queue tree, before the next one begins.

A profile that names `EvictionKnobs.passes` works so (the preset `kai`): nobody is evicted before all that fits has been
placed, nobody loses its place where moving others is enough, and what queues may take from each other goes by their
fair shares (`entitlement`). Further seats of running and of just started gangs wait in the same line as all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from rayorch.core.decisions import Reserve, Stop, Wait, WaitReason
from rayorch.core.eviction import Action
from rayorch.core.explain import UNBLOCKS
from rayorch.core.planning.asking import next_claims
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim, Shape
from rayorch.core.planning.draft import Draft, Removal
from rayorch.core.planning.entitlement import Entitlements
from rayorch.core.planning.line import Entry, Line
from rayorch.core.planning.place import place, promise
from rayorch.core.planning.rights import comes_back, delay_left_s, delay_wait
from rayorch.core.planning.scenario import Outcome, Search, job_key
from rayorch.core.planning.stale import retire
from rayorch.core.planning.takings import OWED_S
from rayorch.core.planning.waiting import Verdict
from rayorch.core.planning.waits import reasons, releasing_wait
from rayorch.core.planning.walk import Walk
from rayorch.core.policy import SortKey
from rayorch.core.types import Kind, Member, State, StopCause, StopOrder, Workload, WorkloadId, charge_of

CAUSES = {
    Action.CONSOLIDATE: StopCause.MOVED,
    Action.RECLAIM: StopCause.RECLAIMED,
    Action.PREEMPT: StopCause.PREEMPTED,
}


@dataclass(slots=True)
class Session:
    """One turn. `claims`: what each workload that waits for seats asks for next, any one of them, the best first.

    `further`: what applications ask for after that. `failed`: what was tried in vain. `yielded_to`: for whom others
    were told to yield in this turn; who then yields itself would leave them evicted for nobody.
    """

    draft: Draft
    shares: Entitlements
    claims: dict[WorkloadId, tuple[Claim, ...]]
    further: dict[WorkloadId, list[Claim]]
    failed: set[tuple[Action, Shape, str]] = field(default_factory=set)
    yielded_to: set[WorkloadId] = field(default_factory=set)


def run_passes(draft: Draft, walk: Walk) -> None:
    """Do the profile's actions in turn, and record why those that are left don't start."""
    asked = walk.take_all()
    session = Session(draft, Entitlements.of(draft), {}, {})
    for _, claim in asked:
        if claim.id in session.claims:
            session.further.setdefault(claim.id, []).append(claim)
        else:
            session.claims[claim.id] = claim.ways
    for workload, _ in draft.facts.live():
        grows = workload.spec.kind is not Kind.SERVE and workload.state is State.RUNNING
        if grows and draft.facts.snapshot.synced and workload.not_before_s <= draft.facts.now_s:
            session.further.pop(workload.id, None)
            _ask_next(session, workload)
    for action in draft.facts.profile.eviction.passes:
        if action is Action.RETIRE:
            retire(draft)
        else:
            _pass(session, action)
    promised = {reserve.workload: reserve.members for reserve in draft.reserves}
    for key, claim in asked:
        if claim.grows or claim.id in draft.starts:
            continue
        if claim.id in promised:
            wait, expected_s = releasing_wait(draft, promised[claim.id])
            walk.left(key, claim, Verdict(lambda wait=wait: (wait,), False))  # type: ignore[misc]
            if expected_s is not None:
                draft.estimates.setdefault(claim.id, expected_s)
        else:
            _left(session, walk, key, claim)


def _left(session: Session, walk: Walk, key: SortKey, claim: Claim) -> None:
    """It waits: for room, or because quota or the rules of shares forbid it."""
    draft = session.draft
    firm = _firm_waits(session, claim)
    lacks_room = not firm and fits_quota(claim, *(books.quota for books in draft.both))
    walk.left(
        key,
        claim,
        Verdict(
            lambda: (
                *firm,
                *reasons(draft, claim),
                *delay_wait(claim.workload, draft.facts.now_s),
                *_again_wait(session, claim),
            ),
            lacks_room,
        ),
    )
    if lacks_room:
        draft.unplaced.append((claim.shape, claim.id, False))


def _ask_next(session: Session, workload: Workload) -> None:
    """What the workload asks for after what it has been given, if anything."""
    draft = session.draft
    session.claims.pop(workload.id, None)
    ways: tuple[Claim, ...] = ()
    if workload.spec.kind is Kind.SERVE:
        more = session.further.get(workload.id)
        ways = more.pop(0).ways if more else ()
    elif members := draft.standing(workload.id):
        ways = tuple(next_claims(workload, members, draft.facts.topology.models))
    if ways:
        session.claims[workload.id] = tuple(draft.prices.of_claim(claim) for claim in ways)


def _pass(session: Session, action: Action) -> None:
    if action is Action.ALLOCATE:
        _keep_promises(session)
    _go_through(session, action, list(session.claims), once=action is not Action.ALLOCATE)


def _go_through(session: Session, action: Action, ids: Iterable[WorkloadId], once: bool) -> None:
    """Do the action for each of these, in their order; `once`: whoever has been served does not ask again."""
    draft = session.draft
    line = Line(session.shares, draft.soon.quota)
    for id in ids:
        _join(session, line, id)
    while (entry := line.pop()) is not None:
        met = next((claim for claim in session.claims[entry.id] if _serve(session, action, claim)), None)
        line.quota = draft.soon.quota
        if met is None:
            continue
        session.shares.hold_firmly(draft.soon.quota, met.workload.spec, met.resources)
        _ask_next(session, met.workload)
        if not once:
            _join(session, line, entry.id)
        line.refresh()


def _keep_promises(session: Session) -> None:
    """Whoever is owed room that was freed for it goes first, once; else others could take it, and it would evict again.

    Those for whom others left come before those who were moved for them: the room that lies best for these may be the
    very one that they have left. Last come those who are owed what shrinks have freed, in the line of all others: two
    may owe each other what they gave in one moment, and the one that holds more than its share would get it again and
    again. KAI keeps a nomination for a session only.
    """
    facts = session.draft.facts
    shrunk = facts.shrunk_for & session.claims.keys()
    owed = (facts.owed & session.claims.keys()) - shrunk
    for id in sorted(owed, key=lambda id: (_movers_before(session.draft, owed, id), id)):
        met = next((claim for claim in session.claims[id] if _serve(session, Action.ALLOCATE, claim)), None)
        if met is not None:
            session.shares.hold_firmly(session.draft.soon.quota, met.workload.spec, met.resources)
            _ask_next(session, met.workload)
    if shrunk:
        _go_through(session, Action.ALLOCATE, sorted(shrunk), once=True)


def _movers_before(draft: Draft, owed: Collection[WorkloadId], id: WorkloadId) -> int:
    """0 for one who has made room for nobody that is owed it; else one more than for whom it was moved."""
    hops, workload = 0, draft.facts.workloads[id]
    while hops < len(owed):
        if workload.state is not State.PENDING or workload.last_cause is not StopCause.MOVED:
            break
        taker = workload.yielded_to
        if taker is None or taker == workload.id or taker not in owed:
            break
        hops, workload = hops + 1, draft.facts.workloads[taker]
    return hops


def _join(session: Session, line: Line, id: WorkloadId) -> None:
    ways = session.claims.get(id)
    if ways:
        key = job_key(session.draft, ways[0].workload, session.draft.standing(id))
        line.push(Entry(id, ways[0].queue, ways[0].resources, key))


def _serve(session: Session, action: Action, claim: Claim) -> bool:
    if not session.shares.stays_firm(session.draft.soon.quota, claim):
        return False
    return _allocate(session, claim) if action is Action.ALLOCATE else _make_room(session, action, claim)


def _allocate(session: Session, claim: Claim) -> bool:
    """Start it, give it the seats, or promise it room that is free or being freed."""
    draft = session.draft
    if claim.id in draft.starts and claim.grows:  # a gang that starts in this plan takes further seats with it
        if not place(draft, claim):
            return False
        start = draft.starts[claim.id]
        draft.starts[claim.id] = replace(start, members=(*start.members, *draft.added.pop(claim.id)))
        return True
    if claim.grows and claim.workload.state is State.PENDING:  # what it starts with is promised only, so this is too
        return promise(draft, claim)
    return place(draft, claim) or promise(draft, claim)


# ---------------------------------------------------------------- evictions


def _make_room(session: Session, action: Action, claim: Claim) -> bool:
    """Move, reclaim or preempt for the claim; False: it may not, or there is no way."""
    draft = session.draft
    key = (action, claim.shape, "" if action is Action.CONSOLIDATE else claim.queue)
    if key in session.failed or delay_left_s(claim.workload, draft.facts.now_s) or _had_room(session, claim):
        return False
    found = _search(session, action, claim)
    if found is None:
        session.failed.add(key)
        return False
    _order(session, action, claim, found)
    return True


def _had_room(session: Session, claim: Claim) -> bool:
    """Whether room was made for it a moment ago, and it could not start there. It is not made again at once.

    Else the same others could be moved to and fro in one moment, for one that never starts.
    """
    return not claim.grows and claim.id in session.draft.facts.owed


def _search(session: Session, action: Action, claim: Claim) -> Outcome | None:
    draft, shares = session.draft, session.shares
    quota = draft.soon.quota
    spec = claim.workload.spec

    def free(workload: Workload) -> bool:
        id = workload.id
        return id not in draft.protected and id not in draft.added and id not in session.yielded_to

    match action:
        case Action.CONSOLIDATE:
            most = draft.facts.profile.eviction.consolidation_victims
            enough = claim.shape.gpu_units <= draft.soon.room.free_gpu_units
            if most == 0 or not spec.preemptible or not enough:
                return None

            def moves(workload: Workload) -> bool:
                return free(workload) and comes_back(draft, workload)

            return Search(draft, shares, claim, lambda found: not found.lost).run(moves, most, singly=True)
        case Action.RECLAIM:
            if not shares.may_reclaim(quota, claim):
                return None
            givers: dict[str, bool] = {}

            def gives(workload: Workload) -> bool:
                queue = workload.spec.queue
                if queue not in givers:
                    givers[queue] = queue != claim.queue and shares.may_give(quota, claim, queue)
                return givers[queue] and free(workload)

            return Search(draft, shares, claim, lambda found: shares.allows(quota, claim, found.pieces())).run(gives)
        case Action.PREEMPT:

            def yields(workload: Workload) -> bool:
                less = workload.spec.priority < spec.priority and workload.spec.queue == spec.queue
                return less and free(workload)

            return Search(draft, shares, claim, lambda found: True).run(yields)
        case _:
            return None


def _order(session: Session, action: Action, claim: Claim, found: Outcome) -> None:
    """Stop, shrink and move the victims, and promise the claim and the moved ones their seats."""
    draft = session.draft
    if found.gone:
        session.yielded_to.add(claim.id)
    again = {seated.claim.id for seated in found.seated if not seated.claim.grows}
    for id, gone in sorted(found.gone.items()):
        _take(draft, action, claim, found.victims[id].workload, gone, moves=id in again)
    names = ", ".join(sorted(found.gone)) or "nobody"
    for seated in found.seated:
        members = draft.charge(seated.claim, seated.nodes, draft.soon)
        if seated.claim.id == claim.id:
            draft.reserves.append(Reserve(claim.id, members, True, f"seats that {names} gives up"))
        else:
            draft.moved.append(
                Reserve(seated.claim.id, members, True, f"its seats when it has made room for {claim.id}")
            )


def _take(
    draft: Draft, action: Action, claim: Claim, workload: Workload, gone: tuple[Member, ...], moves: bool
) -> None:
    """Order the victim's stop, or its shrink, where it keeps something."""
    now_s = draft.facts.now_s
    by_s = now_s + workload.spec.grace_s
    cause = StopCause.MOVED if moves else CAUSES[action]
    reason = f"{cause.value} for {claim.id} (priority {claim.priority}, queue {claim.queue})"
    allocation = draft.facts.held[workload.id]
    cost = draft.facts.profile.victims(workload, allocation, now_s)
    if all(m in gone for m in draft.staying(workload.id)):
        draft.stop(Stop(workload.id, workload.attempt, StopOrder(cause, reason, now_s, by_s, claim.id), cost))
        return
    part = charge_of(gone).gpu_units / max(1, allocation.held.gpu_units)
    draft.remove(workload, {m.surplus for m in gone}, Removal(set(), by_s, claim.id, reason))
    draft.removals[workload.id].cost_gpu_s += cost * part


def _again_wait(session: Session, claim: Claim) -> tuple[Wait, ...]:
    """That nobody makes room for it so soon again, if so."""
    if not _had_room(session, claim):
        return ()
    detail = f"room that was made for it within the last {OWED_S:.0f} s has gone; none is made again so soon"
    return (Wait(WaitReason.PREEMPTION_DELAY, detail, unblocks=f"{OWED_S:.0f} s of waiting"),)


def _firm_waits(session: Session, claim: Claim) -> tuple[Wait, ...]:
    """Why work that can't be preempted may not start although there is room: it may only use what queues deserve."""
    if session.shares.stays_firm(session.draft.soon.quota, claim):
        return ()
    detail = "it can't be preempted, so it may only use what its queue and those above it deserve, and that is in use"
    return (Wait(WaitReason.QUOTA, detail, unblocks=UNBLOCKS[WaitReason.QUOTA]),)
