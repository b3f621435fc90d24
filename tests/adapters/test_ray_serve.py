"""Serve on a real cluster of two nodes with two emulated GPUs each: replicas are where the grant says, nowhere else.

The tests share one cluster and run in order, each with an application of its own.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayorch.adapters import ray_serve
from rayorch.adapters.ray_names import ON_HEAD
from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.grants import Grant, Seat
from rayorch.core.reports import AttemptReport, DemandReported, GrantApplied, SeatsInUse, WorkersStarted
from rayorch.core.types import Resources, Role, WorkloadId
from tests.ray_cluster import EmulatedCluster

pytestmark = pytest.mark.ray

WAIT_S = 120.0
HERE = Path(__file__).parent / "served"


def eventually(holds: Callable[[], Any], what: str) -> Any:
    """What `holds` returns, as soon as it is true."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Served:
    """The cluster with Serve on it; `a` and `b` are the nodes with GPUs."""

    cluster: EmulatedCluster
    port: int
    code: str
    a: str
    b: str

    def url(self, app: str, query: str = "") -> str:
        return f"http://127.0.0.1:{self.port}/{app}?{query}"


class Attempt:
    """One application under a runner that the test plays."""

    def __init__(self, served: Served, app: str, import_path: str = "echo_app:app", gpus: int = 1) -> None:
        import ray

        from tests.adapters.fake_runner import FakeRunnerActor

        self.served, self.app, self.version, self.lease_s = served, app, 0, 60.0
        self.bundle = Resources.of({"GPU": gpus, "CPU": 0.5})
        self.runner_name = f"runner/main/{app}/1"
        role = Role("replica", self.bundle, 1, 4)
        self.spec = ray_serve.AppSpec(
            app, import_path, ((role, ""),), {}, {"working_dir": served.code}, route_prefix=f"/{app}"
        )
        # On the head, as real runners are: tests kill the other nodes.
        options: dict[str, Any] = {"name": self.runner_name, "namespace": "rayorch", "num_cpus": 0}
        options["resources"] = ON_HEAD
        self.runner: Any = FakeRunnerActor.options(**options).remote(self.grant())
        self._get = ray.get

    def grant(self, *nodes: str) -> Grant:
        self.version += 1
        seats = tuple(Seat("replica", i, node, "", 0, self.bundle, surplus=i) for i, node in enumerate(nodes))
        return Grant(WorkloadId(self.app), 1, self.version, seats, lease_s=self.lease_s)

    def set_grant(self, *nodes: str) -> int:
        grant = self.grant(*nodes)
        self._get(self.runner.update.remote(grant))
        return grant.version

    def start(self, *nodes: str) -> None:
        self.set_grant(*nodes)
        ray_serve.deploy(self.spec, self._get(self.runner.grant.remote(0, 0.0)), self.runner_name)
        self.runs_on(*nodes)

    def reports(self, kind: type[Any]) -> list[Any]:
        every: list[AttemptReport] = self._get(self.runner.reports.remote())
        return [report for report in every if isinstance(report, kind)]

    def places(self) -> Counter[str]:
        return Counter(seat.node_id for seat in ray_serve.seats_in_use(self.app))

    def runs_on(self, *nodes: str) -> None:
        """Wait until exactly these seats are used, each by a replica that answers."""

        def holds() -> bool:
            status = ray_serve.app_status(self.app)
            answering = Counter(r.node_id for r in status.replicas if r.state == "RUNNING" and r.deployment != "Front")
            return status.state == "RUNNING" and answering == Counter(nodes) == self.places()

        try:
            eventually(holds, "")
        except AssertionError:
            raise AssertionError((nodes, ray_serve.app_status(self.app), self.places())) from None

    def obeyed(self, version: int) -> None:
        eventually(
            lambda: any(report.version == version for report in self.reports(GrantApplied)), f"grant {version} obeyed"
        )

    def get(self, query: str = "") -> dict[str, Any]:
        answer = httpx.get(self.served.url(self.app, query), timeout=WAIT_S)
        answer.raise_for_status()
        found = answer.json()
        assert isinstance(found, dict)
        return found


