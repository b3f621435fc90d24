"""Parts of GPUs in amounts of resources: reserved names that say how a member's GPUs are cut.

| in a bundle | meaning |
|---|---|
| `GPU: 0.5` | half of one device |
| `GPU: 1, gpu-devices: 2` | half of each of two devices |
| `gpu-memory-mib: 20480` | that much memory of one device, and so much of the device as that is of its memory |
| `gpu-memory-mib: 40960, gpu-devices: 2` | half of that on each of two devices |
| `mig-1g.10gb: 2` | two MIG instances of that profile |
| `gpu-mps: 1`, `gpu-time-slicing: 1` | only on a node whose devices are shared in that way |

Amounts are of the member, not of the device. What a memory share is in GPUs depends on the device, so GPU is added
when its seat is chosen (`Slot.realised`); beside `gpu-memory-mib`, GPU is that figure and nothing further is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rayorch.core.resources import GPU, UNIT, Resources

GPU_MEMORY = "gpu-memory-mib"
GPU_DEVICES = "gpu-devices"
MPS = "gpu-mps"
TIME_SLICING = "gpu-time-slicing"
MODES = (MPS, TIME_SLICING)
"""How parts of one device are kept apart, where its node says it: a member that names one goes to no other node."""

RESERVED = (GPU_MEMORY, GPU_DEVICES, *MODES)
MIB = 2**20

_MIG = re.compile(r"mig-([1-9]g\.[1-9][0-9]{0,3}gb(?:[+.-](?:me|gfx|me\.all))?)\Z")


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """What a bundle asks of devices.

    `units`: GPU units in whole devices and one fraction. `shares`: equal parts on so many different devices, each of
    `share_units`, or of `share_mib` (in 1/10000 MiB) where memory decides. `slices`: MIG instances by profile.
    `rest`: everything that is not of a device's.
    """

    units: int = 0
    shares: int = 0
    share_units: int = 0
    share_mib: int = 0
    slices: tuple[tuple[str, int], ...] = ()
    rest: tuple[tuple[str, int], ...] = ()

    @property
    def plain(self) -> bool:
        """Whole GPUs, or a fraction of one, or none: what Ray itself can count."""
        return not self.shares and not self.slices

    @property
    def binds(self) -> bool:
        """Only a node whose GPUs can be chosen by name can keep it: Ray puts no bundle's fraction on two devices."""
        return self.shares > 1


@lru_cache(maxsize=8192)
def device_need(bundle: Resources) -> DeviceNeed:
    """What the bundle asks of devices; of a negative amount (one that is given back) the same without the sign."""
    units = memory = shares = 0
    slices: list[tuple[str, int]] = []
    rest: list[tuple[str, int]] = []
    for name, n in bundle.items:
        if name == GPU:
            units = abs(n)
        elif name == GPU_MEMORY:
            memory = abs(n)
        elif name == GPU_DEVICES:
            shares = abs(n) // UNIT
        else:
            if (profile := mig_profile(name)) is not None:
                slices.append((profile, abs(n) // UNIT))
            rest.append((name, n))
    if memory:
        return DeviceNeed(0, shares or 1, 0, memory // (shares or 1), tuple(slices), tuple(rest))
    if shares:
        return DeviceNeed(0, shares, units // shares, 0, tuple(slices), tuple(rest))
    return DeviceNeed(units, slices=tuple(slices), rest=tuple(rest))


def may_be_part(name: str) -> bool:
    """Whether a name looks like one of a part of a GPU (gpu-…, mig-…): the cheap look before the exact one."""
    return name[3:4] == "-"


def uses_devices(bundle: Resources) -> bool:
    """Whether the bundle has any part of a GPU."""
    return bundle.gpu_units > 0 or not device_need(bundle).plain


def is_share(bundle: Resources) -> bool:
    """Whether it asks for part of one device in GPUs, so that it matters which of them it gets."""
    return bundle.gpu_units % UNIT > 0 and device_need(bundle).plain


def mig_resource(profile: str) -> str:
    """The name of the resource that stands for MIG instances of a profile: mig-1g.10gb."""
    return f"mig-{profile}"


@lru_cache(maxsize=1024)
def mig_profile(name: str) -> str | None:
    """The MIG profile that a resource stands for, None when it is any other resource."""
    match = _MIG.match(name)
    return match[1] if match else None


def compute_slices(profile: str) -> int:
    """The compute slices of a profile: 3 of 3g.40gb."""
    return int(profile[0])


@lru_cache(maxsize=8192)
def counted(amount: Resources) -> Resources:
    """What an amount counts for in quotas: MIG instances count as GPUs too, the number of devices does not count.

    An instance of g compute slices is g/7 of a GPU (of a GPU with four, as an A30, a little less than it should be).
    KAI counts each slice as one GPU. Linear: it may be taken of sums and differences.
    """
    if not any(name == GPU_DEVICES or name in MODES or name.startswith("mig-") for name, _ in amount.items):
        return amount
    amounts = {name: n for name, n in amount.items if name != GPU_DEVICES and name not in MODES}
    for name, n in amount.items:
        if (profile := mig_profile(name)) is not None:
            amounts[GPU] = amounts.get(GPU, 0) + compute_slices(profile) * (UNIT // 7) * n // UNIT
    return Resources.of_units(amounts)


def asks_of_ray(bundle: Resources, devices: Sequence[int] = ()) -> Resources:
    """The bundle in what Ray counts: memory and sharing are ours alone, an instance that was chosen is one of its GPUs.

    Instances that no device is known of are a custom resource of the node, which Ray counts as it is.
    """
    need = device_need(bundle)
    if need.plain and not any(name in MODES for name, _ in need.rest):
        return bundle
    amounts = {name: n for name, n in need.rest if name not in MODES}
    units = bundle.gpu_units
    if devices:
        amounts = {name: n for name, n in amounts.items() if mig_profile(name) is None}
        units += UNIT * sum(count for _, count in need.slices)
    return Resources.of_units({**amounts, GPU: units})


def priced(bundle: Resources, sizes: Sequence[int]) -> Resources:
    """The bundle with the most GPUs that its memory share can come to on devices of these sizes [MiB].

    So quota is never found to be exceeded after a seat has been chosen. Where no device is large enough it counts as
    whole ones.
    """
    need = device_need(bundle)
    if not need.share_mib:
        return bundle
    able = [size for size in sizes if size * UNIT >= need.share_mib]
    each = max(1, need.share_mib // min(able)) if able else UNIT
    return with_gpus(bundle, each * need.shares)


def device_shares(bundle: Resources, devices: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """How many units of each of its devices a seated bundle has; of an instance, all of it."""
    need = device_need(bundle)
    if need.plain:
        left, parts = need.units, []
        for device in devices:
            parts.append((device, min(left, UNIT)))
            left = max(0, left - UNIT)
        return tuple(parts)
    each, more = divmod(bundle.gpu_units, need.shares or 1)
    return tuple((device, each + (n < more) if n < need.shares else UNIT) for n, device in enumerate(devices))


def with_gpus(bundle: Resources, units: int) -> Resources:
    """The bundle with that many GPU units in place of its own."""
    return Resources.of_units({**dict(bundle.items), GPU: units})


def asked(bundle: Resources) -> Resources:
    """The bundle as it was asked for: without the GPUs that a memory share came to."""
    return with_gpus(bundle, 0) if bundle.gpu_units and bundle.units(GPU_MEMORY) else bundle
