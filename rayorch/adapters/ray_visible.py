"""How the devices of a Ray node reach its processes: the raylet's own environment, and which processes are Ray's."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)

VISIBLE = "CUDA_VISIBLE_DEVICES"
CONTAINER_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""Set by the container runtime; where a device plugin sets it, it holds UUIDs."""
RAYLET_PID = "RAY_RAYLET_PID"
WORKER_MARKS = (b"RAY_JOB_ID=", b"RAY_RAYLET_PID=", b"RAY_JOB_SUBMISSION_ID=")
TITLE = b"ray::"


def raylet_environment(proc: Path = Path("/proc")) -> Mapping[str, str] | None:
    """The environment that this node's raylet was started with; None where it can't be read.

    A worker's own CUDA_VISIBLE_DEVICES says what that worker may use. Ray's device index counts the raylet's.
    """
    pid = os.environ.get(RAYLET_PID, "")
    if not pid.isdigit():
        return None
    try:
        raw = (proc / pid / "environ").read_bytes()
    except OSError as error:
        log.warning("the raylet's environment can't be read: %s", error)
        return None
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def is_ray_process(environment: frozenset[bytes], command: bytes) -> bool:
    """Whether a process is a worker or a driver of Ray's, or a child of one. Workers rewrite their command line."""
    return command.startswith(TITLE) or any(entry.startswith(WORKER_MARKS) for entry in environment)
