"""Whether nodes that nobody counts on would be used after all, if those that wait sat elsewhere.

Stage 8 seats those that wait in their order, each where it likes best. So a gang that takes any GPU model may take the
only node that another could use; the other finds no place, and nodes that the first could have taken as well seem to be
too many. Before such nodes are given back everybody is seated once more, those that found no place first.
"""

from __future__ import annotations

from collections.abc import Sequence

from rayorch.core.planning.claims import Claim
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.groups_there import holds_together
from rayorch.core.planning.provision import Stock

ROUNDS = 3
"""Most times that everybody is seated anew for one of them: each time who loses his place by it goes first too."""

MOST_TRIED = 4
"""For how many of those that found no place, each of another shape, that is done."""

Place = tuple[str, int]


def reseated(draft: Draft, asking: Sequence[Claim], placeless: Sequence[Claim]) -> Stock | None:
    """Books in which more of `asking` have a place on what is there or coming, and nobody has lost his.

    None when there are none, as far as a few rounds show. `placeless`: those that found no place in their order.
    """
    without = {claim.place for claim in placeless}
    order = {claim.place: number for number, claim in enumerate(asking)}
    seated = [claim for claim in asking if claim.place not in without]
    first: set[Place] = set()
    best: Stock | None = None
    for claim in list({claim.shape: claim for claim in reversed(placeless)}.values())[-MOST_TRIED:][::-1]:
        everybody = sorted([*seated, claim], key=lambda claim: order[claim.place])
        found = _with_all(draft, everybody, first | {claim.place})
        if found is not None:
            best, first = found
            seated = everybody
    return best


def _with_all(draft: Draft, claims: Sequence[Claim], first: set[Place]) -> tuple[Stock, set[Place]] | None:
    """Books in which all of them have a place, and who has to go first for that."""
    wanted = {claim.place for claim in claims}
    for _ in range(ROUNDS):
        stock = _without_promises(draft)
        turns = sorted(range(len(claims)), key=lambda n: (claims[n].place not in first, n))
        lost = wanted - {claims[n].place for n in turns if _seat(draft, stock, claims[n])}
        if not lost:
            return stock, first
        if lost <= first:
            return None
        first = first | lost
    return None


def _without_promises(draft: Draft) -> Stock:
    """Books on which those that have been promised seats on coming nodes can sit elsewhere."""
    room = draft.soon.room.copy()
    for members in draft.expected.values():
        for member in members:
            room.give(member.node, member.bundle, member.devices)
    return Stock(draft, room)


def _seat(draft: Draft, stock: Stock, claim: Claim) -> bool:
    trial = stock.seat(claim, grow=False)
    if trial is None or not holds_together(draft, claim.shape, trial):
        return False
    stock.keep(trial, claim, benefits=False)
    return True
