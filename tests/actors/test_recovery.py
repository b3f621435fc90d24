"""Everything that can die on one running cluster, killed once. After each: nothing lost, doubled or leaked.

The tests share one cluster and run in their order; the last one kills nodes of it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rayorch.actors.names import (
    agent_name,
    allocator_name,
    controller_name,
    inventory_name,
    logs_name,
    queues_name,
    runner_name,
)
from rayorch.actors.start import InstanceSettings, start_instance
from rayorch.adapters.ray_emulation import EmulatedCluster, EmulationSpec
from rayorch.core.lifecycle import Move
from rayorch.core.requests import CordonRequest, UncordonRequest
from rayorch.core.types import NodeId, Resources, Role, State, StopCause, WorkloadId, group_name
from rayorch.server import Server, ServerSettings
from tests.instance import (
    JOBS,
    LEASE_S,
    MARGIN_S,
    Instance,
    ProgressFile,
    actor_pid,
    eventually,
    gang_spec,
    job_spec,
    pid_lives,
    short_profile,
)

pytestmark = pytest.mark.ray


class Squatter:
    """Anybody's actor."""

    def ping(self) -> None:
        """A sign of life."""


NODES, GPUS = 3, 2
ALL_GPUS = NODES * GPUS


@dataclass
class Stage:
    """3 nodes with 2 GPUs each. A notebook holds 2 of them all the time, the job `steady` 1: so 3 are free."""

    cluster: EmulatedCluster
    instance: Instance
    steady: ProgressFile
    folder: Path

    def in_order(self) -> None:
        """The notebook and the job that run through all tests are in their first attempt, and work."""
        for name in ("notebook", "steady"):
            workload = self.instance.workload(name)
            assert (workload.state, workload.attempt) == (State.RUNNING, 1), workload
        self.steady.goes_on()
        assert self.steady.attempts() == (1,)
        self.instance.assert_whole()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("recovery")
    emulate = EmulationSpec(nodes=NODES, gpus=GPUS, racks=NODES)
    server = Server(ServerSettings(home=folder / "home", profile=short_profile(), emulate=emulate))
    try:
        server.start()
        assert server.cluster is not None
        instance = Instance()
        steady = ProgressFile(folder / "steady")
        try:
            instance.submit(gang_spec("notebook", 2), job_spec("steady", steady.command()))
            instance.keep("notebook")
            instance.ready("steady")
            steady.goes_on()
            yield Stage(server.cluster, instance, steady, folder)
        finally:
            instance.close()
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("name_of", "by"),
    [
        (controller_name, "ray"),
        (inventory_name, "signal"),
        (allocator_name, "signal"),
        (queues_name, "signal"),
        (logs_name, "signal"),
    ],
)
def test_the_death_of_an_owner_interrupts_nobody_and_those_who_wait_still_start(
    stage: Stage, name_of: object, by: str
) -> None:
    assert callable(name_of)
    instance, owner = stage.instance, name_of("main")
    kind = owner.partition("/")[0]
    fills, waits = f"fills-{kind}", f"waits-{kind}"
    instance.submit(gang_spec(fills, 3))
    instance.ready(fills)
    instance.submit(gang_spec(waits, 3))
    instance.until(waits, "waits", lambda w: w.state is State.PENDING)

    instance.cancel(fills)  # so that the owner dies in the middle of a stop and a start
    instance.kill(instance.actor(owner), by)

    assert instance.ready(waits).attempt == 1
    assert instance.ended(fills).state is State.CANCELLED
    stage.in_order()
    step = stage.steady.step

    def logged() -> bool:
        text = instance.ask(instance.actor(logs_name("main")).read.remote(WorkloadId("steady"), 1, -200)).text
        return _last_step(text) >= step

    eventually("the log goes on", logged)
    instance.cancel(waits)
    instance.ended(waits)
    instance.assert_whole()


def _last_step(log: str) -> int:
    steps = [line.removeprefix("step ") for line in log.splitlines()[1:] if line.startswith("step ")]
    return int(steps[-1]) if steps and steps[-1].isdigit() else 0


