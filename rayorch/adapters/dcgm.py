"""A page of NVIDIA's DCGM exporter as facts, for what NVML does not tell or where it can't be read.

The exporter renames fields from release to release and writes a field without a value as a very large number. So
fields are known by their DCGM number, each with the names that it has had; blank values are dropped.
"""

from __future__ import annotations

import http.client
import logging
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rayorch.core.device_facts import GpuFacts, MigInstance, Sight, XidEvent

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
MAX_PAGE_BYTES = 8 * 2**20
MAX_DIGITS = 18
MAX_GPUS = 1000
"""Remembered beyond those of the page at hand."""
TOO_LARGE = 2.0**63
"""No field counts so far; infinity and NaN are not below it either."""
MIB = 2**20

FIELDS: Mapping[int, tuple[str, ...]] = {
    100: ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_MHZ"),
    112: (
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "DCGM_FI_DEV_CLOCK_EVENT_REASONS",
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
    ),
    150: ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
    155: ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
    230: ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"),
    250: ("DCGM_FI_DEV_FB_TOTAL",),
    251: ("DCGM_FI_DEV_FB_FREE",),
    252: ("DCGM_FI_DEV_FB_USED",),
    310: ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",),
    311: ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",),
    313: ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",),
    395: ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"),
    396: ("DCGM_FI_DEV_ROW_REMAP_PENDING",),
}
"""DCGM's number of a field → its names: the exporter's own first, then those of newer headers (NVIDIA/DCGM
`dcgm_fields.h`, NVIDIA/go-dcgm). Utilization is left out on purpose: 203 is a percentage that one release calls RATIO,
and another release has a ratio of that name."""

NUMBERS = {name: number for number, names in FIELDS.items() for name in names}
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
"""The exporter's own counter with the code as a label: unlike the gauge 230 it shows an XID that comes again."""

BLANKS = frozenset(
    {float(0x7FFFFFFFFFFFFFF0 + n) for n in range(4)}
    | {140737488355328.0 + n for n in range(4)}
    | {float(0x7FFFFFF0 + n) for n in range(4)}
)
"""Blank, not found, not supported, no permission: as 64-bit integer, as floating point, as 32-bit integer."""

