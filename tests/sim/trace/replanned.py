"""A run of a trace whose every plan is made once more by a planner that remembers nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import Plan
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot
from rayorch.sim.trace import run as runs


def planned_twice(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """From now on both plans of each turn of a run must be the same; the plans that were made, as they are made."""
    made: list[Plan] = []

    def compared(snapshot: Snapshot, used: Profile, memory: Memory) -> Plan:
        copied = replace(
            snapshot,
            workloads=tuple(snapshot.workloads),
            nodes=tuple(snapshot.nodes),
            allocations=tuple(snapshot.allocations),
        )
        remembered, plain = plan(snapshot, used, memory), plan(copied, used)
        assert remembered.decisions == plain.decisions
        assert dict(remembered.waits) == dict(plain.waits)
        made.append(remembered)
        return remembered

    monkeypatch.setattr(runs, "plan", compared)
    return made
