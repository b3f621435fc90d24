"""The node agent's look at its GPUs: read in a period, judged, and told to the inventory when something has changed."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from rayorch.actors.gpu_processes import GpuProcesses
from rayorch.adapters.dcgm import DcgmPage
from rayorch.adapters.nvml import NvmlReader, nvml_present
from rayorch.adapters.ray_visible import CONTAINER_VISIBLE, VISIBLE
from rayorch.core.device_facts import GpuFacts, Sight, merged
from rayorch.core.devices import DeviceReport, NodeDevices, NodeReading
from rayorch.core.visible import visible_entries

log = logging.getLogger(__name__)

READ_SWITCH = "RAYORCH_READ_DEVICES"
"""0: the devices of this node are not looked at, as where Ray was told of more GPUs than there are, on purpose."""
DCGM_URL = "RAYORCH_DCGM_URL"
PERIOD = "RAYORCH_DEVICE_PERIOD_S"
PERIOD_S = 3.0
"""From one look's begin to the next one's. Two readings running that show a noisy fact take less than 10 s, which is
what is promised, as long as a look takes less than 2."""
MAX_PERIOD_S = 4.0
MAX_FAILED_PAUSE_S = 30.0
"""Looks that fail one after the other are made less and less often, down to this: each may cost a new process."""
ABSENT_PERIOD_S = 60.0
"""How often a machine without a driver is looked at: one may be installed."""
PUSH_PERIOD_S = 30.0
"""A report is repeated although nothing has changed: the inventory may have been restarted, and it learns by this that
the devices are still looked at."""


class Source(Protocol):
    """Where readings come from. Blocking, but bounded."""

    def present(self) -> bool:
        """Whether there is anything to read on this machine."""
        ...

    def read(self) -> Sight:
        """One look."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """`environment`: of the Ray node, which says what Ray's indices mean."""

    environment: Mapping[str, str]
    period_s: float = PERIOD_S
    push_period_s: float = PUSH_PERIOD_S
    absent_period_s: float = ABSENT_PERIOD_S

    @staticmethod
    def of_environment(environment: Mapping[str, str]) -> WatchSettings:
        """With the period that the node's environment sets; one that is no positive number is as if not set."""
        try:
            period_s = float(environment.get(PERIOD, PERIOD_S))
        except ValueError:
            period_s = 0.0
        return WatchSettings(environment, period_s if 0.0 < period_s <= MAX_PERIOD_S else PERIOD_S)

    def pause_s(self, there: bool, took_s: float, failed: int = 0) -> float:
        """From the end of a look that took so long until the next one; some of it is left however long one takes.

        `failed`: how many looks running have failed.
        """
        if not there:
            return self.absent_period_s
        pause_s = max(self.period_s - took_s, self.period_s / 3)
        return pause_s if failed < 2 else max(pause_s, min(self.period_s * 2.0 ** min(failed, 9), MAX_FAILED_PAUSE_S))

    @property
    def wanted(self) -> bool:
        """Not switched off."""
        return self.environment.get(READ_SWITCH, "1") != "0"


class MachineSource:
    """NVML, and beside it the page of a DCGM exporter where one is named (RAYORCH_DCGM_URL)."""

    def __init__(self, processes: GpuProcesses, environment: Mapping[str, str]) -> None:
        self._processes = processes
        self._container = environment.get(CONTAINER_VISIBLE, "")
        self._nvml: NvmlReader | None = None
        url = environment.get(DCGM_URL, "")
        hosts = frozenset({socket.gethostname(), os.environ.get("NODE_NAME", ""), *_node_names(environment)} - {""})
        self._dcgm = DcgmPage(url, hosts) if url else None

    def present(self) -> bool:
        """A library to load or a page to fetch."""
        return self._dcgm is not None or nvml_present()

    def read(self) -> Sight:
        """Both sources joined; the library is trusted more."""
        if self._nvml is None and nvml_present():
            self._nvml = NvmlReader()
        if self._nvml is None:
            assert self._dcgm is not None, "nothing to read"
            return named_only(self._dcgm.read(), self._container)
        sight = self._nvml.read()
        if self._dcgm is not None:
            page = self._dcgm.read()
            if sight.error:
                return named_only(page, self._container) if not page.error else sight
            sight = merged(sight, page)
        return self._processes.named(sight)

    def close(self) -> None:
        """End the reader's process."""
        if self._nvml is not None:
            self._nvml.close()


