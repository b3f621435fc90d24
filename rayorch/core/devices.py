"""From readings of a node's GPUs to verdicts: healthy, to be watched, or sick so that nothing new may use it.

Facts that don't come back (a lost device, an uncorrectable error, a fatal XID) count at once. Noisy ones (a clock held
down, a device missing from one list, a call that took too long) count only when several readings running say so, and
are over only when several say the contrary. A reading that failed changes no verdict: unknown is not sick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rayorch.core.device_facts import Fault, GpuFacts, MigInstance, ProcessOwner, Sight, XidEvent
from rayorch.core.types import Device
from rayorch.core.visible import Slot, slots
from rayorch.core.xids import XidAction, xid_action, xid_text

THROTTLES: tuple[tuple[int, str], ...] = (
    (0x40, "hardware thermal slowdown"),
    (0x20, "software thermal slowdown"),
    (0x80, "power brake"),
    (0x08, "hardware slowdown"),
    (0x400, "reliability limit"),
)
"""NVML's clock event reasons (nvmlClocksEventReason*) that mean trouble. An idle clock, one that somebody has set, and
the power cap, which a GPU under full load reaches by design, are none."""

RECOVERY: Mapping[int, tuple[str, bool]] = {
    1: ("a reset of the GPU", True),
    2: ("a reboot of the node", True),
    3: ("a drain of its peer-to-peer traffic", False),
    4: ("a drain and a reset", True),
    5: ("a recovery of the IMEX domain", False),
    6: ("a reset of its bus", True),
    7: ("a reboot of the system", True),
}
"""NVML_GPU_RECOVERY_ACTION_*: what the driver asks for, and whether the device is of use before that."""

MAX_XIDS = 32
"""Distinct XIDs kept of a device."""
MAX_NAMED = 3
"""Processes named in one reason."""


@dataclass(frozen=True, slots=True)
class DeviceRules:
    """`raise_after`, `clear_after`: readings running that a noisy fact takes to count, and to be over.

    `uncorrectable`: ECC errors since the driver was loaded from which a device is sick. `app_xids` errors of
    applications on one device within `xid_window_s` make it suspect, whoever's fault each was.
    """

    raise_after: int = 2
    clear_after: int = 5
    uncorrectable: int = 1
    app_xids: int = 5
    xid_window_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Latch:
    """A noisy fact: `text` is what is held to be so, empty for nothing; `run`: readings running that contradict."""

    text: str = ""
    run: int = 0

    def step(self, now: str, raise_after: int, clear_after: int) -> Latch:
        """After one more reading. A new text for what is so already does not change it."""
        if bool(now) == bool(self.text):
            return replace(self, run=0)
        run = self.run + 1
        if run >= (raise_after if now else clear_after):
            return Latch(now)
        return replace(self, run=run)


@dataclass(frozen=True, slots=True)
class XidSeen:
    """An XID that a device had: how often, and when last [s since the epoch]. See `XidEvent.fresh`."""

    code: int
    count: int
    last_s: float
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """What has to be remembered of one of Ray's devices between two readings, or when its reader is restarted.

    `sick`: what the facts of the last reading that succeeded say against it."""

    index: int
    uuid: str = ""
    lost: Latch = Latch()
    hung: Latch = Latch()
    unread: Latch = Latch()
    throttled: Latch = Latch()
    strays: Latch = Latch()
    xids: tuple[XidSeen, ...] = ()
    sick: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One of Ray's devices with its verdict and everything that was read of it last."""

    device: Device
    facts: GpuFacts | None = None
    instance: MigInstance | None = None
    xids: tuple[XidSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeReading:
    """All devices of a node as its agent shows them. `read_s`: when it looked last [s since the epoch], None where
    there is nothing to read; `looks`: how often since it was started. `error`: why the last look failed."""

    devices: tuple[DeviceReading, ...] = ()
    error: str = ""
    read_s: float | None = None
    looks: int = 0


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What a node's reader tells the inventory. `complete`: every device of the machine could be listed.

    `sequence` grows with every report of one reader, so that an older one is never taken for news.
    """

    devices: tuple[Device, ...]
    note: str = ""
    complete: bool = True
    profiles: tuple[str, ...] = ()
    histories: tuple[DeviceHistory, ...] = ()
    sequence: int = 0


class NodeDevices:
    """The devices of one node as its reader knows them.

    `visible`: the CUDA_VISIBLE_DEVICES of the Ray node. `histories`: what a former reader has told.
    """

    def __init__(
        self,
        visible: tuple[str, ...] | None,
        rules: DeviceRules = DeviceRules(),
        histories: tuple[DeviceHistory, ...] = (),
    ) -> None:
        self._visible = visible
        self._rules = rules
        self._histories = {history.index: history for history in histories}
        self._slots: dict[int, Slot] = {}
        self._devices: dict[int, Device] = {}
        self._note = ""
        self._complete = False
        self._profiles: tuple[str, ...] = ()

    def observe(self, sight: Sight, now_s: float) -> None:
        """Take one look at the machine's GPUs. One that failed is said, and changes nothing else."""
        self._note = sight.error
        self._complete = not sight.error
        if sight.error:
            return
        known = {index: history.uuid for index, history in self._histories.items() if history.uuid}
        found = slots(self._visible, sight.gpus, known, len(self._histories))
        neighbours = _neighbours(found)
        self._profiles = tuple(sorted(p for gpu in {s.gpu.uuid: s.gpu for s in found if s.gpu}.values()
                                      for p in gpu.profiles))  # fmt: skip
        for slot in found:
            history = self._histories.get(slot.index, DeviceHistory(slot.index))
            history = remembered(history, slot, sight.xids, now_s, self._rules)
            if slot.gpu is None and slot.index in self._slots:
                slot = replace(self._slots[slot.index], wrong=slot.wrong)  # what it was, to say what is gone
            self._histories[slot.index], self._slots[slot.index] = history, slot
            self._devices[slot.index] = judged(slot, history, self._rules, neighbours.get(slot.index, ()))

    def clear(self, index: int) -> bool:
        """Forget what an operator has dealt with (a reset device's XIDs). False where there is no such device."""
        if index not in self._histories:
            return False
        before = self._histories[index]
        self._histories[index] = DeviceHistory(index, before.uuid, sick=before.sick)  # facts are for a reading to clear
        return True

    def report(self, sequence: int) -> DeviceReport:
        """For the inventory; equal but for `sequence` and the counting of noisy facts while nothing has changed."""
        devices = tuple(self._devices[index] for index in sorted(self._devices))
        histories = tuple(self._histories[index] for index in sorted(self._histories))
        return DeviceReport(devices, self._note, self._complete, self._profiles, histories, sequence)

    @property
    def readings(self) -> tuple[DeviceReading, ...]:
        """Everything that is known of each device now."""
        return tuple(
            DeviceReading(
                self._devices[index],
                self._slots[index].gpu,
                self._slots[index].instance,
                self._histories[index].xids,
            )
            for index in sorted(self._devices)
        )


# ---------------------------------------------------------------- what is remembered


def remembered(
    history: DeviceHistory, slot: Slot, xids: tuple[XidEvent, ...], now_s: float, rules: DeviceRules
) -> DeviceHistory:
    """The history after one more reading."""
    gpu = slot.gpu
    fault = gpu.fault if gpu is not None else None
    gone = fault is Fault.LOST
    lost = slot.wrong if gpu is None else (gpu.fault_text or "the driver has lost it") if gone else ""
    raise_after, clear_after = rules.raise_after, rules.clear_after
    history = replace(
        history,
        uuid=history.uuid or slot.uuid,
        xids=_with_xids(history.xids, _codes_of(history.uuid or slot.uuid, slot, xids), now_s, rules),
    )
    if lost or (gpu is not None and fault is None):  # one that can't be read is not known to be back
        history = replace(history, lost=history.lost.step(lost, 1 if gone else raise_after, clear_after))
    if gpu is None or gone:
        return history
    history = replace(
        history,
        hung=history.hung.step(gpu.fault_text if fault is Fault.HANG else "", raise_after, clear_after),
        unread=history.unread.step(gpu.fault_text if fault is not Fault.HANG else "", raise_after, clear_after),
    )
    if fault is not None:
        return history  # nothing was read: clocks and processes are not known to be better
    return replace(
        history,
        throttled=history.throttled.step(throttle_text(gpu.clock_reasons), raise_after, clear_after),
        strays=history.strays.step(_strays(gpu), raise_after, clear_after),
        sick=_sick_by_facts(slot, gpu, rules),
    )


def throttle_text(reasons: int | None) -> str:
    """The names of the bits that mean trouble, empty when there are none."""
    return ", ".join(name for bit, name in THROTTLES if (reasons or 0) & bit)


def _strays(gpu: GpuFacts) -> str:
    """The processes on a GPU that should not be there."""
    named: list[str] = []
    for process in sorted(gpu.processes, key=lambda p: p.pid):
        name = process.command.split(" ")[0].rpartition("/")[2]
        who = f"process {process.pid}" + (f" ({name})" if name else "")
        if process.owner is ProcessOwner.ENDED:
            named.append(f"{who} of {process.attempt}, which is over")
        elif process.owner is ProcessOwner.STRAY:
            named.append(f"{who}, which no grant covers")
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return "; ".join(named[:MAX_NAMED]) + more


def _codes_of(uuid: str, slot: Slot, xids: tuple[XidEvent, ...]) -> tuple[XidEvent, ...]:
    """The events of a device: of the whole GPU also for its instances, which are as broken as it is."""
    mine = {uuid, slot.uuid, slot.gpu.uuid if slot.gpu is not None else uuid}
    return tuple(event for event in xids if event.uuid in mine)


def _with_xids(
    seen: tuple[XidSeen, ...], events: tuple[XidEvent, ...], now_s: float, rules: DeviceRules
) -> tuple[XidSeen, ...]:
    """Fatal ones stay until somebody has acted; the others are forgotten after the window."""
    by_code = {x.code: x for x in seen if xid_action(x.code).fatal or now_s - x.last_s < rules.xid_window_s}
    for event in events:
        old = by_code.get(event.code)
        if old is None:
            by_code[event.code] = XidSeen(event.code, event.count, now_s, event.fresh)
        elif event.fresh:
            by_code[event.code] = XidSeen(event.code, old.count + event.count, now_s)
    newest = sorted(by_code.values(), key=lambda x: (xid_action(x.code).fatal, x.last_s, x.code), reverse=True)
    return tuple(sorted(newest[:MAX_XIDS], key=lambda x: x.code))


# ---------------------------------------------------------------- verdicts


def judged(slot: Slot, history: DeviceHistory, rules: DeviceRules, neighbours: tuple[int, ...] = ()) -> Device:
    """The device with its verdict. Its model is Ray's to name, and stays empty here."""
    gpu, instance = slot.gpu, slot.instance
    sick = [*_sick_by_history(history), *history.sick]
    watch = [*_watch_by_history(history, rules), *(_watch_by_facts(gpu) if gpu is not None else ())]
    memory = instance.memory_bytes if instance is not None else gpu.memory_total_bytes if gpu is not None else None
    return Device(
        index=slot.index,
        uuid=history.uuid or slot.uuid,
        sick="; ".join(sick),
        watch="; ".join(watch),
        lost=bool(history.lost.text),
        memory_bytes=memory or 0,
        mig_profile=instance.profile if instance is not None else "",
        pci=gpu.pci if gpu is not None else "",
        numa=gpu.numa if gpu is not None else None,
        nvlink=neighbours,
    )


def _sick_by_history(history: DeviceHistory) -> list[str]:
    found = []
    if history.lost.text:
        found.append(f"lost: {history.lost.text}")
    if history.hung.text:
        found.append(f"hangs: {history.hung.text}")
    found += [xid_text(x.code) for x in history.xids if x.fresh and xid_action(x.code).fatal]
    return found


def _sick_by_facts(slot: Slot, gpu: GpuFacts, rules: DeviceRules) -> tuple[str, ...]:
    found = []
    if slot.wrong.startswith("the same device"):
        found.append(f"declared twice: {slot.wrong}")
    if gpu.mig_enabled is not None and gpu.mig_pending is not None and gpu.mig_enabled != gpu.mig_pending:
        wanted = "on" if gpu.mig_pending else "off"
        found.append(f"MIG is being switched {wanted}, which takes a reset")
    elif gpu.mig_enabled and slot.instance is None:
        slices = multiset(gpu.profiles) or "no instance"
        found.append(f"declared as a whole GPU, but MIG is on ({slices})")
    if gpu.uncorrectable is not None and gpu.uncorrectable >= rules.uncorrectable:
        found.append(f"{gpu.uncorrectable} uncorrectable ECC errors since the driver was loaded")
    if gpu.remap_failed:
        found.append("a row of its memory could not be remapped")
    asked, fatal = _recovery(gpu.recovery_action)
    if asked and fatal:
        found.append(f"the driver asks for {asked}")
    return tuple(found)


def _watch_by_history(history: DeviceHistory, rules: DeviceRules) -> list[str]:
    found = []
    if history.throttled.text:
        found.append(f"throttled: {history.throttled.text}")
    if history.unread.text:
        found.append(f"can't be read: {history.unread.text}")
    if history.strays.text:
        found.append(f"used by {history.strays.text}")
    for x in history.xids:
        action = xid_action(x.code)
        if not x.fresh and action is not XidAction.RECORD:
            found.append(f"{xid_text(x.code)} at some time before it was watched")
        elif action is XidAction.WATCH:
            found.append(xid_text(x.code))
        elif action is XidAction.UNKNOWN:
            found.append(f"{xid_text(x.code)}, which is not known here")
    if sum(x.count for x in history.xids if x.fresh and xid_action(x.code) is XidAction.RESTART_APP) >= rules.app_xids:
        codes = [str(x.code) for x in history.xids if xid_action(x.code) is XidAction.RESTART_APP]
        found.append(f"many errors of applications (XID {', '.join(codes)})")
    return found


def _watch_by_facts(gpu: GpuFacts) -> list[str]:
    found = ["a row of its memory is to be remapped at its next reset"] if gpu.remap_pending else []
    asked, fatal = _recovery(gpu.recovery_action)
    if asked and not fatal:
        found.append(f"the driver asks for {asked}")
    down = sum(not link.up for link in gpu.links)
    if down and down < len(gpu.links):
        found.append(f"{down} of {len(gpu.links)} NVLinks are down")
    return found


def _recovery(action: int | None) -> tuple[str, bool]:
    if not action:
        return "", False
    return RECOVERY.get(action, (f"recovery action {action}", False))


def _neighbours(found: tuple[Slot, ...]) -> dict[int, tuple[int, ...]]:
    """Which of Ray's indices each one reaches by NVLink, directly or through switches. Instances have none."""
    whole = [(slot.index, slot.gpu) for slot in found if slot.gpu is not None and slot.instance is None]
    switched = {index for index, gpu in whole if any(link.up and link.switch for link in gpu.links)}
    reached: dict[int, tuple[int, ...]] = {}
    for index, gpu in whole:
        peers = {link.peer.lower() for link in gpu.links if link.up and not link.switch}
        direct = {other for other, there in whole if there.pci and there.pci.lower() in peers}
        reached[index] = tuple(sorted((direct | (switched if index in switched else set())) - {index}))
    return reached


def multiset(profiles: tuple[str, ...]) -> str:
    """7 x 1g.10gb, 1 x 3g.40gb."""
    return ", ".join(f"{profiles.count(name)} x {name}" for name in sorted(set(profiles)))
