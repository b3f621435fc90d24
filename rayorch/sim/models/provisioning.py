"""How long a new node takes from its order until it has joined, and whether it comes at all.

On a live cluster `core.provision_times` learns the same from the nodes that came.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from rayorch.core.provision_times import LONGEST_S, QUANTILE
from rayorch.sim.models.distributions import Distribution, Fixed, Lognormal, Weibull
from rayorch.sim.models.misstatement import TRUTH, Misstatement
from rayorch.sim.models.streams import stream

DEFAULT = Lognormal(median=180.0, sigma=0.35)
"""Three minutes for a machine with its image and Ray's start; nine in ten within five, as profiles assume at first."""


@dataclass(frozen=True, slots=True)
class ProvisioningModel:
    """`groups`: by node group; `default`: of all others. `refused`: what part of the orders is never filled.

    `misstated`: what the profile is told before it has seen any.
    """

    default: Distribution = DEFAULT
    groups: tuple[tuple[str, Distribution], ...] = ()
    refused: float = 0.0
    misstated: Misstatement = TRUTH

    def of(self, group: str) -> Distribution:
        """Of one node group."""
        for known, delay in self.groups:
            if known == group:
                return delay
        return self.default

    def draw(self, group: str, rng: np.random.Generator) -> float | None:
        """Seconds until an ordered node has joined; None: it never does."""
        if self.refused and float(rng.random()) < self.refused:
            return None
        return self.of(group).draw(rng)

    def told_s(self, group: str, seed: int) -> float:
        """What `Profile.provision_s` would say of the group: most nodes take no longer, as misstated."""
        delay = self.of(group)
        match delay:
            case Fixed():
                high = delay.value
            case Lognormal():
                high = delay.median * float(np.exp(delay.sigma * NORMAL_90))
            case Weibull():
                high = delay.scale * float(-np.log(1.0 - QUANTILE)) ** (1.0 / delay.shape)
            case _:
                high = float(np.quantile(delay.values, QUANTILE))
        return self.misstated.of(high, stream(seed, "provisioning", "told", group))

    @staticmethod
    def fit(took: Iterable[tuple[str, float]], base: ProvisioningModel | None = None) -> ProvisioningModel:
        """From (node group, seconds that a node took); those that took too long to mean anything are left out."""
        base = base if base is not None else ProvisioningModel()
        seen: dict[str, list[float]] = {}
        for group, took_s in took:
            if 0 < took_s <= LONGEST_S:
                seen.setdefault(group, []).append(took_s)
        if not seen:
            return base
        groups = dict(base.groups)
        groups.update((group, Lognormal.fit(times)) for group, times in seen.items())
        everything = Lognormal.fit([time for times in seen.values() for time in times])
        return replace(base, default=everything, groups=tuple(sorted(groups.items())))


NORMAL_90 = 1.2815515655446004
"""The 0.9 quantile of the normal distribution."""
