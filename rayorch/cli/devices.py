"""`rayorch devices`: the GPUs of a node, one by one, and in short what is wrong with a node's GPUs."""

from __future__ import annotations

import time

from rayorch.cli.output import Column, Item, age

GIB = 2**30
MAX_TEXT = 200


def devices_of(data: Item) -> list[Item]:
    """The devices of a node, or of an answer about one."""
    found = data["devices"]
    return [device for device in found if isinstance(device, dict)] if isinstance(found, list) else []


def node_trouble(node: Item) -> str:
    """What is wrong with a node and its devices, in one line: "GPU 3: lost; GPU 5 (watch): throttled"."""
    parts = [str(node["reason"]), str(node.get("deviceNote", ""))]
    by_text: dict[str, list[str]] = {}
    for device in devices_of(node):
        text = str(device["sick"] or "") or (f"watch: {device['watch']}" if device.get("watch") else "")
        if text:
            by_text.setdefault(text, []).append(str(device["index"]))
    parts += [f"GPU {','.join(indices)}: {text}" for text, indices in by_text.items()]
    line = "; ".join(part for part in parts if part)
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"


def heading(data: Item) -> str:
    """How fresh it is."""
    read_s = data["readAt"]
    if not isinstance(read_s, int | float):
        return f"{data['name']}: {data['error'] or 'no driver to read'}, devices are as Ray counts them"
    trouble = f"; the last look failed: {data['error']}" if data["error"] else ""
    return f"{data['name']}: read {age(time.time() - read_s)} ago{trouble}"


def _trouble(device: Item) -> str:
    return "; ".join(str(device[key]) for key in ("sick", "watch") if device[key])


def _kind(device: Item) -> str:
    name = str(device.get("name") or device["model"] or "-")
    return f"{name} {device['migProfile']}".strip() if device["migProfile"] else name


def _gib(device: Item) -> str:
    used, total = device.get("memoryUsedBytes"), device["memoryBytes"]
    if not isinstance(total, int | float):
        return "-"
    whole = f"{total / GIB:.0f}"
    return f"{used / GIB:.1f}/{whole}" if isinstance(used, int | float) else whole


def _of(device: Item, key: str, limit: str = "") -> str:
    value, most = device.get(key), device.get(limit)
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.0f}/{most:.0f}" if isinstance(most, int | float) else f"{value:.0f}"


def _ecc(device: Item) -> str:
    counts = device.get("ecc")
    if not isinstance(counts, dict) or counts.get("uncorrected") is None:
        return "-"
    return f"{counts.get('corrected') or 0}/{counts['uncorrected']}"


def _xids(device: Item) -> str:
    found = device.get("xids")
    return ",".join(str(xid["code"]) for xid in found) if isinstance(found, list) and found else "-"


def _processes(device: Item) -> str:
    found = device.get("processes")
    return str(len(found)) if isinstance(found, list) else "-"


DEVICE_COLUMNS = (
    Column("GPU", lambda d: d["index"], right=True),
    Column("DEVICE", _kind),
    Column("HEALTH", lambda d: d["health"]),
    Column("TEMP", lambda d: _of(d, "temperatureC"), right=True),
    Column("WATT", lambda d: _of(d, "powerW", "powerLimitW"), right=True),
    Column("MHZ", lambda d: _of(d, "smClockMhz", "maxSmClockMhz"), right=True),
    Column("GIB", _gib, right=True),
    Column("ECC", _ecc, right=True),
    Column("XID", _xids),
    Column("PROCS", _processes, right=True),
    Column("NUMA", lambda d: "-" if d["numa"] is None else d["numa"], right=True),
    Column("UUID", lambda d: d["uuid"] or "-"),
    Column("REASON", _trouble),
)
