"""Stage 5, at the end of the walk. Backfill: who is short enough starts on nodes that are held for a head.

A head that finds no room holds nodes from the time at which it should start on them (`timeline.py`). Until then they
stand open to whoever has certainly left: the forecast of its own end is the one that holds in nine of ten cases, that
of what the head waits for the one that holds in half of them, so that the head comes first where estimates are wrong.
With exact estimates no head is ever delayed: what was let in is gone when its time comes, and that never moves back.

EASY backfill (Lifka 1995) with a reservation for each of the first heads; differs in that the reservation names nodes,
and in that ends are quantiles of what is known instead of the user's limit alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rayorch.core.planning.cells import keeping
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim, Shape
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.seats import find
from rayorch.core.planning.timeline import Timeline
from rayorch.core.planning.together import starts_of
from rayorch.core.planning.walk import Walk


def backfill(draft: Draft, walk: Walk, timeline: Timeline) -> None:
    """Start those who wait for nothing but room and have left before it is needed, in their order."""
    if not draft.until:
        return
    knobs = draft.facts.profile.backfill
    latest_s = max(draft.until.values())
    holders = set(draft.closed.values())
    failed: dict[Shape, float] = {}
    tries = 0
    short = timeline.short(draft, latest_s - draft.facts.now_s)
    for workload, rest in walk.lacking_among(short, knobs.most_looks):
        if tries >= knobs.most_tries:
            return
        shape = rest.shape
        known_s = short.get(workload.spec.id)
        if known_s is not None and rest.claim is None and known_s >= failed.get(shape, math.inf):
            continue  # as most are: told without a claim
        claim = walk.claim_of(workload, rest)
        if claim.grows or claim.id in holders:
            continue
        lengths_s = [timeline.longest_s(part.workload) for part in claim.parts or (claim,)]
        length_s = max((length for length in lengths_s if length is not None), default=None)
        if length_s is None or None in lengths_s or length_s >= failed.get(shape, math.inf):
            continue
        ends_s = draft.facts.now_s + length_s
        if ends_s > latest_s or not all(fits_quota(claim, books.quota) for books in draft.both):
            continue
        tries += 1
        if _start(draft, claim, ends_s):
            for part in claim.parts or (claim,):
                walk.leave(part.id)
        else:
            failed[shape] = length_s


def _start(draft: Draft, claim: Claim, ends_s: float) -> bool:
    """Start it on what is open to it until then."""
    shut = frozenset(node for node in draft.closed if draft.until.get(node, 0.0) < ends_s)
    closed = shut | keeping(draft, claim)
    search = replace(draft.search(*(books.room for books in draft.both)), closed=closed, view=None)
    nodes = find(claim.shape, search)
    if nodes is None:
        return False
    heads = sorted({draft.closed[node] for node in nodes if node in draft.closed})
    members = draft.charge(claim, nodes, *draft.both)
    left_s = ends_s - draft.facts.now_s
    reason = f"{len(members)} seats that are held for {', '.join(heads[:4])} later on; it ends within {left_s:.0f} s"
    for start in starts_of(claim, members, reason, ends_s):
        draft.starts[start.workload] = start
    return True