def test_a_group_that_was_asked_for_and_not_acknowledged_is_adopted_and_not_made_twice(stage: Stage) -> None:
    instance = stage.instance
    name = group_name("main", WorkloadId("asked"), 1)
    nodes = {NodeId(stage.cluster.node_id(n)): n for n in stage.cluster.node_names}
    busy = [instance.node_of("steady"), *(m.node for m in instance.workload("notebook").placement)]
    frozen = next(nodes[id] for id in nodes if busy.count(id) < GPUS)
    allocator = instance.actor(allocator_name("main"))

    stage.cluster.freeze_node(frozen)  # its raylet can't confirm the group: the group stays on its way
    try:
        instance.submit(gang_spec("asked", 3))
        group = eventually("the group was asked for", lambda: [g for g in instance.groups() if g.name == name])[0]
        assert not group.created
        instance.kill(allocator)
    finally:
        stage.cluster.freeze_node(frozen, False)

    assert instance.ready("asked").attempt == 1
    assert [g.group_id for g in instance.groups() if g.name == name] == [group.group_id]
    stage.in_order()
    instance.cancel("asked")
    instance.ended("asked")


def test_a_group_of_nobody_is_removed_and_one_that_others_remove_ends_its_attempt(stage: Stage) -> None:
    from rayorch.adapters.ray_groups import create_group, remove_group

    instance = stage.instance
    one = Resources.of({"GPU": 1})
    node = stage.cluster.node_id(stage.cluster.node_names[0])
    stray = create_group(group_name("main", WorkloadId("nobody"), 1), (one,), (node,)).id.hex()
    instance.submit(gang_spec("robbed", 2))
    instance.keep("robbed")
    [group] = [g for g in instance.groups() if g.name == group_name("main", WorkloadId("robbed"), 1)]

    remove_group(group.group_id)

    again = instance.ready("robbed", attempt=2)
    assert again.node_losses == 1
    assert [(e.move, e.cause) for e in instance.endings("robbed")] == [(Move.REQUEUED, StopCause.NODE_LOST)]
    eventually("the stray group is gone", lambda: all(g.group_id != stray for g in instance.groups()))
    instance.refused.clear()  # the first attempt's heartbeats, rightly
    instance.let_go("robbed")
    stage.in_order()


def test_a_cordon_outlives_the_inventory_and_the_queue_owner(stage: Stage) -> None:
    instance = stage.instance
    node = instance.node_of("steady")
    instance.ask(instance.queues.cordon.remote(CordonRequest(node, "it is being looked at")))
    instance.kill(instance.inventory)
    instance.kill(instance.queues)

    instance.submit(gang_spec("elsewhere", 3))
    eventually("it waits for the node", lambda: "NodesUnavailable" in instance.waits("elsewhere"))
    stage.in_order()
    instance.ask(instance.queues.uncordon.remote(UncordonRequest(node, "it is sound")))
    assert instance.ready("elsewhere").attempt == 1
    instance.cancel("elsewhere")
    instance.ended("elsewhere")


def test_owners_that_were_killed_for_good_are_made_anew_and_found_by_the_controller(stage: Stage) -> None:
    import ray

    instance = stage.instance
    for owner in (instance.allocator, instance.queues):
        ray.kill(owner, no_restart=True)
    eventually("their end", lambda: not actor_pid(instance.allocator) and not actor_pid(instance.queues))
    start_instance(InstanceSettings(short_profile(), stage.folder / "home" / "main"))
    instance.find_owners()

    instance.submit(gang_spec("afterwards", 3))
    assert instance.ready("afterwards").attempt == 1
    stage.in_order()
    instance.cancel("afterwards")
    instance.ended("afterwards")


def test_gpus_that_others_take_are_seen_with_their_holder_and_waited_for(stage: Stage) -> None:
    import ray

    instance = stage.instance
    squatter: Any = ray.remote(num_gpus=1, num_cpus=0)(Squatter)
    squatter = squatter.remote()
    instance.ask(squatter.ping.remote())

    def seen() -> list[tuple[str, ...]]:
        nodes = instance.ask(instance.inventory.changes_since.remote(0)).nodes
        return [n.foreign_holders for n in nodes if n.foreign.to_floats().get("GPU") == 1 and n.foreign_holders]

    [holders] = eventually("foreign use is seen", seen)
    assert "Squatter" in holders[0] and ray.get_runtime_context().get_job_id() in holders[0]
    instance.submit(gang_spec("patient", 3))
    eventually("it says why", lambda: "ForeignUse" in instance.waits("patient"))
    assert instance.workload("patient").state is State.PENDING
    stage.in_order()

    ray.kill(squatter)
    assert instance.ready("patient").attempt == 1
    instance.cancel("patient")
    instance.ended("patient")


