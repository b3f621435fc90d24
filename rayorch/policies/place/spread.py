"""Spread: the emptiest node, so that a node's loss takes few members and neighbours share little of its links.

What Volcano's least-requested, YuniKorn's fair and KAI's spread node sorting do. It costs large gangs whole nodes.
"""

from __future__ import annotations

from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import CPU, Resources


@scored_by(ScoreBasis.STATE)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """Most GPUs left first, then most CPUs left."""
    return (bundle.gpu_units - node.slot.gpu_units, bundle.units(CPU) - node.slot.amounts.get(CPU, 0))
