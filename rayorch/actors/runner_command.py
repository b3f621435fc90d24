"""A workload's command as a child process of its runner: start it, read its output, stop it, leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rayorch.core.grants import Grant
from rayorch.core.types import Kind, StopCause, StopOrder

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
STOP_WAIT_S = 3.0
"""Between the stop signal and SIGKILL, as Ray's jobs have it; RAY_JOB_STOP_WAIT_TIME_S in the job's variables."""
STOP_SIGNALS = ("SIGTERM", "SIGINT")
LEAD_SHARE = 0.2
"""A training driver is signalled before its deadline, by STOP_WAIT_S or this share of its grace if that is less."""
END_SHARE, END_MARGIN_S = 0.05, 0.5
"""SIGKILL comes before the deadline, by END_MARGIN_S or this share of the grace: at the deadline the controller ends
the runner, and its last word would be lost."""
AFTER_WORK_S, AFTER_WORK_KILL_S = 1.0, 0.5
"""A training driver whose workers are down, with their checkpoint, has this time to end by itself, and this from the
signal to SIGKILL: all that it still holds are the GPUs that others wait for."""
LINGER_POLL_S = 0.1
OUTPUT_WAIT_S = 2.0
"""How long the output of a process that has ended may still take to arrive."""
GROUP_KILL_S = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How the work ended; `exit_code` as `subprocess` has it (negative: the signal)."""

    exit_code: int
    message: str


@dataclass(frozen=True, slots=True)
class StopTimes:
    """When a child gets its stop signal and when SIGKILL [s since the epoch]."""

    signal_s: float
    kill_s: float


def stop_times(
    kind: Kind, order: StopOrder, seen_s: float, wait_s: float = STOP_WAIT_S, left_s: float | None = None
) -> StopTimes:
    """The times of a stop that was heard of at `seen_s`. `left_s`: since when the work uses no seat any more.

    Cancelled: the signal at once, SIGKILL after `wait_s`. A command: the signal at once, so that it can save, SIGKILL
    just before the deadline. Training: its own callback makes the checkpoint and ends it, so the signal comes only
    shortly before the deadline, or when its workers have been down for a moment.
    """
    if order.cause is StopCause.CANCELLED:
        return StopTimes(seen_s, seen_s + wait_s)
    grace_s = max(0.0, order.deadline_s - seen_s)
    kill_s = order.deadline_s - min(END_MARGIN_S, END_SHARE * grace_s)
    if kind is not Kind.TRAIN:
        return StopTimes(seen_s, max(seen_s, kill_s))
    times = StopTimes(max(seen_s, kill_s - min(wait_s, LEAD_SHARE * grace_s)), max(seen_s, kill_s))
    if left_s is None:
        return times
    end_s = left_s + AFTER_WORK_S
    return StopTimes(min(times.signal_s, end_s), min(times.kill_s, end_s + AFTER_WORK_KILL_S))


def stop_signal(environment: Mapping[str, str]) -> signal.Signals:
    """The signal that asks a command to end: RAY_JOB_STOP_SIGNAL, SIGTERM unless it is one that Ray knows."""
    name = environment.get("RAY_JOB_STOP_SIGNAL", "SIGTERM")
    if name not in STOP_SIGNALS:
        log.warning("RAY_JOB_STOP_SIGNAL=%s is not one of %s, using SIGTERM", name, STOP_SIGNALS)
        name = "SIGTERM"
    return signal.Signals[name]


def stop_wait_s(environment: Mapping[str, str]) -> float:
    """Between the stop signal and SIGKILL: RAY_JOB_STOP_WAIT_TIME_S, STOP_WAIT_S if it is no number."""
    text = environment.get("RAY_JOB_STOP_WAIT_TIME_S", "")
    try:
        return max(0.0, float(text)) if text else STOP_WAIT_S
    except ValueError:
        log.warning("RAY_JOB_STOP_WAIT_TIME_S=%s is not a number, using %g", text, STOP_WAIT_S)
        return STOP_WAIT_S


def living_in_group(group: int) -> tuple[int, ...]:
    """Ids of the processes of a process group that have not ended (zombies have), in order."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue  # it ended while we looked
        state, _parent, of_group = text[text.rindex(")") + 2 :].split()[:3]
        if int(of_group) == group and state not in "ZX":
            found.append(int(entry.name))
    return tuple(sorted(found))


def _signal_group(group: int, which: signal.Signals) -> None:
    try:
        os.killpg(group, which)
    except ProcessLookupError:
        log.debug("process group %d has ended already", group)


_HEAR_SIGINT = """\
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv("/bin/sh", ["/bin/sh", "-c", sys.argv[1]])
"""


def _shell(command: str) -> list[str]:
    """The command for a shell. Where Ray was started in the background of a script, SIGINT is ignored in all its
    processes, a child inherits that, and a shell then can't trap it: such a child is told to hear it again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return [sys.executable, "-I", "-S", "-c", _HEAR_SIGINT, command]
    return ["/bin/sh", "-c", command]


