"""The hooks of a job, its environments and packages; and that Ray still has the private names they stand on."""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from rayorch.adapters.ray_job import (
    DriverIdentity,
    job_supervisor_env,
    package_uri,
    package_uris,
    placement,
    prune_packages,
    runner_runtime_env,
    runtime_env_hook,
    store_package,
    worker_setup,
)
from rayorch.adapters.ray_job.attempt import GRANT_FRESH_S, AttemptIdentity, GrantReader, groups_in_use
from rayorch.adapters.ray_job.hooks import CHAINED_WORKER_HOOK, WORKER_SETUP, LeaseWatch
from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.grants import Grant, Seat
from rayorch.core.payload import Payload
from rayorch.core.types import Resources, WorkloadId
from tests.ray_cluster import EmulatedCluster

IDENTITY = AttemptIdentity("w", 3, "runner/main/w/3", "rayorch", 6.0)


def seat(group: str, index: int = 0, surplus: int = 0, **amounts: float) -> Seat:
    return Seat("w", index, "node", group, index, Resources.of(amounts), surplus)


# ---------------------------------------------------------------- which group


def test_groups_take_turns_in_proportion_to_their_seats() -> None:
    seats = (seat("aa", 0, GPU=1, CPU=1), seat("aa", 1, GPU=1, CPU=1), seat("bb", 0, 1, GPU=1, CPU=1))
    chosen = [placement.choose_group(seats, {"GPU": 1, "CPU": 1}, turn) for turn in range(6)]
    assert chosen == ["aa", "aa", "bb"] * 2


def test_only_seats_that_are_large_enough_and_held_are_chosen() -> None:
    seats = (seat("", GPU=4), seat("aa", GPU=1), seat("bb", GPU=2, CPU=4))
    assert placement.choose_group(seats, {"GPU": 2, "CPU": 1}, 0) == "bb"
    assert placement.choose_group(seats, {"GPU": 0.5}, 0) == "aa"
    with pytest.raises(SpecError, match=r"does not fit any seat.*num_cpus=0"):
        placement.choose_group(seats, {"GPU": 4}, 0)
    with pytest.raises(SpecError):
        placement.choose_group((), {"GPU": 1}, 0)


# ---------------------------------------------------------------- the grant in a process of the job


class FakeReader(GrantReader):
    """A reader whose runner is scripted: each answer is a grant or an error, the last one is repeated."""

    def __init__(self, answers: list[Grant | Exception]) -> None:
        self.now_s = 100.0
        self.asked = 0
        self.answers = answers
        super().__init__(IDENTITY, clock=lambda: self.now_s)

    def read(self) -> Grant:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        self._grant, self._read_s = answer, self.now_s
        return answer


def grant(version: int) -> Grant:
    return Grant(WorkloadId("w"), 3, version, (seat("aa", GPU=1),), lease_s=6.0)


def test_a_grant_is_asked_for_again_when_it_is_old_and_kept_while_the_runner_is_silent() -> None:
    reader = FakeReader([grant(1), grant(2), ConnectionError("silent")])
    assert [reader.current().version for _ in range(3)] == [1, 1, 1]
    reader.now_s += GRANT_FRESH_S + 0.1
    assert reader.current(may_wait=False).version == 1
    assert reader.current().version == 2
    reader.now_s += GRANT_FRESH_S + 0.1
    assert reader.current().version == 2
    with pytest.raises(ClusterError, match="does not say which GPUs are ours"):
        FakeReader([ConnectionError("silent")]).current()


def watched(reader: FakeReader) -> tuple[str, float]:
    """Why and when the watch ends the process."""
    ended: list[str] = []

    def end(why: str) -> bool:
        ended.append(why)
        return False

    def pause(seconds: float) -> None:
        reader.now_s += seconds

    began_s = reader.now_s
    LeaseWatch(reader, end, clock=lambda: reader.now_s, pause=pause).run()
    return ended[0], reader.now_s - began_s


