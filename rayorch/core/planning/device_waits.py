"""Why a part of a GPU can't be had where amounts don't say it: no names for devices, no known memory, no mode."""

from __future__ import annotations

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.explain import UNBLOCKS
from rayorch.core.planning.claims import Shape
from rayorch.core.planning.draft import Draft
from rayorch.core.sharing import MODES, device_need
from rayorch.core.types import UNIT, Resources

MAX_NAMED = 4
"""Nodes named in one reason."""


def device_waits(draft: Draft, shape: Shape) -> list[Wait]:
    """Reasons that lie in how nodes declare their devices; none for whole GPUs and fractions. O(nodes)."""
    found: list[Wait] = []
    for bundle, count in shape.bundles:
        need = device_need(bundle)
        if not need.plain:
            found += _unnamed(draft, bundle, count)
        if need.share_mib and not any(d.memory_bytes for n in draft.facts.snapshot.nodes for d in n.devices):
            detail = "of no device is the memory known, so that no part of one can be had by memory"
            found.append(_wait(WaitReason.RESOURCES, detail, need.share_mib / UNIT, 0, "gpu-memory-mib"))
        for name in MODES:
            if bundle.units(name) and not any(n.sharing == name for n in draft.facts.snapshot.nodes):
                mode = name.removeprefix("gpu-")
                detail = f"no node says that its GPUs are shared by {mode} (label nvidia.com/gpu.sharing-strategy)"
                found.append(_wait(WaitReason.RESOURCES, detail, count, 0, name))
    return found


def _unnamed(draft: Draft, bundle: Resources, count: int) -> list[Wait]:
    """Nodes that could have what is asked, and only lack names for their GPUs."""
    room = draft.now.room
    nodes = [n for n in draft.facts.snapshot.nodes if room.usable(n.id) and room.slot(n.id).lacks_names(bundle)]
    if not nodes:
        return []
    names = ", ".join(sorted(n.name for n in nodes)[:MAX_NAMED])
    more = f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else ""
    detail = (
        f"it asks for particular devices, and on {names}{more} Ray can't be told which:"
        " these nodes declare no resource of its own for each GPU (gpu0, gpu1, …)"
    )
    return [_wait(WaitReason.DEVICE_BINDING_UNAVAILABLE, detail, count, 0, "seats")]


def _wait(reason: WaitReason, detail: str, need: float, have: float, unit: str) -> Wait:
    return Wait(reason, detail, True, need, have, unit, (), UNBLOCKS[reason])
