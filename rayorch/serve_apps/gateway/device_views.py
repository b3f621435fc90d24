"""A node's GPUs as JSON of /api/v1: in short with their node, and with everything that was read of each."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rayorch.core.devices import DeviceReading, NodeReading, throttle_text
from rayorch.core.payload import Json
from rayorch.core.types import Device
from rayorch.core.xids import xid_action, xid_text

if TYPE_CHECKING:
    from rayorch.core.device_facts import GpuFacts


def device_json(device: Device) -> dict[str, Json]:
    """What the inventory knows of a device. `health`: healthy, watch (usable, but something is wrong) or sick."""
    return {
        "index": device.index,
        "model": device.model,
        "uuid": device.uuid,
        "health": health_of(device),
        "sick": device.sick,
        "watch": device.watch,
        "lost": device.lost,
        "memoryBytes": device.memory_bytes or None,
        "migProfile": device.mig_profile,
        "pci": device.pci,
        "numa": device.numa,
        "nvlink": list(device.nvlink),
    }


def health_of(device: Device) -> str:
    """In one word."""
    return "sick" if device.sick else "watch" if device.watch else "healthy"


def reading_json(reading: NodeReading, node: str, name: str) -> dict[str, Json]:
    """The last look at a node's devices; `readAt` None where there is nothing to look at."""
    return {
        "node": node,
        "name": name,
        "readAt": reading.read_s,
        "looks": reading.looks,
        "error": reading.error,
        "devices": [_device_reading(device) for device in reading.devices],
    }


def _device_reading(reading: DeviceReading) -> dict[str, Json]:
    read: dict[str, Json] = _facts(reading.facts) if reading.facts is not None else {}
    xids: list[Json] = [
        {"code": x.code, "text": xid_text(x.code), "action": xid_action(x.code).value, "count": x.count,
         "lastAt": x.last_s, "fresh": x.fresh}
        for x in reading.xids
    ]  # fmt: skip
    return {**device_json(reading.device), "name": "", **read, "xids": xids}


def _facts(facts: GpuFacts) -> dict[str, Json]:
    return {
        "name": facts.name,
        "temperatureC": facts.temperature_c,
        "powerW": facts.power_w,
        "powerLimitW": facts.power_limit_w,
        "smClockMhz": facts.sm_clock_mhz,
        "maxSmClockMhz": facts.max_sm_clock_mhz,
        "clockReasons": facts.clock_reasons,
        "throttled": throttle_text(facts.clock_reasons),
        "memoryUsedBytes": facts.memory_used_bytes,
        "ecc": {
            "corrected": facts.correctable,
            "uncorrected": facts.uncorrectable,
            "uncorrectedLifetime": facts.uncorrectable_lifetime,
        },
        "remap": {"pending": facts.remap_pending, "failed": facts.remap_failed},
        "recoveryAction": facts.recovery_action,
        "mig": {
            "enabled": facts.mig_enabled,
            "pending": facts.mig_pending,
            "instances": [asdict(instance) for instance in facts.instances],
        },
        "links": [asdict(link) for link in facts.links],
        "processes": [{**asdict(process), "owner": process.owner.value} for process in facts.processes],
        "fault": facts.fault.value if facts.fault is not None else "",
        "faultText": facts.fault_text,
    }
