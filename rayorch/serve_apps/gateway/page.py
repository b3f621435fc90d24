"""The one page: what is held, what waits and why. Rendered here, without a script but the one that reloads it."""

from __future__ import annotations

import datetime
from pathlib import Path

import jinja2
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from rayorch.core.bypass import Bypass
from rayorch.core.sharing import mig_profile
from rayorch.core.types import GPU, UNIT, Resources, State
from rayorch.core.views import NodeRow, Overview, QueueRow, WorkloadRow
from rayorch.serve_apps.gateway.capacity_views import capacity_values
from rayorch.serve_apps.gateway.follow import RecentOverview
from rayorch.serve_apps.gateway.json_views import node_names
from rayorch.serve_apps.gateway.settings import GatewaySettings

HERE = Path(__file__).parent
ASSETS = {"style.css": "text/css", "refresh.js": "text/javascript"}
MAX_ROWS = 500
HUES = 12

_templates = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)


class Page:
    """The overview over one backend."""

    def __init__(self, settings: GatewaySettings, recent: RecentOverview) -> None:
        self._settings = settings
        self._recent = recent

    async def overview(self, request: Request) -> Response:
        """The page; `?refresh=0` stops its reloading."""
        view = await self._recent.get()
        given = request.query_params.get("refresh", "")
        refresh_s = int(given) if given.isdigit() and len(given) < 6 else self._settings.refresh_page_s
        html = _templates.get_template("overview.html").render(**page_values(view), refresh_s=refresh_s)
        return HTMLResponse(html)

    async def asset(self, name: str) -> Response:
        """The style sheet and the script."""
        if name not in ASSETS:
            return Response(status_code=404)
        return FileResponse(HERE / name, media_type=ASSETS[name])


def page_values(view: Overview) -> dict[str, object]:
    """What the template shows, as plain values."""
    names = node_names(view)
    waiting = [row for row in view.workloads if row.workload.state is State.PENDING]
    running = [row for row in view.workloads if row.workload.state is not State.PENDING]
    waiting.sort(key=lambda row: (row.position or 10**9, row.workload.submitted_s, row.workload.id))
    running.sort(key=lambda row: (row.workload.spec.queue, row.workload.submitted_s, row.workload.id))
    gpus = sum(row.node.total.gpu_units for row in view.nodes) / UNIT
    used = sum(row.used.gpu_units for row in view.nodes) / UNIT
    foreign = sum(row.node.foreign.gpu_units for row in view.nodes) / UNIT
    return {
        "instance": view.instance,
        "at": _clock(view.now_s),
        "cycle": view.cycle,
        "cycle_ms": round(view.cycle_took_s * 1000, 1),
        "cycle_age": age(view.now_s - view.last_cycle_s),
        "synced": view.synced,
        "warnings": view.warnings,
        "bypasses": [_bypass(b, view.now_s) for b in view.bypasses],
        "gpus": _number(gpus),
        "gpus_used": _number(used),
        "gpus_foreign": _number(foreign),
        "queues": [_queue(row) for row in sorted(view.queues, key=lambda r: r.spec.id)],
        "running": [_running(row, view.now_s, names) for row in running[:MAX_ROWS]],
        "waiting": [_waiting(row, view.now_s) for row in waiting[:MAX_ROWS]],
        "running_hidden": max(0, len(running) - MAX_ROWS),
        "waiting_hidden": max(0, len(waiting) - MAX_ROWS),
        "capacity": capacity_values(view),
        "nodes": [_node(row) for row in sorted(view.nodes, key=lambda r: (r.node.name, r.node.id))],
    }


def _queue(row: QueueRow) -> dict[str, object]:
    resource = GPU if row.spec.deserved.gpu_units or row.used.gpu_units else "CPU"
    deserved, used = row.spec.deserved.units(resource) / UNIT, row.used.units(resource) / UNIT
    borrowed = row.borrowed.units(resource) / UNIT
    return {
        "name": row.spec.id,
        "depth": row.spec.id.count("/"),
        "resource": resource,
        "deserved": _number(deserved) if resource in dict(row.spec.deserved) else "–",
        "used": _number(used),
        "borrowed": _number(borrowed),
        "lent": _number(row.lent.units(resource) / UNIT),
        "scale": max(deserved, used, 1.0),
        "own": max(0.0, used - borrowed),
        "over": borrowed,
        "mark": deserved,
        "pending": row.pending,
        "running": row.running,
        "oldest": "" if row.oldest_pending_s is None else age(row.oldest_pending_s),
    }


