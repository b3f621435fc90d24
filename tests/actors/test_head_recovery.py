"""The head dies: without Redis everything is begun again from the journal, with Redis what runs is taken over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rayorch.adapters.ray_emulation import EmulationSpec
from rayorch.core.events import AttemptEnded, Started, Submitted
from rayorch.core.types import State
from rayorch.server import Server, ServerSettings
from tests.instance import PATIENCE_S, Instance, ProgressFile, eventually, gang_spec, job_spec, short_profile
from tests.machine import FAST_HEALTH_CHECKS, Machine, client_of, cluster_document, free_port, journal_of, start_server
from tests.redis_server import redis_store

pytestmark = pytest.mark.ray

OUTAGE_S = 2.0
LONG_LEASE_S = 90.0
"""Longer than a head takes to come back on a busy machine: what is taken over must not have ended meanwhile."""
STEPS = 150


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    """Machines that a test has started; all are powered off in the end."""
    started: list[Machine] = []
    yield started
    for machine in started:
        machine.power_off()


def test_after_the_loss_of_all_but_the_journal_every_attempt_is_begun_again_and_ends(
    tmp_path: Path, machines: list[Machine]
) -> None:
    home, head = tmp_path / "home", Machine(tmp_path, "head")
    machines.append(head)
    server = ("--emulate", "2x2", "--racks", "2", *cluster_document(tmp_path, lease_s=6, margin_s=1))
    progress = {name: ProgressFile(tmp_path / name) for name in ("one", "two", "later")}
    start_server(head, home, *server)
    with client_of(home) as client:
        for name, gpus in (("one", 2), ("two", 2), ("later", 3)):
            client.submit(progress[name].command(STEPS), id=name, workers=gpus, gpus_per_worker=1)
        for name in ("one", "two"):
            progress[name].goes_on(beyond=5)

    head.power_off()  # every process of the cluster and the server, in the same moment
    steps = {name: progress[name].step for name in ("one", "two")}
    assert max(steps.values()) < STEPS
    start_server(head, home, *server)

    with client_of(home) as client:
        for name in progress:
            assert client.workload(name).wait(PATIENCE_S) == "SUCCEEDED", client.workload(name).info()
    head.power_off()
    assert {name: p.attempts() for name, p in progress.items()} == {"one": (1, 2), "two": (1, 2), "later": (1,)}
    assert all(p.step == STEPS for p in progress.values())
    events = journal_of(home)
    assert sorted(str(e.spec.id) for e in events if isinstance(e, Submitted)) == ["later", "one", "two"]
    requeued = [e for e in events if isinstance(e, AttemptEnded) and e.move == "requeued"]
    assert sorted((str(e.workload), e.attempt) for e in requeued) == [("one", 1), ("two", 1)]


def test_running_gangs_live_through_a_restart_of_the_gcs_with_redis(tmp_path: Path) -> None:
    with redis_store(tmp_path) as redis:
        emulate = EmulationSpec(nodes=1, gpus=3, redis=redis)
        profile = replace(short_profile(), lease_s=LONG_LEASE_S)
        server = Server(ServerSettings(home=tmp_path / "home", profile=profile, emulate=emulate))
        try:
            server.start()
            instance = Instance()
            try:
                _gcs_restarts(server, instance, ProgressFile(tmp_path / "steady"))
            finally:
                instance.close()
        finally:
            server.stop()


def _gcs_restarts(server: Server, instance: Instance, steady: ProgressFile) -> None:
    assert server.cluster is not None
    instance.submit(gang_spec("notebook", 1), job_spec("steady", steady.command()), gang_spec("fills", 1))
    instance.keep("notebook")
    instance.ready("steady")
    instance.keep("fills")
    steady.goes_on()
    instance.submit(gang_spec("waits", 1))
    groups = {g.name: g.group_id for g in instance.groups()}

    server.cluster.kill_gcs()
    time.sleep(OUTAGE_S)
    steady.goes_on()  # nobody needs the GCS to go on
    server.cluster.start_gcs()

    instance.let_go("fills")
    assert instance.ready("waits").attempt == 1
    steady.goes_on()
    for name in ("notebook", "steady"):
        workload = instance.workload(name)
        assert (workload.state, workload.attempt) == (State.RUNNING, 1), workload
    kept = {g.name: g.group_id for g in instance.groups()}
    assert {name: kept.get(name) for name in groups if "fills" not in name} == {
        name: group for name, group in groups.items() if "fills" not in name
    }
    instance.kill(instance.allocator)  # the owners can be restarted by the GCS that came back
    instance.kill(instance.controller)
    instance.assert_whole()
    steady.goes_on()
    assert steady.attempts() == (1,)


def test_running_gangs_are_taken_over_by_a_head_that_comes_back_with_redis(
    tmp_path: Path, machines: list[Machine]
) -> None:
    with redis_store(tmp_path) as redis:
        store = {"RAY_REDIS_ADDRESS": redis.address, "RAY_external_storage_namespace": redis.namespace}
        head = Machine(tmp_path, "head", env=FAST_HEALTH_CHECKS | store)
        worker = Machine(tmp_path, "worker", env=FAST_HEALTH_CHECKS)
        machines += [head, worker]
        try:
            _head_returns(tmp_path, head, worker, redis.password)
        finally:
            for machine in machines:  # before Redis, which the head can't do without
                machine.power_off()


def _head_returns(folder: Path, head: Machine, worker: Machine, password: str) -> None:
    home, steady = folder / "home", ProgressFile(folder / "steady")
    address = f"127.0.0.1:{free_port()}"
    server = ("--address", address, *cluster_document(folder, lease_s=LONG_LEASE_S, margin_s=1))
    node = ("--node-ip-address=127.0.0.1", "--num-cpus=8")

    def start_head() -> None:
        head.ray("--head", f"--port={address.partition(':')[2]}", "--num-gpus=0", "--include-dashboard=false",
                 f"--redis-password={password}", *node)  # fmt: skip
        eventually("the GCS listens", lambda: _listens(address))
        start_server(head, home, *server)

    start_head()
    worker.ray(f"--address={address}", "--num-gpus=1", "--dashboard-agent-listen-port=0", *node)
    with client_of(home) as client:
        eventually("the node is there", lambda: len(client.nodes()) == 2)
        client.submit(steady.command(), id="steady", workers=1, gpus_per_worker=1)
        steady.goes_on(beyond=3)
        client.submit("true", id="waits", workers=1, gpus_per_worker=1)
    pid = steady.lines()[-1][2]

    head.power_off()
    steady.goes_on()
    start_head()

    with client_of(home) as client:
        eventually("it is taken over", lambda: client.workload("steady").status == "RUNNING")
        steady.goes_on()
        assert client.workload("waits").status == "PENDING"
        client.workload("steady").cancel()
        assert client.workload("waits").wait(PATIENCE_S) == "SUCCEEDED"
        assert client.workload("steady").wait(PATIENCE_S) == "CANCELLED"
    head.power_off()
    assert steady.attempts() == (1,)
    assert {line[2] for line in steady.lines()} == {pid}
    events = journal_of(home)
    assert [(str(e.workload), e.attempt) for e in events if isinstance(e, Started)] == [("steady", 1), ("waits", 1)]


def _listens(address: str) -> bool:
    import socket

    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
