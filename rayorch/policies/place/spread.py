"""Spread: the emptiest node, so that a node's loss takes few members and neighbours share little of its links.

What Volcano's least-requested, YuniKorn's fair and KAI's spread node sorting do. It costs large gangs whole nodes.
"""

from __future__ import annotations

from rayorch.core.policy import SortKey
from rayorch.core.types import CPU, NodeSpec, Resources


def score(bundle: Resources, node: NodeSpec, free: Resources) -> SortKey:
    """Most GPUs left first, then most CPUs left."""
    return (bundle.gpu_units - free.gpu_units, bundle.units(CPU) - free.units(CPU))