def test_a_job_whose_worker_is_killed_fails_and_is_retried_by_its_own_rules(stage: Stage) -> None:
    instance = stage.instance
    command = f"{sys.executable} {JOBS / 'loses_a_worker.py'}"
    instance.submit(job_spec("retried", command, max_retries=1), job_spec("given-up", command))

    failed, done = instance.ended("given-up"), instance.ended("retried")

    assert (failed.state, failed.attempt, failed.failures) == (State.FAILED, 1, 1)
    assert (done.state, done.attempt, done.failures) == (State.SUCCEEDED, 2, 1)
    assert done.node_losses == failed.node_losses == 0
    logs = instance.actor(logs_name("main"))
    assert "WorkerCrashedError" in instance.ask(logs.read.remote(WorkloadId("retried"), 1, 0)).text
    assert "WORKED 2" in instance.ask(logs.read.remote(WorkloadId("retried"), 2, 0)).text
    stage.in_order()


def test_agent_and_runner_are_killed_and_the_attempt_is_replaced_after_its_lease(stage: Stage) -> None:
    instance = stage.instance
    node = instance.node_of("steady")
    instance.kill(instance.actor(agent_name("main", node)))
    progress = ProgressFile(stage.folder / "orphaned")
    instance.submit(job_spec("orphaned", progress.command()))
    instance.ready("orphaned")
    progress.goes_on(beyond=5)
    runner = instance.actor(runner_name("main", WorkloadId("orphaned"), 1))
    child = progress.lines()[-1][2]

    killed_s = time.time()
    os.kill(actor_pid(runner), signal.SIGKILL)

    eventually("its command ends with it", lambda: not pid_lives(child))
    instance.until("orphaned", "requeued", lambda w: w.state is State.PENDING)
    instance.assert_whole()
    instance.ready("orphaned", attempt=2)
    progress.goes_on()
    assert progress.attempts() == (1, 2)
    [end] = instance.endings("orphaned")
    assert (end.move, end.cause) == (Move.REQUEUED, StopCause.LEASE_LAPSED)
    started_s = instance.starts("orphaned")[1].at_s
    assert started_s >= end.not_before_s >= killed_s + LEASE_S + MARGIN_S
    instance.cancel("orphaned")
    instance.ended("orphaned")
    stage.in_order()


def test_jobs_on_a_dead_node_and_under_a_killed_raylet_go_on_elsewhere_after_their_leases(stage: Stage) -> None:
    instance, cluster = stage.instance, stage.cluster
    instance.let_go("notebook")
    wide = ProgressFile(stage.folder / "wide")
    both_gpus = Role("worker", Resources.of({"GPU": GPUS}), 1, 1)
    instance.submit(replace(job_spec("wide", wide.command()), roles=(both_gpus,)))
    instance.ready("wide")
    wide.goes_on(beyond=5)
    lost = {name: instance.node_of(name) for name in ("steady", "wide")}
    name_of = {cluster.node_id(name): name for name in cluster.node_names}
    cluster.add_node("spare")
    pids = [p.lines()[-1][2] for p in (stage.steady, wide)]

    killed_s = time.time()
    cluster.kill_node(name_of[lost["steady"]])
    cluster.kill_raylet(name_of[lost["wide"]])

    for name, progress in (("steady", stage.steady), ("wide", wide)):
        again = instance.ready(name, attempt=2)
        assert {m.node for m in again.placement}.isdisjoint(lost.values())
        progress.goes_on()
        assert progress.attempts() == (1, 2)
        [end] = instance.endings(name)
        # A runner dies with its node's raylet; which of the two deaths is heard of first is chance.
        assert end.move is Move.REQUEUED and end.cause in (StopCause.NODE_LOST, StopCause.LEASE_LAPSED)
        assert (again.node_losses, again.failures) == (1, 0)
        assert instance.starts(name)[1].at_s >= end.not_before_s >= killed_s + LEASE_S + MARGIN_S
    assert not any(pid_lives(pid) for pid in pids)
    instance.assert_whole()
    for name in ("steady", "wide"):
        instance.cancel(name)
    for name in ("steady", "wide"):
        assert instance.ended(name).state is State.CANCELLED
    instance.assert_whole()
