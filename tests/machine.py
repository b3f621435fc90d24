"""Processes that can be powered off together: what a test needs to lose a head node, or to cut a network.

A machine is the set of processes that carry its mark in their environment, which children inherit. Powering it off
stops all of them before it kills the first, so that none sees another one's end and tells of it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rayorch.actors.journal import Journal
from rayorch.client.address import Target
from rayorch.client.connection import Client, connect_to
from rayorch.core.events import Event
from tests.instance import PATIENCE_S, eventually

MARK = "RAYORCH_TEST_MACHINE"
FAST_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class Machine:
    """`netns`: the network namespace in which its processes run; empty for this process's own."""

    def __init__(self, folder: Path, name: str, netns: str = "", env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._mark = f"{name}-{secrets.token_hex(6)}"
        self._log = folder / f"{name}.log"
        self._netns = netns
        self._env = {**os.environ, **(env or {}), MARK: self._mark}
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a process on it."""
        prefix = ["ip", "netns", "exec", self._netns] if self._netns else []
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [*prefix, *command],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def ray(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Ray node on it, as `ray start ARGUMENTS`."""
        common = ("--disable-usage-stats", "--object-store-memory=100000000", "--min-worker-port=0",
                  "--max-worker-port=0", "--block")  # fmt: skip
        return self.run(sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, *common)

    def log_tail(self, characters: int = 4000) -> str:
        """The end of what its processes printed."""
        return self._log.read_text(errors="replace")[-characters:] if self._log.exists() else ""

    def pids(self) -> list[int]:
        """Its processes that have not ended."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended meanwhile
                continue
        return found

    def power_off(self) -> None:
        """Every process of it is gone when this returns."""
        for which in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.pids():
                _signal(pid, which)
        deadline_s = time.monotonic() + PATIENCE_S
        while left := self.pids():
            assert time.monotonic() < deadline_s, f"{self.name}: {left} do not end"
            for pid in left:  # started by a process that had not been stopped yet
                _signal(pid, signal.SIGKILL)
            time.sleep(0.05)
        for process in self._started:
            process.wait(PATIENCE_S)
        self._started.clear()
        # A machine of its own would have its own note of which cluster runs here; `ray start --head` heeds it.
        Path(os.environ["RAY_TMPDIR"], "ray", "ray_current_cluster").unlink(missing_ok=True)


def _signal(pid: int, which: signal.Signals) -> None:
    try:
        os.kill(pid, which)
    except ProcessLookupError:
        return


def free_port() -> int:
    """A TCP port on loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_server(machine: Machine, home: Path, *arguments: str) -> None:
    """Run `python -m rayorch.server` on a machine and wait until it is up; AssertionError with its log if it is not."""
    process = machine.run(sys.executable, "-m", "rayorch.server", "--home", str(home), *arguments)
    state = home / "main" / "server.json"

    def up() -> bool:
        assert process.poll() is None, f"the server ended: {machine.log_tail()}"
        try:
            return bool(json.loads(state.read_text())["pid"] == process.pid)  # `ip netns exec` becomes what it starts
        except (FileNotFoundError, json.JSONDecodeError):
            return False

    eventually("the server is up", up)


def client_of(home: Path) -> Client:
    """A client of the server with that home."""
    return connect_to(Target(json.loads((home / "main" / "server.json").read_text())["gateway_url"]))


def journal_of(home: Path) -> list[Event]:
    """All that a server that has ended wrote into its journal."""
    journal = Journal.open(home / "main" / "journal.db")
    try:
        return [recorded.event for recorded in journal.events(0, 1000).events]
    finally:
        journal.close()


def cluster_document(folder: Path, lease_s: float, margin_s: float) -> Sequence[str]:
    """Server arguments that give an instance short leases."""
    path = folder / "cluster.yaml"
    path.write_text(
        "apiVersion: rayorch/v1\nkind: Cluster\nmetadata: {name: main}\n"
        f"spec: {{topology: [rack], timing: {{lease: {lease_s}s, leaseMargin: {margin_s}s}}}}\n"
    )
    return ("-f", str(path))
