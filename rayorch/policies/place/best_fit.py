"""Best fit: the node that is left with the fewest free GPUs, so that whole nodes stay free for large gangs.

Tetris (Grandl 2014) and MLaaS in the Wild (Weng 2022) measure what fragmentation costs; best fit by GPUs is the plain
rule that both start from. Work without GPUs goes where fewest GPUs are free, for the same reason.
"""

from __future__ import annotations

from rayorch.core.policy import SortKey
from rayorch.core.types import CPU, UNIT, NodeSpec, Resources


def score(bundle: Resources, node: NodeSpec, free: Resources) -> SortKey:
    """Fractions first fill devices that are broken already; then fewest GPUs left, then fewest CPUs left."""
    fraction = bundle.gpu_units % UNIT
    breaks_a_device = bool(fraction) and free.gpu_units % UNIT < fraction
    return (int(breaks_a_device), free.gpu_units - bundle.gpu_units, free.units(CPU) - bundle.units(CPU))
