"""A runner on a real cluster: what it starts, how it stops it, and what is left when it goes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rayorch.core.grants import Grant, Seat
from rayorch.core.payload import Payload
from rayorch.core.requests import AttemptRef
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.types import (
    Kind,
    QueueId,
    Resources,
    Role,
    State,
    StopCause,
    StopOrder,
    Workload,
    WorkloadId,
    WorkloadSpec,
)
from tests.ray_cluster import EmulatedCluster

pytestmark = pytest.mark.ray

INSTANCE = "runnertest"
BUNDLE = Resources.of({"CPU": 1, "GPU": 1})
PATIENCE_S = 120.0
LEASE_S = 6.0
JOBS = Path(__file__).parent / "jobs"


def eventually(what: str, check: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    deadline_s = time.monotonic() + patience_s
    while not (value := check()):
        assert time.monotonic() < deadline_s, f"never came: {what}"
        time.sleep(0.1)
    return value


@dataclass
class Stage:
    """A cluster with 3 GPUs: 2 in the gang's group, the last one held by somebody else, none free."""

    cluster: EmulatedCluster
    owner: Any
    controller: Any
    logs: Any
    group_id: str
    filler_id: str
    state_dir: Path

    def grant(self, workload: str) -> Grant:
        seats = tuple(Seat("w", i, self.cluster.node_ids[0], self.group_id, i, BUNDLE) for i in range(2))
        return Grant(WorkloadId(workload), 1, 0, seats, lease_s=LEASE_S)

    def start(self, name: str, command: str, grant: Grant | None = None, **payload: Any) -> Any:
        from rayorch.actors.runner import RunnerSettings, start_runner

        text = Payload(entrypoint=command, **payload).to_text()
        role = Role("w", BUNDLE, 2, 2)
        spec = WorkloadSpec(WorkloadId(name), name, Kind.JOB, QueueId("q"), (role,), payload=text)
        workload = Workload(spec, State.RUNNING, 0.0, attempt=1)
        settings = RunnerSettings(INSTANCE, str(self.state_dir / "checkpoints"), str(self.state_dir / "packages"))
        return start_runner(settings, workload, grant or self.grant(name))

    def until(self, runner: Any, phase: RunnerPhase) -> RunnerView:
        import ray

        def there() -> RunnerView | None:
            view: RunnerView = ray.get(runner.status.remote(), timeout=PATIENCE_S)
            return view if view.phase is phase else None

        view: RunnerView = eventually(f"phase {phase}", there)
        return view

    def log(self, name: str) -> str:
        import ray

        return str(ray.get(self.logs.read.remote(WorkloadId(name), 1, 0)).text)

    def until_log(self, name: str, text: str) -> str:
        return str(eventually(f"{text!r} in the log", lambda: text in self.log(name) and self.log(name)))


