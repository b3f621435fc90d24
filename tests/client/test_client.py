"""The Python client against a gateway over a fake cluster."""

from __future__ import annotations

import concurrent.futures
import io
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rayorch
from rayorch import (
    AdmissionError,
    Client,
    ConflictError,
    DeniedError,
    NotFoundError,
    SpecError,
    UnreachableError,
    WorkloadCancelledError,
    WorkloadFailedError,
    WorkloadHandle,
    as_completed,
)
from rayorch.client.address import resolve
from rayorch.client.function import pickling
from rayorch.client.package import package
from rayorch.core.decisions import Wait, WaitReason
from rayorch.core.errors import ClusterError
from rayorch.core.payload import Payload
from rayorch.core.types import Kind, Resources, Role, State, WorkloadId
from rayorch.serve_apps.gateway import GatewaySettings
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.serve_apps.conftest import Served, serve


def test_a_command_is_enqueued_with_its_gang(client: Client, backend: FakeBackend) -> None:
    handle = client.submit(
        ["python", "train.py", "--lr", "3e-4"],
        queue="research/nlp",
        kind="train",
        workers=(2, 4),
        gpus_per_worker=1,
        priority=5,
        require="rack",
        accelerators=["H100", "A100"],
        env={"A": "1"},
        grace="2m",
        annotations={"team": "nlp"},
    )
    spec = backend.known[WorkloadId(handle.id)].spec
    assert handle.id.startswith("train-")
    assert spec.roles == (
        Role("worker", Resources.of({"GPU": 1, "CPU": 1}), 2, 4),
        Role("driver", Resources.of({"CPU": 1}), 1, 1),
    )
    assert (spec.queue, spec.kind, spec.priority, spec.grace_s) == ("research/nlp", Kind.TRAIN, 5, 120)
    assert spec.accelerators == ("H100", "A100")
    assert handle.info()["accelerators"] == ["H100", "A100"]
    payload = Payload.of_text(spec.payload)
    assert payload.entrypoint == "python train.py --lr 3e-4"
    assert payload.runtime_env == {"env_vars": {"A": "1"}}
    assert payload.metadata == {"team": "nlp"}
    assert handle.status == "PENDING" and not handle.done() and not handle.running()


def test_the_same_id_is_the_same_workload(client: Client, backend: FakeBackend) -> None:
    for _ in range(2):
        assert client.submit("true", id="exp-42").id == "exp-42"
    assert len(backend.known) == 1
    with pytest.raises(ConflictError):
        client.submit("false", id="exp-42")


def test_what_is_wrong_is_named(client: Client, backend: FakeBackend) -> None:
    with pytest.raises(SpecError) as wrong:
        client.submit("true", workers=0)
    assert wrong.value.field == "spec.gang.workers"
    with pytest.raises(SpecError) as without:
        client.submit("true", gpus_per_worker=1)
    assert without.value.field == "workers"
    with pytest.raises(SpecError) as twice:
        client.submit("true", accelerators=["H100", "H100"])
    assert twice.value.field == "spec.accelerators[1]"
    with pytest.raises(AdmissionError) as refused:
        client.submit("true", queue="nowhere")
    assert refused.value.field == "queue"
    with pytest.raises(NotFoundError):
        client.workload("nope")
    assert not backend.known


def _end(backend: FakeBackend, handle: WorkloadHandle, state: State, **fields: object) -> None:
    backend.advance(handle.id, State.RUNNING)
    backend.advance(handle.id, state, **fields)


def test_a_command_that_succeeds_has_the_result_zero(client: Client, backend: FakeBackend) -> None:
    handle = client.submit("true")
    _end(backend, handle, State.SUCCEEDED, exit_code=0)
    assert handle.result(timeout=5) == 0
    assert handle.exception(timeout=5) is None
    assert handle.done() and not handle.cancelled()


def test_a_command_that_fails_brings_its_last_lines(client: Client, backend: FakeBackend) -> None:
    handle = client.submit("false")
    backend.advance(handle.id, State.RUNNING)
    backend.write_log(handle.id, "no such file\n")
    backend.advance(handle.id, State.FAILED, exit_code=3, reason="exit code 3")
    with pytest.raises(WorkloadFailedError, match="no such file") as failed:
        handle.result(timeout=5)
    assert failed.value.exit_code == 3


