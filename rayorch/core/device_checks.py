"""The door for parts of GPUs: what no device could ever be cut into is refused with the field named."""

from __future__ import annotations

from rayorch.core.errors import SpecError
from rayorch.core.resources import GPU, UNIT, Resources
from rayorch.core.sharing import GPU_DEVICES, GPU_MEMORY, MODES, RESERVED, device_need, mig_profile

MAX_DEVICES = 64
"""Devices of one node that a member may share; no node has more."""


def check_member_devices(bundle: Resources, field: str) -> None:
    """SpecError unless what the bundle asks of GPUs can be had of some node's devices."""
    check_device_names(bundle, field)
    need, gpu, shares = device_need(bundle), bundle.gpu_units, bundle.units(GPU_DEVICES)
    memory = bundle.units(GPU_MEMORY)
    for name, units in bundle:
        if (name == GPU_DEVICES or name in MODES or mig_profile(name) is not None) and (units % UNIT or units <= 0):
            raise SpecError(f"{field}.{name}", f"must be a whole number, got {units / UNIT:g}")
    if memory and gpu:
        raise SpecError(f"{field}.{GPU_MEMORY}", f"and {GPU} say the same twice: so much memory is so much of a GPU")
    if need.slices and (gpu or memory or shares):
        raise SpecError(
            f"{field}.mig-{need.slices[0][0]}", f"is an instance of a GPU; a member has instances or {GPU}, not both"
        )
    if shares:
        _check_shares(field, gpu or memory, shares, f"{field}.{GPU_DEVICES}")
        if gpu >= shares:
            count = shares // UNIT
            raise SpecError(
                f"{field}.{GPU_DEVICES}", f"the {count} devices would be whole; ask for {GPU}: {count} alone"
            )
    elif gpu > UNIT and gpu % UNIT:
        raise SpecError(f"{field}.{GPU}", f"must be whole above one GPU, got {gpu / UNIT}")
    _check_mode(bundle, field, shared=bool(need.shares) or 0 < gpu < UNIT)


def check_device_names(amount: Resources, field: str) -> None:
    """SpecError for a name that looks like a part of a GPU and is none: nothing would ever have it."""
    for name, _ in amount:
        if name.startswith("gpu-") and name not in RESERVED:
            raise SpecError(f"{field}.{name}", f"is not known; parts of GPUs are {', '.join(RESERVED)} and mig-1g.10gb")
        if name.startswith("mig-") and mig_profile(name) is None:
            raise SpecError(f"{field}.{name}", "is no MIG profile; they are written mig-1g.10gb")


def check_queue_devices(amount: Resources, field: str) -> None:
    """SpecError for what a queue can't limit: how GPUs are cut is no amount."""
    check_device_names(amount, field)
    for name, _ in amount:
        if name == GPU_DEVICES or name in MODES:
            raise SpecError(f"{field}.{name}", "says how GPUs are cut, which is no amount that a queue can have")


def _check_shares(field: str, total: int, shares: int, path: str) -> None:
    count = shares // UNIT
    if count > MAX_DEVICES:
        raise SpecError(path, f"must be at most {MAX_DEVICES}, got {count}")
    if not total:
        raise SpecError(path, f"needs {GPU} or {GPU_MEMORY} beside it, which the devices share")
    if total % count:
        raise SpecError(path, f"{count} devices can't share {total / UNIT:g} in equal parts of 1/{UNIT}")


def _check_mode(bundle: Resources, field: str, shared: bool) -> None:
    named = [name for name in MODES if bundle.units(name)]
    if not named:
        return
    if len(named) > 1:
        raise SpecError(f"{field}.{named[1]}", f"and {named[0]} exclude each other")
    if bundle.units(named[0]) != UNIT:
        raise SpecError(f"{field}.{named[0]}", "is 1 or absent: it names a way of sharing")
    if not shared:
        raise SpecError(f"{field}.{named[0]}", "is a way of sharing a device; a member without a part of one has none")
