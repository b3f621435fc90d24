"""Whose the processes on a node's GPUs are, by what the kernel tells of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rayorch.adapters.ray_visible import is_ray_process
from rayorch.core.device_facts import GpuFacts, GpuProcess, ProcessOwner, Sight
from rayorch.core.requests import AttemptRef
from rayorch.core.types import WorkloadId

HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The number that Linux gives the first namespace of process ids (PROC_PID_INIT_INO). NVML counts pids there."""
MAX_ENDED = 1000
"""Attempts that are remembered as over; their processes live for seconds."""
MAX_DIGITS = 9
MAX_COMMAND = 200
"""Characters of a command line that are kept: a process writes there what it likes, and it goes into logs and views."""


class GpuProcesses:
    """`host_pids`: None looks whether this process counts pids as the driver does."""

    def __init__(self, instance: str, proc: Path = Path("/proc"), host_pids: bool | None = None) -> None:
        self._instance = instance
        self._proc = proc
        self._ended: dict[AttemptRef, None] = {}
        self._host_pids = self._counts_as_driver() if host_pids is None else host_pids

    def over(self, attempt: AttemptRef) -> None:
        """The attempt has ended: what it still has on a GPU is left behind."""
        self._ended[attempt] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.pop(next(iter(self._ended)))

    def named(self, sight: Sight) -> Sight:
        """The sight with the owners of its processes."""
        return replace(sight, gpus=tuple(self._of_gpu(gpu) for gpu in sight.gpus))

    def _of_gpu(self, gpu: GpuFacts) -> GpuFacts:
        return replace(gpu, processes=tuple(self._owned(process) for process in gpu.processes))

    def _owned(self, process: GpuProcess) -> GpuProcess:
        folder = self._proc / str(process.pid)
        try:
            environment = frozenset((folder / "environ").read_bytes().split(b"\0"))
            raw_command = (folder / "cmdline").read_bytes()
            on_gpu = self._host_pids or b"libcuda" in (folder / "maps").read_bytes()
        except OSError:  # it has ended meanwhile, belongs to another user, or to another namespace
            return process
        if not on_gpu:
            return process  # in this namespace the number is another process's
        command = _shown(raw_command)
        attempt = self._attempt(environment)
        if attempt is not None:
            owner = ProcessOwner.ENDED if attempt in self._ended else ProcessOwner.ATTEMPT
            return replace(process, command=command, owner=owner, attempt=f"{attempt.workload}/{attempt.attempt}")
        owner = ProcessOwner.RAY if is_ray_process(environment, raw_command) else ProcessOwner.STRAY
        return replace(process, command=command, owner=owner)

    def _attempt(self, environment: frozenset[bytes]) -> AttemptRef | None:
        """The attempt of this instance that a process belongs to. Another instance's is Ray's, to us."""
        values = dict(entry.decode(errors="replace").partition("=")[::2] for entry in environment)
        workload, attempt = values.get("RAYORCH_WORKLOAD", ""), values.get("RAYORCH_ATTEMPT", "")
        number = attempt.isascii() and attempt.isdigit() and len(attempt) <= MAX_DIGITS  # anybody may set it
        if values.get("RAYORCH_INSTANCE") != self._instance or not workload or not number:
            return None
        return AttemptRef(WorkloadId(workload), int(attempt))

    def _counts_as_driver(self) -> bool:
        try:
            return os.readlink(self._proc / "self" / "ns" / "pid") == HOST_PID_NAMESPACE
        except OSError:
            return False


def _shown(command: bytes) -> str:
    """A command line as one line of bounded length."""
    text = command[: 4 * MAX_COMMAND].replace(b"\0", b" ").decode(errors="replace")
    return "".join(c if c.isprintable() else " " for c in text).strip()[:MAX_COMMAND]
