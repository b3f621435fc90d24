"""Decisions that undo each other in one moment: time goes on all the same, and the outcome says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import Plan, Resize
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.policy import Profile
from rayorch.core.snapshot import Snapshot
from rayorch.core.types import MemberPhase, State
from rayorch.policies.default import DEFAULT
from rayorch.sim.trace import run as runs
from rayorch.sim.trace.outcome import Outcome
from tests.sim.trace.test_elastic import elastic
from tests.sim.trace.worlds import job, nodes, trace

PATIENT = replace(DEFAULT, grow_cooldown_s=1e9)


def _restless(snapshot: Snapshot, profile: Profile, memory: Memory | None = None) -> Plan:
    """The plan, and besides a seat is given to whoever has one, and taken from whoever has two."""
    made, undone = plan(snapshot, profile, memory), list[Resize]()
    for held in snapshot.allocations:
        first, more = held.members[0], [m for m in held.members if m.surplus]
        if more:
            take = tuple(m.surplus for m in more)
            undone.append(Resize(held.workload, held.attempt, (), take, "undone", snapshot.now_s + 30))
        else:
            seat = replace(
                first, index=1, surplus=1, bundle_index=0, devices=(), phase=MemberPhase.RESERVED, group_id=""
            )
            undone.append(Resize(held.workload, held.attempt, (seat,), (), "undone"))
    return replace(made, decisions=(*made.decisions, *undone))


def _played(until_s: float | None = None) -> Outcome:
    made = trace(elastic(job("a", 0, 1000), 1, 2), job("b", 10, 50, gpus=2))
    return runs.run(made, nodes(1, gpus=2), PATIENT, until_s=until_s)


def test_a_planner_that_undoes_what_it_does_does_not_stop_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _played().cut_short == 0

    monkeypatch.setattr(runs, "MOST_TURNS", 7)
    monkeypatch.setattr(runs, "plan", _restless)
    made = _played(until_s=150.0)

    assert made.cut_short == 3  # when b comes, and each minute from then on
    assert made.turns == 1 + 3 * 7
    assert made.log_sha256 == _played(until_s=150.0).log_sha256
    assert made.records[0].state in (State.RUNNING, State.SUCCEEDED)
