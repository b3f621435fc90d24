"""Starting and stopping the server of this machine: a process of its own, known by its state file."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rayorch.client.address import read_state, state_file
from rayorch.core.errors import ClusterError

POLL_S = 0.1
LOG_TAIL_BYTES = 2000


def start(instance: str, arguments: Sequence[str], timeout_s: float) -> dict[str, object]:
    """Start `python -m rayorch.server` and return what its state file says once it serves.

    A server that runs already is left as it is. ClusterError when it ends or takes too long: then it is ended.
    """
    running = _running(instance)
    if running is not None:
        return running
    folder = state_file(instance).parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state_file(instance).unlink(missing_ok=True)
    log = folder / "server.log"
    # -P: "-m" would look in the caller's folder first, where a ray.py or a rayorch/ of the user's may lie.
    command = [sys.executable, "-P", "-m", "rayorch.server", "--instance", instance, *arguments]
    with log.open("ab") as output:
        begin = output.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return _when_up(instance, process, log, begin, timeout_s)
    except BaseException:
        if process.poll() is None:
            process.terminate()
        raise


def running_lines(instance: str, pid: object) -> tuple[str, ...]:
    """What to say of a server that runs: how to stop it, and how other commands find one that is not the usual one."""
    if instance == "main":
        return (f"rayorch {instance} runs (pid {pid}); stop it with: rayorch down",)
    return (
        f"rayorch {instance} runs (pid {pid}); stop it with: rayorch down --instance {instance}",
        f"other commands find it after: export RAYORCH_INSTANCE={instance}",
    )


def _when_up(
    instance: str, process: subprocess.Popen[bytes], log: Path, begin: int, timeout_s: float
) -> dict[str, object]:
    deadline_s = time.monotonic() + timeout_s
    while True:
        state = read_state(instance)
        if state is not None and state.get("gateway_url"):
            return state
        if process.poll() is not None:
            raise ClusterError(
                f"the server ended with code {process.returncode}; the end of {log}:\n{_tail(log, begin)}"
            )
        if time.monotonic() > deadline_s:
            raise ClusterError(f"the server was not up after {timeout_s:g} s; the end of {log}:\n{_tail(log, begin)}")
        time.sleep(POLL_S)


def _tail(log: Path, begin: int) -> str:
    """The end of what this start has written: the file also holds what was said in earlier ones."""
    data = log.read_bytes()[begin:][-LOG_TAIL_BYTES:]
    return data.decode(errors="replace").strip()


def _running(instance: str) -> dict[str, object] | None:
    """The state of a server that lives, None otherwise."""
    state = read_state(instance)
    if state is None or not state.get("gateway_url"):
        return None
    return state if _is_server(state.get("pid"), instance) else None


def _is_server(pid: object, instance: str) -> bool:
    """Whether that process is this instance's server, and not another one that got its number later."""
    if not isinstance(pid, int) or pid <= 1:
        return False
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    if b"rayorch.server" not in words:
        return False
    return _instance_of(words) == instance.encode()


def _instance_of(words: Sequence[bytes]) -> bytes:
    for before, word in itertools.pairwise(words):
        if before == b"--instance":
            return word
    return b"main"


def stop(instance: str, timeout_s: float) -> str:
    """End the server of this instance, and only that process; what became of it as a sentence."""
    state = _running(instance)
    if state is None:
        state_file(instance).unlink(missing_ok=True)
        return f"no rayorch server {instance} runs on this machine"
    pid = state["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + timeout_s
    while _is_server(pid, instance):
        if time.monotonic() > deadline_s:
            raise ClusterError(f"the server {instance} (pid {pid}) has not ended after {timeout_s:g} s")
        time.sleep(POLL_S)
    state_file(instance).unlink(missing_ok=True)
    return f"rayorch {instance} (pid {pid}) has ended"
