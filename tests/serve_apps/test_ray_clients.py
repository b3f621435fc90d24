"""The stock `ray job` command and JobSubmissionClient against the gateway. No Ray cluster runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.payload import Payload
from rayorch.core.types import Kind, Resources, Role, State, WorkloadId, WorkloadSpec
from rayorch.serve_apps.gateway import GatewaySettings
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.serve_apps.conftest import FAST, Served, serve

RAY = Path(sys.executable).with_name("ray")


@pytest.fixture
def working_dir(tmp_path: Path) -> Path:
    """A directory to upload."""
    folder = tmp_path / "wd"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    return folder


def _ray_job(served: Served, *arguments: str, address: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the stock command; `RAYORCH_ADDRESS` tells `rayorch://` where the gateway is."""
    variables = {**os.environ, "RAYORCH_ADDRESS": served.address, "RAY_API_SERVER_ADDRESS": "", **env}
    verb, *rest = arguments
    return subprocess.run(
        [str(RAY), "job", verb, "--address", address or "rayorch://research/nlp", *rest],
        env={name: value for name, value in variables.items() if value},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _play(backend: FakeBackend, act: Callable[[WorkloadId], None]) -> threading.Thread:
    """Act on the first workload as soon as it has come, as a cluster would."""

    def run() -> None:
        while not backend.known:
            time.sleep(0.02)
        act(next(iter(backend.known)))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _only(backend: FakeBackend) -> WorkloadSpec:
    (workload,) = backend.known.values()
    return workload.spec


def test_a_job_waits_in_its_queue_and_its_output_comes_to_the_terminal(served: Served, working_dir: Path) -> None:
    backend = served.backend

    def act(job: WorkloadId) -> None:
        backend.waits[job] = (Wait(WaitReason.QUOTA, "4 of 4 GPUs of research/nlp in use"),)
        time.sleep(1.0)
        backend.advance(job, State.RUNNING)
        backend.write_log(job, "hello from the job\n")
        time.sleep(0.5)
        backend.advance(job, State.SUCCEEDED, exit_code=0)

    actor = _play(backend, act)
    done = _ray_job(served, "submit", "--working-dir", str(working_dir), "--", "python", "train.py")
    actor.join()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "research/nlp: position 1 - Quota: 4 of 4 GPUs" in done.stdout
    assert "hello from the job" in done.stdout
    assert "succeeded" in done.stdout + done.stderr
    spec = _only(backend)
    assert (spec.queue, spec.kind) == ("research/nlp", Kind.JOB)
    payload = Payload.of_text(spec.payload)
    assert payload.entrypoint == "python train.py"
    (uri,) = backend.packages
    assert payload.runtime_env["working_dir"] == uri


def test_a_failed_job_ends_the_command_with_one(served: Served) -> None:
    backend = served.backend

    def act(job: WorkloadId) -> None:
        backend.advance(job, State.RUNNING)
        backend.write_log(job, "Traceback: no\n")
        backend.advance(job, State.FAILED, exit_code=3, reason="exit code 3")

    actor = _play(backend, act)
    done = _ray_job(served, "submit", "--", "python", "train.py")
    actor.join()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "exit code 3" in done.stdout + done.stderr


@pytest.fixture
def jobs(served: Served, monkeypatch: pytest.MonkeyPatch) -> JobSubmissionClient:
    """Ray's own Python client of the gateway."""
    monkeypatch.setenv("RAYORCH_ADDRESS", served.address)
    return JobSubmissionClient("rayorch://research/nlp")


def test_the_gang_comes_from_metadata(served: Served, jobs: JobSubmissionClient) -> None:
    jobs.submit_job(
        entrypoint="python t.py",
        metadata={
            "rayorch.workers": "2:4",
            "rayorch.gpus": "1",
            "rayorch.kind": "train",
            "rayorch.priority": "7",
            "rayorch.require": "rack",
            "rayorch.grace": "2m",
            "rayorch.queue": "default",
            "note": "mine",
        },
    )
    spec = _only(served.backend)
    assert spec.roles == (
        Role("worker", Resources.of({"GPU": 1, "CPU": 1}), 2, 4),
        Role("driver", Resources.of({"CPU": 1}), 1, 1),
    )
    assert (spec.kind, spec.priority, spec.grace_s, spec.queue) == (Kind.TRAIN, 7, 120, "default")
    assert spec.topology.required == "rack"
    assert Payload.of_text(spec.payload).metadata["note"] == "mine"


def test_entrypoint_resources_are_the_drivers(served: Served, jobs: JobSubmissionClient) -> None:
    jobs.submit_job(
        entrypoint="python t.py",
        entrypoint_num_gpus=0.5,
        entrypoint_num_cpus=2,
        entrypoint_memory=1000,
        entrypoint_resources={"disk": 1},
    )
    bundle = Resources.of({"GPU": 0.5, "CPU": 2, "memory": 1000, "disk": 1})
    spec = _only(served.backend)
    assert spec.roles == (Role("driver", bundle, 1, 1),)
    payload = Payload.of_text(spec.payload)
    assert (payload.driver_role, payload.driver_resources) == ("driver", {"GPU": 0.5, "disk": 1.0})


def test_a_submission_id_makes_submitting_idempotent(served: Served, jobs: JobSubmissionClient) -> None:
    for _ in range(2):
        assert jobs.submit_job(entrypoint="python t.py", submission_id="exp-42") == "exp-42"
    assert list(served.backend.known) == ["exp-42"]
    with pytest.raises(RuntimeError, match="another workload"):
        jobs.submit_job(entrypoint="python other.py", submission_id="exp-42")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"rayorch.workers": "0"}, "at least one member"),
        ({"rayorch.workers": "two"}, r"metadata\.rayorch\.workers"),
        ({"rayorch.gpus": "1"}, r"rayorch\.workers is missing"),
        ({"rayorch.workers": "1", "rayorch.gpus": "nan"}, r"metadata\.rayorch\.gpus"),
        ({"rayorch.workers": "1", "rayorch.gpus": "-1"}, "must not be negative"),
        ({"rayorch.wokers": "1"}, "is unknown"),
        ({"rayorch.queue": "nowhere"}, "no queue nowhere"),
    ],
)
def test_wrong_metadata_is_refused_with_its_key(
    served: Served, jobs: JobSubmissionClient, metadata: dict[str, str], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        jobs.submit_job(entrypoint="python t.py", metadata=metadata)
    assert not served.backend.known


def test_status_list_logs_and_stop_answer_in_rays_words(served: Served, jobs: JobSubmissionClient) -> None:
    backend = served.backend
    job = WorkloadId(jobs.submit_job(entrypoint="python t.py"))
    backend.waits[job] = (Wait(WaitReason.RESOURCES, "needs 2, 1 free"),)
    info = jobs.get_job_info(job)
    assert (info.status, info.submission_id, info.entrypoint) == (JobStatus.PENDING, job, "python t.py")
    assert info.message is not None and "position 1. Resources: needs 2, 1 free" in info.message
    backend.advance(job, State.RUNNING)
    backend.write_log(job, "so far\n")
    assert jobs.get_job_status(job) == JobStatus.RUNNING
    assert jobs.get_job_logs(job) == "so far\n"
    assert [(d.submission_id, d.status) for d in jobs.list_jobs()] == [(job, JobStatus.RUNNING)]
    assert jobs.stop_job(job) is True
    assert jobs.get_job_status(job) == JobStatus.STOPPED
    assert jobs.stop_job(job) is False


def test_an_unknown_job_is_an_error(jobs: JobSubmissionClient) -> None:
    for ask in (jobs.get_job_info, jobs.get_job_logs, jobs.stop_job):
        with pytest.raises(RuntimeError, match="404"):
            ask("nope")


async def test_a_tail_stays_open_until_the_end(served: Served, jobs: JobSubmissionClient) -> None:
    backend = served.backend
    job = jobs.submit_job(entrypoint="python t.py")
    text, closed = "", False
    async for lines in jobs.tail_job_logs(job):
        text += lines
        if "position 1" in lines:
            backend.advance(job, State.RUNNING)
            backend.write_log(job, "first\n")
        if "first" in lines:
            backend.write_log(job, "second\n")
            backend.advance(job, State.SUCCEEDED)
    closed = True
    assert closed and text.index("first") < text.index("second")


TOKEN = "a-long-enough-token"


@pytest.fixture
def guarded(backend: FakeBackend) -> Iterator[Served]:
    """A server that wants a token."""
    yield from serve(backend, GatewaySettings(token=TOKEN, poll_s=FAST.poll_s))


def test_the_token_of_the_environment_is_sent_along(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYORCH_ADDRESS", guarded.address)
    with pytest.raises(Exception, match=r"401"):
        JobSubmissionClient("rayorch://research/nlp")
    monkeypatch.setenv("RAYORCH_TOKEN", TOKEN)
    JobSubmissionClient("rayorch://research/nlp").submit_job(entrypoint="true")
    assert _only(guarded.backend).queue == "research/nlp"
