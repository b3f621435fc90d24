"""KubeRay's side of a RayJob, played against a running gateway: the operator's HTTP calls and its submitter's commands.

What they send and read is that of KubeRay 1.7 (`dashboardclient`, `common/job.go`): a token in X-Ray-Authorization, two
seconds for each answer, and JSON decoded into fields of fixed types.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayorch.config.kuberay import load_values, render
from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.errors import ClusterError
from rayorch.core.requests import Reply
from rayorch.core.types import QueueId, QueueSpec, State, WorkloadId
from rayorch.core.views import Overview
from rayorch.serve_apps.gateway import GatewaySettings, jobs_routes
from rayorch.serve_apps.gateway.fake import FakeBackend
from rayorch.serve_apps.gateway.refusals import KEEP_S, MAX_CHARACTERS, MAX_REFUSALS, Refusal, Refusals
from tests.serve_apps.conftest import FAST, Served, serve
from tests.source_tree import ROOT

TOKEN = "the-token-of-people"
RAY_TOKEN = "the-token-of-the-ray-cluster"
OPERATOR_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 60.0
VALUES = ROOT / "configs" / "kuberay" / "values.yaml"


@pytest.fixture
def guarded(backend: FakeBackend) -> Iterator[Served]:
    """A gateway as the manifests start it: with a token of its own, and Ray's for the Jobs routes."""
    settings = GatewaySettings(token=TOKEN, jobs_token=RAY_TOKEN, poll_s=FAST.poll_s, overview_age_s=0.0)
    yield from serve(backend, settings)


@pytest.fixture
def operator(guarded: Served) -> Iterator[Operator]:
    """The operator, pointed at that gateway."""
    client = Operator(guarded.address)
    yield client
    client.http.close()