def test_a_worker_ends_when_its_runner_says_so_or_is_gone_or_is_silent_for_a_whole_lease() -> None:
    silence = ConnectionError("no route")
    assert watched(FakeReader([grant(1), replace(grant(2), lapsed=True)])) == (
        "the lease of attempt 3 of w is over",
        4.0,
    )
    why, after_s = watched(FakeReader([grant(1), ray.exceptions.ActorDiedError()]))
    assert "is gone" in why and after_s == 4.0
    why, after_s = watched(FakeReader([silence, grant(1), silence]))
    assert "has been silent for 6.0 s" in why and after_s == 10.0


# ---------------------------------------------------------------- the driver's hook


@pytest.fixture
def in_attempt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of a driver, with Ray's placement functions put back afterwards."""
    for name in [n for n in os.environ if n.startswith("RAYORCH_")]:
        monkeypatch.delenv(name)
    variables = {"WORKLOAD": "w", "ATTEMPT": "3", "RUNNER": IDENTITY.runner, "LEASE_S": "6", "INSTANCE": "main"}
    for name, value in variables.items():
        monkeypatch.setenv(f"RAYORCH_{name}", value)
    hooked = (sys.modules["ray.remote_function"], sys.modules["ray.actor"])
    for module in hooked:
        monkeypatch.setattr(module, placement.HOOKED, getattr(module, placement.HOOKED))
    groups = sys.modules["ray.util.placement_group"]
    monkeypatch.setattr(groups, placement.CHECKED, getattr(groups, placement.CHECKED))
    yield


