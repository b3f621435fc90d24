"""Which physical GPU or MIG instance Ray's device index means.

Ray gives the GPUs of a node the indices 0 to n-1, and index i to a task as the i-th entry of the CUDA_VISIBLE_DEVICES
that the node itself was started with; without that variable it is the driver's index i. The entries may be indices,
UUIDs (also their unique beginnings, as CUDA allows) or MIG instances, a part of what the machine has, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayorch.core.device_facts import GpuFacts, MigInstance

NO_DEVICES = ("", "NoDevFiles", "-1")
"""Values of CUDA_VISIBLE_DEVICES that mean: none."""
MAX_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Slot:
    """What Ray's index `index` means. `wrong`: the declaration itself is. `gpu` None: no such device is there now, as
    `wrong` says; without that it is not known whether it is."""

    index: int
    gpu: GpuFacts | None = None
    instance: MigInstance | None = None
    wrong: str = ""

    @property
    def uuid(self) -> str:
        """Of the instance, or of the whole GPU; empty where there is none."""
        if self.instance is not None:
            return self.instance.uuid
        return self.gpu.uuid if self.gpu is not None else ""


def visible_entries(value: str | None) -> tuple[str, ...] | None:
    """The entries of a CUDA_VISIBLE_DEVICES, None where it is not set: then all devices are meant."""
    if value is None:
        return None
    return () if value in NO_DEVICES else tuple(entry.strip() for entry in value.split(","))


def slots(
    visible: tuple[str, ...] | None, gpus: Sequence[GpuFacts], known: Mapping[int, str], at_least: int = 0
) -> tuple[Slot, ...]:
    """One slot for each of Ray's indices: as many as are declared, were ever seen, and at least `at_least`.

    `known`: the UUID that an index was seen to mean. It outweighs a number: when a GPU is lost, the driver may number
    the others anew, while Ray's index goes on meaning the device that it meant when the node was started.
    """
    by_number = {gpu.nvml_index: gpu for gpu in gpus}
    entries = visible if visible is not None else tuple(str(n) for n in range(_count(by_number, known, at_least)))
    found: list[Slot] = []
    taken: dict[str, int] = {}
    for index, entry in enumerate(entries):
        slot = _slot(index, entry, known.get(index, ""), gpus, by_number)
        before = taken.setdefault(slot.uuid, index) if slot.uuid else index
        if before != index:
            slot = Slot(index, slot.gpu, slot.instance, f"the same device as index {before}")
        found.append(slot)
    return tuple(found)


def _count(by_number: Mapping[int, GpuFacts], known: Mapping[int, str], at_least: int) -> int:
    return max([*(n + 1 for n in by_number), *(n + 1 for n in known), at_least, 0])


def _slot(index: int, entry: str, known_uuid: str, gpus: Sequence[GpuFacts], by_number: Mapping[int, GpuFacts]) -> Slot:
    gpu = by_number.get(int(entry)) if entry.isdecimal() and len(entry) <= MAX_DIGITS else None
    if known_uuid or not entry.isdecimal():
        slot = _by_uuid(index, known_uuid or entry, gpus)
        if slot.gpu is not None or all(other.uuid for other in gpus):
            return slot
        # One that could not be read has no name here: it may be the one that is meant.
        return Slot(index, gpu if gpu is not None and not gpu.uuid else None)
    return Slot(index, gpu) if gpu is not None else Slot(index, wrong=f"the driver shows no GPU {entry}")


def _by_uuid(index: int, entry: str, gpus: Sequence[GpuFacts]) -> Slot:
    if entry.startswith("MIG-"):
        for gpu in gpus:
            for instance in gpu.instances:
                old_name = f"MIG-{gpu.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
                if instance.uuid.startswith(entry) or entry == old_name:
                    return Slot(index, gpu, instance)
        if any(not instance.uuid for gpu in gpus for instance in gpu.instances):
            return Slot(index)  # read from a source that has no names for instances: nothing is known of it
        return Slot(index, wrong=f"the driver shows no MIG instance {entry}")
    found = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.startswith(entry)]
    if len(found) == 1:
        return Slot(index, found[0])
    if found:
        return Slot(index, wrong=f"{entry} is the beginning of {len(found)} GPUs' UUIDs")
    return Slot(index, wrong=f"the driver shows no GPU {entry}")
