"""What is read of a node's GPUs, before anybody judges it. None always means: not known, not supported here.

The shapes follow NVML; what a DCGM exporter's page says is brought into the same shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum


class Fault(StrEnum):
    """Why a GPU could not be read."""

    LOST = "lost"  # the driver says that it is gone (fallen off the bus)
    HANG = "hang"  # a call about it does not return
    ERROR = "error"  # anything else: nothing is known of it


class ProcessOwner(StrEnum):
    """Whose a process on a GPU is, as far as its environment tells."""

    ATTEMPT = "attempt"  # an attempt's that is not known to be over
    ENDED = "ended"  # an attempt's that is over: left behind
    RAY = "ray"  # another worker or driver of Ray's, whose use Ray's own books hold
    STRAY = "stray"  # nobody's that we know: no grant covers it
    UNKNOWN = "unknown"  # its environment can't be read from here


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has memory or a context on a GPU. `attempt`: "workload/attempt" where it is one's."""

    pid: int
    memory_bytes: int | None = None
    command: str = ""
    owner: ProcessOwner = ProcessOwner.UNKNOWN
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A slice of a GPU; `profile` as NVIDIA names it ("1g.10gb")."""

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU: whether it is up, and the PCI address of what is at its other end."""

    link: int
    up: bool
    peer: str = ""
    switch: bool = False


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One physical GPU as the driver shows it. Temperatures in °C, clocks in MHz, power in W.

    `clock_reasons`: NVML's bit mask of why the clock is not higher. `uncorrectable`: ECC errors since the driver was
    loaded; `uncorrectable_lifetime`: since the device was made. `recovery_action`: NVML's code of what the driver asks
    for, 0 is nothing. `fault`: it could not be read, then `fault_text` says why and the rest is what was read before.
    `fault_text` without a fault names what alone could not be read.
    """

    nvml_index: int
    uuid: str = ""
    name: str = ""
    pci: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    numa: int | None = None
    mig_enabled: bool | None = None
    mig_pending: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    links: tuple[NvLink, ...] = ()
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    clock_reasons: int | None = None
    correctable: int | None = None
    uncorrectable: int | None = None
    uncorrectable_lifetime: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    fault: Fault | None = None
    fault_text: str = ""

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profiles of its MIG instances, sorted, each as often as it occurs."""
        return tuple(sorted(instance.profile for instance in self.instances))


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An XID of one GPU. `fresh`: it happened since the last look; otherwise it is a gauge's old value, of unknown age.

    `count`: how often, where that is known."""

    uuid: str
    code: int
    fresh: bool = True
    count: int = 1


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at all GPUs of a machine. `error` non-empty: nothing could be read, and the rest is empty.

    `hears_xids`: every XID is told as it happens, so that another source's gauge adds none.
    """

    gpus: tuple[GpuFacts, ...] = ()
    xids: tuple[XidEvent, ...] = ()
    error: str = ""
    hears_xids: bool = False


def filled(facts: GpuFacts, other: GpuFacts) -> GpuFacts:
    """`facts` with what it does not know taken from another reading of the same GPU."""
    missing = {
        field.name: getattr(other, field.name)
        for field in fields(GpuFacts)
        if getattr(facts, field.name) in (None, "", ()) and field.name not in ("fault", "fault_text")
    }
    return replace(facts, **missing)


def merged(first: Sight, second: Sight) -> Sight:
    """Two looks at the same machine, the first one trusted more. GPUs are matched by UUID."""
    if second.error:
        return first
    if first.error:
        return second
    others = {gpu.uuid: gpu for gpu in second.gpus if gpu.uuid}
    gpus = tuple(filled(gpu, others[gpu.uuid]) if gpu.uuid in others else gpu for gpu in first.gpus)
    extra = tuple(event for event in second.xids if not (event.fresh and first.hears_xids))
    return Sight(gpus, (*first.xids, *extra), hears_xids=first.hears_xids)
