"""Best fit as the FGD paper compares it: least left over, CPUs and GPUs counting the same.

Weng et al., "Beware of Fragmentation" (ATC'23), BestFit of its artifact: of a node as large as the largest, what
would be left of CPUs and of GPUs, half each, in hundredths; ties go to the first node by name. Memory does not count.
"""

from __future__ import annotations

import math

from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import CPU, UNIT, Resources
from rayorch.policies.place import best_fit

LARGEST_CPUS, LARGEST_GPUS = 128, 8
"""Of the nodes that the artifact was written for."""


@scored_by(ScoreBasis.STATE)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """Least left over first."""
    cpus = (node.slot.amounts.get(CPU, 0) - bundle.units(CPU)) / (LARGEST_CPUS * UNIT)
    gpus = (node.slot.gpu_units - bundle.gpu_units) / (LARGEST_GPUS * UNIT)
    return (-math.floor(100 * (1 - 0.5 * cpus - 0.5 * gpus)),)


device = best_fit.device
