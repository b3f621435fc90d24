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

ROUNDS = 4
"""Most times that everybody is seated anew: each time those that lose their place by it go first as well."""

Place = tuple[str, int]


def reseated(draft: Draft, asking: Sequence[Claim], placeless: Sequence[Claim]) -> Stock | None:
    """Books in which one more of `asking` has a place on what is there or coming, and nobody has lost his.

    None when there are none, as far as a few rounds show. `placeless`: those that found no place in their order.
    """
    if not placeless:
        return None
    wanting = {claim.place for claim in placeless}
    seated = {claim.place for claim in asking} - wanting
    first = set(wanting)
    for _ in range(ROUNDS):
        stock = _without_promises(draft)
        turns = sorted(range(len(asking)), key=lambda n: (asking[n].place not in first, n))
        found = {asking[n].place for n in turns if _seat(draft, stock, asking[n])}
        lost = seated - found
        if not lost:
            return stock if found & wanting else None
        if lost <= first:
            return None
        first |= lost
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
