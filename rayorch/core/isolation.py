"""What keeps those apart who share a GPU, in plain words: for whoever submits, or wonders why it failed."""

from __future__ import annotations

from rayorch.core.sharing import MPS, TIME_SLICING, device_need
from rayorch.core.types import UNIT, Resources, WorkloadSpec

NOTHING = (
    "it shares a GPU with others, and nothing but goodwill keeps them apart: who takes more memory than his share makes"
    " others fail, and compute goes to who asks most; MIG instances (mig-1g.10gb) are kept apart by the hardware"
)
BY_MPS = (
    "it shares a GPU by MPS: compute and pinned memory can be limited, but a fatal fault of one process ends the others"
    " on that GPU too"
)
BY_TIME = (
    "it shares a GPU by time-slicing: faults stay apart and each has the whole GPU in turn, but memory is not limited,"
    " so that who takes more than his share makes others fail"
)


def isolation_warnings(spec: WorkloadSpec) -> tuple[str, ...]:
    """What the members of a workload share GPUs without; empty for whole GPUs and MIG instances."""
    return tuple(dict.fromkeys(text for role in spec.roles if (text := isolation_warning(role.bundle))))


def isolation_warning(bundle: Resources) -> str:
    """The same of one bundle."""
    need = device_need(bundle)
    if not need.shares and not need.units % UNIT > 0:
        return ""
    return BY_MPS if bundle.units(MPS) else BY_TIME if bundle.units(TIME_SLICING) else NOTHING