class Operator:
    """The HTTP client of KubeRay's operator, with the types that it decodes into."""

    def __init__(self, address: str, token: str = RAY_TOKEN) -> None:
        headers = {"x-ray-authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=address, headers=headers, timeout=OPERATOR_TIMEOUT_S)

    def job_info(self, job: str) -> dict[str, Any] | None:
        """None: there is no such job, which makes the operator submit it."""
        answer = self.http.get(f"/api/jobs/{job}")
        if answer.status_code == 404:
            return None
        return _job_info(answer.json())

    def submit(self, body: dict[str, Any]) -> str:
        """The submission id that it is told."""
        answer = self.http.post("/api/jobs/", json=body, headers={"content-type": "application/json"})
        assert 200 <= answer.status_code <= 299, answer.text
        return str(answer.json()["job_id"])

    def stop(self, job: str) -> None:
        """It must have stopped it, or the job must be over."""
        answer = self.http.post(f"/api/jobs/{job}/stop", headers={"content-type": "application/json"})
        if answer.json()["stopped"] is not True:
            info = self.job_info(job)
            assert info is not None and info["status"] in ("STOPPED", "SUCCEEDED", "FAILED")


def _job_info(info: dict[str, Any]) -> dict[str, Any]:
    """Decoded as Go decodes it: null is the zero value, anything else must be of the field's type."""
    for field in ("status", "entrypoint", "job_id", "submission_id", "message", "driver_node_id", "error_type"):
        assert info.get(field) is None or isinstance(info[field], str), field
    for field in ("start_time", "end_time"):
        assert info.get(field) is None or (type(info[field]) is int and info[field] >= 0), field
    metadata = info.get("metadata") or {}
    assert all(isinstance(value, str) for value in metadata.values())
    assert isinstance(info.get("runtime_env") or {}, dict)
    return info


def _request(name: str) -> dict[str, Any]:
    """The body that the operator makes of the sample RayJob."""
    (job,) = render(load_values(VALUES.read_bytes()), "job")
    spec = job["spec"]
    assert isinstance(spec, dict)
    return {"metadata": spec["metadata"], "entrypoint": spec["entrypoint"], "submission_id": name}


def test_a_ray_job_in_http_mode_goes_through_its_queue(operator: Operator, backend: FakeBackend) -> None:
    job = WorkloadId("main-train-8kx2p")
    assert operator.job_info(job) is None
    assert operator.submit(_request(job)) == job
    spec = backend.known[job].spec
    assert (spec.queue, spec.kind.value, spec.min_resources.to_floats()["GPU"]) == ("research/nlp", "train", 16.0)
    backend.waits[job] = (Wait(WaitReason.PROVISIONING, "2 nodes of h100-a are on their way"),)
    info = operator.job_info(job)
    assert info is not None and info["status"] == "PENDING"
    assert "position 1" in info["message"] and "on their way" in info["message"]
    backend.advance(job, State.RUNNING)
    info = operator.job_info(job)
    assert info is not None and (info["status"], info["end_time"]) == ("RUNNING", None)
    assert info["metadata"]["rayorch.queue"] == "research/nlp"
    backend.advance(job, State.SUCCEEDED)
    info = operator.job_info(job)
    assert info is not None and info["status"] == "SUCCEEDED" and info["end_time"] > 0


def test_the_state_does_not_wait_for_its_explanation(
    operator: Operator, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator gives up after two seconds; a view of ten thousand workloads may take longer."""
    operator.submit(_request("main-train-5"))
    released = threading.Event()

    async def slow(self: FakeBackend) -> Overview:
        while not released.is_set():
            await asyncio.sleep(0.01)
        raise ClusterError("the controller does not answer")

    monkeypatch.setattr(jobs_routes, "MESSAGE_WAIT_S", 0.05)
    monkeypatch.setattr(FakeBackend, "overview", slow)
    for _ in range(2):
        info = operator.job_info("main-train-5")
        assert info is not None and info["status"] == "PENDING" and "research/nlp" in info["message"]
        released.set()


def test_submitting_again_is_the_same_job(operator: Operator, backend: FakeBackend) -> None:
    """The operator sends it again when an answer was lost or it was restarted."""
    assert [operator.submit(_request("main-train-1")) for _ in range(2)] == ["main-train-1", "main-train-1"]
    assert len(backend.known) == 1


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.SUCCEEDED])
def test_deleting_the_ray_job_stops_the_workload(operator: Operator, backend: FakeBackend, state: State) -> None:
    job = WorkloadId("main-train-2")
    operator.submit(_request(job))
    if state is not State.PENDING:
        backend.advance(job, state)
    operator.stop(job)
    assert backend.known[job].state.terminal
    assert operator.http.delete(f"/api/jobs/{job}").status_code == 400, (
        "its record stays; the operator looks no further"
    )


def test_logs_are_as_the_operator_reads_them(operator: Operator, backend: FakeBackend) -> None:
    job = WorkloadId("main-train-3")
    assert operator.http.get(f"/api/jobs/{job}/logs").status_code == 404
    operator.submit(_request(job))
    backend.advance(job, State.RUNNING)
    backend.write_log(job, "step 1\n")
    assert operator.http.get(f"/api/jobs/{job}/logs").json() == {"logs": "step 1\n"}


def test_a_queue_may_be_named_as_kubernetes_writes_it(operator: Operator, backend: FakeBackend) -> None:
    body = {"entrypoint": "true", "submission_id": "j", "metadata": {"rayorch.io/queue": "research/nlp"}}
    operator.submit(body)
    assert backend.known[WorkloadId("j")].spec.queue == "research/nlp"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"rayorch.queue": "nowhere"}, "queue: there is no queue nowhere"),
        ({"rayorch.workers": "two"}, 'metadata.rayorch.workers: must be "2" or "2:4", got \'two\''),
    ],
)
def test_a_refused_ray_job_fails_with_the_reason(operator: Operator, metadata: dict[str, str], reason: str) -> None:
    """Else the operator would send it every three seconds, and nobody who looks at the RayJob would know why."""
    answer = operator.http.post("/api/jobs/", json=_request("j") | {"metadata": metadata})
    assert (answer.status_code, answer.text) == (400, reason)
    info = operator.job_info("j")
    assert info is not None and (info["status"], info["message"]) == ("FAILED", f"Refused: {reason}")
    assert operator.http.get("/api/jobs/").json() == [], "it is no job of ours"
    operator.submit(_request("j"))
    info = operator.job_info("j")
    assert info is not None and info["status"] == "PENDING", "the same id may be submitted once it is right"


def test_an_id_with_a_slash_fails_too(operator: Operator) -> None:
    """A RayJob may name any `jobId`, and the operator asks for it without escaping it."""
    assert operator.job_info("team/nightly") is None
    answer = operator.http.post("/api/jobs/", json=_request("team/nightly"))
    assert answer.status_code == 400 and answer.text.startswith("submission_id:"), answer.text
    info = operator.job_info("team/nightly")
    assert info is not None and info["status"] == "FAILED" and "submission_id:" in info["message"]


def test_a_full_queue_is_no_reason_to_fail(operator: Operator, backend: FakeBackend) -> None:
    queue = QueueId("research/nlp")
    backend.queues[queue] = QueueSpec(queue, max_pending=0)
    backend.refuse = Reply(False, "rejected", "queue", "queue 'research/nlp' is full: 0 workloads wait in it")
    assert operator.http.post("/api/jobs/", json=_request("j")).status_code == 400
    assert operator.job_info("j") is None, "the operator tries again"


async def test_refusals_are_bounded_and_grow_old() -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for number in range(MAX_REFUSALS + 1):
        refusals.note(f"j{number}", "true", "no")
    refusals.note("", "true", "no")
    refusals.note("i" * 10_000, "true", "no")
    assert refusals.get("j0") is None and refusals.get("") is None and refusals.get("i" * 10_000) is None
    assert refusals.get("j1") == Refusal("j1", "true", "no", 0.0)
    refusals.note("large", "e" * 1_000_000, "r" * 1_000_000)
    assert refusals.get("large") == Refusal("large", "e" * MAX_CHARACTERS, "r" * MAX_CHARACTERS, 0.0)
    now[0] = KEEP_S + 1
    assert refusals.get("j1") is None


def test_rays_token_is_good_for_jobs_and_for_nothing_else(guarded: Served) -> None:
    ray = {"x-ray-authorization": f"Bearer {RAY_TOKEN}"}
    own = {"authorization": f"Bearer {TOKEN}"}
    for path in ("/api/jobs/", "/api/jobs", "/api/version"):
        assert httpx.get(guarded.address + path, headers=ray).status_code == 200, path
        assert httpx.get(guarded.address + path, headers=own).status_code == 200, path
    for path in ("/", "/api/v1/queues", "/api/v1/workloads", "/api/jobsx", "/api/versions", "/ui/style.css"):
        assert httpx.get(guarded.address + path, headers=ray).status_code == 403, path
    queue = {"apiVersion": "rayorch/v1", "kind": "Queue", "metadata": {"name": "mine"}, "spec": {}}
    assert httpx.put(f"{guarded.address}/api/v1/queues/mine", json=queue, headers=ray).status_code == 403
    assert httpx.get(f"{guarded.address}/api/jobs/").status_code == 401
    for token in ("x", RAY_TOKEN[:-1], RAY_TOKEN + "x"):
        headers = {"x-ray-authorization": f"Bearer {token}"}
        assert httpx.get(f"{guarded.address}/api/jobs/", headers=headers).status_code in (401, 403)


def test_without_a_second_token_rays_is_refused(backend: FakeBackend) -> None:
    for served in serve(backend, GatewaySettings(token=TOKEN)):
        headers = {"x-ray-authorization": f"Bearer {RAY_TOKEN}"}
        assert httpx.get(f"{served.address}/api/jobs/", headers=headers).status_code == 403


def test_health_is_asked_without_a_token(guarded: Served) -> None:
    """The kubelet's probes, and the submitter that waits for "success" before it submits."""
    for path in ("/healthz", "/readyz"):
        assert httpx.get(guarded.address + path).status_code == 200
    health = httpx.get(f"{guarded.address}/api/gcs_healthz")
    assert (health.status_code, health.text) == (200, "success")


def test_the_submitters_commands_work_with_the_stock_client(guarded: Served, backend: FakeBackend) -> None:
    """K8sJobMode: `ray job status`, which fails at first, then `submit --no-wait` and `logs --follow`."""
    ray = str(Path(sys.executable).with_name("ray"))
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": RAY_TOKEN, "PYTHONUNBUFFERED": "1"}
    address = ["--address", guarded.address]

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ray, "job", *words], env=environment, capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S
        )

    assert command("status", *address, "main-train-4").returncode != 0
    metadata = '{"rayorch.queue":"research/nlp","rayorch.workers":"2","rayorch.gpus":"8"}'
    sent = command(
        "submit", *address, "--no-wait", "--metadata-json", metadata, "--submission-id", "main-train-4", "--", "true"
    )
    assert sent.returncode == 0, sent.stderr
    job = WorkloadId("main-train-4")
    assert backend.known[job].spec.queue == "research/nlp"
    backend.advance(job, State.RUNNING)
    backend.write_log(job, "the last line\n")
    backend.advance(job, State.SUCCEEDED)
    followed = command("logs", *address, "--follow", job)
    assert followed.returncode == 0 and "the last line" in followed.stdout, followed.stderr
