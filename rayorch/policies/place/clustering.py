"""Clustering: tasks that ask for the same of a GPU lie together.

Xiao et al., "Gandiva" (OSDI'18) packs jobs of one size on nodes of their own; the FGD paper (ATC'23) compares it as
GpuClustering. What runs on a node is read from what is free: a device carries tasks of this size when what is used of
it is a multiple of that size. That can't be told apart from another mix that adds up to the same.
"""

from __future__ import annotations

from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import UNIT, Resources


@scored_by(ScoreBasis.STATE)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """Nodes of tasks of this size first, then idle ones, then others; of each those with least free."""
    devices, size = node.devices, min(bundle.gpu_units, UNIT)
    used = [UNIT - free for free in devices if free < UNIT]
    alike = sum(size > 0 and part % size == 0 for part in used)
    if alike:
        rank = 0 if alike == len(used) else 1
    else:
        rank = 2 if not used else 3
    return (rank, 10 * node.slot.gpu_units // UNIT)


def device(bundle: Resources, node: NodeView, view: PlacementView) -> int | None:
    """The fullest GPU with tasks of this size; else the one that the share leaves with least."""
    units = bundle.gpu_units
    alike = [(free, p) for p, free in enumerate(node.devices) if units <= free < UNIT and (UNIT - free) % units == 0]
    return min(alike)[1] if alike else None