def test_a_cancelled_workload_is_a_cancelled_future(client: Client) -> None:
    handle = client.submit("sleep 9")
    assert handle.cancel("changed my mind") is True
    assert handle.cancel() is False
    assert handle.cancelled()
    with pytest.raises(WorkloadCancelledError, match="changed my mind"):
        handle.result(timeout=5)
    with pytest.raises(concurrent.futures.CancelledError):
        handle.result(timeout=5)


def test_waiting_has_an_end(client: Client) -> None:
    handle = client.submit("sleep 9")
    with pytest.raises(TimeoutError, match="PENDING"):
        handle.result(timeout=0.1)


def test_callbacks_are_called_once_each_also_when_it_has_ended(client: Client, backend: FakeBackend) -> None:
    handle = client.submit("true")
    seen: list[str] = []
    both = threading.Event()

    def note(name: str) -> Callable[[WorkloadHandle], None]:
        def call(ended: WorkloadHandle) -> None:
            seen.append(f"{name} {ended.status}")
            if len(seen) == 2:
                both.set()

        return call

    handle.add_done_callback(note("first"))
    _end(backend, handle, State.SUCCEEDED)
    while len(seen) < 1:
        time.sleep(0.02)
    handle.add_done_callback(note("second"))
    assert both.wait(30)
    assert seen == ["first SUCCEEDED", "second SUCCEEDED"]


async def test_a_handle_can_be_awaited(client: Client, backend: FakeBackend) -> None:
    handle = client.submit("true")
    _end(backend, handle, State.SUCCEEDED)
    assert await handle == 0


def test_as_completed_gives_them_as_they_end(client: Client, backend: FakeBackend) -> None:
    handles = [client.submit("true", id=f"w{n}") for n in range(3)]
    _end(backend, handles[2], State.SUCCEEDED)
    order = as_completed(handles, timeout=30)
    assert next(order).id == "w2"
    _end(backend, handles[0], State.SUCCEEDED)
    assert next(order).id == "w0"
    _end(backend, handles[1], State.SUCCEEDED)
    assert [handle.id for handle in order] == ["w1"]
    with pytest.raises(TimeoutError):
        list(as_completed([client.submit("true")], timeout=0))


def test_output_is_read_line_by_line_and_followed_to_the_end(client: Client, backend: FakeBackend) -> None:
    handle = client.submit("true")
    backend.advance(handle.id, State.RUNNING)
    backend.write_log(handle.id, "a\nb\npart")
    assert list(handle.logs()) == ["a", "b", "part"]
    followed = handle.logs(follow=True)
    assert next(followed) == "a"
    backend.write_log(handle.id, "ial\nlast\n")
    backend.advance(handle.id, State.SUCCEEDED)
    assert list(followed) == ["b", "partial", "last"]


def test_explain_shows_every_reason_and_escapes_it(client: Client, backend: FakeBackend) -> None:
    handle = client.submit("true")
    backend.waits[WorkloadId(handle.id)] = (
        Wait(WaitReason.QUOTA, "<script>alert(1)</script>", True),
        Wait(WaitReason.PRIORITY, "2 ahead", False, unblocks="they start"),
    )
    shown = handle.explain()
    assert (shown.state, shown.position, len(shown.waits)) == ("PENDING", 1, 2)
    assert "Quota" in repr(shown) and "they start" in repr(shown)
    assert "<script>" not in shown._repr_html_() and "&lt;script&gt;" in shown._repr_html_()


def test_events_queues_nodes_and_pictures(client: Client, backend: FakeBackend) -> None:
    handle = client.submit("true", queue="research/nlp")
    handle.cancel()
    assert [event["type"] for event in handle.events()] == ["Submitted", "CancelRequested"]
    assert [queue["name"] for queue in client.queues()] == ["default", "research/nlp"]
    assert [node["name"] for node in client.nodes()] == ["gpu-01"]
    client.change_node("gpu-01", "drain", reason="<b>hot</b>", deadline="5m")
    assert client.nodes()[0]["health"] == "draining"
    for html in (client._repr_html_(), client.nodes()._repr_html_(), handle._repr_html_()):
        assert "<table>" in html and "<b>hot" not in html
    assert client.workloads(state="cancelled")[0]["id"] == handle.id


