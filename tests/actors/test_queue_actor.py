"""The queue owner as a real actor: killed in the middle of its work, it comes back with all that it had accepted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rayorch.actors.journal import ensure_journal
from rayorch.core.requests import ACCEPTED, AttemptRef, ListRequest, StartRequest
from rayorch.core.types import Kind, QueueId, QueueSpec, Resources, Role, State, WorkloadId, WorkloadSpec
from tests.ray_cluster import EmulatedCluster

pytestmark = pytest.mark.ray

ANSWER_TIMEOUT_S = 120.0


def spec(name: str) -> WorkloadSpec:
    role = Role("worker", Resources.of({"GPU": 1}), 1, 1)
    return WorkloadSpec(WorkloadId(name), name, Kind.JOB, QueueId("research"), (role,))


def owner_pid(journal: Path) -> int:
    """The process that has the journal's lock."""
    return int(journal.with_name(f"{journal.name}.lock").read_text())


def test_an_owner_that_is_killed_loses_nothing_that_it_accepted(
    ray_cluster: Callable[..., EmulatedCluster], tmp_path: Path
) -> None:
    import ray

    from rayorch.actors.queues import QueueSettings, start_queue_owner
    from rayorch.core.decisions import Start
    from rayorch.core.snapshot import Versions
    from rayorch.core.types import Member, NodeId

    ray_cluster(nodes=0)
    journal = tmp_path / "journal.db"
    settings = QueueSettings(str(journal), instance="killed", expected_id=ensure_journal(journal))
    owner = start_queue_owner(settings)

    def ask(ref: object) -> object:
        return ray.get(ref, timeout=ANSWER_TIMEOUT_S)  # type: ignore[call-overload]

    assert ask(owner.set_queue.remote(QueueSpec(QueueId("research")))) == ACCEPTED
    names = [f"w{i:03d}" for i in range(100)]
    results = ask(owner.submit_many.remote(tuple(spec(name) for name in names[:50])))
    assert all(r.reply == ACCEPTED for r in results)  # type: ignore[attr-defined]
    member = Member("worker", 0, NodeId("n1"), Resources.of({"GPU": 1}))
    start = StartRequest(Start(WorkloadId("w000"), 1, (member,), "fits"), Versions())
    assert ask(owner.commit_starts.remote((start,))) == (ACCEPTED,)
    first_pid = owner_pid(journal)

    under_way = [owner.submit.remote(spec(name)) for name in names[50:]]
    os.kill(first_pid, signal.SIGKILL)

    # Calls that were under way are repeated by Ray when the owner is back; each is accepted once.
    assert all(r.reply == ACCEPTED for r in ask(under_way))  # type: ignore[attr-defined]
    page = ask(owner.list_workloads.remote(ListRequest(limit=1000)))
    assert sorted(w.id for w in page.workloads) == names  # type: ignore[attr-defined]
    states = {w.id: w.state for w in page.workloads}  # type: ignore[attr-defined]
    assert states.pop(WorkloadId("w000")) is State.RUNNING
    assert set(states.values()) == {State.PENDING}
    assert ask(owner.renew.remote(AttemptRef(WorkloadId("w000"), 1))) is True
    assert owner_pid(journal) != first_pid
    status = ask(owner.status.remote())
    assert status.sequence == 1 + len(names) + 1  # type: ignore[attr-defined]
    assert status.journal_id == settings.expected_id  # type: ignore[attr-defined]

    ray.kill(owner, no_restart=True)
