"""Dot product: the node whose free amounts point least in the direction of what is asked for.

Grandl et al., "Multi-resource Packing for Cluster Schedulers" (Tetris, SIGCOMM'14) align demand with what is free;
the FGD paper (ATC'23) compares the form in which the smallest product goes first, so that what fits a task best is
kept: free amounts and demand as parts of the largest node, CPUs and GPUs. Rounded to a hundredth, ties go to the
first by name.
"""

from __future__ import annotations

import math

from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import CPU, UNIT, Resources
from rayorch.policies.place import best_fit
from rayorch.policies.place.weighted_best_fit import LARGEST_CPUS, LARGEST_GPUS


@scored_by(ScoreBasis.STATE)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """The smallest product first."""
    cpus, gpus = LARGEST_CPUS * UNIT, LARGEST_GPUS * UNIT
    product = node.slot.amounts.get(CPU, 0) / cpus * (bundle.units(CPU) / cpus)
    product += node.slot.gpu_units / gpus * (bundle.gpu_units / gpus)
    return (-math.floor(100 * (1 - product / 2)),)


device = best_fit.device