# ---------------------------------------------------------------- functions


def _run_driver(served: Served, handle: WorkloadHandle, folder: Path) -> int:
    """What a runner does: unpack the working directory and run the entrypoint in it."""
    backend = served.backend
    payload = Payload.of_text(backend.known[WorkloadId(handle.id)].spec.payload)
    archive = backend.packages[str(payload.runtime_env["working_dir"])]
    zipfile.ZipFile(io.BytesIO(archive)).extractall(folder)
    backend.advance(handle.id, State.RUNNING)
    identity = {"RAYORCH_ADDRESS": served.address, "RAYORCH_WORKLOAD": handle.id, "RAYORCH_ATTEMPT": "1"}
    program, *arguments = payload.entrypoint.split()
    assert program == "python"
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env={**os.environ, **identity}, check=False)
    ended = State.SUCCEEDED if done.returncode == 0 else State.FAILED
    backend.advance(handle.id, ended, exit_code=done.returncode)
    return done.returncode


def test_a_function_runs_in_its_driver_and_its_value_comes_back(client: Client, served: Served, tmp_path: Path) -> None:
    offset = 100

    def add(a: int, b: int = 0) -> dict[str, int]:
        return {"sum": a + b + offset}

    pickling().register_pickle_by_value(sys.modules[__name__])
    handle = client.submit(add, args=(1,), kwargs={"b": 2})
    assert handle.id.startswith("add-")
    assert _run_driver(served, handle, tmp_path) == 0
    assert handle.result(timeout=10) == {"sum": 103}