class Child:
    """A shell command in a session of its own. Nothing of its process group outlives it or this process."""

    def __init__(self, process: subprocess.Popen[bytes], on_output: Callable[[bytes], None]) -> None:
        self._process = process
        self._guard = _Guard(process.pid)
        self.group = process.pid
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._on_output = on_output
        self._output_ended = asyncio.Event()
        assert process.stdout is not None
        self._pipe = process.stdout.fileno()
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._read)
        threading.Thread(target=self._wait, args=(asyncio.get_running_loop(),), name="child-exit", daemon=True).start()

    @staticmethod
    def start(command: str, env: Mapping[str, str], on_output: Callable[[bytes], None]) -> Child:
        """Start the command; what it and its children print goes to `on_output` as it comes. Raises OSError.

        The event loop's own subprocesses are not used: there the end of the command counts only when everything that
        it left in the background has closed its output.
        """
        # Ray blocks SIGINT in its processes, and a child inherits that.
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            process = subprocess.Popen(
                _shell(command),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Child(process, on_output)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._process.wait()
        loop.call_soon_threadsafe(self._set_exited, code)

    def _set_exited(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._on_output(data)
        else:
            self._close_output()

    def _close_output(self) -> None:
        if not self._output_ended.is_set():
            asyncio.get_running_loop().remove_reader(self._pipe)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._output_ended.set()

    def signal(self, which: signal.Signals) -> None:
        """Send a signal to every process of the group."""
        _signal_group(self.group, which)

    async def finish(self) -> int:
        """End what is left of the group, take in the rest of the output and return the exit code. May be repeated."""
        deadline_s = time.monotonic() + GROUP_KILL_S
        _signal_group(self.group, signal.SIGKILL)
        while living_in_group(self.group) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
            _signal_group(self.group, signal.SIGKILL)
        code = await asyncio.shield(self.exited)
        self._guard.dismiss()  # not before: a kill that was interrupted leaves the rest to it
        try:
            await asyncio.wait_for(self._output_ended.wait(), OUTPUT_WAIT_S)
        except TimeoutError:
            log.warning("a process outside the command's group keeps its output open; not read any further")
            self._close_output()
        return code


class _Guard:
    """Kills a process group when this process ends, however it ends; costs nothing until then.

    It is a shell that sleeps in a read of a pipe whose other end only this process holds. It is no child of ours:
    Ray ends a worker's direct children with it, which would spare the command's own children and take the guard.
    For the same reason PR_SET_PDEATHSIG is not enough: it reaches only the command's first process, often a shell.
    """

    _SCRIPT = 'exec 3<&0; (read -r _ <&3 || kill -9 "-$1") &'

    def __init__(self, group: int) -> None:
        starter = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT, "rayorch-guard", str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={},
        )
        assert starter.stdin is not None
        self._pipe = starter.stdin
        starter.wait()

    def dismiss(self) -> None:
        """The group has ended: leave without killing."""
        if self._pipe.closed:
            return
        try:
            self._pipe.write(b"\n")
            self._pipe.close()
        except BrokenPipeError:
            log.warning("the guard of a command had ended before it")


# ---------------------------------------------------------------- the work


class Attempt(Protocol):
    """What a command needs of its runner (`runner_hub.AttemptHub`)."""

    @property
    def grant(self) -> Grant:
        """What the attempt may use now."""
        ...

    def begun(self) -> None:
        """The work runs."""
        ...

    @property
    def left_s(self) -> float | None:
        """When the work, told to stop, said that it uses no seat any more; None before."""
        ...

    async def wait_change(self, wait_s: float | None) -> None:
        """Return when the grant changes or has been obeyed, or after `wait_s`."""
        ...


class CommandWork:
    """Kinds train and job: runs the command to its end, and stops it when the grant says so."""

    def __init__(
        self, kind: Kind, command: str, env: Mapping[str, str], attempt: Attempt, on_output: Callable[[bytes], None]
    ) -> None:
        self._kind = kind
        self._command = command
        self._env = env
        self._attempt = attempt
        self._on_output = on_output
        self._child: Child | None = None

    async def run(self) -> Ended:
        """Start it and return when nothing of it is left."""
        if self._attempt.grant.stop is not None:
            return Ended(-signal.SIGTERM, "stopped before it began")
        self._on_output(f"[rayorch: attempt {self._attempt.grant.attempt} runs: {self._command}]\n".encode())
        try:
            child = self._child = Child.start(self._command, self._env, self._on_output)
        except OSError as error:
            return Ended(127, f"could not be started: {error}")
        if self._kind is not Kind.TRAIN:
            self._attempt.begun()
        forced = await self._until_over(child)
        code = await child.finish()
        if forced:
            return Ended(code, f"did not end in time and was killed: {forced}")
        return Ended(code, f"ended with exit code {code}" if code >= 0 else f"ended by signal {-code}")

    async def _until_over(self, child: Child) -> str:
        """Return when the command has ended, or must not go on; then why."""
        order: StopOrder | None = None
        times, seen_s = StopTimes(0.0, 0.0), 0.0
        signalled = False
        while True:
            now_s = time.time()
            if self._attempt.grant.stop != order:
                order, seen_s = self._attempt.grant.stop, now_s
            if order is not None:
                times = stop_times(self._kind, order, seen_s, stop_wait_s(self._env), self._attempt.left_s)
            if order is not None and not signalled and now_s >= times.signal_s:
                log.info("%s to %s: %s", stop_signal(self._env).name, self._command, order.reason)
                child.signal(stop_signal(self._env))
                signalled = True
            if child.exited.done() and not (signalled and living_in_group(child.group)):
                return ""
            if order is not None and signalled and now_s >= times.kill_s:
                return order.reason
            await self._pause(child, order, times, signalled)

    async def _pause(self, child: Child, order: StopOrder | None, times: StopTimes, signalled: bool) -> None:
        """Wait for the command's end, a new grant, or the next time at which something must be done."""
        if child.exited.done():
            # The shell obeyed the signal sooner than what it runs.
            await asyncio.sleep(LINGER_POLL_S)
            return
        wait_s = None if order is None else max(0.0, (times.kill_s if signalled else times.signal_s) - time.time())
        change = asyncio.create_task(self._attempt.wait_change(None))
        try:
            either: set[asyncio.Future[Any]] = {child.exited, change}
            await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()

    async def kill(self) -> None:
        """End the command at once, with everything in its group."""
        if self._child is not None:
            await self._child.finish()
