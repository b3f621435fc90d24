"""Particular GPUs of a node by name, for nodes that declare each of them as a resource: gpu0, gpu1, …

Ray counts GPUs but does not let anybody choose. A node that declares `gpu<i>` once per GPU is *exact*: whoever holds
GPUs there names them too, so that no two can hold the same one. See docs/device-binding.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rayorch.core.types import GPU, UNIT, Resources

_NAME = re.compile(r"gpu(0|[1-9][0-9]{0,3})")

DeviceShares = tuple[tuple[int, int], ...]
"""(device index, units of it), by index."""


def device_resource(index: int) -> str:
    """The name of the resource that stands for one GPU of a node."""
    return f"gpu{index}"


def device_index(name: str) -> int | None:
    """Which GPU a resource stands for, None when it is any other resource."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def split_devices(amount: Resources) -> tuple[Resources, DeviceShares]:
    """The amount without the names of particular GPUs, and what it takes of each of those."""
    shares = {index: units for name, units in amount if (index := device_index(name)) is not None}
    rest = Resources(tuple((name, units) for name, units in amount if device_index(name) is None))
    return rest, tuple(sorted(shares.items()))


def unnamed(amount: Resources) -> Resources:
    """The amount with only those GPUs counted that it does not name as well; the names stay.

    Two such amounts can be compared name by name: who names other GPUs than before has not taken more of them.
    """
    named = sum(units for _, units in split_devices(amount)[1])
    return amount - Resources.of_units({GPU: min(named, amount.units(GPU))})


def devices_of(amount: Resources) -> tuple[int, ...]:
    """The GPUs that an amount names, wholly taken ones first: the order of `Member.devices`."""
    shares = split_devices(amount)[1]
    return tuple(index for index, _ in sorted(shares, key=lambda share: (share[1] < UNIT, share[0])))


def is_spread(amount: Resources) -> bool:
    """Whether it names parts of several GPUs, which whoever works in it has all of; Ray counts only their sum."""
    shares = split_devices(amount)[1]
    return len(shares) > 1 and all(units < UNIT for _, units in shares)


def is_exact(total: Resources) -> bool:
    """Whether a node of these resources declares every GPU that it has, once each."""
    rest, shares = split_devices(total)
    count, fraction = divmod(rest.units(GPU), UNIT)
    return count > 0 and not fraction and shares == tuple((index, UNIT) for index in range(count))


def with_devices(bundle: Resources, devices: Sequence[int]) -> Resources:
    """The bundle with its GPUs by name. ValueError when these are not as many as it takes."""
    return deal((bundle,), devices)[0]


def deal(bundles: Sequence[Resources], devices: Sequence[int]) -> tuple[Resources, ...]:
    """The bundles with the GPUs by name that they take together, in order; a fraction shares one.

    ValueError when these are not as many as they take.
    """
    left = dict.fromkeys(devices, UNIT)
    dealt: list[Resources] = []
    for bundle in bundles:
        names: dict[str, int] = {}
        whole, fraction = divmod(bundle.units(GPU), UNIT)
        for part in [UNIT] * whole + ([fraction] if fraction else []):
            # A fraction goes where it leaves least.
            taken = min((d for d in left if left[d] >= part), key=lambda d: left[d], default=None)
            if taken is None:
                raise ValueError(f"GPUs {list(devices)} are not enough for {[b.to_floats() for b in bundles]}")
            left[taken] -= part
            names[device_resource(taken)] = names.get(device_resource(taken), 0) + part
        dealt.append(bundle + Resources.of_units(names))
    return tuple(dealt)
