"""The parent's side: asks the child for looks, and bounds how long each may take."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import selectors
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from rayorch.core.device_facts import Fault, GpuFacts, GpuProcess, MigInstance, NvLink, Sight, XidEvent

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """`start_s`: how long a child may take to start, and one call of the first child: a driver without persistence mode
    wakes each GPU then. `call_s`: any other call. `look_s`: all calls of one look together; it is longer, so that a
    child that gets no processor is not taken for one that hangs.

    A child is trusted to have heard every XID when it has listened for `heard_s`: one that came while there was none is
    shown by other sources, some of which look every 30 s.

    After `hangs` hangs about one GPU running, it is left alone for `retry_hung_s`. `stuck`: children that can't even be
    killed; with so many no further one is started.
    """

    start_s: float = 30.0
    call_s: float = 3.0
    look_s: float = 20.0
    hangs: int = 2
    retry_hung_s: float = 60.0
    stuck: int = 3
    heard_s: float = 90.0


def nvml_present() -> bool:
    """Whether this machine has the library at all; without it there is nothing to read and nothing to report."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


class NvmlReader:
    """Used by one thread at a time; `read` blocks for at most `look_s`, with a new child for `start_s` more. Close it
    in the end."""

    def __init__(self, limits: ReaderLimits = ReaderLimits()) -> None:
        self._limits = limits
        self._child: subprocess.Popen[bytes] | None = None
        self._stuck: list[subprocess.Popen[bytes]] = []
        self._buffer = b""
        self._looked = False  # this child has answered once
        self._started_s = 0.0
        self._at = (-1, "")  # the call under way
        self._last: dict[int, GpuFacts] = {}
        self._hangs: dict[int, int] = {}
        self._hung_since_s: dict[int, float] = {}

    def read(self) -> Sight:
        """One look. A call that hangs is that GPU's fault; when it concerns no GPU, the whole look fails."""
        skip = self._skipped()
        try:
            child = self._running()
            assert child.stdin is not None
            child.stdin.write(json.dumps(sorted(skip)).encode() + b"\n")
            child.stdin.flush()
            sight = _sight(json.loads(self._answer(child)))
        except TimeoutError as error:
            return self._after_hang(str(error))
        except OSError as error:
            self.close()
            return Sight(error=f"the process that reads NVML ended: {error}")
        except ValueError as error:  # the library may print to where the answers go
            self.close()
            return Sight(error=f"the process that reads NVML answers nonsense: {error}")
        if sight.error:
            self.close()  # a new child begins a new session, which is how a reloaded driver is found
            return sight
        hears_xids = sight.hears_xids and time.monotonic() - self._started_s >= self._limits.heard_s
        sight = replace(sight, gpus=self._recognized(sight.gpus), hears_xids=hears_xids)
        self._last = {gpu.nvml_index: gpu for gpu in sight.gpus}
        for index in self._hangs.keys() - skip:
            self._hangs.pop(index)
            self._hung_since_s.pop(index, None)
        return sight

    def _recognized(self, gpus: tuple[GpuFacts, ...]) -> tuple[GpuFacts, ...]:
        """A child knows nothing of a GPU that it has never been able to read: it is the one of that number in the look
        before, if no GPU has come or gone and no other one is that."""
        if len(gpus) != len(self._last):
            return gpus
        named = {gpu.uuid for gpu in gpus}
        return tuple(
            replace(self._last[gpu.nvml_index], fault=gpu.fault, fault_text=gpu.fault_text)
            if gpu.fault is not None and not gpu.uuid and self._last[gpu.nvml_index].uuid not in named
            else gpu
            for gpu in gpus
        )

    def close(self) -> None:
        """End the child. One that can't be killed is left behind, and counted."""
        child, self._child = self._child, None
        self._buffer, self._looked = b"", False
        if child is None:
            return
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError as error:  # what was not yet written to a child that has ended
                    log.debug("closing the reader's pipe: %s", error)
        child.kill()
        try:
            child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._stuck.append(child)

    # ------------------------------------------------------------ the child

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        self._stuck = [child for child in self._stuck if child.poll() is None]
        if len(self._stuck) >= self._limits.stuck:
            raise OSError(f"{len(self._stuck)} earlier ones hang in the driver and can't be ended")
        self._started_s = time.monotonic()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "rayorch.adapters.nvml.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # The agent's own restriction (Ray hides all GPUs from it) must not become the reader's.
            env={name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        )
        return self._child

    def _answer(self, child: subprocess.Popen[bytes]) -> bytes:
        """The next line that is no trace. TimeoutError names the call that hangs, OSError when the child has ended."""
        self._at = (-1, "")
        began_s = called_s = time.monotonic()
        end_s = began_s + self._limits.look_s + (0.0 if self._looked else self._limits.start_s)
        assert child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while True:
                while b"\n" in self._buffer:
                    line, _, self._buffer = self._buffer.partition(b"\n")
                    if not line.startswith(b"@"):
                        self._looked = True
                        return line
                    index, _, name = line[1:].decode().partition(" ")
                    self._at, called_s = (int(index), name), time.monotonic()
                deadline_s = min(called_s + self._limit_s(), end_s)
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise TimeoutError(f"{self._at[1] or 'its start'} has not returned for {self._limit_s():.0f} s")
                chunk = os.read(child.stdout.fileno(), CHUNK_BYTES)
                if not chunk:
                    raise OSError(f"in {self._at[1] or 'its start'}")
                self._buffer += chunk

    def _limit_s(self) -> float:
        """How long the call that is under way may take."""
        fresh = not self._looked and (self._at[0] < 0 or not self._last)
        return self._limits.start_s if fresh else self._limits.call_s

    # ------------------------------------------------------------ hangs

    def _skipped(self) -> frozenset[int]:
        """GPUs that are left alone now. After a while one is asked again."""
        now_s = time.monotonic()
        for index, since_s in tuple(self._hung_since_s.items()):
            if now_s - since_s > self._limits.retry_hung_s:
                self._hung_since_s.pop(index)
                self._hangs[index] = self._limits.hangs - 1
        return frozenset(index for index, count in self._hangs.items() if count >= self._limits.hangs)

    def _after_hang(self, text: str) -> Sight:
        index, name = self._at
        log.warning("reading NVML: GPU %d: %s", index, text)
        self.close()
        if index < 0:
            return Sight(error=f"NVML: {text}")
        self._hangs[index] = self._hangs.get(index, 0) + 1
        if self._hangs[index] >= self._limits.hangs:
            self._hung_since_s[index] = time.monotonic()
        if index not in self._last:
            return Sight(error=f"NVML: GPU {index}: {text}")
        hung = replace(self._last[index], fault=Fault.HANG, fault_text=f"{name} does not return")
        self._last[index] = hung
        # Of the others nothing was learnt in this look: they are as they were.
        return Sight(tuple(self._last[n] for n in sorted(self._last)))


def _sight(data: dict[str, Any]) -> Sight:
    return Sight(
        gpus=tuple(_gpu(gpu) for gpu in data["gpus"]),
        xids=tuple(XidEvent(**event) for event in data["xids"]),
        error=data["error"],
        hears_xids=data["hears_xids"],
    )


def _gpu(data: dict[str, Any]) -> GpuFacts:
    parts: dict[str, Any] = {
        "instances": tuple(MigInstance(**instance) for instance in data["instances"]),
        "links": tuple(NvLink(**link) for link in data["links"]),
        "processes": tuple(GpuProcess(**process) for process in data["processes"]),
        "fault": Fault(data["fault"]) if data["fault"] is not None else None,
    }
    return GpuFacts(**{**data, **parts})