def _running(row: WorkloadRow, now_s: float, names: dict[str, str]) -> dict[str, object]:
    workload = row.workload
    members = row.held.members if row.held else ()
    nodes = sorted({names.get(m.node, m.node) for m in members})
    note = workload.stop.reason if workload.stop else workload.reason
    return {
        **_common(row, now_s),
        "hue": hue(workload.id),
        "run": "" if workload.started_s is None else age(now_s - workload.started_s),
        "size": ", ".join(f"{count} {role}" for role, count in workload.size),
        "nodes": ", ".join(nodes),
        "step": workload.step,
        "note": note,
        "restarts": max(0, workload.attempt - 1),
    }


def _waiting(row: WorkloadRow, now_s: float) -> dict[str, object]:
    needs = row.workload.spec.min_resources
    return {
        **_common(row, now_s),
        "position": row.position or "",
        "needs": ", ".join(f"{_number(units / UNIT)} {name}" for name, units in needs),
        "estimate": "" if row.estimate_s is None else f"in {age(max(0.0, row.estimate_s - now_s))}",
        "waits": [
            {"reason": w.reason.value, "detail": w.detail, "unblocks": w.unblocks, "blocks": w.blocks}
            for w in row.waits
        ],
    }


def _common(row: WorkloadRow, now_s: float) -> dict[str, object]:
    spec = row.workload.spec
    return {
        "id": spec.id,
        "kind": spec.kind.value,
        "queue": spec.queue,
        "priority": spec.priority,
        "state": row.workload.state.value,
        "age": age(now_s - row.workload.submitted_s),
    }


def _bypass(bypass: Bypass, now_s: float) -> dict[str, object]:
    return {
        "id": bypass.id,
        "who": bypass.who,
        "entrypoint": bypass.entrypoint,
        "status": bypass.status,
        "age": age(now_s - bypass.started_s),
        "holds": amounts_text(bypass.held),
    }


def _node(row: NodeRow) -> dict[str, object]:
    node = row.node
    cells = [
        {
            "index": device.index,
            "sick": device.sick,
            "holders": [
                {"workload": h.workload, "hue": hue(h.workload), "share": _number(h.units / UNIT)}
                for h in row.holders
                if h.device == device.index
            ],
        }
        for device in node.devices
    ]
    return {
        "name": node.name,
        "id": node.id[:8],
        "health": node.health.value,
        "reason": f"drained: {node.reason}" if row.drained else node.reason,
        "topology": " / ".join(value for _, value in node.topology),
        "model": "+".join(node.models),
        "cells": cells,
        "free": amounts_text((node.total - row.used - node.foreign - _unusable(row)).floor_zero()),
        "sick": [f"GPU {device.index}: {device.sick}" for device in node.devices if device.sick],
        "watched": [f"GPU {device.index}: {device.watch}" for device in node.devices if device.watch],
        "note": node.device_note,
        "foreign": amounts_text(node.foreign),
        "holders": ", ".join(node.foreign_holders),
    }


def _unusable(row: NodeRow) -> Resources:
    """Shares of sick devices that nobody holds: not free, whatever the sum says."""
    held = {device.index: 0 for device in row.node.devices if device.sick}
    for holder in row.holders:
        if holder.device in held:
            held[holder.device] += holder.units
    return Resources.of_units({GPU: sum(UNIT - min(UNIT, units) for units in held.values())})


def amounts_text(held: Resources) -> str:
    """ "2 GPU, 4 CPU, 3 mig-1g.10gb"; what counts no devices (memory, object store, node names) is left out."""
    shown = (GPU, "CPU", *(name for name, _ in held if mig_profile(name) is not None))
    return ", ".join(f"{_number(held.units(name) / UNIT)} {name}" for name in shown if held.units(name))


def hue(workload: str) -> int:
    """A colour class that stays with a workload, without a table of who has which."""
    return sum((n + 1) * ord(c) for n, c in enumerate(workload)) % HUES


def age(seconds: float) -> str:
    """A length of time in its two largest units: 41s, 4m12s, 3h05m, 9d2h."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.2f}".rstrip("0")


def _clock(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