LINE = re.compile(r"^([A-Za-z_:][\w:]*)\{(.*)\}\s+(\S+)(?:\s+\d+)?$")
LABEL = re.compile(r'(?:^|,)\s*([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class _Entity:
    """What the page says of one GPU: its labels, its values by field number, XIDs by code, its MIG instances."""

    labels: Mapping[str, str]
    values: dict[int, float] = field(default_factory=dict)
    xids: dict[int, int] = field(default_factory=dict)
    instances: dict[int, str] = field(default_factory=dict)


def samples(text: str) -> Iterator[Sample]:
    """The lines that hold a value. Comments, lines of another form and values that are blank or out of range are left
    out."""
    for line in text.split("\n"):
        match = LINE.match(line.strip())
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if not abs(value) < TOO_LARGE or value in BLANKS:
            continue
        labels = {name: ESCAPE.sub(_unescaped, raw) for name, raw in LABEL.findall(match[2])}
        yield Sample(match[1], labels, value)


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def host_of(labels: Mapping[str, str]) -> str:
    """The machine's name: `hostname` now, `Hostname` in older releases and in emulators of the exporter."""
    return labels.get("hostname") or labels.get("Hostname") or ""


class DcgmPage:
    """Reads one exporter again and again; remembers the gauge of each GPU's last XID, so that a change is news.

    `hosts`: names of this machine, for a page that shows several; a page of one machine is taken as it is.
    """

    def __init__(self, url: str, hosts: frozenset[str] = frozenset(), timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._hosts = hosts
        self._timeout_s = timeout_s
        self._gauges: dict[str, int] = {}
        self._counts: dict[str, dict[int, int]] = {}

    def read(self) -> Sight:
        """Fetch the page and take it apart. `error` says why there is none; blocks for about the timeout at most."""
        try:
            page = _fetched(self._url, self._timeout_s)
        except (OSError, ValueError, http.client.HTTPException) as error:
            return Sight(error=f"the DCGM exporter at {self._url} can't be read: {error}")
        # A page ends with a line's end. What comes after the last one was cut off, and may be half a number.
        return self.parse(page[: page.rfind(b"\n") + 1].decode(errors="replace"))

    def parse(self, text: str) -> Sight:
        """A page as facts."""
        found = [s for s in samples(text) if s.name in NUMBERS or s.name == XID_COUNT]
        hosts = {host_of(s.labels) for s in found}
        if len(hosts - {""}) > 1:
            found = [s for s in found if host_of(s.labels) in self._hosts]
        entities = _entities(found)
        if not entities:
            return Sight(error=f"the DCGM exporter at {self._url} shows no GPU of this machine")
        gpus = tuple(sorted((_facts(entity) for entity in entities.values()), key=lambda gpu: gpu.nvml_index))
        if len(self._gauges) > MAX_GPUS:  # of a page whose names are others each time
            for gone in self._gauges.keys() - entities.keys():
                del self._gauges[gone], self._counts[gone]
        xids = tuple(event for uuid in sorted(entities) for event in self._news(uuid, entities[uuid]))
        return Sight(gpus, xids)

    def _news(self, uuid: str, entity: _Entity) -> Iterator[XidEvent]:
        """XIDs since the last page. At the first one a gauge's value is of unknown age."""
        former, self._counts[uuid] = self._counts.get(uuid), entity.xids
        for code, count in sorted(entity.xids.items()):
            more = count - (former or {}).get(code, 0)  # a code that has left the exporter's window counts from nothing
            if more > 0:
                yield XidEvent(uuid, code, fresh=former is not None, count=more)
        before = self._gauges.setdefault(uuid, 0)
        if 230 not in entity.values:
            return  # not shown is not none: an old code that is shown again is no news
        code = self._gauges[uuid] = int(entity.values[230])
        if code and code != before and not entity.xids:
            yield XidEvent(uuid, code, fresh=former is not None)


def _fetched(url: str, timeout_s: float) -> bytes:
    """The page at `url`, directly: no proxy, no redirect. OSError, ValueError or HTTPException where there is none.

    The socket's own time-out bounds each wait; an exporter that sends a byte now and then is cut off all the same.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is no address of HTTP")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=timeout_s)
    late, begun_s = threading.Event(), time.monotonic()
    try:
        connection.connect()
        left_s = max(0.0, begun_s + timeout_s - time.monotonic())
        timer = threading.Timer(left_s, _cut, (connection.sock, late))
        timer.daemon = True
        timer.start()
        try:
            path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request("GET", path, headers={"Accept": "text/plain"})
            answer = connection.getresponse()
            page = answer.read(MAX_PAGE_BYTES + 1) if answer.status == 200 else b""
        finally:
            timer.cancel()
    except (OSError, http.client.HTTPException) as error:
        if late.is_set():  # it was cut off, whatever that looked like to who was reading
            raise TimeoutError("timed out") from error
        raise
    finally:
        connection.close()
    if late.is_set():
        raise TimeoutError("timed out")
    if answer.status != 200:
        raise ValueError(f"it answers {answer.status}")
    if len(page) > MAX_PAGE_BYTES:
        raise ValueError(f"the page has more than {MAX_PAGE_BYTES} bytes")
    return page


def _cut(connected: socket.socket, late: threading.Event) -> None:
    """End a connection under whoever waits for it."""
    late.set()
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # it has ended by itself meanwhile
        log.debug("cutting off the exporter: %s", error)


def _number(text: str) -> int | None:
    """A label's number; None for what is none, or a longer one than anything is numbered by."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _entities(found: list[Sample]) -> dict[str, _Entity]:
    """By the UUID of the GPU. A MIG instance's lines carry the UUID of its GPU: only its profile is taken from them."""
    entities: dict[str, _Entity] = {}
    for sample in found:
        labels = sample.labels
        uuid = labels.get("UUID") or labels.get("gpu_uuid") or ""
        if not uuid:
            continue
        entity = entities.setdefault(uuid, _Entity(labels))
        profile, instance = labels.get("GPU_I_PROFILE", ""), _number(labels.get("GPU_I_ID", ""))
        if profile and instance is not None:
            entity.instances[instance] = profile
            if sample.name != XID_COUNT and NUMBERS[sample.name] in (250, 251, 252):
                continue  # the instance's own memory, not the GPU's
        if sample.name == XID_COUNT:
            code = _number(labels.get("xid", ""))
            if code is not None:
                entity.xids[code] = entity.xids.get(code, 0) + int(sample.value)
        else:
            entity.values[NUMBERS[sample.name]] = sample.value
    return entities


def _facts(entity: _Entity) -> GpuFacts:
    labels, values = entity.labels, entity.values

    def whole(number: int) -> int | None:
        return int(values[number]) if number in values else None

    def flag(number: int) -> bool | None:
        return values[number] > 0 if number in values else None

    used, free, total = whole(252), whole(251), whole(250)
    if total is None and used is not None and free is not None:
        total = used + free
    return GpuFacts(
        nvml_index=_number(labels.get("gpu", "")) or 0,
        uuid=labels.get("UUID") or labels.get("gpu_uuid") or "",
        name=labels.get("modelName") or labels.get("model_name") or "",
        pci=_pci(labels.get("pci_bus_id", "")),
        memory_total_bytes=total * MIB if total is not None else None,
        memory_used_bytes=used * MIB if used is not None else None,
        mig_enabled=True if entity.instances else None,
        instances=tuple(
            # The page has no name of an instance by which CUDA knows it.
            MigInstance("", profile, number, 0)
            for number, profile in sorted(entity.instances.items())
        ),
        temperature_c=whole(150),
        power_w=values.get(155),
        sm_clock_mhz=whole(100),
        clock_reasons=whole(112),
        correctable=whole(310),
        uncorrectable=whole(311),
        uncorrectable_lifetime=whole(313),
        remap_pending=flag(396),
        remap_failed=flag(395),
    )


def _pci(text: str) -> str:
    """0000:3B:00.0, with the domain in four digits as the kernel has it."""
    domain, colon, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}".upper() if colon else text
