"""What time does to the queue owner: a clock that is set, and ended workloads that are forgotten."""

from __future__ import annotations

from pathlib import Path

from rayorch.core.requests import ACCEPTED, CancelRequest
from rayorch.core.retention import Retention
from rayorch.core.types import WorkloadId
from tests.actors.test_queue_shell import owner, running, spec


async def test_a_clock_that_is_set_forward_ends_no_lease(tmp_path: Path) -> None:
    async with owner(tmp_path) as made:
        await running(made, "a")
        made.clock.now_s += 3.0
        (seen,) = (await made.shell.changes_since(0)).workloads
        assert seen.lease_renewed_s == 1_000.0
        made.clock.now_s += 3_600.0
        made.asleep_s += 3_600.0
        changes = await made.shell.changes_since(((await made.shell.version()), 0))
        assert [w.lease_renewed_s for w in changes.workloads] == [made.clock.now_s]


async def test_ended_workloads_are_forgotten_now_and_then_and_stay_so_after_a_restart(tmp_path: Path) -> None:
    async with owner(tmp_path, retention=Retention(count=1, least_s=10.0)) as made:
        for name in ("a", "b"):
            await made.shell.submit(spec(name))
            await made.shell.cancel(CancelRequest(WorkloadId(name), "enough"))
            made.clock.now_s += 1.0
        made.clock.now_s += 100.0
        await made.shell.submit(spec("c"))  # any event gives the occasion
        assert made.shell._forgetting is not None
        await made.shell._forgetting
        assert await made.shell.workload(WorkloadId("a")) is None
        assert await made.shell.workload(WorkloadId("b")) is not None
        await made.restart()
        assert sorted(made.shell._tree.tree.workloads) == ["b", "c"]
        assert (await made.shell.submit(spec("a"))).reply == ACCEPTED
