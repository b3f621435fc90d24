"""An unmodified Train script on real Ray: in held seats only, resized, stopped, resumed, forced and fenced.

The cluster has three GPUs and all of them are in held groups, so whatever reserves a GPU beside them hangs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayorch.adapters.ray_names import ON_HEAD
from rayorch.core.grants import Grant, Seat
from rayorch.core.reports import CheckpointCommitted, GrantApplied, StepReported, WorkersStarted
from rayorch.core.types import Resources, StopCause, StopOrder, WorkloadId
from tests.ray_cluster import EmulatedCluster

pytestmark = pytest.mark.ray

SCRIPT = Path(__file__).with_name("user_train.py")
NAMESPACE = "rayorch"
WORKLOAD = WorkloadId("team-a.digits")
PATIENCE_S = 180.0
"""A guard against a hang: three workers of a busy two-core machine may take a minute to start."""
SEAT = Resources.of({"GPU": 1, "CPU": 1})


class Held:
    """The allocator's side: three seats on two nodes, two in one group and one in a group of its own."""

    def __init__(self, cluster: EmulatedCluster) -> None:
        import ray
        from ray.util import placement_group

        self.groups = []
        self.seats: list[Seat] = []
        for surplus, nodes in enumerate((cluster.node_ids[:2], cluster.node_ids[:1])):
            group = placement_group(
                [SEAT.to_floats()] * len(nodes),
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": node} for node in nodes],
            )
            ray.get(group.ready())
            self.groups.append(group)
            for bundle, node in enumerate(nodes):
                index = len(self.seats)
                self.seats.append(Seat("worker", index, node, group.id.hex(), bundle, SEAT, surplus))

    def grant(self, attempt: int, version: int, seats: int, **fields: Any) -> Grant:
        return Grant(WORKLOAD, attempt, version, tuple(self.seats[:seats]), **fields)

    def free_gpus(self) -> float:
        """Free GPUs within the held groups."""
        import ray

        wildcards = {f"GPU_group_{group.id.hex()}" for group in self.groups}
        return sum(amount for name, amount in ray.available_resources().items() if name in wildcards)

    def table(self) -> dict[str, str]:
        """All placement groups of the cluster that have not been removed, by id."""
        from ray.util import placement_group_table

        return {k: v["state"] for k, v in placement_group_table().items() if v["state"] != "REMOVED"}


@pytest.fixture(scope="module")
def held(ray_cluster: Callable[..., EmulatedCluster]) -> Held:
    import ray

    cluster = ray_cluster(nodes=1, gpus=2, cpus=4, head_cpus=4)
    cluster.add_node(gpus=1, cpus=4)
    held = Held(cluster)
    wait_for(lambda: ray.available_resources().get("GPU", 0) == 0, "every GPU is held")
    return held


def wait_for(condition: Callable[[], Any], what: str, alive: subprocess.Popen[str] | None = None) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert alive is None or alive.poll() is None, f"the driver ended before: {what}"
        assert time.monotonic() < deadline, f"not seen: {what}"
        time.sleep(0.05)
    return value


