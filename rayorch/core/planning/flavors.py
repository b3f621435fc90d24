"""A claim that names several GPU models, where the profile has it that not just the first with room is taken.

After Kueue's flavorFungibility. Every model is one claim; the mildest means that the knobs allow are used, model by
model in their order: room within the queue's share, then what the knobs put before the next model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from rayorch.core.planning.claims import Claim
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.place import place, promise

Evict = Callable[[Draft, Claim], bool]


class Served(Enum):
    """What became of a claim."""

    NOT = "not"  # nothing yet: it goes on as any other
    STARTED = "started"
    RELEASING = "releasing"  # seats are being freed for it


def in_free_order(draft: Draft, claim: Claim) -> Claim:
    """A claim without a preference tries the model first of which most is free, so that scarce ones are left.

    Where the knobs have it, the score of the nodes decides of which model a single seat is.
    """
    models = claim.shape.accelerators
    if not claim.workload.spec.any_model or len(models) < 2:
        return claim
    if draft.facts.profile.models.by_score and len(claim.asks) == 1 and not claim.others:
        return replace(claim, shape=replace(claim.shape, by_score=True))
    return claim.on_models(tuple(sorted(models, key=lambda model: (-_free_of(draft, model), models.index(model)))))


def fall_through(draft: Draft, claim: Claim, evict: Evict) -> Served:
    """Serve the claim on one of its models as the knobs say; NOT where they say nothing, or nothing helped."""
    knobs = draft.facts.profile.models
    changed = knobs.next_before_borrowing or knobs.evict_before_next or knobs.evict_before_borrowing
    models = claim.shape.accelerators
    if not changed or len(models) < 2:
        return Served.NOT
    borrowing: list[Claim] = []
    tight: list[Claim] = []
    for one in (claim.on_models((model,)) for model in models):
        borrows = draft.now.quota.borrows(claim.queue, one.resources)
        if borrows and (knobs.next_before_borrowing or knobs.evict_before_borrowing):
            borrowing.append(one)
        elif place(draft, one):
            return Served.STARTED
        elif knobs.evict_before_next:
            if promise(draft, one) or evict(draft, one):
                return Served.RELEASING
        else:
            tight.append(one)
    if knobs.evict_before_borrowing and any(promise(draft, one) or evict(draft, one) for one in tight):
        return Served.RELEASING
    return Served.STARTED if any(place(draft, one) for one in borrowing) else Served.NOT


def _free_of(draft: Draft, model: str) -> int:
    """GPU units of a model that are free when it is first asked for; O(nodes), once a turn."""
    if draft.model_room is None:
        found: dict[str, int] = {}
        for node, its in draft.facts.topology.models.items():
            found[its] = found.get(its, 0) + draft.now.room.gpu_units(node)
        draft.model_room = found
    return draft.model_room.get(model, 0)
