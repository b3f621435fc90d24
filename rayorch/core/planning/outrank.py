"""Stage 6, between reclaim and preempt. By order: whoever waits takes the room of who ranks behind it in its queue.

Only where the profile says so (`EvictionKnobs.by_order`) and its order ranks running work (`core.ordering.ranks`):
least attained service by levels, shortest remaining time. Priorities are part of such a rank; across queues it says
nothing. All who rank behind the claim are asked to leave, and then, the most entitled first, each stays whom the claim
can do without: what a walk over running and waiting work in one order leaves running (Tiresias). Of equal rank those
stay whose stop would lose most. A victim ranks behind the one that it made room for, so that it can't take the room
back before their ranks have changed; and from this one not even then, unless the order says that it may.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from rayorch.core.ordering import SortKey, rank_of, takes_back
from rayorch.core.planning.claims import Claim
from rayorch.core.planning.draft import Draft, Move
from rayorch.core.planning.evict import Found, Trial, lacks_only_quota, order, single
from rayorch.core.planning.victims import may_go, moves_of
from rayorch.core.types import UNIT, NodeId, QueueId, StopCause, Workload, WorkloadId

Ranked = tuple[SortKey, float, SortKey, Workload]
"""(rank, less what its stop would lose, the whole key, who)."""


def evict_by_order(draft: Draft, claim: Claim) -> bool:
    """Stop those whom the claim outranks and can't do without; False: nobody, or it finds no place all the same."""
    knobs = draft.facts.profile.eviction
    if not knobs.by_order or draft.budget <= 0 or lacks_only_quota(draft, claim):
        return False
    moves, ranks = _behind(draft, claim)
    if not moves:
        return False
    most = knobs.order_worth_s * claim.shape.gpu_units / UNIT if knobs.order_worth_s else float("inf")
    for shape in claim.shape.by_model:
        trial = Trial.on(draft, claim, shape, False)
        found = _fewest(trial, moves, ranks)
        if found is not None and sum(move.cost_gpu_s for move in found.moves) <= most:
            order(draft, claim, StopCause.PREEMPTED, found, f"preempted for {claim.id}, which goes before it by order")
            return True
    return False


# ---------------------------------------------------------------- who ranks behind


def _behind(draft: Draft, claim: Claim) -> tuple[list[Move], dict[WorkloadId, SortKey]]:
    """What those give who rank behind the claim, the most entitled first, and how they rank.

    Surplus seats come after all whole attempts.
    """
    ranked = rank_of(draft.facts.profile.order, claim.workload, draft.view)
    if ranked is None:
        return [], {}
    line, back = _line(draft, claim.queue), takes_back(draft.facts.profile.order)
    stops: list[Move] = []
    shrinks: list[Move] = []
    ranks: dict[WorkloadId, SortKey] = {}
    for rank, _, _, workload in line[bisect_right(line, ranked[0], key=lambda entry: entry[0]) :]:
        for move in moves_of(draft, workload):
            if may_go(draft, claim, move, False, back):
                ranks[workload.id] = rank
                (stops if move.stops else shrinks).append(move)
    return [*stops, *shrinks], ranks


def _line(draft: Draft, queue: QueueId) -> list[Ranked]:
    """All who run in a queue, the most entitled first. Made once a turn."""
    line = draft.ranked.get(queue)
    if line is None:
        line = []
        for workload in draft.facts.live_in.get(queue, ()):
            ranked = rank_of(draft.facts.profile.order, workload, draft.view)
            moves = moves_of(draft, workload)
            if ranked is not None and moves:
                line.append((ranked[0], -max(move.price for move in moves), (*ranked[1], workload.id), workload))
        line.sort(key=lambda entry: entry[:3])
        draft.ranked[queue] = line
    return line


# ---------------------------------------------------------------- whom the claim can do without


def _fewest(trial: Trial, moves: Sequence[Move], ranks: Mapping[WorkloadId, SortKey]) -> Found | None:
    """The moves that are left when each, the most entitled first, is spared that the claim can do without.

    Where more than numbers counts, one attempt in place of several, if it ranks no higher and loses less.
    """
    stopping = {move.victim.id for move in moves if move.stops}
    freed = sum(trial.freed_gpu_units(move) for move in moves if move.stops or move.victim.id not in stopping)
    spare = freed - trial.missing_gpu_units
    if spare < 0:
        return None
    chosen = _by_numbers(trial, moves, spare)
    if chosen and (nodes := trial.seats(chosen)) is not None:
        return Found(tuple(chosen), nodes)
    found = _by_trial(trial, list(moves))
    if found is None or not found.moves:
        return found
    best = min(ranks[move.victim.id] for move in found.moves)
    others = [move for move in moves if move.stops and ranks[move.victim.id] >= best]
    return single(trial, sorted(others, key=lambda move: move.key), found)


def _by_numbers(trial: Trial, moves: Sequence[Move], spare: int) -> list[Move]:
    """The same where only the number of GPUs counts, `spare` units more than are needed."""
    surplus: dict[str, int] = {}
    for move in moves:
        if not move.stops:
            surplus[move.victim.id] = surplus.get(move.victim.id, 0) + trial.freed_gpu_units(move)
    gone: set[str] = set()
    chosen: list[Move] = []
    for move in moves:  # attempts without their surplus first, then surplus seats of those that stay
        units = trial.freed_gpu_units(move)
        if move.stops:
            units -= surplus.get(move.victim.id, 0)
        elif move.victim.id in gone:
            continue
        if units <= spare:
            spare -= units
            continue
        chosen.append(move)
        if move.stops:
            gone.add(move.victim.id)
    return chosen


def _by_trial(trial: Trial, chosen: list[Move]) -> Found | None:
    """The same by what-ifs: runs of moves that are all spared are found in few of them."""
    nodes: tuple[NodeId, ...] | None = trial.seats(chosen)
    if nodes is None:
        return None
    position, size = 0, 1
    while position < len(chosen):
        fewer = chosen[:position] + chosen[position + size :]
        found = trial.seats(fewer)
        if trial.draft.budget <= 0:
            return None  # nobody is stopped who might have been spared
        if found is not None:
            chosen, nodes, size = fewer, found, size * 2
        elif size > 1:
            size //= 2
        else:
            position += 1
    return Found(tuple(chosen), nodes)