class Attempt:
    """One attempt: a fake runner and the user's script as its child."""

    def __init__(self, folder: Path, grant: Grant) -> None:
        from tests.adapters.fake_runner import FakeRunnerActor

        name = f"runner/{folder.name}/{grant.attempt}"
        self.folder = folder
        self.grant = grant
        self.log = folder / "log.jsonl"
        self.output = folder / f"output-{grant.attempt}.txt"
        # On the head, as real runners are: tests kill the other nodes.
        place = {"num_cpus": 0, "resources": ON_HEAD}
        self.runner: Any = FakeRunnerActor.options(name=name, namespace=NAMESPACE, **place).remote(grant)
        self.environment = {
            "RAYORCH_RUNNER": name,
            "RAYORCH_NAMESPACE": NAMESPACE,
            "RAYORCH_WORKLOAD": grant.workload,
            "RAYORCH_ATTEMPT": str(grant.attempt),
            "RAYORCH_LEASE_S": str(grant.lease_s),
            "RAYORCH_STORAGE_PATH": str(folder / "storage"),
            "RAY_TRAIN_CALLBACKS": "rayorch.adapters.ray_train.GrantCallback",
        }

    @contextmanager
    def run(self, cluster_address: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        environment = {**os.environ, **self.environment, "RAY_ADDRESS": cluster_address}
        command = [sys.executable, str(SCRIPT), "--log", str(self.log), *arguments]
        with self.output.open("w") as output:
            driver = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True)
        try:
            yield driver
        except BaseException:
            sys.stderr.write(self.output.read_text()[-8000:])
            raise
        finally:
            driver.kill()
            driver.wait()

    def update(self, grant: Grant) -> None:
        import ray

        self.grant = grant
        ray.get(self.runner.update.remote(grant))

    def reports(self, kind: type) -> list[Any]:
        import ray

        return [r for r in ray.get(self.runner.reports.remote()) if isinstance(r, kind)]

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [e for e in map(json.loads, lines) if e["event"] == kind]

    def last_step(self) -> int:
        return max((e["step"] for e in self.events("step")), default=0)

    def result(self) -> dict[str, Any]:
        (line,) = [x for x in self.output.read_text().splitlines() if x.startswith("RESULT ")]
        return dict(json.loads(line.removeprefix("RESULT ")))


def stop(held: Held, attempt: Attempt, grace_s: float) -> None:
    now = time.time()
    order = StopOrder(StopCause.PREEMPTED, "a test needs the room", now, now + grace_s)
    attempt.update(replace(attempt.grant, version=attempt.grant.version + 1, stop=order))


def address() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def test_an_elastic_run_is_shrunk_grown_stopped_and_resumed_without_losing_a_step(held: Held, tmp_path: Path) -> None:
    steps = 120
    arguments = ("--workers", "1,3", "--steps", str(steps), "--step-s", "0.1", "--every", "7")
    ours = held.table()
    first = Attempt(tmp_path, held.grant(1, 1, 3))
    with first.run(address(), *arguments) as driver:
        wait_for(lambda: first.last_step() >= 5, "five steps with three workers", driver)
        assert held.free_gpus() == 0
        assert held.table() == ours

        first.update(held.grant(1, 2, 2, release_by_s=time.time() + 60))
        wait_for(lambda: len(first.reports(GrantApplied)) == 2, "the shrink is obeyed", driver)
        assert [r.version for r in first.reports(GrantApplied)] == [1, 2]
        wait_for(lambda: len(first.events("start")) == 2, "a start at two", driver)
        wait_for(lambda: first.last_step() >= first.events("start")[1]["step"] + 5, "five steps with two", driver)
        assert held.free_gpus() == 1
        assert held.table() == ours

        first.update(held.grant(1, 3, 3))
        wait_for(lambda: len(first.events("start")) == 3, "a start at three again", driver)
        wait_for(lambda: first.last_step() >= first.events("start")[2]["step"] + 5, "five steps with three", driver)

        stop(held, first, grace_s=60)
        wait_for(lambda: held.free_gpus() == 3, "all GPUs are free")
        assert driver.wait(PATIENCE_S) != 0
    assert "AttemptStopped" in first.output.read_text()
    assert held.table() == ours
    assert [r.count for r in first.reports(WorkersStarted)] == [3, 2, 3]
    assert first.reports(CheckpointCommitted)[-1].step == first.last_step() < steps

    second = Attempt(tmp_path, held.grant(2, 1, 1))
    with second.run(address(), *arguments) as driver:
        assert driver.wait(PATIENCE_S) == 0

    assert second.result()["metrics"] == {"step": steps, "value": steps}
    assert [e["world"] for e in second.events("start")] == [3, 2, 3, 1]
    assert [e["step"] for e in second.events("step")] == list(range(1, steps + 1)), "each step once"
    assert second.reports(StepReported)[-1].step == steps
    assert Path(second.reports(CheckpointCommitted)[-1].uri, "state.json").exists()
    assert held.table() == ours


