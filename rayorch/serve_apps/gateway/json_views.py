"""Core's values as the JSON of /api/v1: names in camelCase, amounts as natural numbers, times as epoch seconds."""

from __future__ import annotations

import dataclasses
import enum

from rayorch.core.arrays import shown_state
from rayorch.core.bypass import Bypass
from rayorch.core.decisions import Wait
from rayorch.core.events import Submitted
from rayorch.core.isolation import isolation_warnings
from rayorch.core.payload import Json
from rayorch.core.requests import RecordedEvent
from rayorch.core.types import Allocation, Resources, Workload, WorkloadSpec
from rayorch.core.views import ExplainView, NodeRow, Overview, PlanView, WorkloadRow
from rayorch.core.whatif import Change, Interval, Victim
from rayorch.serve_apps.gateway.capacity_views import capacity_json
from rayorch.serve_apps.gateway.device_views import device_json
from rayorch.serve_apps.gateway.gang_json import gang_json, place_json, role_json
from rayorch.serve_apps.gateway.queue_views import amounts as amounts
from rayorch.serve_apps.gateway.queue_views import queue_json as queue_json
from rayorch.serve_apps.gateway.timing_views import timing_json

API_VERSION = "rayorch/v1"


def wait_json(wait: Wait) -> dict[str, Json]:
    """One reason to wait."""
    return {
        "reason": wait.reason.value,
        "blocks": wait.blocks,
        "detail": wait.detail,
        "need": wait.need,
        "have": wait.have,
        "unit": wait.unit,
        "blockers": list(wait.blockers),
        "unblocks": wait.unblocks,
    }


def workload_json(
    workload: Workload,
    row: WorkloadRow | None = None,
    node_names: dict[str, str] | None = None,
    group_id: str | None = None,
) -> Json:
    """A workload; with `row`, also its place in the queue and its nodes; with `group_id`, its placement group."""
    spec = workload.spec
    result: dict[str, Json] = {
        "id": spec.id,
        "name": spec.name,
        "kind": spec.kind.value,
        "queue": spec.queue,
        "owner": spec.owner,
        "priority": spec.priority,
        "preemptible": spec.preemptible,
        "state": shown_state(workload).value,
        "reason": workload.reason,
        "attempt": workload.attempt,
        "roles": [
            {"name": r.name, "min": r.min_count, "max": r.max_count, "resources": amounts(r.bundle), **role_json(r)}
            for r in spec.roles
        ],
        **gang_json(spec),
        "accelerators": list(spec.accelerators),
        "anyModel": spec.any_model,
        "isolation": list(isolation_warnings(spec)),
        "size": dict(workload.size),
        "submittedAt": workload.submitted_s,
        "startedAt": workload.started_s,
        "readyAt": workload.ready_s,
        "endedAt": workload.ended_s,
        "step": workload.step,
        "failures": workload.failures,
        "preemptions": workload.preemptions,
        "nodeLosses": workload.node_losses,
        "exitCode": workload.exit_code,
        "cancelRequested": workload.cancel_requested,
        "stop": None,
        "checkpoint": None,
        "demand": None,
        **timing_json(workload),
    }
    if (stop := workload.stop) is not None:
        result["stop"] = {
            "cause": stop.cause.value,
            "reason": stop.reason,
            "deadlineAt": stop.deadline_s,
            "beneficiary": stop.beneficiary,
        }
    if (saved := workload.checkpoint) is not None:
        result["checkpoint"] = {"step": saved.step, "uri": saved.uri, "committedAt": saved.committed_s}
    if (demand := workload.demand) is not None:
        result["demand"] = {"ongoing": demand.ongoing, "queued": demand.queued, "reportedAt": demand.reported_s}
    if group_id is not None:
        result["groupId"] = group_id
    if row is not None:
        result["position"] = row.position
        result["estimatedStartAt"] = row.estimate_s
        result["waits"] = [wait_json(w) for w in row.waits]
        result["members"] = members_json(spec, row.held, node_names or {})
    return result


def members_json(spec: WorkloadSpec, held: Allocation | None, node_names: dict[str, str]) -> list[Json]:
    """The seats of an attempt."""
    if held is None:
        return []
    return [
        {
            "role": m.role,
            "index": m.index,
            "node": node_names.get(m.node, m.node),
            "resources": amounts(m.bundle),
            "devices": list(m.devices),
            "phase": m.phase.value,
            "groupId": m.group_id,
            "bundleIndex": m.bundle_index,
            "surplus": m.surplus,
            **place,
        }
        for m, place in zip(held.members, place_json(spec, held.members), strict=True)
    ]


def explain_json(view: ExplainView, node_names: dict[str, str]) -> Json:
    """Everything that keeps a workload where it is."""
    row = WorkloadRow(view.workload, view.position, view.waits, view.estimate_s, view.held)
    return {
        "apiVersion": API_VERSION,
        "kind": "Explanation",
        "workload": workload_json(view.workload, row, node_names),
        "position": view.position,
        "estimatedStartAt": view.estimate_s,
        "order": view.order,
        "waits": [wait_json(w) for w in view.waits],
        "cycle": view.cycle,
        "evaluatedAt": view.evaluated_s,
        "queue": queue_json(view.queue) if view.queue else None,
        "changes": None if view.changes is None else [_change_json(change) for change in view.changes],
    }


