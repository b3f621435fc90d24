"""Parts of GPUs as documents write them: memory with its unit, and how a shared GPU is kept apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from rayorch.core.errors import SpecError
from rayorch.core.resources import UNIT, Resources
from rayorch.core.sharing import GPU_MEMORY, MIB, MODES, MPS, TIME_SLICING, device_need

MEMORY = "gpu-memory"
"""How documents call `gpu-memory-mib`: always with a unit, because a bare number may be meant in bytes or in MiB."""

Sharing = Literal["mps", "time-slicing"]

_BY_NAME = {"mps": MPS, "time-slicing": TIME_SLICING}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(Ki|Mi|Gi|Ti|k|M|G|T)B?\Z")
_BYTES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def memory_mib(value: object) -> float:
    """MiB of a size such as "20Gi", "20480Mi" or "16GB", rounded up; ValueError for a number without its unit."""
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{MEMORY} must be a size with its unit, such as 20Gi or 8000Mi, got {value!r}")
    return float(-(-float(match[1]) * _BYTES[match[2]] // MIB))


def with_memory(amounts: object) -> object:
    """Amounts with `gpu-memory: 20Gi` as its MiB."""
    if not isinstance(amounts, Mapping) or MEMORY not in amounts:
        return amounts
    if GPU_MEMORY in amounts:
        raise ValueError(f"{MEMORY} and {GPU_MEMORY} say the same twice")
    return {name: n for name, n in amounts.items() if name != MEMORY} | {GPU_MEMORY: memory_mib(amounts[MEMORY])}


def mps_environment(bundle: Resources) -> dict[str, str]:
    """What limits the processes of a member that shares GPUs by MPS to its part; the driver reads these variables.

    Threads are a part of the GPU's, rounded up to whole percents. Memory is that of each device that a process sees.
    """
    need = device_need(bundle)
    if not bundle.units(MPS):
        return {}
    if need.share_mib:
        limits = ",".join(f"{n}={need.share_mib // UNIT}M" for n in range(need.shares))
        return {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits}
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(-(-(need.share_units or need.units) * 100 // UNIT))}


def with_mode(amounts: Mapping[str, float], sharing: Sharing | None, field: str) -> Mapping[str, float]:
    """Amounts of a member that shares a GPU in one way only; SpecError when they name one already."""
    if sharing is None:
        return amounts
    if any(name in amounts for name in MODES):
        raise SpecError(field, "and the resources say the same twice")
    return {**amounts, _BY_NAME[sharing]: 1.0}
