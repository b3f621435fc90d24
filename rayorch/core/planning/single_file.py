"""A turn over work that goes in single file: one after the other starts, and whoever can't ends the turn.

Where nobody who runs has to be looked at, and one workload waits alone or all that wait are in one queue with strict
order, most stages have nothing to say: there is one order, nobody is compared, nobody passes a head. What is left of
the walk is `place` for each in order, and room held for the one that finds none. That is what nearly all turns of a
trace with first in, first out consist of.

The long way (`planner._seated`) would come to the same: stages 1, 2 and 8 find nobody in a calm world
(`Memory.calm`), no gate is closed, nobody evicts, is moved or is waited for (no preemption, no promises, no nodes on
their way), and behind the head all wait for it. Whatever else there is goes the long way. What those who wait are told
is worked out by a plan made anew when somebody asks, so of a head that blocks only for a memory that lends.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from rayorch.core.ordering import Basis, basis_of
from rayorch.core.planning.adapt import adapt
from rayorch.core.planning.attention import is_special
from rayorch.core.planning.charges import fits_quota
from rayorch.core.planning.claims import Claim, Gang, start_claim
from rayorch.core.planning.draft import Draft
from rayorch.core.planning.flavors import in_free_order
from rayorch.core.planning.lines import Docket
from rayorch.core.planning.place import hold, place
from rayorch.core.planning.queue_gates import queue_gate
from rayorch.core.planning.waits import behind_head
from rayorch.core.types import Workload


class Filed(Enum):
    """What came of it."""

    NOT = "not"  # it has to go the long way, on the same draft
    STARTED = "started"  # nobody waits any more
    BLOCKED = "blocked"  # somebody does, and all behind it


def single_file(draft: Draft, line_up: Callable[[], Docket]) -> Filed:
    """Start one after the other, where that is all that there is to do. `line_up`: all that wait, in their order."""
    memory, docket = draft.memory, draft.memory.docket
    if memory.nobody_waits or not _is_plain(draft):
        return Filed.NOT
    timeless = basis_of(draft.facts.profile.order) is Basis.WORKLOAD  # else an order looks at whoever waits
    if timeless and len(memory.fresh) == 1 and not len(docket) and not docket.arrays:
        (workload,) = memory.fresh.values()
        if is_special(workload) or workload.spec.array is not None:
            return Filed.NOT
        return _alone(draft, workload, docket.gang(workload))
    docket = line_up()
    queue = docket.sole
    if queue is None or docket.special or docket.arrays:
        return Filed.NOT
    if len(docket) == 1:
        workload, line = next(docket.in_order(queue))
        return _alone(draft, workload, line.gang)
    profile = draft.facts.profile
    if not memory.lends or profile.preemption or not draft.facts.strict(queue) or queue_gate(draft, queue, True):
        return Filed.NOT
    for workload, line in docket.in_order(queue):
        claim = _claim(draft, workload, line.gang)
        if not _place(draft, claim):
            _block(draft, claim, line.entries[-1][1] is not workload)
            break
    adapt(draft)
    return Filed.BLOCKED if draft.blocking else Filed.STARTED


def _is_plain(draft: Draft) -> bool:
    """Whether nothing but room and quota decides about those who wait."""
    facts = draft.facts
    snapshot, profile = facts.snapshot, facts.profile
    models = profile.models
    by_model = models.next_before_borrowing or models.evict_before_next or models.evict_before_borrowing
    return (
        draft.memory.calm(snapshot, profile)
        and snapshot.synced
        and not (snapshot.budgets or facts.arriving or facts.orders or profile.eviction.passes or by_model)
    )


def _alone(draft: Draft, workload: Workload, gang: Gang) -> Filed:
    """The only one that waits: it starts, or goes the long way, where it finds out anew that it finds no room."""
    spec = workload.spec
    if queue_gate(draft, spec.queue, True) or not _place(draft, _claim(draft, workload, gang)):
        return Filed.NOT
    adapt(draft)
    return Filed.STARTED


def _claim(draft: Draft, workload: Workload, gang: Gang) -> Claim:
    claim = start_claim(workload, draft.prices.of_gang(gang))
    return draft.narrowed(in_free_order(draft, claim))


def _place(draft: Draft, claim: Claim) -> bool:
    return any(place(draft, way) for way in claim.ways)


def _block(draft: Draft, claim: Claim, others: bool) -> None:
    """It keeps its queue waiting, and holds nodes if room is all that it lacks. `others`: more ask for the same."""
    if fits_quota(claim, *(books.quota for books in draft.both)):
        draft.unplaced.append((claim.shape, claim.id, others))
        hold(draft, claim)
    draft.blocking[claim.queue] = behind_head(claim)