def users_env_hook(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    return {**(runtime_env or {}), "env_vars": {"USERS": "1"}}


def users_worker_hook() -> None:
    os.environ["USERS_WORKER_HOOK_RAN"] = "yes"


def test_outside_an_attempt_the_hook_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYORCH_RUNNER", raising=False)
    assert runtime_env_hook({"pip": ["x"]}) == {"pip": ["x"]}
    assert runtime_env_hook(None) == {}


def test_the_hook_adds_the_workers_hook_and_the_attempt_and_calls_the_users_own(
    in_attempt: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYORCH_CHAINED_RUNTIME_ENV_HOOK", f"{__name__}.users_env_hook")
    env = runtime_env_hook({"worker_process_setup_hook": "mine.setup"})
    assert env["worker_process_setup_hook"] == WORKER_SETUP
    assert env["env_vars"]["USERS"] == "1"
    assert env["env_vars"]["RAYORCH_RUNNER"] == IDENTITY.runner
    assert env["env_vars"][CHAINED_WORKER_HOOK] == "mine.setup"
    monkeypatch.delenv("RAYORCH_CHAINED_RUNTIME_ENV_HOOK")
    assert runtime_env_hook(env)["env_vars"][CHAINED_WORKER_HOOK] == "mine.setup"


def test_a_users_worker_hook_given_as_a_function_travels_with_ours(in_attempt: None) -> None:
    from ray import cloudpickle

    ran: list[str] = []
    both = runtime_env_hook({"worker_process_setup_hook": lambda: ran.append("users")})["worker_process_setup_hook"]
    assert callable(both) and both.__name__
    assert callable(cloudpickle.loads(cloudpickle.dumps(both)))


def test_a_worker_outside_an_attempt_still_runs_the_users_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYORCH_RUNNER", raising=False)
    monkeypatch.setenv(CHAINED_WORKER_HOOK, f"{__name__}.users_worker_hook")
    monkeypatch.setenv("USERS_WORKER_HOOK_RAN", "")
    worker_setup()
    assert os.environ["USERS_WORKER_HOOK_RAN"] == "yes"


def test_a_group_of_the_jobs_own_is_warned_of(in_attempt: None, caplog: pytest.LogCaptureFixture) -> None:
    placement.install(FakeReader([grant(1)]))
    check = getattr(sys.modules["ray.util.placement_group"], placement.CHECKED)
    check(bundles=[{"GPU": 2}, {"CPU": 1}])
    assert "asks for 2 GPUs outside this workload's gang" in caplog.text


# ---------------------------------------------------------------- environments


def test_the_drivers_environment_is_that_of_rays_jobs_and_names_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get_runtime_context", lambda: type("Context", (), {"gcs_address": "10.0.0.1:6379"})())
    payload = Payload(entrypoint="x", runtime_env={"env_vars": {"A": "1"}}, metadata={"owner": "me"})
    identity = DriverIdentity("main", "rayorch", "w", 3, "runner/main/w/3", 6.0, "/checkpoints")
    base = {"RAY_JOB_ID": "01", "RAY_TRAIN_CALLBACKS": "my.Callback", "RAY_RUNTIME_ENV_HOOK": "my.hook", "A": "1"}
    env = job_supervisor_env(payload, identity, base)

    config = json.loads(env["RAY_JOB_CONFIG_JSON_ENV_VAR"])
    assert config["runtime_env"] == {"env_vars": {"A": "1"}}
    assert config["metadata"]["job_submission_id"] == "w" and config["metadata"]["owner"] == "me"
    assert "RAY_JOB_ID" not in env
    expected = {
        "A": "1",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "PYTHONUNBUFFERED": "1",
        "RAY_TRAIN_CALLBACKS": "rayorch.adapters.ray_train.GrantCallback,my.Callback",
        "RAY_RUNTIME_ENV_HOOK": "rayorch.adapters.ray_job.runtime_env_hook",
        "RAYORCH_CHAINED_RUNTIME_ENV_HOOK": "my.hook",
        "RAYORCH_CHAINED_UV_RUN": "1",
        "RAYORCH_ATTEMPT": "3",
        "RAYORCH_LEASE_S": "6",
        "RAYORCH_STORAGE_PATH": "/checkpoints",
    }
    assert expected.items() <= env.items()
    assert job_supervisor_env(payload, identity, {"RAYORCH_STORAGE_PATH": "/mine"})["RAYORCH_STORAGE_PATH"] == "/mine"


def test_the_runners_environment_has_the_users_packages_but_not_the_users_worker_hook() -> None:
    payload = Payload(runtime_env={"worker_process_setup_hook": "x.y", "pip": ["z"], "env_vars": {"A": "1"}})
    assert runner_runtime_env(payload) == {"pip": ["z"], "env_vars": {"A": "1", "RAY_worker_niceness": "0"}}
    assert runner_runtime_env(Payload(runtime_env={"env_vars": None})) == {"env_vars": {"RAY_worker_niceness": "0"}}


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({"pip": 5}, "runtime_env.pip"),
        ({"pip": "requirements.txt"}, "runtime_env.pip"),
        ({"uv": "requirements.txt"}, "runtime_env.uv"),
        ({"conda": "environment.yml"}, "runtime_env.conda"),
        ({"pip": ["a"], "conda": {}}, "runtime_env.pip"),
        ({"config": {"setup_timeout_seconds": "x"}}, "runtime_env"),
        ({"py_modules": 5}, "runtime_env.py_modules"),
        ({"working_dir": "file:///etc/passwd"}, "runtime_env.working_dir"),
    ],
)
def test_an_environment_that_ray_refuses_is_refused_with_its_field(environment: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        runner_runtime_env(Payload(runtime_env=environment))
    assert caught.value.field == field


# ---------------------------------------------------------------- packages


@pytest.mark.parametrize("name", ["../x.zip", "a/b.zip", "", ".hidden", "x y.zip"])
def test_a_package_name_that_could_leave_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        package_uri("gcs", name)
    with pytest.raises(SpecError):
        store_package(f"gcs://{name}", b"", tmp_path)
    with pytest.raises(SpecError):
        package_uri("s3", "bucket.zip")


def test_the_packages_of_a_payload_are_found_and_others_left_alone() -> None:
    modules: Any = ["gcs://b.zip", "s3://x/y.zip", "gcs://a.zip"]
    payload = Payload(runtime_env={"working_dir": "gcs://a.zip", "py_modules": modules, "pip": ["gcs://c.zip"]})
    assert package_uris(payload) == ("gcs://a.zip", "gcs://b.zip")
    assert package_uris(Payload(runtime_env={"working_dir": "https://x/y.zip"})) == ()


def test_packages_that_nobody_needs_go_when_they_are_old(tmp_path: Path) -> None:
    for name, age_s in (("needed.zip", 100), ("old.zip", 100), ("young.zip", 0)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    assert prune_packages(tmp_path, ["gcs://needed.zip"], time.time() - 50) == ("gcs://old.zip",)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["needed.zip", "young.zip"]
    assert prune_packages(tmp_path / "none", [], 0.0) == ()


# ---------------------------------------------------------------- Ray's private names


def test_ray_still_decides_the_group_of_a_task_in_the_function_that_we_replace() -> None:
    import ray.actor
    import ray.remote_function

    groups = sys.modules["ray.util.placement_group"]
    original = getattr(groups, placement.HOOKED)
    parameters = list(inspect.signature(original).parameters)
    assert parameters == [
        "placement_group_capture_child_tasks",
        "bundle_index",
        "resources",
        "placement_resources",
        "task_or_actor_repr",
        "placement_group",
    ]
    for module in (ray.remote_function, ray.actor):
        assert hasattr(module, placement.HOOKED)
        source = inspect.getsource(module)
        assert f"{placement.HOOKED}(\n" in source, "called as a global of its module, so that replacing it works"
    assert f"{placement.CHECKED}(\n" in inspect.getsource(groups.placement_group)
    assert "bundles" in inspect.signature(getattr(groups, placement.CHECKED)).parameters


def test_ray_still_has_the_hooks_and_variables_that_a_job_gets() -> None:
    from ray._private import ray_constants, worker
    from ray._private.runtime_env import packaging, uv_runtime_env_hook
    from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
    from ray._private.workers import default_worker
    from ray.dashboard.modules.job import job_supervisor

    assert ray_constants.RAY_RUNTIME_ENV_HOOK == "RAY_RUNTIME_ENV_HOOK"
    assert RAY_JOB_CONFIG_JSON_ENV_VAR == "RAY_JOB_CONFIG_JSON_ENV_VAR"
    hooks = inspect.getsource(worker._maybe_modify_runtime_env)
    assert "RAY_ENABLE_UV_RUN_RUNTIME_ENV" in hooks and "RAY_RUNTIME_ENV_HOOK" in hooks
    assert callable(uv_runtime_env_hook.hook) and callable(uv_runtime_env_hook._get_uv_run_cmdline)
    assert "WORKER_PROCESS_SETUP_HOOK_ENV_VAR" in inspect.getsource(default_worker)
    assert "expiration_s" in inspect.signature(packaging.pin_runtime_env_uri).parameters
    assert list(inspect.signature(packaging.upload_package_to_gcs).parameters) == ["pkg_uri", "pkg_bytes"]
    supervisor = inspect.getsource(job_supervisor.JobSupervisor)
    for told in ("RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_ADDRESS_ENVIRONMENT_VARIABLE", "PYTHONUNBUFFERED"):
        assert told in supervisor, "what Ray's own supervisor gives to a driver has changed"
    assert 'get("RAY_JOB_STOP_SIGNAL", "SIGTERM")' in supervisor
    assert job_supervisor.JobSupervisor.DEFAULT_RAY_JOB_STOP_WAIT_TIME_S == 3
    assert ray_constants.RAY_WORKER_NICENESS == "RAY_worker_niceness"


@pytest.mark.ray
def test_ray_still_books_what_a_group_holds_and_knows_detached_actors(
    ray_cluster: Callable[..., EmulatedCluster],
) -> None:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from rayorch.adapters.ray_job.hooks import _is_detached

    ray_cluster(nodes=1, gpus=2)
    groups = [ray.util.placement_group([{"GPU": 1}]) for _ in range(2)]
    ray.get([g.ready() for g in groups], timeout=60)
    ids = tuple(g.id.hex() for g in groups)

    class Holder:
        def ping(self) -> None: ...

    inside = PlacementGroupSchedulingStrategy(groups[1], 0)
    options: dict[str, Any] = {"num_gpus": 1, "num_cpus": 0, "lifetime": "detached", "name": "h"}
    holder: Any = ray.remote(Holder).options(**options, scheduling_strategy=inside).remote()
    ray.get(holder.ping.remote(), timeout=120)
    _until(lambda: groups_in_use(ids) == ids[1:])
    assert _is_detached(holder._actor_id.hex())
    ray.kill(holder)
    _until(lambda: groups_in_use(ids) == ())


def _until(check: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not check():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
