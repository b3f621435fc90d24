"""A plan is the same with what is remembered of the last turn and without, under orders whose keys hold less long."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rayorch.config import ProfileSettings, load_profile
from rayorch.core.decisions import Start
from rayorch.core.history import Account, History, Sample, ServiceClass, classes_of
from rayorch.core.planner import plan
from rayorch.core.planning.memory import Memory
from rayorch.core.types import Allocation, MemberPhase, QueueId, State, Workload, WorkloadId
from tests.core.test_planner_memory import parts
from tests.scenes import NOW, node, pending, queue, snapshot

ORDER = "rayorch.policies.order"
PROFILES = {
    "usage": ProfileSettings(policies={"order": f"{ORDER}.usage:key"}),
    "attained": ProfileSettings(policies={"order": f"{ORDER}.las:key"}),
    "gittins": ProfileSettings(policies={"order": f"{ORDER}.gittins:key"}),
    "deadline": ProfileSettings(policies={"order": f"{ORDER}.deadline:key"}, ordering={"strict_fifo": True}),
    "slurm": ProfileSettings(preset="slurm"),
    "volcano": ProfileSettings(preset="volcano"),
}
QUEUES = (queue("a", 8, 8), queue("a/x", 4, 4), queue("a/y", 4, 4, weight=2), queue("b", 8, 8))
LEAVES = ("a/x", "a/y", "b")


def _submission(rng: random.Random, id: str, now_s: float) -> Workload:
    waiting = pending(
        id,
        rng.choice([1, 2, 4]),
        gpu=rng.choice([1, 2]),
        submitted_s=now_s,
        queue=rng.choice(LEAVES),
        owner=rng.choice("pqr"),
        priority=rng.choice([0, 0, 3]),
        expected_s=rng.choice([None, 50.0, 500.0]),
        deadline_s=rng.choice([None, now_s + 100, now_s + 1000]),
    )
    return replace(waiting, attained_gpu_s=rng.choice([0.0, 50.0, 500.0]), progress_s=rng.choice([0.0, 20.0]))


def _learned(rng: random.Random, history: History, work: list[Workload], now_s: float) -> History:
    """Somebody has used something, or much has finished; now and then nothing is new."""
    accounts, classes = dict(history.accounts), dict(history.classes)
    what = rng.randrange(3)
    if what == 1:
        account = Account(QueueId(rng.choice(LEAVES)), rng.choice("pqr"), now_s, rng.random() * 1e4)
        accounts[account.key] = account
    elif what == 2 and work:
        name = classes_of(rng.choice(work).spec)[3]
        samples = tuple(Sample(rng.random() * 100, rng.random() * 1000) for _ in range(rng.choice([30, 210])))
        classes[name] = ServiceClass(name, now_s, samples)
    else:
        return history
    return History(history.half_life_s, accounts, classes)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PROFILES)
def test_what_is_remembered_changes_no_plan(name: str, seed: int) -> None:
    rng, profile, memory = random.Random(seed), load_profile(PROFILES[name]), Memory()
    work: dict[WorkloadId, Workload] = {}
    held: dict[WorkloadId, Allocation] = {}
    history, now_s = History(), NOW
    for turn in range(10):
        for n in range(rng.randrange(5)):
            made = _submission(rng, f"w{turn}-{n}", now_s)
            work[made.id] = made
        history = _learned(rng, history, list(work.values()), now_s)
        for id in [id for id in held if rng.random() < 0.25]:
            del held[id], work[id]
        nodes = [node(f"n{i}", 8) for i in range(3)]
        seen = replace(snapshot(nodes, [*work.values(), *held.values()], QUEUES, now_s), history=history)
        decided = plan(seen, profile, memory)
        assert parts(decided) == parts(plan(seen, profile))
        for start in decided.decisions:
            if isinstance(start, Start):
                held[start.workload] = _allocation(start, now_s)
                work[start.workload] = _running(work[start.workload], start, now_s)
        now_s += rng.choice([1.0, 10.0, 60.0])


def _allocation(start: Start, now_s: float) -> Allocation:
    ready = tuple(replace(m, phase=MemberPhase.READY, group_id="g") for m in start.members)
    return Allocation(start.workload, start.attempt, ready, now_s, now_s + 30)


def _running(workload: Workload, start: Start, now_s: float) -> Workload:
    return replace(
        workload,
        state=State.RUNNING,
        attempt=start.attempt,
        started_s=now_s,
        ready_s=now_s,
        lease_renewed_s=now_s + 1e6,
        placement=start.members,
        size=(("worker", len(start.members)),),
    )
