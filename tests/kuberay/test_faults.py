"""When the API server fails, refuses, lies or is cut off: unknown is said, and nothing is done twice."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import socket
import threading
import time
from pathlib import Path

import pytest

from rayorch.adapters.kuberay import ApiError, KubeRayClient
from rayorch.adapters.kuberay import api as kuberay_api
from rayorch.adapters.kuberay import client as client_module
from rayorch.core.capacity import GroupName
from rayorch.core.decisions import GroupChange
from rayorch.core.errors import AdmissionError, ClusterError, StalePlanError
from tests.kuberay.fake_api import FakeApi
from tests.kuberay.objects import ray_cluster, worker_group
from tests.kuberay.operator import PlayedOperator, StoreApi

GROWTH = GroupChange(GroupName("gpu"), 1, 2, "because")
TOKEN = "s3cr3t-t0ken"


@pytest.fixture
def api(fake: FakeApi) -> FakeApi:
    fake.token = TOKEN
    fake.create("rayclusters", ray_cluster(worker_group("gpu", 1)))
    operator = PlayedOperator(StoreApi(fake.store))
    operator.step()
    operator.step()
    return fake


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def client(api: FakeApi, tmp_path: Path, waits: list[float]) -> KubeRayClient:
    client = KubeRayClient(api.settings(tmp_path, read_timeout_s=1.0, connect_timeout_s=1.0))
    client._sleep = waits.append
    return client


def replicas(api: FakeApi) -> int:
    return int(api.get("rayclusters", "demo")["spec"]["workerGroupSpecs"][0]["replicas"])


# ---------------------------------------------------------------- reading


def listed(*items: object, **meta: str) -> str:
    """The body of a list."""
    return json.dumps({"items": list(items), "metadata": meta or {"resourceVersion": "1"}})


NAMELESS = {"metadata": {"name": "demo"}, "spec": {"workerGroupSpecs": [{}]}}
OTHER = {"metadata": {"name": "other"}, "spec": {}}
BAD_POD = {"metadata": {"name": "p", "labels": []}}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"status": 500}, "500"),
        ({"status": 403, "path": "rayclusters"}, "403"),
        ({"status": 429}, "429"),
        ({"status": 0}, "could not read the RayCluster"),
        ({"delay_s": 3.0}, "could not read the RayCluster"),
        ({"cut_body": True}, "the answer can't be read"),
        ({"body": "<html>no</html>"}, "the answer can't be read"),
        ({"body": "[1]"}, "no object"),
        ({"body": "{}"}, "metadata: Field required"),
        ({"body": json.dumps(NAMELESS)}, "spec.workerGroupSpecs.0.groupName"),
        ({"body": json.dumps(OTHER)}, "asked for RayCluster demo"),
        ({"path": "pods", "body": '{"metadata": {"resourceVersion": "1"}}'}, "is no list"),
        ({"path": "pods", "body": '{"items": null, "metadata": {"resourceVersion": "1"}}'}, "is no list"),
        ({"path": "pods", "body": listed(selfLink="")}, "is no list"),
        ({"path": "pods", "body": listed()}, "shows no pod of it"),
        ({"path": "pods", "body": listed(BAD_POD)}, "pod p is malformed: metadata.labels"),
        ({"path": "pods", "body": listed("pod")}, "a pod is malformed"),
        ({"path": "pods", "status": 500}, "could not list the pods: 500"),
        ({"path": "pods", "cut_body": True}, "could not list the pods"),
    ],
)
def test_what_goes_wrong_makes_the_cluster_unknown(
    api: FakeApi, client: KubeRayClient, fault: dict[str, object], said: str
) -> None:
    api.fail(**fault)
    with pytest.raises(ClusterError) as unknown:
        client.observe()
    assert said in str(unknown.value)
    assert len(str(unknown.value)) < 700
    assert client.observe().groups[0].replicas == 1


@pytest.mark.parametrize("head", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
def test_an_answer_that_drips_is_given_up(
    client: KubeRayClient, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    """Each read is in time, the answer never is."""
    monkeypatch.setattr(kuberay_api, "ANSWER_TIMEOUT_S", 0.3)
    byte = b"1\r\n \r\n" if head.endswith("chunked") else b" "
    listener = socket.create_server(("127.0.0.1", 0))
    hung_up = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ConnectionError):
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
            while True:
                connection.sendall(byte)
                time.sleep(0.02)
        hung_up.set()

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    config = tmp_path / "kubeconfig"
    config.write_text(config.read_text().replace(api.url, f"http://127.0.0.1:{listener.getsockname()[1]}"))
    with pytest.raises(ClusterError, match=r"the answer takes longer than 0\.3 s"):
        client.observe()
    assert hung_up.wait(30), "a connection with half an answer on it is not used again"
    listener.close()


def test_a_list_comes_in_pages(api: FakeApi, client: KubeRayClient) -> None:
    for count in range(20):
        pod = api.list("pods")[0]
        pod["metadata"] = {"name": f"demo-gpu-worker-{count:03}", "labels": pod["metadata"]["labels"]}
        api.create("pods", pod)
    api.page = 3
    assert len(client.observe().groups[0].instances) == 21
    assert len([request for request in api.requests if "continue" in request.query]) == 7


def test_one_connection_serves_many_requests(api: FakeApi, client: KubeRayClient) -> None:
    for _ in range(5):
        client.observe()
    pools = client.api._login().rest_client.pool_manager.pools
    (pool,) = [pools.get(key) for key in pools.keys()]  # noqa: SIM118 - it is no mapping that can be iterated
    assert (pool.num_connections, pool.num_requests) == (1, 10)


def test_a_list_that_expires_between_its_pages_is_unknown(api: FakeApi, client: KubeRayClient) -> None:
    api.page = 1
    listing = api._list
    api._list = lambda request: (listing(request), api.store.expire())[0]  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="410"):
        client.observe()


def test_a_list_without_end_is_unknown(api: FakeApi, client: KubeRayClient) -> None:
    endless = '{"items": [], "metadata": {"resourceVersion": "1", "continue": "more"}}'
    api.fail(path="pods", body=endless, times=10**6)
    with pytest.raises(ClusterError, match="more than 200 pages"):
        client.observe()


def test_a_server_that_is_not_there_is_unknown(client: KubeRayClient, api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text((tmp_path / "kubeconfig").read_text().replace(api.url, "http://127.0.0.1:9"))
    for attempt in (client.observe, lambda: client.scale(GROWTH)):
        with pytest.raises(ClusterError, match="could not read the RayCluster"):
            attempt()


# ---------------------------------------------------------------- writing


def sent(api: FakeApi) -> int:
    return len(api.sent("PATCH"))


@pytest.mark.parametrize("status", [409, 429, 500, 503, 0])
def test_a_passing_failure_is_tried_again(api: FakeApi, client: KubeRayClient, waits: list[float], status: int) -> None:
    api.fail(method="PATCH", status=status, times=2)
    client.scale(GROWTH)

    assert (replicas(api), sent(api)) == (2, 3)
    assert len(waits) == 2 and 0 < waits[0] < waits[1] * 3 <= 3 * client_module.SCALE_PAUSE_MAX_S * 1.5


@pytest.mark.parametrize("status", [0, 500, 504])
def test_a_patch_whose_answer_is_lost_is_not_made_again(api: FakeApi, client: KubeRayClient, status: int) -> None:
    api.fail(method="PATCH", status=status, after=True)
    client.scale(GROWTH)

    assert (replicas(api), sent(api)) == (2, 1)
    assert api.get("rayclusters", "demo")["metadata"]["generation"] == 2


def test_a_lost_answer_and_another_s_change_after_it_is_stale(api: FakeApi, client: KubeRayClient) -> None:
    api.fail(method="PATCH", status=500, after=True)
    client._sleep = lambda pause: api.change(  # type: ignore[assignment]
        "rayclusters", "demo", lambda thing: thing["spec"]["workerGroupSpecs"][0].update(replicas=5)
    )
    with pytest.raises(StalePlanError, match="asks for 5"):
        client.scale(GROWTH)
    assert replicas(api) == 5


def test_conflicts_without_end_are_stale(api: FakeApi, client: KubeRayClient) -> None:
    api.fail(method="PATCH", status=409, times=100)
    with pytest.raises(StalePlanError, match="in each of 5 attempts"):
        client.scale(GROWTH)
    assert (replicas(api), sent(api)) == (1, client_module.SCALE_ATTEMPTS)


@pytest.mark.parametrize("fault", [{"status": 500, "method": "PATCH"}, {"status": 500, "method": "GET"}, {"status": 0}])
def test_failures_without_end_are_unknown(api: FakeApi, client: KubeRayClient, fault: dict[str, object]) -> None:
    api.fail(times=1000, **fault)
    with pytest.raises(ClusterError):
        client.scale(GROWTH)
    assert len(api.requests) <= 2 * client_module.SCALE_ATTEMPTS + 2
    assert replicas(api) == 1


@pytest.mark.parametrize("status", [400, 403, 413, 422])
def test_a_refusal_is_said_in_the_server_s_words_and_not_tried_again(
    api: FakeApi, client: KubeRayClient, status: int
) -> None:
    api.fail(method="PATCH", status=status, times=100, message='admission webhook "quota" denied the request: 8 of 8')
    with pytest.raises(AdmissionError, match='webhook "quota" denied the request: 8 of 8'):
        client.scale(GROWTH)
    assert (replicas(api), sent(api)) == (1, 1)


def test_without_the_right_to_patch_the_refusal_names_it(api: FakeApi, client: KubeRayClient) -> None:
    api.forbidden.add("patch rayclusters")
    with pytest.raises(AdmissionError, match="cannot patch resource 'rayclusters'"):
        client.scale(GROWTH)


def test_the_patch_says_its_content_type_and_tests_what_it_was_decided_on(api: FakeApi, client: KubeRayClient) -> None:
    client.scale(GROWTH)
    (patch,) = api.sent("PATCH")
    assert patch.content_type == "application/json-patch+json"
    uid = api.get("rayclusters", "demo")["metadata"]["uid"]
    assert [(op["path"], op["value"]) for op in json.loads(patch.body)] == [
        ("/metadata/uid", uid),
        ("/spec/workerGroupSpecs/0/groupName", "gpu"),
        ("/spec/workerGroupSpecs/0/replicas", 1),
        ("/spec/workerGroupSpecs/0/replicas", 2),
    ]


# ---------------------------------------------------------------- logging in


def test_credentials_are_read_again_when_they_are_not_accepted(
    api: FakeApi, client: KubeRayClient, tmp_path: Path
) -> None:
    client.observe()
    api.token = "another-t0ken"
    with pytest.raises(ClusterError, match="401"):
        client.observe()
    api.settings(tmp_path)  # the file is written anew
    assert client.observe().groups[0].replicas == 1


@pytest.mark.parametrize("text", ["", "{", "current-context: nowhere"])
def test_a_kubeconfig_that_is_wrong_is_unknown_and_named(
    api: FakeApi, client: KubeRayClient, tmp_path: Path, text: str
) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    with pytest.raises(ClusterError, match=f"could not log in to Kubernetes by {tmp_path}/kubeconfig"):
        client.observe()
    api.settings(tmp_path)
    assert client.observe().groups[0].replicas == 1


def test_no_secret_is_ever_said(
    api: FakeApi, client: KubeRayClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    errors: list[str] = []
    for fault in ({"status": 401, "message": f"token: {TOKEN} is wrong", "times": 2}, {"status": 500}, {"status": 0}):
        api.fail(**fault)
        with pytest.raises(ClusterError) as failed:
            client.observe()
        errors.append(str(failed.value))
    # A header with a line break can't be sent, and the library quotes it whole.
    api.token = f"{TOKEN}\nmore"
    client.api.forget_login()
    api.settings(tmp_path)
    with pytest.raises(ClusterError) as failed:
        client.observe()
    errors.append(str(failed.value))
    assert failed.value.__cause__ is None and failed.value.__suppress_context__

    assert TOKEN not in " ".join(errors)
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(client.settings)


def test_errors_travel_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ApiError("could not read", 503)))
    assert (str(error), error.status, error.passing) == ("could not read", 503, True)
