"""Best fit: the node that is left with the fewest free GPUs, so that whole nodes stay free for large gangs.

Tetris (Grandl 2014) and MLaaS in the Wild (Weng 2022) measure what fragmentation costs; best fit by GPUs is the plain
rule that both start from. Work without GPUs goes where fewest GPUs are free, for the same reason.
"""

from __future__ import annotations

from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import CPU, UNIT, Resources


def device(bundle: Resources, node: NodeView, view: PlacementView) -> int | None:
    """The GPU that a share leaves with least."""
    return None


@scored_by(ScoreBasis.STATE)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """Fractions first fill devices that are broken already; then fewest GPUs left, then fewest CPUs left."""
    units, free = bundle.gpu_units, node.slot.gpu_units
    fraction = units % UNIT
    breaks_a_device = bool(fraction) and free % UNIT < fraction
    return (int(breaks_a_device), free - units, node.slot.amounts.get(CPU, 0) - bundle.units(CPU))
