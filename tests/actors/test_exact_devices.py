"""On a node that declares each GPU, everybody sees the GPUs that the books gave out; elsewhere the books follow Ray.

The tests share one cluster (a node of 4 GPUs with names, one of 4 without) and run in their order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayorch.actors.names import allocator_name, logs_name
from rayorch.adapters import ray_serve
from rayorch.adapters.ray_emulation import EmulationSpec
from rayorch.core.payload import Payload
from rayorch.core.requests import CordonRequest, UncordonRequest
from rayorch.core.types import Allocation, Kind, NodeId, NodeSpec, Resources, Role, State, WorkloadId
from rayorch.server import Server, ServerSettings
from tests.instance import JOBS, PATIENCE_S, Instance, eventually, gang_spec, short_profile
from tests.machine import free_port

pytestmark = pytest.mark.ray

GPUS = 4


class Squatter:
    """Anybody's actor."""

    def ids(self) -> list[int]:
        """The GPUs that it has."""
        import ray

        return [int(id) for id in ray.get_gpu_ids()]


@dataclass
class Stage:
    """`exact` and `plain` are the nodes' ids; one of them is cordoned while a test is about the other."""

    instance: Instance
    exact: NodeId
    plain: NodeId
    folder: Path
    address: str
    gateway_url: str

    def use(self, node: NodeId) -> None:
        """Only this node takes new work from now on."""
        queues, cordoned = self.instance.queues, self.node(node).health.value == "cordoned"
        other = self.plain if node == self.exact else self.exact
        if cordoned:
            self.instance.ask(queues.uncordon.remote(UncordonRequest(node, "the test is about it")))
        self.instance.ask(queues.cordon.remote(CordonRequest(other, "the test is about another node")))
        eventually("the cordon", lambda: self.node(other).health.value == "cordoned")
        eventually("the node in service", lambda: self.node(node).health.value == "ok")

    def node(self, id: NodeId) -> NodeSpec:
        return next(node for node in self.instance.facts().nodes if node.id == id)

    def held(self, name: str) -> Allocation:
        return next(a for a in self.instance.facts().allocations if a.workload == name)

    def devices(self, name: str) -> list[tuple[int, ...]]:
        """What the books say, seat by seat."""
        return [member.devices for member in self.held(name).members]

    def submit(self, name: str, command: str, kind: Kind, members: int, gpus: float, cpus: float = 1) -> None:
        role = Role("worker", Resources.of({"GPU": gpus, "CPU": cpus}), members, members)
        payload = Payload(entrypoint=command).to_text()
        self.instance.submit(replace(gang_spec(name, 1, kind, payload=payload), roles=(role,)))

    def log(self, name: str) -> str:
        logs = self.instance.actor(logs_name("main"))
        return str(self.instance.ask(logs.read.remote(WorkloadId(name), 1, 0)).text)

    def said(self, name: str, mark: str) -> Any:
        """What the command printed behind a mark."""

        def look() -> str | None:
            if self.instance.workload(name).state in (State.FAILED, State.CANCELLED):
                raise AssertionError(self.log(name))
            lines = [line for line in self.log(name).splitlines() if line.startswith(mark)]
            return lines[0].removeprefix(mark) if lines else None

        return json.loads(eventually(f"{mark!r} of {name}", look))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("exact")
    emulate = EmulationSpec(nodes=1, gpus=GPUS, exact_devices=True)
    server = Server(ServerSettings(home=folder / "home", profile=short_profile(), emulate=emulate))
    try:
        server.start()
        assert server.cluster is not None
        exact = NodeId(server.cluster.node_id("node-0"))
        plain = NodeId(server.cluster.add_node("plain", exact_devices=False))
        instance = Instance()
        try:
            eventually("both nodes", lambda: {exact, plain} <= {node.id for node in instance.facts().nodes})
            yield Stage(instance, exact, plain, folder, server.cluster.address, server.gateway_url)
        finally:
            instance.close()
    finally:
        server.stop()