def _change_json(change: Change) -> Json:
    return {
        "change": change.kind.value,
        "detail": change.detail,
        "victims": [_victim_json(victim) for victim in change.victims],
        "start": _interval_json(change.start),
    }


def _victim_json(victim: Victim) -> Json:
    return {
        "workload": victim.workload,
        "stopped": victim.stopped,
        "seats": victim.seats,
        "costGpuS": victim.cost_gpu_s,
        "reason": victim.reason,
    }


def _interval_json(start: Interval | None) -> Json:
    return None if start is None else {"likelyAt": start.likely_s, "lateAt": start.late_s}


def plan_json(view: PlanView, node_names: dict[str, str]) -> Json:
    """What a submission would do: `lot` is "refused" where the door would not take it."""
    result: dict[str, Json] = {"apiVersion": API_VERSION, "kind": "Plan", "cycle": view.cycle}
    result["evaluatedAt"] = view.evaluated_s
    found = view.forecast
    if found is None:
        reply = view.reply
        return {**result, "lot": "refused", "code": reply.code, "field": reply.field, "message": reply.message}
    return {
        **result,
        "workload": found.workload,
        "lot": found.lot.value,
        "reason": found.reason,
        "seats": [{"node": node_names.get(node, node), "members": count} for node, count in found.seats],
        "victims": [_victim_json(victim) for victim in found.victims],
        "delayed": list(found.delayed),
        "waits": [wait_json(wait) for wait in found.waits],
        "position": found.position,
        "start": _interval_json(found.start),
    }


def node_json(row: NodeRow) -> Json:
    """One node and who holds its devices."""
    node = row.node
    return {
        "id": node.id,
        "name": node.name,
        "total": amounts(node.total),
        "used": amounts(row.used),
        "foreign": amounts(node.foreign),
        "foreignHolders": list(node.foreign_holders),
        "health": node.health.value,
        "drained": row.drained,
        "reason": node.reason,
        "drainDeadlineAt": node.drain_deadline_s,
        "blockedUntil": node.blocked_until_s,
        "topology": dict(node.topology),
        "labels": dict(node.labels),
        "group": node.group,
        "instance": node.instance,
        "idleSince": node.idle_since_s,
        "deviceNote": node.device_note,
        "migMixed": node.mig_mixed,
        "sharing": node.sharing.removeprefix("gpu-"),
        "devices": [
            {
                **device_json(d),
                "holders": [
                    {"workload": h.workload, "attempt": h.attempt, "role": h.role, "share": h.units / 10_000}
                    for h in row.holders
                    if h.device == d.index
                ],
            }
            for d in node.devices
        ],
    }


def overview_json(view: Overview) -> Json:
    """The whole page as data."""
    names = node_names(view)
    return {
        "apiVersion": API_VERSION,
        "kind": "Overview",
        "instance": view.instance,
        "now": view.now_s,
        "cycle": view.cycle,
        "lastCycleAt": view.last_cycle_s,
        "cycleTookS": view.cycle_took_s,
        "synced": view.synced,
        "warnings": list(view.warnings),
        "queues": [queue_json(q) for q in view.queues],
        "nodes": [node_json(n) for n in view.nodes],
        "capacity": capacity_json(view),
        "workloads": [workload_json(w.workload, w, names) for w in view.workloads],
        "bypasses": [bypass_json(b) for b in view.bypasses],
    }


def bypass_json(bypass: Bypass) -> dict[str, Json]:
    """One Ray job that did not come through the queues."""
    return {
        "id": bypass.id,
        "jobId": bypass.job_id,
        "entrypoint": bypass.entrypoint,
        "who": bypass.who,
        "startedAt": bypass.started_s,
        "status": bypass.status,
        "resources": amounts(bypass.held),
    }


def node_names(view: Overview) -> dict[str, str]:
    """The people's name of each node, by id."""
    return {row.node.id: row.node.name for row in view.nodes}


def event_json(recorded: RecordedEvent) -> dict[str, Json]:
    """One event of the journal; the payload of a submission is left out, it may hold the user's environment."""
    event = recorded.event
    fields: dict[str, Json] = {}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if isinstance(event, Submitted) and field.name == "spec":
            value = dataclasses.replace(event.spec, payload="")
        fields[_camel(field.name)] = _plain(value)
    return {"sequence": recorded.sequence, "type": type(event).__name__, "at": event.at_s, **fields}


def _camel(name: str) -> str:
    head, *rest = name.removesuffix("_s").split("_")
    return head + "".join(part.capitalize() for part in rest)


def _plain(value: object) -> Json:
    """Any of core's values as JSON; amounts of resources as natural numbers."""
    if isinstance(value, Resources):
        return amounts(value)
    if isinstance(value, enum.Enum):
        return str(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_camel(f.name): _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    raise TypeError(f"no JSON for {type(value).__name__}")
