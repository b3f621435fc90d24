"""What memory shares come to in GPUs before their seats are chosen, so that quota covers whatever seat they get."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rayorch.core.planning.claims import Claim, Gang, with_model
from rayorch.core.sharing import MIB, device_need, priced
from rayorch.core.types import NodeSpec, Resources, total


class Prices:
    """The prices of one turn, by the devices that its nodes have."""

    __slots__ = ("_gangs", "_nodes", "_sizes")

    def __init__(self, nodes: Iterable[NodeSpec]) -> None:
        self._nodes = nodes
        self._sizes: tuple[int, ...] | None = None
        self._gangs: dict[int, Gang] = {}

    def of(self, bundle: Resources) -> Resources:
        """One bundle with its memory share in GPUs, at most; any other bundle as it is."""
        if not device_need(bundle).share_mib:
            return bundle
        if self._sizes is None:
            found = {device.memory_bytes // MIB for node in self._nodes for device in node.devices}
            self._sizes = tuple(sorted(found - {0}))
        return priced(bundle, self._sizes)

    def of_claim(self, claim: Claim) -> Claim:
        """A claim that counts with its memory shares in GPUs."""
        if not any(device_need(bundle).share_mib for bundle, _ in claim.shape.bundles):
            return claim
        more = total((self.of(bundle) - bundle).times(count) for bundle, count in claim.shape.bundles)
        return replace(claim, resources=claim.resources + with_model(more, claim.shape))

    def of_gang(self, gang: Gang) -> Gang:
        """The same of what equal workloads ask for, once a turn."""
        known = self._gangs.get(id(gang))
        if known is None:
            known = self._gangs[id(gang)] = self._of_gang(gang)
        return known

    def _of_gang(self, gang: Gang) -> Gang:
        if any(device_need(bundle).share_mib for bundle, _ in gang.shape.bundles):
            more = total((self.of(bundle) - bundle).times(count) for bundle, count in gang.shape.bundles)
            gang = replace(gang, resources=gang.resources + with_model(more, gang.shape))
        return replace(gang, others=tuple(self._of_gang(other) for other in gang.others)) if gang.others else gang
