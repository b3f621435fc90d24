"""A real partition: an attempt that nobody can reach ends itself before another one takes its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayorch.core.events import AttemptEnded, Started
from rayorch.core.types import StopCause
from tests.instance import PATIENCE_S, ProgressFile, eventually, pid_lives
from tests.machine import FAST_HEALTH_CHECKS, Machine, cluster_document, journal_of, start_server

pytestmark = pytest.mark.ray

LEASE_S, MARGIN_S = 6.0, 1.0
HEAD_IP, FAR_IP, PORT = "10.77.0.1", "10.77.0.2", 6399


def _tool(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


class Network:
    """Two network namespaces with a cable between them."""

    def __init__(self) -> None:
        self.head, self.far = f"rh{os.getpid()}", f"rf{os.getpid()}"

    def lay(self) -> None:
        for netns in (self.head, self.far):
            _tool("ip", "netns", "add", netns)
        _tool("ip", "link", "add", self.head, "netns", self.head, "type", "veth", "peer", self.far, "netns", self.far)
        for netns, ip, peer in ((self.head, HEAD_IP, FAR_IP), (self.far, FAR_IP, HEAD_IP)):
            _tool("ip", "-n", netns, "addr", "add", f"{ip}/24", "dev", netns)
            for link in ("lo", netns):
                _tool("ip", "-n", netns, "link", "set", link, "up")
            # Ray finds a machine's own address by asking for the way out.
            _tool("ip", "-n", netns, "route", "add", "default", "via", peer)

    def cut(self) -> None:
        """From now on packets vanish, in both directions and without a word."""
        rules = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; {name} {self.far} drop; }}\n"
            for hook, name in (("input", "iifname"), ("output", "oifname"))
        )
        _tool("ip", "netns", "exec", self.far, "nft", f"table inet cut {{ {rules} }}")

    def remove(self) -> None:
        for netns in (self.head, self.far):
            subprocess.run(["ip", "netns", "del", netns], check=False, capture_output=True, timeout=30)


@pytest.fixture
def network() -> Iterator[Network]:
    """Skips where namespaces can't be made."""
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (apt-get install {package})")
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    network = Network()
    try:
        try:
            network.lay()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces can't be made here: {error.stderr.decode().strip()}")
        yield network
    finally:
        network.remove()


def test_an_attempt_cut_off_by_a_partition_ends_itself_before_its_successor_starts(
    tmp_path: Path, network: Network
) -> None:
    head = Machine(tmp_path, "head", network.head, {**FAST_HEALTH_CHECKS, "RAYORCH_HOME": str(tmp_path / "home")})
    far = Machine(tmp_path, "far", network.far, FAST_HEALTH_CHECKS)
    try:
        _partition(tmp_path, network, head, far)
    finally:
        for machine in (far, head):
            machine.power_off()
    events = journal_of(tmp_path / "home")
    [end] = [e for e in events if isinstance(e, AttemptEnded)]
    assert end.cause in (StopCause.NODE_LOST, StopCause.LEASE_LAPSED)  # whichever is noticed first
    first, second = [e for e in events if isinstance(e, Started)]
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.at_s >= end.not_before_s > end.at_s


def _partition(folder: Path, network: Network, head: Machine, far: Machine) -> None:
    home, progress = folder / "home", ProgressFile(folder / "progress")
    address = f"{HEAD_IP}:{PORT}"
    head.ray("--head", f"--port={PORT}", f"--node-ip-address={HEAD_IP}", "--num-cpus=8", "--num-gpus=0",
             "--include-dashboard=false")  # fmt: skip
    log = folder / "head.log"
    eventually("the head is up", lambda: "Ray runtime started" in log.read_text())
    start_server(head, home, "--address", address, *cluster_document(folder, LEASE_S, MARGIN_S))
    far.ray(f"--address={address}", f"--node-ip-address={FAR_IP}", "--num-cpus=8", "--num-gpus=1")
    submit = ("submit", "--id", "job", "--gang", "1x1", "--", *progress.command().split())

    def submitted() -> bool:
        """Refused as long as the far node is not there: nothing else could ever hold the job."""
        return head.run(sys.executable, "-m", "rayorch.cli.main", *submit).wait(PATIENCE_S) == 0

    eventually("the job is accepted", submitted)
    progress.goes_on(beyond=10)
    pid = progress.lines()[-1][2]

    network.cut()
    head.ray(f"--address={address}", f"--node-ip-address={HEAD_IP}", "--num-cpus=8", "--num-gpus=1",
             "--dashboard-agent-listen-port=0")  # fmt: skip

    eventually("a second attempt works", lambda: progress.lines()[-1][0] == 2)
    assert not pid_lives(pid)
    assert far.pids(), "the far machine is up: it was the lease that ended the attempt there"
    progress.goes_on()
    assert progress.attempts() == (1, 2)
