"""Ours: least fragmentation, at a price on GPU models that much of the demand is locked to.

Fragmentation gradient descent (`fgd.py`) does not see that work which may run on any model should leave those models
alone that other work can't do without: a model fills up with work that had a choice, and what is locked to it fails
while other models are idle. So that choice has a price. The pressure on a model is the part of all typical demand
that is locked to it, over its part of all capacity (demand for one of several models counts for each by its
capacity). `PRICE` times that, in whole steps of the score, is taken off the score of its nodes. For work that may use
one model only it changes nothing.

Where no model is under more pressure than `SLACK` none has a price: enough of each is left in any case, and every
step that is taken off undoes a part of what the gradient says. Steps are whole ones since the scores are: a part of
one would decide between equal scores, all the time.

Between nodes of equal score a share goes where the GPU is left with least, in steps of a twentieth of one; then ties
end in the id, which keeps work together as first fit does.
"""

from __future__ import annotations

import math

from rayorch.core.placement import NodeView, PlacementView, ScoreBasis, scored_by
from rayorch.core.policy import SortKey
from rayorch.core.types import UNIT, Resources
from rayorch.policies.place import best_fit, fgd

PRICE = 12
"""Steps of the score (of 100) at a pressure of 1: all of the model is needed by work that has no choice."""
SLACK = 0.2
"""Where no model is under more pressure than that, none has a price."""
STEP = UNIT // 20


@scored_by(ScoreBasis.STATE, classes=True)
def score(bundle: Resources, node: NodeView, view: PlacementView) -> SortKey:
    """The highest gradient less the price first; without typical classes best fit."""
    found = fgd.gradient(bundle, node, view)
    if found is None:
        return best_fit.score(bundle, node, view)
    quantised, device = found
    price = view.once(prices).get(node.model, 0) if bundle.gpu_units else 0
    left = (node.devices[device] - bundle.gpu_units) // STEP if device is not None else 0
    return (price - quantised, left)


device = fgd.device


def prices(view: PlacementView) -> dict[str, int]:
    """What is taken off the score of each model's nodes; none where no model is scarce."""
    found = pressures(view)
    scarce = max(found.values(), default=0.0) > SLACK
    return {model: math.floor(PRICE * x) * scarce for model, x in found.items()}


def pressures(view: PlacementView) -> dict[str, float]:
    """The part of all typical demand that is locked to each model, over its part of all capacity."""
    capacity, total = view.capacity, sum(view.capacity.values())
    demand = sum(task.weight * task.gpu_units for task in view.classes)
    locked = dict.fromkeys(capacity, 0.0)
    for task in view.classes:
        models = [model for model in sorted(task.models) if model in capacity]
        able = sum(capacity[model] for model in models)
        for model in models if able else ():
            locked[model] += task.weight * task.gpu_units * capacity[model] / able
    if not demand or not total:
        return locked
    return {model: part / demand / (capacity[model] / total) for model, part in locked.items()}
