"""What is free on one node, device by device, the way Ray binds them.

Whole GPUs take wholly free devices, lowest index first; a fraction takes one device, the one that it leaves with
least. A sick device has no room.
"""

from __future__ import annotations

from collections.abc import Sequence

from rayorch.core.types import GPU, UNIT, NodeSpec, Resources


class Slot:
    """One node's free amounts; never changed once made, so that copies of a Room share it.

    `amounts`: everything but GPUs. `devices`: free units per device position, 0 for a sick one. `indices`: Ray's
    index of each position. Negative amounts mean that more is held than the node has.
    """

    __slots__ = ("_free", "amounts", "devices", "gpu_units", "indices", "sick")

    def __init__(
        self, amounts: dict[str, int], devices: tuple[int, ...], indices: tuple[int, ...], sick: frozenset[int]
    ) -> None:
        self.amounts = amounts
        self.devices = devices
        self.indices = indices
        self.sick = sick
        self.gpu_units = sum(devices)
        self._free: Resources | None = None

    @staticmethod
    def empty(node: NodeSpec) -> Slot:
        """Nothing held. Devices that the inventory doesn't list are counted from the node's GPUs."""
        units = node.total.gpu_units
        listed = {device.index: device.sick for device in node.devices}
        indices = tuple(sorted(listed)) if listed else tuple(range(-(-units // UNIT)))
        capacity = [0 if listed.get(index, "") else UNIT for index in indices]
        if not listed and units % UNIT:
            capacity[-1] = units % UNIT
        return Slot(
            {name: n for name, n in node.total if name != GPU},
            tuple(capacity),
            indices,
            frozenset(index for index, reason in listed.items() if reason),
        )

    @property
    def free(self) -> Resources:
        """All amounts as Resources, made once."""
        if self._free is None:
            self._free = Resources.of_units({**self.amounts, GPU: self.gpu_units})
        return self._free

    def fits(self, bundle: Resources) -> bool:
        """Whether every amount is there, and the GPUs in devices."""
        for name, n in bundle.items:
            if name == GPU:
                if not _devices_fit(self.devices, n):
                    return False
            elif self.amounts.get(name, 0) < n:
                return False
        return True

    def choose(self, units: int) -> tuple[int, ...]:
        """The device indices that Ray would bind; where they don't suffice, the freest ones (overcharged)."""
        whole, fraction = divmod(units, UNIT)
        positions = [p for p, n in enumerate(self.devices) if n == UNIT][:whole]
        if len(positions) < whole:
            others = [p for p in range(len(self.devices)) if p not in positions]
            positions += sorted(others, key=lambda p: (-self.devices[p], p))[: whole - len(positions)]
        if fraction:
            others = [p for p in range(len(self.devices)) if p not in positions]
            room = [p for p in others if self.devices[p] >= fraction]
            if room:
                positions.append(min(room, key=lambda p: (self.devices[p], p)))
            elif others:
                positions.append(max(others, key=lambda p: (self.devices[p], -p)))
        return tuple(self.indices[p] for p in positions)

    def fullest(self, units: int) -> tuple[int, ...]:
        """The device indices that `units` most probably lie on: wholly used ones, then one that has the fraction."""
        whole, fraction = divmod(units, UNIT)
        healthy = [p for p in range(len(self.devices)) if self.indices[p] not in self.sick]
        positions = sorted(healthy, key=lambda p: (self.devices[p], p))[:whole]
        if fraction:
            used = [p for p in healthy if p not in positions and self.devices[p] + fraction <= UNIT]
            positions += [max(used, key=lambda p: (self.devices[p], -p))] if used else []
        return tuple(self.indices[p] for p in positions)

    def minus(self, bundle: Resources, devices: Sequence[int]) -> Slot:
        """The slot with the bundle charged to these devices (a negative bundle gives back)."""
        amounts = dict(self.amounts)
        for name, n in bundle.items:
            if name != GPU:
                amounts[name] = amounts.get(name, 0) - n
        sign = -1 if bundle.gpu_units < 0 else 1
        left = abs(bundle.gpu_units)
        charged = list(self.devices)
        for index in devices:
            part = min(left, UNIT)
            left -= part
            if index in self.indices and index not in self.sick:
                charged[self.indices.index(index)] -= sign * part
        return Slot(amounts, tuple(charged), self.indices, self.sick)


def _devices_fit(devices: tuple[int, ...], units: int) -> bool:
    whole, fraction = divmod(units, UNIT)
    if whole == 0:
        return max(devices, default=0) >= fraction
    spare = devices.count(UNIT) - whole
    if spare < 0 or not fraction:
        return spare >= 0
    return spare > 0 or any(fraction <= n < UNIT for n in devices)
