"""The profile in force where nothing else is configured."""

from __future__ import annotations

from rayorch.core.policy import Profile
from rayorch.policies.adapt import elastic
from rayorch.policies.order import priority
from rayorch.policies.place import best_fit
from rayorch.policies.recover import whole_gang
from rayorch.policies.scale import gangs
from rayorch.policies.serve import demand
from rayorch.policies.victims import lost_work

DEFAULT = Profile(
    name="default",
    order=priority.key,
    score=best_fit.score,
    victims=lost_work.cost,
    train_size=elastic.size,
    serve_size=demand.size,
    recover=whole_gang.recover,
    scale=gangs.wanted,
)
