"""What NVML's calls say, as facts. Runs only in the reader's child process: any call may hang or crash it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pynvml

from rayorch.core.device_facts import Fault, GpuFacts, GpuProcess, MigInstance, NvLink, Sight, XidEvent

Trace = Callable[[int, str], None]
"""Told before each call: the GPU's NVML index (-1: none in particular) and the call's name."""

ABSENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_FOUND,
    }
)
"""This fact is not to be had here: older driver or device, no right to it, no such link or instance."""
GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
SESSION = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""No other call will fare better."""
ESSENTIAL = frozenset({"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"})
"""When one of these fails it is not known what there is."""
MAX_EVENTS = 64
"""Taken in one look; a GPU that reports more is sick by the first ones."""
XID_EVENT = pynvml.nvmlEventTypeXidCriticalError
PROFILE_IN_NAME = re.compile(r"MIG (\S+)$")


class Library:
    """An NVML session. The constructor raises pynvml.NVMLError when there is no driver to talk to."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._call(-1, "nvmlInit")
        self._count = 0
        self._handles: dict[int, Any] = {}
        self._uuids: dict[int, str] = {}
        self._owners: dict[int, str] = {}  # by the handle's address: also of a GPU that is lost meanwhile
        self._events: Any = None
        self._heard: set[int] = set()
        self._last: dict[int, GpuFacts] = {}
        self._failed: list[str] = []  # calls about the GPU that is being read
        self._deaf = False

    def read(self, skip: frozenset[int]) -> Sight:
        """One look. GPUs in `skip` (NVML indices) are not touched: a call about them hangs, as it is known."""
        self._deaf = False
        xids = self._xids()  # first, while it is known which handle is whose
        count = int(self._call(-1, "nvmlDeviceGetCount"))
        if count != self._count:
            self._count = count
            self._begin_anew()
        gpus = tuple(self._gpu(index, index in skip) for index in range(count))
        xids += self._xids()
        hears_all = bool(count) and len(self._heard) == count and not self._deaf
        return Sight(gpus, xids, hears_xids=hears_all)

    def _begin_anew(self) -> None:
        """GPUs are numbered anew: a handle may mean another one now."""
        self._handles.clear()
        self._uuids.clear()
        self._last.clear()
        self._heard.clear()
        events, self._events = self._events, None
        if events is not None:
            self._maybe(-1, "nvmlEventSetFree", events)

    # ------------------------------------------------------------ one GPU

    def _gpu(self, index: int, skip: bool) -> GpuFacts:
        if skip:
            return self._with_fault(index, Fault.HANG, "a call about it did not return")
        try:
            if index not in self._handles:
                self._handles[index] = self._call(index, "nvmlDeviceGetHandleByIndex", index)
            facts = self._facts(index, self._handles[index])
        except pynvml.NVMLError as error:
            fault = Fault.LOST if error.value in GONE else Fault.ERROR
            self._handles.pop(index, None)
            return self._with_fault(index, fault, str(error))
        self._last[index] = facts
        self._listen(index)
        return facts

    def _with_fault(self, index: int, fault: Fault, text: str) -> GpuFacts:
        return replace(self._last.get(index, GpuFacts(index)), fault=fault, fault_text=text)

    def _facts(self, index: int, handle: Any) -> GpuFacts:
        def ask(name: str, *arguments: Any) -> Any:
            return self._maybe(index, name, handle, *arguments)

        self._failed.clear()
        uuid = str(self._call(index, "nvmlDeviceGetUUID", handle))
        if self._last.get(index, GpuFacts(index)).uuid != uuid:
            self._last.pop(index, None)
        before = self._last.get(index)
        memory = ask("nvmlDeviceGetMemoryInfo")
        mig = ask("nvmlDeviceGetMigMode")
        remapped = ask("nvmlDeviceGetRemappedRows")
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        pci = before.pci if before is not None else _pci(ask("nvmlDeviceGetPciInfo"))
        facts = GpuFacts(
            nvml_index=index,
            uuid=uuid,
            name=before.name if before is not None else str(ask("nvmlDeviceGetName") or ""),
            pci=pci,
            memory_total_bytes=memory.total if memory is not None else None,
            memory_used_bytes=memory.used if memory is not None else None,
            numa=before.numa if before is not None else self._numa(index, handle),
            mig_enabled=bool(mig[0]) if mig is not None else None,
            mig_pending=bool(mig[1]) if mig is not None else None,
            instances=self._instances(index, handle) if mig is not None and mig[0] else (),
            links=self._links(index, handle),
            temperature_c=ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
            power_w=_watts(ask("nvmlDeviceGetPowerUsage")),
            power_limit_w=_watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
            sm_clock_mhz=ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
            max_sm_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
            clock_reasons=reasons,
            correctable=self._ecc(index, handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
            uncorrectable=self._ecc(index, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
            uncorrectable_lifetime=self._ecc(
                index, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC
            ),
            remap_pending=bool(remapped[2]) if remapped is not None else None,
            remap_failed=bool(remapped[3]) if remapped is not None else None,
            recovery_action=self._recovery(index, handle),
            processes=self._processes(index, handle),
        )
        return self._completed(facts, before)

    def _completed(self, facts: GpuFacts, before: GpuFacts | None) -> GpuFacts:
        """Where some calls failed, what they would have told is as it was before, and it is said which."""
        if not self._failed:
            return facts
        failed = "; ".join(dict.fromkeys(self._failed))
        if before is not None:
            names = {field.name for field in fields(GpuFacts) if getattr(facts, field.name) is None} - {"fault"}
            names |= {name for name, call in (("links", "NvLink"), ("processes", "RunningProcesses")) if call in failed}
            facts = replace(facts, **{name: getattr(before, name) for name in names})
        return replace(facts, fault_text=failed)

    def _ecc(self, index: int, handle: Any, kind: int, counter: int) -> int | None:
        found: int | None = self._maybe(index, "nvmlDeviceGetTotalEccErrors", handle, kind, counter)
        return found

    def _numa(self, index: int, handle: Any) -> int | None:
        """The NUMA node whose memory is nearest; of several, the first."""
        words = self._maybe(index, "nvmlDeviceGetMemoryAffinity", handle, 1, 0)
        bits = int(words[0]) if words is not None else 0
        return (bits & -bits).bit_length() - 1 if bits else None

    def _recovery(self, index: int, handle: Any) -> int | None:
        values = self._maybe(index, "nvmlDeviceGetFieldValues", handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return int(values[0].value.uiVal)

    def _processes(self, index: int, handle: Any) -> tuple[GpuProcess, ...]:
        found: dict[int, GpuProcess] = {}
        for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for process in self._maybe(index, name, handle) or ():
                found[process.pid] = GpuProcess(int(process.pid), process.usedGpuMemory)
        return tuple(found[pid] for pid in sorted(found))

    def _instances(self, index: int, handle: Any) -> tuple[MigInstance, ...]:
        found = []
        for number in range(self._maybe(index, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = self._maybe(index, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if instance is None:
                continue
            sizes = self._maybe(index, "nvmlDeviceGetAttributes", instance)
            found.append(
                MigInstance(
                    uuid=str(self._call(index, "nvmlDeviceGetUUID", instance)),
                    profile=_profile(str(self._maybe(index, "nvmlDeviceGetName", instance) or ""), sizes),
                    gpu_instance=int(self._maybe(index, "nvmlDeviceGetGpuInstanceId", instance) or 0),
                    compute_instance=int(self._maybe(index, "nvmlDeviceGetComputeInstanceId", instance) or 0),
                    memory_bytes=sizes.memorySizeMB * 2**20 if sizes is not None else None,
                )
            )
        return tuple(found)

    def _links(self, index: int, handle: Any) -> tuple[NvLink, ...]:
        found: list[NvLink] = []
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            state = self._maybe(index, "nvmlDeviceGetNvLinkState", handle, link)
            if state is None:
                break  # the links of a device are numbered without gaps
            peer, switch = "", False
            if state:
                peer = _pci(self._maybe(index, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
                kind = self._maybe(index, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
                switch = kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            found.append(NvLink(link, bool(state), peer, switch))
        return tuple(found)

    # ------------------------------------------------------------ XIDs

    def _listen(self, index: int) -> None:
        """Hear of the GPU's XIDs from now on; once for each, and never again where it is refused."""
        if self._uuids.get(index) == self._last[index].uuid:
            return
        self._uuids[index] = self._last[index].uuid
        self._owners[_address(self._handles[index])] = self._last[index].uuid
        try:
            if self._events is None:
                self._events = self._call(-1, "nvmlEventSetCreate")
            self._call(index, "nvmlDeviceRegisterEvents", self._handles[index], XID_EVENT, self._events)
        except pynvml.NVMLError:
            self._heard.discard(index)  # said by `hears_xids`
        else:
            self._heard.add(index)

    def _xids(self) -> tuple[XidEvent, ...]:
        found: list[XidEvent] = []
        while self._events is not None and len(found) < MAX_EVENTS:
            try:
                event = self._call(-1, "nvmlEventSetWait_v2", self._events, 0)
            except pynvml.NVMLError as error:  # nearly always: none has come
                self._deaf |= error.value != pynvml.NVML_ERROR_TIMEOUT
                break
            if event.eventType & XID_EVENT:
                found.append(XidEvent(self._owners.get(_address(event.device), ""), int(event.eventData)))
        return tuple(found)

    # ------------------------------------------------------------ calling

    def _call(self, index: int, name: str, *arguments: Any) -> Any:
        self._trace(index, name)
        return getattr(pynvml, name)(*arguments)

    def _maybe(self, index: int, name: str, *arguments: Any) -> Any:
        """The answer, None where the fact is not to be had, and where only this call failed, which is noted; NVMLError
        when the GPU is lost or nothing more can be learnt of it."""
        try:
            return self._call(index, name, *arguments)
        except pynvml.NVMLError as error:
            if error.value in ABSENT:
                return None
            if index < 0 or name in ESSENTIAL or error.value in GONE or error.value in SESSION:
                raise
            self._failed.append(f"{name}: {error}")
            return None


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts is not None else None


def _pci(info: Any) -> str:
    """0000:3B:00.0, with the domain in four digits as the kernel has it; NVML gives eight."""
    if info is None:
        return ""
    text = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}".upper()


def _profile(name: str, sizes: Any) -> str:
    """1g.10gb: from the instance's name, with older drivers from its size."""
    match = PROFILE_IN_NAME.search(name)
    if match is not None:
        return match.group(1)
    if sizes is None:
        return "unknown"
    slices, part = sizes.gpuInstanceSliceCount, sizes.computeInstanceSliceCount
    whole = f"{slices}g.{round(sizes.memorySizeMB / 1024)}gb"
    return whole if part == slices else f"{part}c.{whole}"
