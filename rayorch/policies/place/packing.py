"""Packing: GPUs that are shared already first, then free GPUs of nodes in use, then idle nodes.

Weng et al., "MLaaS in the Wild" (NSDI'22), as the FGD paper (ATC'23) compares it under the name GpuPacking: whole
nodes are kept for large tasks.
"""

from __future__ import annotations

from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import UNIT, Resources
from rayorch.policies.place import best_fit


@scored_by(ScoreBasis.STATE)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """(0, what is free of a shared GPU), else (1 for a node in use or 2 for an idle one, its wholly free GPUs)."""
    units, devices = bundle.gpu_units, node.devices
    whole = sum(free == UNIT for free in devices)
    shared = [free for free in devices if units <= free < UNIT]
    if 0 < units < UNIT and shared:
        return (0, 10 * min(shared) // UNIT)
    return (1 if whole < len(devices) else 2, whole)


device = best_fit.device
