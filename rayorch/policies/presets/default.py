"""rayorch's own: what is in force where nothing else is configured, and what every other preset starts from."""

from __future__ import annotations

from rayorch.core.eviction import EvictionKnobs
from rayorch.core.policy import Profile
from rayorch.policies.adapt import elastic
from rayorch.policies.moves import nobody
from rayorch.policies.order import priority
from rayorch.policies.place import best_fit
from rayorch.policies.queue_order import deserved
from rayorch.policies.recover import whole_gang
from rayorch.policies.scale import gangs
from rayorch.policies.serve import demand
from rayorch.policies.victims import lost_work

PRESET = Profile(
    name="default",
    order=priority.key,
    queue_order=deserved.key,
    score=best_fit.score,
    device=best_fit.device,
    victims=lost_work.cost,
    train_size=elastic.size,
    serve_size=demand.size,
    recover=whole_gang.recover,
    scale=gangs.wanted,
    moves=nobody.moves,
    even_growth=True,
    eviction=EvictionKnobs(surplus_yields=True),
)