def test_a_loop_that_ignores_the_request_is_ended_at_its_deadline_and_a_lapsed_attempt_at_once(
    held: Held, tmp_path: Path
) -> None:
    arguments = ("--workers", "2", "--stubborn")
    first = Attempt(tmp_path, held.grant(1, 1, 2))
    with first.run(address(), *arguments) as driver:
        wait_for(lambda: first.reports(CheckpointCommitted), "the loop's own checkpoint", driver)
        ordered = time.time()
        stop(held, first, grace_s=2)
        wait_for(lambda: held.free_gpus() == 3, "all GPUs are free")
        assert time.time() >= ordered + 2, "the loop had its grace"
        assert driver.wait(PATIENCE_S) != 0
    assert first.reports(CheckpointCommitted)[-1].step == 1

    second = Attempt(tmp_path, held.grant(2, 1, 2))
    with second.run(address(), *arguments) as driver:
        assert driver.wait(PATIENCE_S) == 0
    assert second.events("start")[-1] == second.events("start")[-1] | {"world": 2, "step": 1}
    assert second.result()["metrics"] == {"step": 2, "value": 2}

    other = tmp_path / "other"
    other.mkdir()
    lapsing = Attempt(other, held.grant(1, 1, 2, lease_s=6.0))
    with lapsing.run(address(), *arguments) as driver:
        (start,) = wait_for(lambda: lapsing.events("start"), "a start", driver)
        wait_for(lambda: lapsing.reports(CheckpointCommitted), "a checkpoint", driver)
        import ray

        ray.get(lapsing.runner.lapse.remote())
        assert driver.wait(PATIENCE_S) != 0
    wait_for(lambda: not Path(f"/proc/{start['pid']}").exists(), "the worker's process is gone")
    wait_for(lambda: held.free_gpus() == 3, "all GPUs are free")


def test_a_script_that_does_not_fit_its_grant_fails_with_the_field_named(held: Held, tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, held.grant(1, 1, 1))
    with attempt.run(address(), "--workers", "2") as driver:
        assert driver.wait(PATIENCE_S) != 0
    assert "num_workers: the script asks for exactly 2 workers but this workload holds 1" in attempt.output.read_text()
    assert held.free_gpus() == 3


def test_torch_workers_over_gloo_that_return_when_asked_go_on_in_other_seats(held: Held, tmp_path: Path) -> None:
    steps = 60
    attempt = Attempt(tmp_path, held.grant(1, 1, 2))
    with attempt.run(
        address(), "--workers", "1,2", "--steps", str(steps), "--step-s", "0.2", "--torch", "--quits"
    ) as driver:
        wait_for(lambda: attempt.last_step() >= 3, "three steps", driver)
        before = held.grant(1, 2, 3).seats
        attempt.update(replace(held.grant(1, 2, 1, release_by_s=time.time() + 60), seats=before[2:]))
        assert driver.wait(PATIENCE_S) == 0
    assert [e["world"] for e in attempt.events("start")] == [2, 1]
    assert attempt.events("start")[1]["seats"][0] == before[2].node_id
    assert [e["step"] for e in attempt.events("step")] == list(range(1, steps + 1))
    assert attempt.result()["metrics"] == {"step": steps, "value": steps}


def test_a_run_whose_node_dies_waits_for_other_seats_and_resumes(
    held: Held, ray_cluster: Callable[..., EmulatedCluster], tmp_path: Path
) -> None:
    cluster = ray_cluster(nodes=1, gpus=2, cpus=4, head_cpus=4)
    steps = 100
    both = replace(held.grant(1, 1, 3), seats=tuple(held.seats[1:]))
    attempt = Attempt(tmp_path, both)
    with attempt.run(address(), "--workers", "1,2", "--steps", str(steps), "--every", "5") as driver:
        wait_for(lambda: attempt.last_step() >= 12, "two checkpoints", driver)
        cluster.kill_node(both.seats[0].node_id)
        wait_for(lambda: "waiting for other seats" in attempt.output.read_text(), "the loss is noticed", driver)
        attempt.update(replace(both, version=2, seats=both.seats[1:]))
        assert driver.wait(PATIENCE_S) == 0
    first, second = attempt.events("start")
    assert (first["world"], second["world"]) == (2, 1)
    assert second["step"] >= 10, "at most one checkpoint interval is lost"
    assert attempt.result()["metrics"] == {"step": steps, "value": steps}
