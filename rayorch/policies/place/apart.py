"""Apart: parts of GPUs share one only when no GPU is free. Everything else by best fit.

What Gandiva (Xiao 2018) does with jobs that may be packed: two share a GPU only while more is asked for than there is.
Best fit keeps whole GPUs free for whoever asks for whole ones later; this is for clusters where those who may share
would rather not, and whole GPUs are seldom what is lacking.
"""

from __future__ import annotations

from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import UNIT, Resources
from rayorch.policies.place import best_fit


def device(bundle: Resources, node: NodeView, view: PlacementView) -> int | None:
    """The first GPU that is wholly free, else the one of which most is."""
    free = node.devices
    if not free or max(free) < bundle.gpu_units:
        return None
    return max(range(len(free)), key=lambda position: (free[position], -position))


@scored_by(ScoreBasis.STATE)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """Parts go where a GPU is wholly free, of such nodes to the one with fewest left; then as best fit has it."""
    units = bundle.gpu_units
    if not 0 < units < UNIT:
        return (0, *best_fit.score(bundle, node, view))
    whole = sum(free >= UNIT for free in node.devices)
    if whole:
        return (0, whole, *best_fit.score(bundle, node, view)[1:])
    return (1, *best_fit.score(bundle, node, view))