@pytest.fixture(scope="module")
def stage(ray_cluster: Callable[..., EmulatedCluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    import ray

    from rayorch.actors.logs import LogSettings, start_log_store
    from rayorch.adapters.ray_groups import create_group
    from tests.actors.fake_owner import start_fakes

    cluster = ray_cluster(nodes=1, gpus=3, cpus=8)
    node = cluster.node_ids[0]
    gang = create_group(f"rayorch/{INSTANCE}/gang/1", (BUNDLE, BUNDLE), (node, node))
    filler = create_group("filler", (BUNDLE,), (node,))
    ray.get([gang.ready(), filler.ready()], timeout=PATIENCE_S)
    state_dir = tmp_path_factory.mktemp("state")
    owner, controller = start_fakes(INSTANCE)
    logs = start_log_store(LogSettings(INSTANCE, str(state_dir / "logs")))
    yield Stage(cluster, owner, controller, logs, gang.id.hex(), filler.id.hex(), state_dir)


def stop_order(deadline_s: float, cause: StopCause = StopCause.PREEMPTED) -> StopOrder:
    return StopOrder(cause, "room for another", time.time(), time.time() + deadline_s)


def pid_lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pid_ended(pid: int) -> bool:
    return not pid_lives(pid)


def _answers_none(handle: Any) -> bool:
    import ray

    return ray.get(handle.ping.remote(), timeout=PATIENCE_S) is None


def test_plain_gpu_work_of_a_job_runs_in_the_held_group_and_nothing_is_reserved_twice(stage: Stage) -> None:
    import ray

    runner = stage.start("plain", f"{sys.executable} {JOBS / 'plain_gpu_work.py'}")
    view = stage.until(runner, RunnerPhase.ENDED)
    log = stage.log("plain")

    assert view.exit_code == 0, log
    line = next(line for line in log.splitlines() if line.startswith("FOUND "))
    found = json.loads(line.removeprefix("FOUND "))
    assert found["tasks"] == [stage.group_id] * 4
    assert found["actor"] == found["nested"] == stage.group_id
    assert found["parent"] == ""
    assert "does not fit any seat" in found["too_large"]
    assert found["own_strategy_waits"] is True
    assert sorted(found["reserved"]) == ["filler", f"rayorch/{INSTANCE}/gang/1"]
    assert "on stderr" in log
    ready, reports = ray.get(stage.owner.seen.remote())
    assert AttemptRef(WorkloadId("plain"), 1) in ready
    assert any(type(r.report).__name__ == "GrantApplied" and r.workload == "plain" for r in reports)
    ray.kill(runner)


def test_a_command_finds_where_its_ranks_are(stage: Stage) -> None:
    import ray

    grant = stage.grant("ranks")
    seats = tuple(replace(seat, rank=1 - seat.index, path="r1") for seat in grant.seats)
    runner = stage.start("ranks", "cat $RAYORCH_RANK_MAP; echo", replace(grant, seats=seats))
    assert stage.until(runner, RunnerPhase.ENDED).exit_code == 0
    ranks = json.loads(next(line for line in stage.log("ranks").splitlines() if line.startswith("[{")))
    assert [(entry["rank"], entry["index"], entry["path"]) for entry in ranks] == [(0, 1, "r1"), (1, 0, "r1")]
    ray.kill(runner)


def test_the_log_has_all_lines_in_order_and_the_exit_code_is_kept(stage: Stage) -> None:
    import ray

    command = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; pwd; echo $RAYORCH_ATTEMPT; exit 3"
    runner = stage.start("lines", command)
    again = stage.start("lines", command)
    view = stage.until(runner, RunnerPhase.ENDED)

    assert again._actor_id == runner._actor_id
    assert view.exit_code == 3
    lines = stage.log("lines").splitlines()
    assert lines[1:3001] == [f"line {i}" for i in range(3000)]
    assert lines[3002] == "1"
    chunk = ray.get(stage.logs.follow.remote(WorkloadId("lines"), 1, 0, 5.0))
    assert chunk.ended
    told = [v for v in ray.get(stage.controller.seen.remote()) if v.workload == "lines"]
    assert [v.phase for v in told][-1] is RunnerPhase.ENDED
    ray.kill(runner)


def test_a_stopped_job_may_save_until_its_deadline_and_is_killed_at_it(stage: Stage) -> None:
    import ray

    saves = "trap 'sleep 1; echo saved; exit 5' TERM; echo up; while :; do sleep 0.1; done"
    ignores = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    runners = {name: stage.start(name, command) for name, command in (("saves", saves), ("ignores", ignores))}
    for name, runner in runners.items():
        stage.until_log(name, "up\n")
        stopped = Grant(WorkloadId(name), 1, 0, stage.grant(name).seats, stop_order(6.0), lease_s=LEASE_S)
        version = ray.get(runner.update.remote(stopped))
        assert ray.get(runner.update.remote(stopped)) == version == 2

    saved = stage.until(runners["saves"], RunnerPhase.ENDED)
    assert (saved.exit_code, "saved" in stage.log("saves")) == (5, True)
    killed = stage.until(runners["ignores"], RunnerPhase.ENDED)
    assert killed.exit_code == -9
    assert "killed" in killed.message
    for runner in runners.values():
        ray.kill(runner)


def test_a_shrink_is_obeyed_when_nothing_of_the_job_runs_in_the_group_that_leaves(stage: Stage) -> None:
    import ray

    from rayorch.adapters.ray_groups import create_group, remove_group

    remove_group(stage.filler_id)  # its GPU becomes the job's surplus seat
    surplus = create_group(f"rayorch/{INSTANCE}/shrinks/1/+1", (BUNDLE,), (stage.cluster.node_ids[0],))
    ray.get(surplus.ready(), timeout=PATIENCE_S)
    small = stage.grant("shrinks")
    extra = Seat("w", 2, stage.cluster.node_ids[0], surplus.id.hex(), 0, BUNDLE, surplus=1)
    # One seat of each group, so that the two actors take turns: one in each.
    grown = replace(small, seats=(small.seats[0], extra))
    go = stage.state_dir / "go"
    runner = stage.start("shrinks", f"{sys.executable} {JOBS / 'holds_gpus.py'} {go}", grant=grown)
    held = stage.until_log("shrinks", "HELD ").split("HELD ")[-1].split()[:2]
    assert sorted(held) == sorted([stage.group_id, surplus.id.hex()])

    version = ray.get(runner.update.remote(replace(small, release_by_s=time.time() + 1000)))
    assert stage.until(runner, RunnerPhase.RUNNING).applied_version < version
    go.touch()
    stage.until_log("shrinks", "LET GO")
    eventually("the shrink", lambda: stage.until(runner, RunnerPhase.RUNNING).applied_version == version)
    ray.kill(runner)
    remove_group(surplus.id.hex())


def test_an_environment_that_cannot_be_made_is_the_works_own_failure(stage: Stage) -> None:
    import ray

    from rayorch.actors.runner import failed_start

    runner = stage.start("noenv", "true", runtime_env={"working_dir": "https://127.0.0.1:1/nothing.zip"})
    with pytest.raises(ray.exceptions.RuntimeEnvSetupError) as caught:
        ray.get(runner.grant.remote(2**62, 1000.0), timeout=PATIENCE_S)
    view = failed_start(WorkloadId("noenv"), 1, caught.value)
    assert view is not None and view.exit_code == 1 and "nothing.zip" in view.message


def test_a_refused_lease_kills_the_job_and_a_fenced_attempt_never_starts_one(stage: Stage) -> None:
    import ray

    runner = stage.start("fenced", "sleep 1000 & echo pid $! ; wait")
    pid = int(stage.until_log("fenced", "pid ").split("pid ")[-1].split()[0])
    ray.get(stage.owner.refuse.remote(AttemptRef(WorkloadId("never"), 1)))
    marker = stage.state_dir / "never"
    never = stage.start("never", f"touch {marker}")
    assert pid_lives(pid)

    grants = runner.grant.remote(1, PATIENCE_S)
    ray.get(stage.owner.refuse.remote(AttemptRef(WorkloadId("fenced"), 1)))
    assert ray.get(grants, timeout=PATIENCE_S).lapsed
    eventually("the job's end", partial(pid_ended, pid))
    for handle in (runner, never):
        with pytest.raises(ray.exceptions.RayActorError):
            eventually("the runner's end", partial(_answers_none, handle))
    assert not marker.exists()


def test_nothing_of_a_job_outlives_its_runner(stage: Stage) -> None:
    import ray

    for name, end in (("killed", "ray"), ("crashed", "signal")):
        runner = stage.start(name, f"{sys.executable} -c 'import time; time.sleep(1000)' & echo pid $!; wait; true")
        pid = int(stage.until_log(name, "pid ").split("pid ")[-1].split()[0])
        assert pid_lives(pid)
        if end == "ray":
            ray.kill(runner)
        else:
            os.kill(runner_pid(runner), 9)
        eventually(f"the end of the child of a runner ended by {end}", partial(pid_ended, pid))


def runner_pid(runner: Any) -> int:
    import ray

    return int(ray._private.state.actors(runner._actor_id.hex())["Pid"])


def test_a_command_sees_its_package_and_its_own_devices(stage: Stage) -> None:
    import io
    import zipfile

    import ray

    from rayorch.adapters.ray_job import package_exists, store_package

    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("hello.txt", "from the package")
    uri = "gcs://_ray_pkg_0123456789abcdef.zip"
    store_package(uri, data.getvalue(), stage.state_dir / "packages")
    assert package_exists(uri)
    # As after a restart of the head: Ray has lost it, our disk has it.
    ray.experimental.internal_kv._internal_kv_del(uri)
    assert not package_exists(uri)

    env = {"working_dir": uri, "env_vars": {"MINE": "x"}}
    command = "cat hello.txt; echo; echo mine=$MINE devices=$CUDA_VISIBLE_DEVICES nice=$(nice)"
    runner = stage.start("packed", command, runtime_env=env, driver_resources={"GPU": 1})
    lost = stage.start("lost", "true", runtime_env={"working_dir": "gcs://_ray_pkg_lost.zip"})

    view = stage.until(runner, RunnerPhase.ENDED)
    log = stage.log("packed")
    assert view.exit_code == 0
    assert "from the package" in log
    devices = log.split("devices=")[-1].split()[0]
    assert "mine=x" in log and devices in ("0", "1", "2") and "nice=0" in log
    failed = stage.until(lost, RunnerPhase.ENDED)
    assert failed.exit_code == 1 and "gcs://_ray_pkg_lost.zip" in failed.message
    for handle in (runner, lost):
        ray.kill(handle)
