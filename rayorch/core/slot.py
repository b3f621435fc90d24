"""What is free on one node, device by device, the way Ray binds them.

Whole GPUs take wholly free devices; a share takes a device that it leaves with least. A sick device has no room. On a
device whose memory is known everything is counted in its memory, so that shares by memory and by fraction add up
exactly; elsewhere in units of 1/10000.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from operator import floordiv

from rayorch.core.links import best_linked
from rayorch.core.sharing import MIB, DeviceNeed, device_need, may_be_part, with_gpus
from rayorch.core.types import GPU, UNIT, NodeSpec, Resources

CLIENTS = 48
"""Processes that may share one device by MPS (NVIDIA's limit since Volta), and that we let share one by time-slicing
where the node does not say into how many replicas its devices are cut."""


@lru_cache(maxsize=1024)
def _places(indices: tuple[int, ...]) -> dict[int, int]:
    """The position of each index; one table for all nodes whose devices are numbered alike."""
    return {index: position for position, index in reversed(tuple(enumerate(indices)))}


class DeviceLayout:
    """What never changes of a node's devices, by position.

    `indices`: Ray's index. `sizes`: memory [MiB], 1 where it is not known. `sized`: whether any is known. `profiles`:
    of a MIG instance that is had by its profile only, empty for what counts as a GPU. `places`: the position of each
    index. `gpus`: which instance lies on which GPU. `links`: the positions that each reaches by NVLink; None where it
    makes no difference which are taken.
    """

    __slots__ = ("exact", "gpus", "indices", "links", "places", "profiles", "sick", "sized", "sizes")

    def __init__(self, indices: tuple[int, ...], exact: bool = False) -> None:
        self.indices = indices
        self.places = _places(indices)
        self.exact = exact
        self.sick: frozenset[int] = frozenset()
        self.sizes: tuple[int, ...] = (1,) * len(indices)
        self.sized = False
        self.profiles: tuple[str, ...] = ("",) * len(indices)
        self.gpus: tuple[str, ...] = ()
        self.links: tuple[frozenset[int], ...] | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """What decides, beside what is free, which bundles fit; equal for all nodes of plain GPUs."""
        return (self.sizes, self.profiles, self.gpus, self.exact) if self.sized or self.gpus else (self.exact,)

    @staticmethod
    def of(node: NodeSpec) -> DeviceLayout:
        """The layout of a node. Devices that the inventory doesn't list are counted from the node's GPUs."""
        devices = node.devices
        if not devices:
            return DeviceLayout(tuple(range(-(-node.total.gpu_units // UNIT))))
        indices = tuple([device.index for device in devices])
        if any(a > b for a, b in pairwise(indices)):
            devices = tuple(sorted(devices, key=lambda device: device.index))
            indices = tuple([device.index for device in devices])
        layout = DeviceLayout(indices, node.exact)
        sizes = [device.memory_bytes for device in devices]
        if any(sizes):
            layout.sizes, layout.sized = tuple([size // MIB or 1 for size in sizes]), True
        sick = [device.index for device in devices if device.sick]
        if sick:
            layout.sick = frozenset(sick)
        if node.mig_mixed:  # of what was not read yet nobody knows whether it is an instance
            layout.profiles = tuple("" if d.is_whole else d.mig_profile or "?" for d in devices)
            layout.gpus = tuple(device.pci for device in devices) if any(layout.profiles) else ()
        if node.exact and any(device.nvlink for device in devices):
            place = {index: position for position, index in enumerate(indices)}
            reached = tuple(frozenset(place[i] for i in d.nvlink if i in place) for d in devices)
            layout.links = None if all(len(r) == len(devices) - 1 for r in reached) else reached
        return layout


ENDLESS = 1_000_000
"""How many empty bundles a node takes."""
MOST_TRIED = 1_000
"""Fractions are counted one by one, up to this many on a node."""
KEPT_COUNTS = 4096
"""Of how many bundles it is kept how often they fit into what is free."""


class SlotState:
    """Of equal slots one object. `known`: what was worked out of it, by whoever brings a key of its own."""

    __slots__ = ("known", "pieces")

    def __init__(self) -> None:
        self.known: dict[object, tuple[float | int | str, ...] | None] = {}
        self.pieces: dict[tuple[tuple[str, int], ...], int] = {}


@lru_cache(maxsize=16_384)
def _state_of(content: object) -> SlotState:
    return SlotState()


class Slot:
    """One node's free amounts; never changed once made, so that copies of a Room share it.

    `amounts`: everything but GPUs. `left`: what is free of each device, in 1/10000 of a MiB of its memory where that
    is known, else in units. `devices`: free GPU units per position, 0 for a sick one and for what is no GPU. Negative
    amounts mean that more is held than the node has.
    """

    __slots__ = ("_free", "_state", "_taken", "amounts", "devices", "gpu_units", "layout", "left")

    def __init__(self, amounts: dict[str, int], left: tuple[int, ...], layout: DeviceLayout) -> None:
        self.amounts = amounts
        self.left = left
        self.layout = layout
        devices = left
        if layout.sized:
            devices = tuple(map(floordiv, left, layout.sizes))
        if layout.gpus:
            devices = tuple(0 if profile else n for n, profile in zip(devices, layout.profiles, strict=True))
        self.devices = devices
        self.gpu_units = sum(devices)
        self._free: Resources | None = None
        self._state: SlotState | None = None
        self._taken: tuple[Resources, tuple[int, ...], Slot] | None = None

    @staticmethod
    def empty(node: NodeSpec) -> Slot:
        """Nothing held."""
        layout = DeviceLayout.of(node)
        left = [UNIT * size for size in layout.sizes]
        if layout.sick:
            left = [0 if index in layout.sick else n for index, n in zip(layout.indices, left, strict=True)]
        if not node.devices and node.total.gpu_units % UNIT:
            left[-1] = node.total.gpu_units % UNIT
        amounts = {name: n for name, n in node.total.items if name != GPU}
        if node.sharing:
            amounts[node.sharing] = UNIT * (node.replicas or CLIENTS) * len(left)
        return Slot(amounts, tuple(left), layout)

    @property
    def indices(self) -> tuple[int, ...]:
        """Ray's index of each position."""
        return self.layout.indices

    @property
    def sick(self) -> frozenset[int]:
        """The indices of sick devices."""
        return self.layout.sick

    @property
    def free(self) -> Resources:
        """All amounts as Resources, made once."""
        if self._free is None:
            self._free = Resources.of_units({**self.amounts, GPU: self.gpu_units})
        return self._free

    @property
    def state(self) -> SlotState:
        """What is free, shared by all slots of which the same is free."""
        state = self._state
        if state is None:
            layout = self.layout
            state = self._state = _state_of((tuple(self.amounts.items()), self.left, layout.kind, layout.links))
        return state

    @property
    def free_mib(self) -> int:
        """The free memory of devices that count as GPUs, in 1/10000 MiB; of devices whose memory is known."""
        layout = self.layout
        return sum(
            n
            for n, size, profile in zip(self.left, layout.sizes, layout.profiles, strict=True)
            if size > 1 and not profile
        )

    # ------------------------------------------------------------ does it fit

    def fits(self, bundle: Resources) -> bool:
        """Whether every amount is there, and the GPUs in devices.

        The sum counts too: where more is held than there is, nobody knows on which devices the excess lies.
        """
        units, amounts = 0, self.amounts
        for name, n in bundle.items:
            if name == GPU:
                units = n
            elif name[3:4] == "-":  # gpu-…, mig-…
                return self._fits_in_parts(bundle)
            elif amounts.get(name, 0) < n:
                return False
        return not units or (units <= self.gpu_units and _devices_fit(self.devices, units))

    def _fits_in_parts(self, bundle: Resources) -> bool:
        """The same of a bundle that may ask for parts of GPUs."""
        need = device_need(bundle)
        if any(self.amounts.get(name, 0) < n for name, n in need.rest):
            return False
        if need.plain:
            return not need.units or (need.units <= self.gpu_units and _devices_fit(self.devices, need.units))
        if need.shares and len(self._able(need)) < need.shares:
            return False
        return all(len(self._instances(profile)) >= count for profile, count in need.slices if self._lists(profile))

    def pieces(self, bundle: Resources) -> int:
        """How many such bundles it takes, one after the other; of empty ones, `ENDLESS`. Counted once."""
        pieces = (self._state or self.state).pieces
        known = pieces.get(bundle.items)
        if known is None:
            if len(pieces) >= KEPT_COUNTS:
                pieces.clear()
            known = pieces[bundle.items] = self._count(bundle)
        return known

    def _count(self, bundle: Resources) -> int:
        if not bundle.items:
            return ENDLESS
        if not self.fits(bundle):
            return 0
        need = device_need(bundle)
        if need.plain and need.units % UNIT == 0:
            free = min(self.devices.count(UNIT), self.gpu_units // UNIT)
            count = free // (need.units // UNIT) if need.units else ENDLESS
            for name, n in need.rest:
                count = min(count, self.amounts[name] // n)
            return count
        slot, count = self, 0
        while count < MOST_TRIED and slot.fits(bundle):
            slot, count = slot.minus(slot.realised(bundle, chosen := slot.choose(bundle)), chosen), count + 1
        return count

    def lacks_names(self, bundle: Resources) -> bool:
        """Whether only names for its GPUs are missing: Ray could not be told which devices the bundle has."""
        need = device_need(bundle)
        if need.plain or self.layout.exact:
            return False
        return need.shares > 1 or any(self._lists(profile) and not self._one_profile for profile, _ in need.slices)

    def _able(self, need: DeviceNeed) -> list[int]:
        """Positions that take one share."""
        layout = self.layout
        if need.shares > 1 and not layout.exact:
            return []  # Ray would put the whole sum on the device that it likes
        if need.share_mib:
            return [
                p
                for p, n in enumerate(self.left)
                if n >= need.share_mib and layout.sizes[p] > 1 and not layout.profiles[p]
            ]
        return [p for p, n in enumerate(self.devices) if n >= need.share_units]

    def _lists(self, profile: str) -> bool:
        """Whether instances of the profile are devices that are known one by one."""
        return profile in self.layout.profiles

    @property
    def _one_profile(self) -> bool:
        return len(set(self.layout.profiles)) == 1

    def _instances(self, profile: str) -> list[int]:
        """Positions of free instances of the profile that Ray can be told to take."""
        layout = self.layout
        if not layout.exact and not self._one_profile:
            return []
        return [
            p
            for p, n in enumerate(self.left)
            if layout.profiles[p] == profile and n == UNIT * layout.sizes[p] and n > 0
        ]

    # ------------------------------------------------------------ which devices

    def choose(self, bundle: Resources) -> tuple[int, ...]:
        """The device indices that the bundle gets, a fraction's last; where they don't suffice, the freest ones."""
        if not any(may_be_part(name) for name, _ in bundle.items):
            return self._named(self._choose_plain(bundle.gpu_units))
        need = device_need(bundle)
        if need.plain:
            return self._named(self._choose_plain(need.units))
        found: list[int] = []
        if need.shares:
            able = sorted(self._able(need), key=lambda p: (self.left[p], p))[: need.shares]
            others = sorted((p for p in range(len(self.left)) if p not in able), key=lambda p: (-self.left[p], p))
            found += [*able, *others[: need.shares - len(able)]]
        for profile, count in need.slices:
            if self._lists(profile):
                found += sorted(self._instances(profile), key=self._on_used_gpus)[:count]
        return self._named(found)

    def _choose_plain(self, units: int) -> list[int]:
        whole, fraction = divmod(units, UNIT)
        free = [p for p, n in enumerate(self.devices) if n == UNIT]
        links = self.layout.links
        positions = free[:whole] if links is None or whole >= len(free) else best_linked(free, whole, links)
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
        return positions

    def _on_used_gpus(self, position: int) -> tuple[int, int]:
        """Instances of GPUs in use first: a GPU with none in use can be cut anew."""
        gpu = self.layout.gpus[position]
        used = sum(self.left[p] == 0 for p, other in enumerate(self.layout.gpus) if other == gpu) if gpu else 0
        return -used, position

    def fullest(self, bundle: Resources) -> tuple[int, ...]:
        """The device indices that the bundle most probably lies on: wholly used ones, then one for the fraction."""
        need = device_need(bundle)
        healthy = [p for p in range(len(self.devices)) if self.indices[p] not in self.sick]
        if need.plain:
            whole, fraction = divmod(need.units, UNIT)
            positions = sorted(healthy, key=lambda p: (self.devices[p], p))[:whole]
            if fraction:
                used = [p for p in healthy if p not in positions and self.devices[p] + fraction <= UNIT]
                positions += [max(used, key=lambda p: (self.devices[p], -p))] if used else []
            return self._named(positions)
        found: list[int] = []
        if need.shares:
            sizes = self.layout.sizes
            used = [p for p in healthy if self.left[p] + self._share(need, p) <= UNIT * sizes[p]]
            found += sorted(used, key=lambda p: (-self.left[p], p))[: need.shares]
        for profile, count in need.slices:
            found += [p for p in healthy if self.layout.profiles[p] == profile and self.left[p] == 0][:count]
        return self._named(found)

    def _named(self, positions: Sequence[int]) -> tuple[int, ...]:
        indices = self.layout.indices
        return tuple([indices[p] for p in positions])

    # ------------------------------------------------------------ charging

    def taken(self, bundle: Resources) -> tuple[tuple[int, ...], Slot]:
        """The devices that the bundle gets, and the slot after that.

        The last answer is kept: a seat that was found in a trial is then taken in the books, from the very same slot.
        """
        last = self._taken
        if last is None or (last[0] is not bundle and last[0] != bundle):
            chosen = self.choose(bundle)
            last = self._taken = (bundle, chosen, self.minus(bundle, chosen))
        return last[1], last[2]

    def known_taken(self, bundle: Resources) -> tuple[tuple[int, ...], Slot] | None:
        """The last answer of `taken`, if it was about this bundle."""
        last = self._taken
        return (last[1], last[2]) if last is not None and last[0] is bundle else None

    def realised(self, bundle: Resources, devices: Sequence[int]) -> Resources:
        """The bundle with what its memory share comes to in GPUs on these devices; any other bundle as it is."""
        need = device_need(bundle)
        if not need.share_mib:
            return bundle
        sizes = dict(zip(self.indices, self.layout.sizes, strict=True))
        units = sum(min(UNIT, max(1, need.share_mib // sizes.get(index, 1))) for index in devices)
        return with_gpus(bundle, units)

    def minus(self, bundle: Resources, devices: Sequence[int]) -> Slot:
        """The slot with the bundle charged to these devices (a negative bundle gives back)."""
        units = 0
        amounts = dict(self.amounts)
        for name, n in bundle.items:
            if name == GPU:
                units = n
            elif name[3:4] == "-":  # gpu-…, mig-…
                return self._minus_parts(bundle, devices)
            else:
                amounts[name] = amounts.get(name, 0) - n
        if not devices:
            return Slot(amounts, self.left, self.layout)
        sign, rest = (-1, -units) if units < 0 else (1, units)
        layout = self.layout
        places, sick, sizes = layout.places, layout.sick, layout.sizes
        left = list(self.left)
        for index in devices:
            part = rest if rest < UNIT else UNIT
            rest -= part
            position = places.get(index)
            if position is not None and index not in sick:
                left[position] -= sign * part * sizes[position]
        return Slot(amounts, tuple(left), layout)

    def _minus_parts(self, bundle: Resources, devices: Sequence[int]) -> Slot:
        """The same of a bundle that may have parts of GPUs."""
        need, sizes = device_need(bundle), self.layout.sizes
        amounts = dict(self.amounts)
        for name, n in need.rest:
            amounts[name] = amounts.get(name, 0) - n
        sign = -1 if any(n < 0 for _, n in bundle.items) else 1
        left, rest = list(self.left), need.units
        for number, index in enumerate(devices):
            part, rest = min(rest, UNIT), max(0, rest - UNIT)
            if index not in self.indices or index in self.sick:
                continue
            position = self.indices.index(index)
            if need.plain:
                left[position] -= sign * part * sizes[position]
            elif number < need.shares:
                left[position] -= sign * self._share(need, position)
            else:
                left[position] -= sign * UNIT * sizes[position]
        return Slot(amounts, tuple(left), self.layout)

    def _share(self, need: DeviceNeed, position: int) -> int:
        return need.share_mib or need.share_units * self.layout.sizes[position]


def _devices_fit(devices: tuple[int, ...], units: int) -> bool:
    whole, fraction = divmod(units, UNIT)
    if whole == 0:
        return max(devices, default=0) >= fraction
    spare = devices.count(UNIT) - whole
    if spare < 0 or not fraction:
        return spare >= 0
    return spare > 0 or any(fraction <= n < UNIT for n in devices)
