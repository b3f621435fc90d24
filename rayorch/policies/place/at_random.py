"""At random: any node that takes the work, each as probable as the other.

What other policies are compared with (Weng et al., ATC'23). The choice follows from who asks and the profile's seed
alone, so that the same turn gives the same plan.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import cast

from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import Resources

MASK = 2**64 - 1


@scored_by(ScoreBasis.CLAIM)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """A number that only (seed, who asks, node) decide."""
    return (_mixed(_drawn(view, f"{view.seed}/{view.claim}") ^ _drawn(view, node.spec.id)),)


def device(bundle: Resources, node: NodeView, view: PlacementView) -> int | None:
    """Any GPU that takes the share."""
    able = [position for position, free in enumerate(node.devices) if free >= bundle.gpu_units]
    return able[_drawn(view, f"{view.seed}/{view.claim}/device") % len(able)] if able else None


def _mixed(number: int) -> int:
    """Spread over all 64 bits (the finaliser of splitmix64)."""
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & MASK
    return number ^ number >> 31


def _drawn(view: PlacementView, text: str) -> int:
    known = view.memo.get(text)
    if known is None:
        known = view.memo[text] = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
    return cast(int, known)