def _node_names(environment: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(environment.get(name, "") for name in ("NODE_NAME", "HOSTNAME"))


def named_only(sight: Sight, container: str) -> Sight:
    """The GPUs of an exporter's page that this container has, numbered as a driver would number them in it.

    The page shows the whole machine. Without UUIDs in NVIDIA_VISIBLE_DEVICES nobody knows which of them are ours.
    """
    if sight.error:
        return sight
    ours = {entry for entry in container.split(",") if entry.startswith("GPU-")}
    if not ours:
        return Sight(error=f"the DCGM exporter's GPUs can't be told apart: {CONTAINER_VISIBLE} holds no UUIDs")
    gpus: list[GpuFacts] = sorted((g for g in sight.gpus if g.uuid in ours), key=lambda gpu: gpu.pci or gpu.uuid)
    if len(gpus) < len(ours):
        return Sight(error=f"the DCGM exporter shows {len(gpus)} of this node's {len(ours)} GPUs")
    return replace(sight, gpus=tuple(replace(gpu, nvml_index=number) for number, gpu in enumerate(gpus)))


class DeviceWatch:
    """`push` hands a report on and must not wait for an answer; `former` is what a former agent had told."""

    def __init__(
        self,
        settings: WatchSettings,
        source: Source,
        push: Callable[[DeviceReport], Awaitable[None]],
        former: DeviceReport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._source = source
        self._push = push
        self._clock = clock
        self._devices = NodeDevices(
            visible_entries(settings.environment.get(VISIBLE)),
            histories=former.histories if former is not None else (),
        )
        self._sequence = former.sequence if former is not None else 0
        self._pushed: DeviceReport | None = None
        self._pushed_s = float("-inf")
        self._present = False
        self._one = asyncio.Lock()
        self._error = ""
        self._read_s: float | None = None
        self._looks = 0
        self._failed = 0

    async def run(self) -> None:
        """Look for ever. What goes wrong in one look is said, and the next one is made."""
        if not self._settings.wanted:
            log.info("%s=0: the devices of this node are not read", READ_SWITCH)
            return
        while True:
            began_s = time.monotonic()
            try:
                there = await self.look()
            except Exception:
                log.exception("looking at the devices failed")
                there = True
            await asyncio.sleep(self._settings.pause_s(there, time.monotonic() - began_s, self._failed))

    async def look(self) -> bool:
        """One look, judged and, if there is news, told. False: there is nothing to look at on this machine.

        One at a time: an operator's may come while the periodic one is being made, and a source is no two threads'.
        """
        async with self._one:
            return await self._look()

    async def _look(self) -> bool:
        if not self._present:
            self._present = await asyncio.to_thread(self._source.present)
            if not self._present:
                return False
        sight = await asyncio.to_thread(self._source.read)
        if sight.error != self._error:
            log.warning("devices: %s", sight.error or "can be read again")
            self._error = sight.error
        self._looks += 1
        self._failed = self._failed + 1 if sight.error else 0
        self._read_s = self._clock()
        self._devices.observe(sight, self._read_s)
        await self._tell()
        return True

    async def _tell(self) -> None:
        report = self._devices.report(0)
        now_s = self._clock()
        news = self._pushed is None or _stable(report) != _stable(self._pushed)
        if not news and abs(now_s - self._pushed_s) < self._settings.push_period_s:  # abs: a clock may be set back
            return
        for device in report.devices if news else ():
            before = next((d for d in self._pushed.devices if d.index == device.index), None) if self._pushed else None
            if (device.sick, device.watch) != ((before.sick, before.watch) if before else ("", "")):
                log.warning("GPU %d (%s): %s", device.index, device.uuid, device.sick or device.watch or "well again")
        # Grows also where the clock is set back. From the clock: above what a former agent told, known here or not.
        self._sequence = max(int(now_s * 1000), self._sequence + 1)
        report = replace(report, sequence=self._sequence)
        await self._push(report)
        self._pushed, self._pushed_s = report, now_s

    @property
    def report(self) -> DeviceReport | None:
        """The last report, None before the first."""
        return self._pushed

    @property
    def reading(self) -> NodeReading:
        """Each device with everything that was read of it last."""
        return NodeReading(self._devices.readings, self._error, self._read_s, self._looks)

    async def clear(self, index: int) -> bool:
        """Forget what an operator has dealt with on one device, and look again."""
        found = self._devices.clear(index)
        if found:
            await self.look()
        return found

    def close(self) -> None:
        """Let go of the source."""
        self._source.close()


def _stable(report: DeviceReport) -> DeviceReport:
    """A report without its number and the counting of noisy facts that have not come to count."""
    histories = tuple(
        replace(
            history,
            lost=replace(history.lost, run=0),
            hung=replace(history.hung, run=0),
            unread=replace(history.unread, run=0),
            throttled=replace(history.throttled, run=0),
            strays=replace(history.strays, run=0),
        )
        for history in report.histories
    )
    return replace(report, histories=histories, sequence=0)
