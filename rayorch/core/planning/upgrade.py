"""Stage 7, last of all: a running gang is moved to a GPU model that it would rather have, if that pays.

Only when nobody who waits could use the room, at most one gang a turn, soon after a committed checkpoint, and never
within the cooldown. The gang is its own beneficiary: it is stopped like any other, its new seats are kept free while it
leaves, and it goes before all others when it is back in its queue.
"""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.decisions import Reserve, Stop
from rayorch.core.forecast import Forecast
from rayorch.core.planning.adapt import coveted
from rayorch.core.planning.cells import keeping
from rayorch.core.planning.claims import Claim, next_start
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.rights import comes_back
from rayorch.core.planning.seats import find
from rayorch.core.service import run_s
from rayorch.core.types import (
    MODEL_PREFIX,
    UNIT,
    Allocation,
    Kind,
    MemberPhase,
    NodeId,
    Resources,
    State,
    StopCause,
    StopOrder,
    Workload,
)


def keep_promises(draft: Draft) -> None:
    """Whoever leaves its seats for better ones keeps those: they are charged before anybody is looked at."""
    for gone in draft.facts.leaving:
        workload = draft.facts.workloads.get(gone.workload) if gone.beneficiary == gone.workload else None
        if workload is not None and workload.state is State.STOPPING:
            claim = _claim(draft, workload, workload.spec.accelerators)
            nodes = promised(draft, workload, claim) or find(claim.shape, draft.search(draft.soon.room))
            if nodes is not None:
                members = draft.charge(claim, nodes, draft.soon)
                draft.reserves.append(Reserve(workload.id, members, True, "the seats that it moves to"))


def promised(draft: Draft, workload: Workload, claim: Claim) -> tuple[NodeId, ...] | None:
    """The nodes that its stop order says it moves to, if all of them still have the room."""
    order = workload.stop
    seats = {(role, index): NodeId(node) for role, index, node in order.seats} if order is not None else {}
    nodes = tuple(seats[ask.role, ask.index] for ask in claim.asks if (ask.role, ask.index) in seats)
    if not nodes or len(nodes) < len(claim.asks):
        return None
    room = draft.soon.room.copy()
    for ask, node in zip(claim.asks, nodes, strict=True):
        if not room.fits(node, ask.bundle):
            return None
        room.take(node, ask.bundle)
    return nodes


def upgrade(draft: Draft) -> None:
    """Move the first gang, by priority and age, for which a better model is free and worth it."""
    knobs = draft.facts.profile.models
    if not knobs.upgrade or not draft.facts.snapshot.synced or not draft.facts.profile.preemption:
        return
    able = [(w, a) for w, a in draft.facts.live() if _may_move(draft, w, a) and _better(draft, w, a)]
    if not able:
        return
    taken = coveted(draft)
    for workload, allocation in sorted(able, key=lambda p: (-p[0].spec.priority, p[0].submitted_s, p[0].id)):
        if _move(draft, workload, allocation, taken):
            return


def _may_move(draft: Draft, workload: Workload, allocation: Allocation) -> bool:
    """Whether it is a gang that runs undisturbed, at its minimum, long enough, and has just saved its work."""
    knobs, now_s, spec = draft.facts.profile.models, draft.facts.now_s, workload.spec
    if workload.state is not State.RUNNING or workload.ready_s is None or spec.kind in (Kind.SERVE, Kind.GANG):
        return False
    if len(spec.accelerators) < 2 or spec.any_model or workload.id in draft.protected or workload.cell:
        return False
    changing = workload.id in draft.stops or workload.id in draft.removals or workload.id in draft.added
    whole = all(m.phase is MemberPhase.READY for m in allocation.members)
    if changing or not whole or any(m.surplus not in allocation.gang for m in allocation.members):
        return False
    saved = workload.checkpoint
    if saved is None or saved.attempt != workload.attempt:
        return False
    rested = now_s - (workload.started_s or 0.0) >= knobs.upgrade_cooldown_s
    just_saved = now_s - saved.committed_s <= knobs.upgrade_after_checkpoint_s
    return rested and just_saved and comes_back(draft, workload)


def _better(draft: Draft, workload: Workload, allocation: Allocation) -> tuple[str, ...]:
    """The models that it would rather have than the one that it holds."""
    models = draft.facts.topology.models
    held = {models.get(m.node, "") for m in allocation.members}
    wanted = workload.spec.accelerators
    places = [n for n, model in enumerate(wanted) if model in held]
    return wanted[: min(places)] if places else ()


def _claim(draft: Draft, workload: Workload, models: tuple[str, ...]) -> Claim:
    claim = draft.prices.of_claim(next_start(workload))
    return draft.narrowed(claim.on_models(models))


def _move(draft: Draft, workload: Workload, allocation: Allocation, taken: frozenset[NodeId]) -> bool:
    facts = draft.facts
    cost_gpu_s = facts.profile.victims(workload, allocation, facts.now_s)
    gain_gpu_s = facts.profile.models.upgrade_gain * _remaining_s(draft, workload) * allocation.charge.gpu_units / UNIT
    if gain_gpu_s <= cost_gpu_s:
        return False
    for model in _better(draft, workload, allocation):
        claim = _claim(draft, workload, (model,))
        if claim.shape.accelerators != (model,) or not _model_fits(draft, claim):
            continue
        search = draft.search(*(books.room for books in draft.both))
        nodes = find(claim.shape, replace(search, closed=search.closed | taken | keeping(draft, claim)))
        if nodes is None:
            continue
        reason = f"{model} is free: about {gain_gpu_s:.0f} GPU-seconds are saved, {cost_gpu_s:.0f} lost"
        by_s = facts.now_s + workload.spec.grace_s
        order = StopOrder(StopCause.MOVED, reason, facts.now_s, by_s, workload.id)
        draft.stop(Stop(workload.id, workload.attempt, order, cost_gpu_s))
        members = draft.charge(claim, nodes, draft.soon)
        draft.moved.append(Reserve(workload.id, members, True, reason))
        return True
    return False


def _model_fits(draft: Draft, claim: Claim) -> bool:
    """Whether limits on that model leave room; all else that the queue counts stays as it is by the move."""
    more = Resources(tuple(item for item in claim.resources if item[0].startswith(MODEL_PREFIX)))
    return all(books.quota.fits(claim.queue, more) for books in draft.both)


def _remaining_s(draft: Draft, workload: Workload) -> float:
    """What the forecast says; where it knows nothing, as long as it has run so far."""
    found = Forecast(draft.facts.snapshot.history, draft.facts.now_s).remaining(workload)
    return found[0] if found is not None else run_s(workload, draft.facts.now_s)
