"""Slurm's controller on this machine, without a daemon on any node: what it is asked and how long its decisions take.

Nodes are `State=CLOUD`: a job that gets some is CONFIGURING, which is when the decision has been made; nobody is ever
told to boot them. Everything (configuration, state, log, port) lies in a folder of its own, on loopback only, and the
one process that is started here is the one that is ended.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("slurmctld", "sbatch", "sdiag", "squeue", "scontrol")
START_S = 120.0
DECISION_S = 120.0
CALL_S = 60.0
THREAD = "sched_agent"
"""The name of slurmctld's thread that runs the main scheduler."""

CONFIG = """\
ClusterName=bench
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldDebug=info
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmctldTimeout=300
SlurmdTimeout=0
InactiveLimit=0
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=defer,bf_interval=3600,sched_min_interval=0
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=-1
ResumeTimeout=3600
ResumeRate=0
TreeWidth=65533
NodeName=n[00001-{nodes:05d}] NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs=64 Boards=1 SocketsPerBoard=2 \
CoresPerSocket=32 ThreadsPerCore=1 RealMemory=500000 Gres=gpu:{gpus} State=CLOUD
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""`defer`: no job is tried while it is submitted, so that each decision is one cycle of the main scheduler, which Slurm
times itself; nothing else waits. Backfilling, which would come later, is kept out of the way."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle of the main scheduler that started one job: its own timing, and the CPU time of its thread."""

    wall_s: float
    cpu_s: float


def missing() -> tuple[str, ...]:
    """The programs of Slurm that are not installed; slurmctld lies outside an ordinary user's path."""
    return tuple(name for name in PROGRAMS if _program(name) is None)


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


class Slurm:
    """A running controller."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self._folder = folder
        self._process = process

    def version(self) -> str:
        """As Slurm says it."""
        return self._call("sbatch", "--version").strip()

    def decide(self, nodes: int, gpus: int) -> Cycle:
        """Submit a job of whole nodes and wait until it has its nodes; what the cycle that gave them took."""
        before, cpu_s = self._cycles(), self._cpu_s()
        words = ("--parsable", f"-N{nodes}", "--ntasks-per-node=1", f"--gres=gpu:{gpus}", "-o", "/dev/null")
        job = self._call("sbatch", *words, "--wrap", "sleep 100000").strip()
        deadline_s = time.monotonic() + DECISION_S
        while self._call("squeue", "-h", "-j", job, "-o", "%t").strip() != "CF":
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"Slurm did not start a job of {nodes} nodes: {self._log()}")
            time.sleep(0.2)
        after = self._cycles()
        while after[0] == before[0] and time.monotonic() < deadline_s:  # it is counted when it is over
            time.sleep(0.1)
            after = self._cycles()
        if after[0] != before[0] + 1:
            raise RuntimeError(f"{after[0] - before[0]} cycles of Slurm's main scheduler for one job, expected one")
        return Cycle(after[1], self._cpu_s() - cpu_s)

    def _cycles(self) -> tuple[int, float]:
        """How many cycles of the main scheduler there were, and what the last one took [s]."""
        text = self._call("sdiag")
        main = text[text.index("Main schedule statistics") : text.index("Backfilling stats")]
        counted = re.search(r"Total cycles:\s*(\d+)", main)
        last = re.search(r"Last cycle:\s*(\d+)", main)
        return (int(counted[1]) if counted else 0, int(last[1]) / 1e6 if last else 0.0)

    def _cpu_s(self) -> float:
        """CPU time of the scheduler's thread; 0 before there is one."""
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            if (task / "comm").read_text().strip() == THREAD:
                return int((task / "schedstat").read_text().split()[0]) / 1e9
        return 0.0

    def wait_until_up(self) -> None:
        """Until it answers."""
        deadline_s = time.monotonic() + START_S
        while True:
            done = subprocess.run([_found("scontrol"), "ping"], env=self._environment(), capture_output=True, text=True)
            if "is UP" in done.stdout:
                return
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"slurmctld did not start: {self._log()}")
            time.sleep(0.5)

    def stop(self) -> None:
        """End the one process that was started."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)

    def _call(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [_found(program), *words], env=self._environment(), capture_output=True, text=True, timeout=CALL_S
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr.strip() or self._log()}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self._folder / "slurm.conf")}

    def _log(self) -> str:
        lines = [
            p.read_text(errors="replace") for p in self._folder.glob("slurmctld.*") if p.suffix in (".log", ".out")
        ]
        return " | ".join("".join(lines).splitlines()[-5:])


def _found(name: str) -> str:
    path = _program(name)
    assert path is not None, name
    return path


@contextmanager
def slurm(folder: Path, nodes: int, gpus: int) -> Iterator[Slurm]:
    """A controller of so many nodes, in an empty folder; ended when the block is left."""
    (folder / "state").mkdir(parents=True)
    (folder / "spool").mkdir()
    port, node_port = _free_port(), _free_port()
    first_port = 20001
    config = CONFIG.format(
        user=getpass.getuser(),
        port=port,
        node_port=node_port,
        folder=folder,
        nodes=nodes,
        gpus=gpus,
        first_port=first_port,
        last_port=first_port + nodes - 1,
    )
    (folder / "slurm.conf").write_text(config)
    (folder / "gres.conf").write_text(f"Name=gpu Count={gpus}\n")
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / "slurmctld.out").open("wb") as output:
        process = subprocess.Popen(
            [_found("slurmctld"), "-D", "-f", str(folder / "slurm.conf")],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    running = Slurm(folder, process)
    try:
        running.wait_until_up()
        yield running
    finally:
        running.stop()


def _free_port() -> int:
    """A port that nobody listens on now, above those that the nodes claim."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