def squat(node: NodeId, **options: Any) -> Any:
    """Take GPUs of a node past all queues; answers with a handle."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    actor: Any = ray.remote(num_cpus=0, scheduling_strategy=strategy, **options)(Squatter).remote()
    ray.get(actor.ids.remote(), timeout=120)
    return actor


def end(actor: Any) -> None:
    """Give back what it has taken."""
    import ray

    ray.kill(actor)


def test_a_node_is_exact_if_it_declares_each_gpu_and_its_totals_name_none(stage: Stage) -> None:
    exact, plain = stage.node(stage.exact), stage.node(stage.plain)
    assert (exact.exact, plain.exact) == (True, False)
    assert [d.index for d in exact.devices] == [0, 1, 2, 3]
    assert not [name for name, _ in exact.total if name.startswith("gpu")]


def test_workers_see_the_devices_that_the_books_gave_them_though_ray_counted_others(stage: Stage) -> None:
    import ray

    instance = stage.instance
    stage.use(stage.exact)
    for name in ("first", "second"):
        instance.submit(gang_spec(name, 1))
        instance.keep(name)
    assert [stage.devices(name) for name in ("first", "second")] == [[(0,)], [(1,)]]
    instance.let_go("first")
    # Somebody who names the GPU that he takes: gpu2. Ray gives him its number 0.
    somebody = squat(stage.exact, num_gpus=1, resources={"gpu2": 1})
    assert ray.get(somebody.ids.remote()) == [0]
    eventually("the foreign device", lambda: stage.node(stage.exact).foreign_devices == ((2, 10_000),))

    folder = stage.folder / "two"
    folder.mkdir()
    stage.submit("train", f"{sys.executable} {JOBS / 'train_gpus.py'} 2 1 {folder}", Kind.TRAIN, 2, 1)
    instance.ready("train")
    assert stage.devices("train") == [(0,), (3,)], "what is left; Ray counts 2 and 3"
    assert all(member.exact for member in stage.held("train").members)
    assert instance.ended("train").state is State.SUCCEEDED, stage.log("train")
    said = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    assert [worker["ids"] for worker in said] == [[0], [3]]
    assert [worker["visible"] for worker in said] == ["0", "3"]

    folder = stage.folder / "one"
    folder.mkdir()
    stage.submit("pair", f"{sys.executable} {JOBS / 'train_gpus.py'} 1 2 {folder}", Kind.TRAIN, 1, 2)
    instance.ready("pair")
    assert stage.devices("pair") == [(0, 3)]
    assert instance.ended("pair").state is State.SUCCEEDED, stage.log("pair")
    assert json.loads((folder / "0.json").read_text())["ids"] == [0, 3]
    end(somebody)
    eventually("an end of foreign use", lambda: not stage.node(stage.exact).foreign)


def test_plain_tasks_and_actors_of_a_job_see_their_part_of_a_seat(stage: Stage) -> None:
    instance = stage.instance  # `second` holds device 1
    stage.submit("job", f"{sys.executable} {JOBS / 'which_gpus.py'} 2 stay", Kind.JOB, 1, 2)
    instance.ready("job")
    assert stage.devices("job") == [(0, 2)], "Ray counts another set: it is free to"
    found = stage.said("job", "FOUND ")
    (large,) = found["large"]
    assert sorted(large["ids"]) == [0, 2] and large["visible"] == "0,2"
    assert sorted(id for actor in found["single"] for id in actor["ids"]) == [0, 2]
    for actor in (*found["single"], *found["half"]):
        assert len(actor["ids"]) == 1
        assert actor["visible"] == ",".join(str(id) for id in actor["ids"])
        assert actor["context"] == [str(id) for id in actor["ids"]]
    assert {id for task in found["half"] for id in task["ids"]} <= {0, 2}


def test_the_allocator_finds_the_devices_again_in_the_groups(stage: Stage) -> None:
    instance = stage.instance
    before = {name: stage.held(name).members for name in ("second", "job")}
    instance.kill(instance.actor(allocator_name("main")))
    eventually("the books after the restart", lambda: instance.facts().synced)
    assert {name: stage.held(name).members for name in ("second", "job")} == before
    assert before["job"][0].exact and before["job"][0].devices == (0, 2)
    instance.assert_whole()


def test_an_actor_in_a_leased_gang_sees_its_device(stage: Stage) -> None:
    env = dict(os.environ, RAY_ADDRESS=stage.address, RAYORCH_ADDRESS=stage.gateway_url)
    command = [sys.executable, str(JOBS / "leases_gpus.py")]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr
    line = next(line for line in ran.stdout.splitlines() if line.startswith("FOUND "))
    assert json.loads(line.removeprefix("FOUND ")) == [[3], "3"], "0, 1 and 2 are held"


def test_replicas_see_their_devices(stage: Stage) -> None:
    instance = stage.instance
    instance.let_go("second")
    instance.cancel("job")
    instance.ended("job")
    somebody = squat(stage.exact, num_gpus=1, resources={"gpu1": 1})  # Ray's number 0
    eventually("the foreign device", lambda: stage.node(stage.exact).foreign_devices == ((1, 10_000),))
    port = free_port()
    ray_serve.ensure_serve_started(http_port=port)
    role = Role("replica", Resources.of({"GPU": 1, "CPU": 0.5}), 2, 2)
    payload = Payload(import_path="tests.adapters.served.echo_app:app", app_name="echo", route_prefix="/echo")
    instance.submit(replace(gang_spec("served", 1, Kind.SERVE, payload=payload.to_text()), roles=(role,)))
    instance.ready("served")
    eventually("both groups", lambda: all(member.group_id for member in stage.held("served").members))
    assert sorted(stage.devices("served")) == [(0,), (2,)]
    seen: dict[int, list[int]] = {}

    def both() -> bool:
        answer = httpx.get(f"http://127.0.0.1:{port}/echo", timeout=PATIENCE_S).json()
        seen[answer["pid"]] = answer["gpus"]
        return len(seen) == 2

    eventually("an answer of each replica", both)
    assert sorted(seen.values()) == [[0], [2]], "Ray counts 1 and 2"
    instance.cancel("served")
    instance.ended("served")
    end(somebody)


def test_gpus_used_without_a_name_close_an_exact_node_for_new_work(stage: Stage) -> None:

    instance = stage.instance
    somebody = squat(stage.exact, num_gpus=1)
    eventually("the foreign use", lambda: stage.node(stage.exact).foreign_unnamed == 10_000)
    assert "does not say which" in stage.node(stage.exact).reason
    instance.submit(gang_spec("waits", 1))
    eventually("its reason", lambda: "ForeignUse" in instance.waits("waits"))
    assert instance.workload("waits").state is State.PENDING
    end(somebody)
    instance.keep("waits")
    instance.let_go("waits")


def test_elsewhere_the_books_follow_what_ray_has_bound(stage: Stage) -> None:
    import ray

    instance = stage.instance
    stage.use(stage.plain)
    one, two = (squat(stage.plain, num_gpus=1) for _ in range(2))
    assert [ray.get(actor.ids.remote()) for actor in (one, two)] == [[0], [1]]
    end(one)
    eventually("the foreign use", lambda: stage.node(stage.plain).foreign.gpu_units == 10_000)
    stage.submit("followed", f"{sys.executable} {JOBS / 'which_gpus.py'} 2 stay", Kind.JOB, 1, 2)
    instance.ready("followed")
    assert not stage.held("followed").members[0].exact
    kept = sorted(int(id) for id in stage.said("followed", "KEEPS ")["ids"])
    assert kept == [0, 2], "Ray's first fit beside somebody who holds 1"
    eventually("the books", lambda: [sorted(devices) for devices in stage.devices("followed")] == [kept])
    end(two)
    instance.cancel("followed")
    instance.ended("followed")
    instance.assert_whole()