def test_what_a_function_raises_is_raised_here(client: Client, served: Served, tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError("the loss is gone")

    pickling().register_pickle_by_value(sys.modules[__name__])
    handle = client.submit(fail)
    assert _run_driver(served, handle, tmp_path) == 1
    with pytest.raises(ZeroDivisionError, match="the loss is gone") as raised:
        handle.result(timeout=10)
    assert isinstance(raised.value.__cause__, WorkloadFailedError)


def test_a_result_that_can_not_be_pickled_is_a_failure_with_its_reason(
    client: Client, served: Served, tmp_path: Path
) -> None:
    def lock() -> object:
        import threading

        return threading.Lock()

    pickling().register_pickle_by_value(sys.modules[__name__])
    handle = client.submit(lock)
    assert _run_driver(served, handle, tmp_path) == 1
    with pytest.raises(RuntimeError, match="the result can't be pickled"):
        handle.result(timeout=10)


def test_an_exception_that_can_not_be_made_again_is_told_with_its_traceback(
    client: Client, served: Served, tmp_path: Path
) -> None:
    class TwoWordsError(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(f"{one} {two}")

    def fail() -> None:
        raise TwoWordsError("never", "mind")

    pickling().register_pickle_by_value(sys.modules[__name__])
    handle = client.submit(fail)
    assert _run_driver(served, handle, tmp_path) == 1
    with pytest.raises(RuntimeError, match=r"(?s)the exception can't be pickled.*TwoWordsError: never mind"):
        handle.result(timeout=10)


def test_a_value_that_can_not_be_made_here_is_said_so(client: Client, backend: FakeBackend) -> None:
    handle = client.submit("true")
    backend.advance(handle.id, State.RUNNING)
    backend.results[WorkloadId(handle.id)] = b"cno_such_module\nthing\n."
    backend.advance(handle.id, State.SUCCEEDED, exit_code=0)
    with pytest.raises(ClusterError, match=r"can't be unpickled here: ModuleNotFoundError"):
        handle.result(timeout=10)


# ---------------------------------------------------------------- packages and addresses


def test_equal_folders_make_equal_packages(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "x.py").write_text("x = 1\n")
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "x.pyc").write_text(name)
    first, second = package(tmp_path / "a"), package(tmp_path / "b")
    assert first == second
    assert zipfile.ZipFile(io.BytesIO(first[1])).namelist() == ["sub/x.py"]
    (tmp_path / "b" / "sub" / "x.py").write_text("x = 2\n")
    assert package(tmp_path / "b")[0] != first[0]
    with pytest.raises(SpecError):
        package(tmp_path / "nothing")


def test_files_that_git_ignores_stay_here(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("data/\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big.bin").write_text("big")
    (tmp_path / "t.py").write_text("pass\n")
    names = zipfile.ZipFile(io.BytesIO(package(tmp_path)[1])).namelist()
    assert names == [".gitignore", "t.py"]


def test_a_working_directory_is_uploaded_once(client: Client, backend: FakeBackend, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("pass\n")
    for _ in range(2):
        client.submit("python t.py", working_dir=tmp_path)
    (uri,) = backend.packages
    environments = {Payload.of_text(w.spec.payload).runtime_env["working_dir"] for w in backend.known.values()}
    assert environments == {uri}


def test_no_gateway_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYORCH_HOME", str(tmp_path))
    monkeypatch.delenv("RAYORCH_ADDRESS", raising=False)
    with pytest.raises(UnreachableError, match="rayorch up"):
        rayorch.connect()
    monkeypatch.setattr("rayorch.client.transport.RETRY_PAUSES_S", (0.01,))
    with pytest.raises(UnreachableError, match="no gateway answers"):
        rayorch.connect("http://127.0.0.1:1")
    with pytest.raises(SpecError):
        rayorch.connect("ftp://127.0.0.1")


def test_the_server_of_this_machine_is_found_by_its_file(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAYORCH_HOME", str(tmp_path))
    (tmp_path / "main").mkdir()
    (tmp_path / "main" / "server.json").write_text(f'{{"pid": 1, "gateway_url": "{served.address}"}}')
    with rayorch.connect("rayorch://research/nlp") as client:
        client.submit("true", id="w")
    assert served.backend.known[WorkloadId("w")].spec.queue == "research/nlp"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"gpus_per_worker": float("nan"), "workers": 1}, "spec.gang.resources.GPU"),
        ({"runtime_env": {"a": [1, {2, 3}]}}, "spec.runtimeEnv.a[1]"),
        ({"env": {"A": "\ud800"}}, "spec.env.A"),
        ({"env": {"A": Path("x")}}, "spec.env.A"),
    ],
)
def test_what_can_not_be_sent_is_named(client: Client, options: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        client.submit("true", **options)
    assert caught.value.field == field


def test_a_quote_without_an_end_is_the_shells_to_complain_of(client: Client) -> None:
    assert client.submit("echo it's").id.startswith("echo-")


def test_a_token_file_that_is_no_text_is_said_so() -> None:
    with pytest.raises(SpecError, match="RAYORCH_TOKEN_FILE: can't be read"):
        resolve("http://127.0.0.1:1", environment={"RAYORCH_TOKEN_FILE": sys.executable})
    with pytest.raises(SpecError, match="RAYORCH_TOKEN: must be printable"):
        resolve("http://127.0.0.1:1", environment={"RAYORCH_TOKEN": "a\nb"})


def test_a_wrong_token_is_denied(backend: FakeBackend) -> None:
    for running in serve(backend, GatewaySettings(token="a-long-enough-token")):
        with pytest.raises(DeniedError):
            rayorch.connect(running.address)
        with pytest.raises(DeniedError):
            rayorch.connect(running.address, token="another-wrong-token")
        rayorch.connect(running.address, token="a-long-enough-token").close()


def test_a_gateway_that_is_busy_for_a_moment_is_asked_again(client: Client, backend: FakeBackend) -> None:
    from rayorch.core.errors import ClusterError

    answers = iter([ClusterError("the owner restarts"), None])
    overview = backend.overview

    async def sometimes() -> object:
        failure = next(answers)
        if failure is not None:
            raise failure
        return await overview()

    backend.overview = sometimes  # type: ignore[method-assign,assignment]
    assert len(client.queues()) == 2


def test_importing_the_client_loads_no_ray() -> None:
    code = (
        "import sys, rayorch; rayorch.connect, rayorch.Client, rayorch.WorkloadHandle;"
        " rayorch.get_job_submission_client_cluster_info; print('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_public_names_are_there_and_documented() -> None:
    for name in rayorch.__all__:
        assert getattr(rayorch, name).__doc__, name
    assert set(rayorch.__all__) <= set(dir(rayorch))
    with pytest.raises(AttributeError):
        _ = rayorch.no_such_name
