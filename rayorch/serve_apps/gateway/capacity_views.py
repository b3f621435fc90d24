"""Where nodes come from, as JSON of /api/v1 and as the page's rows: groups, what is under way, what failed and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rayorch.core.capacity import GroupState, Instance, InstancePhase, Provider
from rayorch.core.payload import Json
from rayorch.core.types import GPU, MAX_UNITS, UNIT
from rayorch.core.views import Launch, Overview

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_REASONS = 3
"""Different reasons of pending machines that a row has room for; the JSON has each machine's."""


def capacity_json(view: Overview) -> dict[str, Json]:
    """All of it. `error`: why the groups are not known now; what is shown is of `observedAt`."""
    capacity, autoscaler = view.capacity, view.autoscaler
    return {
        "provider": capacity.provider.value,
        "error": capacity.error,
        "observedAt": capacity.observed_s,
        "groups": [group_json(state) for state in capacity.groups],
        "autoscaler": None
        if autoscaler is None
        else {
            "observedAt": autoscaler.observed_s,
            "error": autoscaler.error,
            "launches": [_launch_json(launch) for launch in autoscaler.launches],
            "unmet": list(autoscaler.unmet),
        },
    }


def group_json(state: GroupState) -> dict[str, Json]:
    """One group with its machines that are not quietly running, and what is under way."""
    group, order, back_off = state.group, state.order, state.back_off
    phases = Counter(instance.phase for instance in group.instances)
    return {
        "name": group.name,
        "replicas": group.replicas,
        "min": group.min_replicas,
        "max": group.max_replicas,
        "hosts": group.hosts,
        "model": group.model,
        "spot": group.spot,
        "spares": group.spares,
        "idleS": group.idle_s,
        "preference": group.preference,
        "node": {
            name: int(n) if n == int(n) else n
            for name, n in group.total.to_floats().items()
            if n < MAX_UNITS / UNIT  # what nobody has declared does not limit the group
        },
        "labels": dict(group.labels),
        "nodes": {phase.value: phases.get(phase, 0) for phase in InstancePhase},
        "machines": [_machine_json(i) for i in group.instances if i.phase is not InstancePhase.RUNNING],
        "order": None
        if order is None
        else {
            "from": order.from_replicas,
            "to": order.to_replicas,
            "orderedAt": order.ordered_s,
            "expectedAt": order.expected_s,
            "deadlineAt": order.deadline_s,
            "beneficiaries": list(order.beneficiaries),
            "nodesFor": dict(order.shares),
            "reason": order.reason,
        },
        "backOff": None
        if back_off is None
        else {"until": back_off.until_s, "reason": back_off.reason, "strikes": back_off.strikes},
        "shrinksTo": state.shrinks_to,
        "provisionS": state.provision_s,
    }


def _machine_json(instance: Instance) -> dict[str, Json]:
    return {
        "name": instance.name,
        "phase": instance.phase.value,
        "reason": instance.reason,
        "since": instance.created_s,
        "node": instance.node,
    }


def _launch_json(launch: Launch) -> dict[str, Json]:
    return {
        "group": launch.group,
        "count": launch.count,
        "state": launch.state.value,
        "reason": launch.reason,
        "machine": launch.instance,
        "since": launch.since_s,
    }


# ---------------------------------------------------------------- the page


def capacity_values(view: Overview) -> dict[str, object]:
    """What the page shows of it; `shown` False where nobody provides nodes."""
    autoscaler = view.autoscaler
    return {
        "shown": view.capacity.provider is not Provider.NONE or autoscaler is not None,
        "error": view.capacity.error,
        "ours": view.capacity.provider is Provider.OURS,
        "groups": [_group_row(state, view.now_s) for state in view.capacity.groups],
        "launches": [] if autoscaler is None else [_launch_row(launch, view.now_s) for launch in autoscaler.launches],
        "unmet": () if autoscaler is None else autoscaler.unmet,
        "autoscaler_error": "" if autoscaler is None else autoscaler.error,
    }


def _group_row(state: GroupState, now_s: float) -> dict[str, object]:
    group = state.group
    by_phase = Counter(instance.phase for instance in group.instances)
    return {
        "name": group.name,
        "kind": " ".join(filter(None, (group.model, "spot" if group.spot else ""))),
        "gpus": f"{group.total.units(GPU) / UNIT:g}",
        "hosts": group.hosts,
        "replicas": group.replicas,
        "limits": f"{group.min_replicas}–{group.max_replicas}",
        "running": by_phase[InstancePhase.RUNNING],
        "pending": by_phase[InstancePhase.PENDING],
        "leaving": by_phase[InstancePhase.LEAVING],
        "failed": by_phase[InstancePhase.FAILED],
        "notes": list(_notes(state, now_s)),
    }


def _notes(state: GroupState, now_s: float) -> Iterable[str]:
    """What is under way, in sentences."""
    order, back_off = state.order, state.back_off
    if order is not None:
        gangs = ", ".join(order.beneficiaries[:3]) + (" …" if order.beneficiaries[3:] else "")
        left_s = order.expected_s - now_s
        due = f"expected in {left_s:.0f} s" if left_s >= 0 else f"{-left_s:.0f} s late"
        yield f"{order.from_replicas} → {order.to_replicas} {f'for {gangs}' if gangs else order.reason}, {due}"
    if state.shrinks_to is not None:
        yield f"shrinks to {state.shrinks_to}"
    if back_off is not None and back_off.until_s > now_s:
        yield f"left alone for {back_off.until_s - now_s:.0f} s: {back_off.reason}"
    yield from _reasons(state.group.instances)


def _reasons(instances: Iterable[Instance]) -> Iterable[str]:
    waiting = (InstancePhase.PENDING, InstancePhase.FAILED)
    found: Mapping[str, int] = Counter(i.reason for i in instances if i.phase in waiting and i.reason)
    for reason, count in sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS]:
        yield f"{count} x {reason}"


def _launch_row(launch: Launch, now_s: float) -> dict[str, object]:
    since = "" if launch.since_s is None else f"{max(0.0, now_s - launch.since_s):.0f} s ago"
    return {
        "group": launch.group,
        "count": launch.count,
        "state": launch.state.value,
        "reason": " ".join(filter(None, (launch.instance, launch.reason))),
        "since": since,
    }
