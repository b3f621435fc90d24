"""The inventory's layer of devices: what each node's reader has told, and what shows only between nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rayorch.core.devices import DeviceReport, multiset
from rayorch.core.drift import drift
from rayorch.core.sharing import mig_profile, mig_resource
from rayorch.core.types import GPU, UNIT, Device, NodeId, NodeSpec, Resources

SILENT_S = 100.0
"""A reader tells something every 30 s; one that has been silent for three times as long is said to be."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A node's devices with what they were made of."""

    declared: tuple[Device, ...]
    exact: bool
    report: DeviceReport
    devices: tuple[Device, ...]


class DeviceLayer:
    """The last report of each node. A node without one is as Ray declares it."""

    def __init__(self) -> None:
        self._reports: dict[NodeId, DeviceReport] = {}
        self._told_s: dict[NodeId, float] = {}
        self._silent: frozenset[NodeId] = frozenset()
        self._drift: dict[str, str] = {}
        self._made: dict[NodeId, _Made] = {}

    def take(self, node: NodeId, report: DeviceReport, now_s: float) -> bool:
        """Take a report. False for one that is older than what is known."""
        known = self._reports.get(node)
        if known is not None and report.sequence < known.sequence:
            return False
        if not report.complete and known is not None:
            # A look that failed knows nothing of profiles; its devices are those of the look before, and a reader that
            # has begun anew has none yet.
            devices, histories = report.devices or known.devices, report.histories or known.histories
            report = replace(report, devices=devices, histories=histories, profiles=known.profiles)
        self._reports[node], self._told_s[node] = report, now_s
        return True

    def report(self, node: NodeId) -> DeviceReport | None:
        """What a node's reader told last."""
        return self._reports.get(node)

    def forget(self, node: NodeId) -> None:
        """The node is gone."""
        self._reports.pop(node, None)
        self._told_s.pop(node, None)
        self._made.pop(node, None)

    def settle(self, nodes: Mapping[NodeId, NodeSpec], now_s: float) -> None:
        """Find out who is silent and who differs from nodes that should be like it; O(nodes)."""
        self._silent = frozenset(node for node, told_s in self._told_s.items() if now_s - told_s > SILENT_S)
        groups: dict[str, dict[str, tuple[str, ...]]] = {}
        for node, report in self._reports.items():
            group = nodes[node].group if node in nodes else ""
            if group and report.devices:
                groups.setdefault(group, {})[node] = report.profiles
        self._drift = profile_drift(groups)
        for id, text in drift(self._read(node) for node in nodes.values()).items():
            self._drift[id] = "; ".join(part for part in (self._drift.get(id, ""), text) if part)

    def _read(self, node: NodeSpec) -> NodeSpec:
        report = self._reports.get(node.id)
        return node if report is None or not node.devices else replace(node, devices=self._devices(node, report))

    def applied(self, node: NodeSpec) -> NodeSpec:
        """The node with what is known of its devices."""
        report = self._reports.get(node.id)
        if report is None or not node.devices:
            note = self._drift.get(node.id, "")
            return replace(node, device_note=note) if note else node
        silent = "its devices have not been read for a while" if node.id in self._silent else ""
        devices = self._devices(node, report)
        notes = [text for text in (report.note, silent, self._drift.get(node.id, "")) if text]
        return with_instances(replace(node, devices=devices, device_note="; ".join(notes)))

    def _devices(self, node: NodeSpec, report: DeviceReport) -> tuple[Device, ...]:
        """Made anew only when one of its sources has changed: all nodes are joined once a second."""
        made = self._made.get(node.id)
        if made is None or made.report is not report or (made.declared, made.exact) != (node.devices, node.exact):
            known = report.complete or report.devices  # a first look that failed says nothing of them
            devices = with_report(node.devices, report) if known else node.devices
            made = _Made(node.devices, node.exact, report, devices if node.exact else within_reach(devices))
            self._made[node.id] = made
        return made.devices


def with_report(declared: tuple[Device, ...], report: DeviceReport) -> tuple[Device, ...]:
    """Ray's devices of a node with what was read of them.

    Where Ray counts more than the driver shows, and nobody saw which one is gone, no index can be trusted: all are
    sick. Devices that the driver shows beyond Ray's count are nobody's concern.
    """
    read = {device.index: device for device in report.devices}
    short = report.complete and len(declared) > len(read)
    reason = f"Ray counts {len(declared)} GPUs here, the driver shows {len(read)}" if short else ""
    found = []
    for device in declared:
        known = read.get(device.index, device)
        sick = "; ".join(text for text in (known.sick, reason) if text)
        found.append(replace(known, model=device.model, sick=sick))
    return tuple(found)


def with_instances(node: NodeSpec) -> NodeSpec:
    """The node with its MIG instances counted by profile in place of GPUs, where that is how they are had."""
    if not node.mig_mixed:
        return node
    counts = Counter(mig_resource(device.mig_profile) for device in node.devices if device.mig_profile)
    amounts = {name: n for name, n in node.total if name != GPU and mig_profile(name) is None}
    amounts |= {name: UNIT * count for name, count in counts.items()}
    whole = [device for device in node.devices if device.is_whole]
    return replace(node, total=Resources.of_units({**amounts, GPU: UNIT * len(whole)}))


def within_reach(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    """The devices of a node whose GPUs can't be chosen: Ray binds the lowest free one, also when it is sick.

    So nothing is put on those behind a sick one, or Ray would put it on the sick one.
    """
    sick = min((device.index for device in devices if device.sick), default=None)
    if sick is None:
        return devices
    reason = f"out of reach: Ray would give GPU {sick} first, which is sick; nodes that name their GPUs can skip it"
    return tuple(
        replace(device, sick=reason) if device.index > sick and not device.sick else device for device in devices
    )


# ---------------------------------------------------------------- between nodes


def profile_drift(profiles: Mapping[str, Mapping[str, tuple[str, ...]]]) -> dict[str, str]:
    """Nodes whose MIG profiles are not those of most nodes of their group, with what is different.

    `profiles`: group → node → the profiles of all its instances, sorted. Of equally frequent ones the first in order
    is taken for the right one.
    """
    found: dict[str, str] = {}
    for group in sorted(profiles):
        nodes = profiles[group]
        often = Counter(nodes.values())
        if len(often) < 2:
            continue
        usual = min(often, key=lambda kind: (-often[kind], kind))
        for node in sorted(nodes):
            if nodes[node] != usual:
                here, there = multiset(nodes[node]) or "none", multiset(usual) or "none"
                found[node] = f"its MIG profiles ({here}) are not those of group {group} ({there})"
    return found