class Load:
    """Requests over HTTP, one after the other in each of `clients` threads."""

    def __init__(self, url: str, clients: int) -> None:
        self.answered, self.failed = 0, list[str]()
        self._url, self._over = url, threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self) -> None:
        with httpx.Client(timeout=WAIT_S) as client:
            while not self._over.is_set():
                try:
                    status = client.get(self._url).status_code
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))
                else:
                    if status == 200:
                        self.answered += 1
                    else:
                        self.failed.append(f"status {status}")

    @contextmanager
    def running(self) -> Iterator[Load]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(WAIT_S)


@pytest.fixture(scope="module")
def served(ray_cluster: Callable[..., EmulatedCluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    cluster = ray_cluster(nodes=2, gpus=2, cpus=4)
    code = tmp_path_factory.mktemp("code") / "served.zip"
    with zipfile.ZipFile(code, "w") as archive:
        archive.write(HERE / "echo_app.py", "echo_app.py")
    port = free_port()
    ray_serve.ensure_serve_started(http_port=port)
    yield Served(cluster, port, f"file://{code}", *cluster.node_ids)
    from ray import serve

    serve.shutdown()


@pytest.fixture
def attempt(served: Served, request: pytest.FixtureRequest) -> Iterator[Attempt]:
    """An application named after the test."""
    import ray

    made = Attempt(served, "".join(c if c.isalnum() else "-" for c in request.node.name))
    yield made
    ray_serve.undeploy(made.app)
    ray.kill(made.runner)


def gpus_used() -> float:
    import ray

    return float(ray.cluster_resources()["GPU"]) - float(ray.available_resources().get("GPU", 0.0))


def test_replicas_follow_the_grant_up_and_down(served: Served, attempt: Attempt) -> None:
    a, b = served.a, served.b
    attempt.start(b)
    assert attempt.get()["node"] == b
    attempt.set_grant(b, a, a)
    attempt.runs_on(b, a, a)
    assert gpus_used() == 3
    with Load(served.url(attempt.app, "s=0.3"), clients=8).running() as load:
        busy = eventually(lambda: [r for r in attempt.reports(DemandReported) if r.queued and r.ongoing >= 4], "demand")
        assert all(r.ongoing + r.queued <= 8 for r in attempt.reports(DemandReported))
        assert {(r.role, r.target_per_replica) for r in busy} == {("replica", 2)}
        before = load.answered
        version = attempt.set_grant(a)
        attempt.obeyed(version)
        assert attempt.places() == Counter([a])
        assert load.answered > before
    assert load.failed == []
    last = attempt.reports(SeatsInUse)[-1].seats
    assert [(seat.role, seat.node_id) for seat in last] == [("replica", a)]
    assert {r.count for r in attempt.reports(WorkersStarted)} >= {1, 3}
    eventually(lambda: gpus_used() == 1, "the GPUs are free")


def test_a_replica_that_dies_is_replaced_in_its_seat(served: Served, attempt: Attempt) -> None:
    attempt.start(served.b)
    first = attempt.get()
    with pytest.raises(httpx.HTTPError):
        attempt.get("die=1")
    second = eventually(lambda: _answer_of_another(attempt, first["pid"]), "a new replica answers")
    assert second["node"] == served.b
    attempt.runs_on(served.b)
    assert gpus_used() == 1


def _answer_of_another(attempt: Attempt, pid: int) -> dict[str, Any] | None:
    try:
        answer = attempt.get()
    except httpx.HTTPError:
        return None
    return answer if answer["pid"] != pid else None


def test_the_last_replica_moves_without_a_failed_request(served: Served, attempt: Attempt) -> None:
    attempt.start(served.a)
    with Load(served.url(attempt.app, "s=0.1"), clients=2).running() as load:
        attempt.obeyed(attempt.set_grant(served.b))
        attempt.runs_on(served.b)
    assert load.failed == [] and load.answered


def test_without_a_seat_a_replica_waits_and_fails_nothing(served: Served, attempt: Attempt) -> None:
    attempt.set_grant()
    ray_serve.deploy(attempt.spec, attempt.grant(), attempt.runner_name)
    eventually(lambda: ray_serve.app_status(attempt.app).replicas, "a replica is wanted")
    time.sleep(3)  # some thirty turns of Serve's control loop
    status = ray_serve.app_status(attempt.app)
    assert (status.state, status.running(), len(status.replicas)) == ("DEPLOYING", 0, 1), status
    assert gpus_used() == 0
    attempt.set_grant(served.a)
    attempt.runs_on(served.a)


def test_serves_controller_may_die(served: Served, attempt: Attempt) -> None:
    import ray

    attempt.start(served.a)
    pid = attempt.get()["pid"]
    controller: Any = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    before = ray.get(controller.get_pid.remote())
    os.kill(before, signal.SIGKILL)
    assert attempt.get()["pid"] == pid
    eventually(lambda: _pid_of(controller) not in (None, before), "the controller is back")
    ray_serve.ensure_serve_started()
    attempt.set_grant(served.a, served.b)
    attempt.runs_on(served.a, served.b)
    attempt.obeyed(attempt.set_grant(served.a))
    attempt.runs_on(served.a)
    assert attempt.get()["pid"] == pid
    assert gpus_used() == 1


def _pid_of(controller: Any) -> int | None:
    import ray

    try:
        return int(ray.get(controller.get_pid.remote(), timeout=5))
    except ray.exceptions.RayError:
        return None


def test_deploying_again_restarts_nothing(served: Served, attempt: Attempt) -> None:
    attempt.start(served.a)
    pid = attempt.get()["pid"]
    attempt.start(served.a)
    assert attempt.get()["pid"] == pid


def test_a_replica_of_two_bundles_lies_on_one_node(served: Served) -> None:
    pair = Attempt(served, "pair", "echo_app:pair", gpus=2)
    pair.start(served.b)
    assert pair.get() == {"node": served.b, "bundles": 2}
    assert gpus_used() == 2
    ray_serve.undeploy("pair")


def test_a_gang_of_replicas_uses_one_seat_for_each(served: Served) -> None:
    gang = Attempt(served, "gang", "echo_app:gang")
    gang.start(served.a, served.b)
    gang.set_grant(served.a, served.b, served.a)
    time.sleep(2)
    gang.runs_on(served.a, served.b)
    gang.set_grant(served.a, served.b, served.a, served.b)
    gang.runs_on(served.a, served.b, served.a, served.b)
    gang.obeyed(gang.set_grant(served.a, served.b))
    ray_serve.undeploy("gang")


@pytest.mark.parametrize("told", [True, False])
def test_an_application_whose_lease_is_over_leaves(served: Served, attempt: Attempt, told: bool) -> None:
    import ray

    attempt.lease_s = 60.0 if told else 3.0
    attempt.start(served.a)
    if told:
        ray.get(attempt.runner.lapse.remote())
    else:
        ray.kill(attempt.runner)
    eventually(lambda: ray_serve.app_status(attempt.app).state == "NOT_DEPLOYED", "it is gone")
    eventually(lambda: gpus_used() == 0, "its GPU is free")


def test_faults_of_the_application_are_told(served: Served) -> None:
    broken = Attempt(served, "broken", "echo_app:broken")
    spec = ray_serve.AppSpec("broken", "echo_app:broken", broken.spec.roles, {"path": "/m"}, broken.spec.runtime_env)
    with pytest.raises(SpecError, match="no model at /m"):
        ray_serve.deploy(spec, broken.grant(served.a), broken.runner_name)
    local = ray_serve.AppSpec("broken", "echo_app:app", broken.spec.roles, {}, {"working_dir": "/tmp"})
    with pytest.raises(SpecError, match="runtime_env"):
        ray_serve.deploy(local, broken.grant(served.a), broken.runner_name)
    assert ray_serve.app_status("broken").state == "NOT_DEPLOYED"


def test_a_route_belongs_to_one_application(served: Served, attempt: Attempt) -> None:
    attempt.start(served.a)
    other = dataclasses.replace(attempt.spec, name="other")
    with pytest.raises(SpecError, match=f"route_prefix: .*/{attempt.app} is being used by"):
        ray_serve.deploy(other, attempt.grant(served.a), attempt.runner_name)
    attempt.runs_on(served.a)


def test_a_replica_on_a_lost_node_starts_again_where_the_grant_says(served: Served, attempt: Attempt) -> None:
    attempt.start(served.a, served.b)
    served.cluster.kill_node(served.b)
    attempt.set_grant(served.a, served.a)
    attempt.runs_on(served.a, served.a)
    assert attempt.get()["node"] == served.a


def test_serve_without_our_placement_is_refused(served: Served) -> None:
    from ray import serve

    serve.shutdown()
    serve.start(http_options={"host": "127.0.0.1", "port": free_port()}, proxy_location="HeadOnly")
    with pytest.raises(ClusterError, match="without rayorch's placement"):
        ray_serve.ensure_serve_started()
