"""Whatever is sent, the answer says in one form which field is wrong; nothing is kept and nothing breaks."""

from __future__ import annotations

import json
import logging
import socket
import time

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayorch.core.errors import SpecError
from rayorch.serve_apps.gateway import GatewaySettings, create_app
from rayorch.serve_apps.gateway.fake import FakeBackend
from rayorch.serve_apps.gateway.jobs_form import workload_of_request
from tests.serve_apps.conftest import Served


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/api/v1/workloads?limit=0", "limit"),
        ("GET", "/api/v1/workloads?limit=abc", "limit"),
        ("GET", "/api/v1/workloads?newest=perhaps", "newest"),
        ("GET", "/api/v1/workloads?state=asleep", "state"),
        ("GET", "/api/v1/workloads?cursor=nowhere", "cursor"),
        ("GET", "/api/v1/events?since=-1", "since"),
        ("GET", "/api/v1/events?since=9223372036854775808", "since"),
        ("GET", "/api/v1/workloads/w/logs?offset=-1", "offset"),
        ("GET", "/api/v1/workloads/w/logs?offset=9223372036854775808", "offset"),
        ("GET", "/api/v1/workloads/w/logs?attempt=0", "attempt"),
        ("GET", "/api/v1/workloads/w/wait?timeout=nan", "timeout"),
        ("PUT", "/api/v1/workloads/w/result", "attempt"),
    ],
)
async def test_a_wrong_parameter_is_a_problem_that_names_it(
    client: httpx.AsyncClient, method: str, path: str, field: str
) -> None:
    answer = await client.request(method, path)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["field"]) == (400, "invalid", field)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"entrypoint_num_gpus": 1.5}, "entrypoint_num_gpus"),
        ({"entrypoint_num_cpus": -1}, "entrypoint_num_cpus"),
        ({"entrypoint_memory": 2**63}, "entrypoint_memory"),
        ({"entrypoint_resources": {"a": "b"}}, "entrypoint_resources.a"),
        ({"runtime_env": {"working_dir": "/home/me"}}, "runtime_env.working_dir"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, "runtime_env.env_vars"),
        ({"submission_id": "../x"}, "submission_id"),
        ({"metadata": {"rayorch.workers": "1_0"}}, "metadata.rayorch.workers"),
        ({"metadata": {"rayorch.workers": "2:1"}}, "metadata.rayorch.workers"),
        ({"metadata": {"rayorch.workers": "1", "rayorch.gpus": "1.5"}}, "metadata.rayorch.gpus"),
        ({"metadata": {"rayorch.workers": "1", "rayorch.resources": "{"}}, "metadata.rayorch.resources"),
        ({"metadata": {"rayorch.workers": "1", "rayorch.resources": '{"a": -1}'}}, "metadata.rayorch.resources.a"),
        ({"metadata": {"rayorch.grace": "soon"}}, "metadata.rayorch.grace"),
        ({"metadata": {"rayorch.priority": "9" * 20}}, "metadata.rayorch.priority"),
        ({"metadata": {"rayorch.queue": "a//b"}}, "metadata.rayorch.queue"),
        ({"metadata": {"rayorch.accelerators": "H100,H100"}}, "metadata.rayorch.accelerators[1]"),
        ({"metadata": {"rayorch.accelerators": ""}}, "metadata.rayorch.accelerators[0]"),
    ],
)
def test_a_wrong_job_is_refused_with_the_name_that_rays_request_has(request_: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        workload_of_request(json.dumps({"entrypoint": "x", **request_}).encode(), None, "default", "")
    assert caught.value.field == field


def test_a_job_names_its_accelerators_in_its_metadata() -> None:
    body = json.dumps({"entrypoint": "x", "metadata": {"rayorch.accelerators": "H100, A100"}}).encode()
    assert workload_of_request(body, None, "default", "").accelerators == ("H100", "A100")


def test_a_client_that_hangs_up_in_its_body_is_no_error_of_ours(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = served.address.removeprefix("http://").split(":")
    with caplog.at_level(logging.INFO, "rayorch"):
        with socket.create_connection((host, int(port))) as half:
            half.sendall(b"POST /api/v1/workloads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{")
            half.shutdown(socket.SHUT_WR)
        while "hung up" not in caplog.text:
            time.sleep(0.01)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


_NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([2**63, 10**400, 1e308, -0.0, 1e-5, True]))
_JSON = st.recursive(
    st.one_of(st.none(), _NUMBERS, st.text(max_size=8)), lambda j: st.lists(j, max_size=3), max_leaves=4
)
_FIELDS = st.sampled_from(
    [
        *("metadata.name", "metadata.id", "metadata.queue", "metadata.annotations", "spec.kind", "spec.entrypoint"),
        *("spec.gang.workers", "spec.gang.resources.GPU", "spec.gang.minWorkers", "spec.driver.CPU", "spec.bundles"),
        *("spec.priority", "spec.preemption.grace", "spec.retry.max", "spec.topology.require", "spec.env.A"),
        *(
            "spec.accelerators",
            "spec.runtimeEnv.pip",
            "spec.runtimeEnv.envVars",
            "spec.resizable",
            "spec.new",
            "spec",
            "apiVersion",
        ),
    ]
)


def _document(changes: dict[str, object]) -> dict[str, object]:
    document: dict[str, object] = {"apiVersion": "rayorch/v1", "kind": "Workload"}
    document |= {"metadata": {"name": "w", "queue": "default"}, "spec": {"entrypoint": "true"}}
    for path, value in changes.items():
        at: object = document
        *parents, last = path.split(".")
        for name in parents:
            at = at.setdefault(name, {}) if isinstance(at, dict) else None
        if isinstance(at, dict):
            at[last] = value
    return document


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.dictionaries(_FIELDS, _JSON, max_size=3))
async def test_any_document_is_taken_or_refused_in_good_form_and_all_can_still_be_listed(
    changes: dict[str, object],
) -> None:
    backend = FakeBackend()
    transport = httpx.ASGITransport(create_app(backend, GatewaySettings()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8266") as http:
        answer = await http.post("/api/v1/workloads", content=json.dumps(_document(changes)).encode())
        if answer.status_code != 201:
            assert answer.headers["content-type"] == "application/problem+json", answer.text
            assert answer.status_code in (400, 422), answer.text
            assert not backend.known
        for path in ("/api/v1/workloads", "/api/v1/overview", "/api/v1/events", "/api/jobs/", "/"):
            assert (await http.get(path)).status_code == 200
