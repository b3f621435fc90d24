"""A command as a child process: its end, its output, its stop, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rayorch.actors.runner_command import (
    Child,
    CommandWork,
    Ended,
    StopTimes,
    living_in_group,
    stop_signal,
    stop_times,
    stop_wait_s,
)
from rayorch.core.grants import Grant
from rayorch.core.types import Kind, StopCause, StopOrder, WorkloadId

ROOT = Path(__file__).resolve().parents[2]


class FakeAttempt:
    """A runner's hub whose grant the test changes."""

    def __init__(self) -> None:
        self.grant = Grant(WorkloadId("w"), 1, 1, ())
        self.has_begun = asyncio.Event()
        self.left_s: float | None = None
        self._changed = asyncio.Event()

    def begun(self) -> None:
        self.has_begun.set()

    async def wait_change(self, wait_s: float | None) -> None:
        await self._changed.wait()

    def leave(self) -> None:
        """The work says that its workers are down."""
        self.left_s = time.time()
        self._changed.set()
        self._changed = asyncio.Event()

    def stop(self, grace_s: float, cause: StopCause = StopCause.PREEMPTED) -> None:
        order = StopOrder(cause, "test", time.time(), time.time() + grace_s)
        self.grant = Grant(WorkloadId("w"), 1, self.grant.version + 1, (), order)
        self._changed.set()
        self._changed = asyncio.Event()


class Running:
    """A command that runs, and what it has printed."""

    def __init__(self, command: str, kind: Kind = Kind.JOB, env: dict[str, str] | None = None) -> None:
        self.attempt = FakeAttempt()
        self.output = b""
        self.work = CommandWork(kind, command, {**os.environ, **(env or {})}, self.attempt, self._take)
        self.task = asyncio.create_task(self.work.run())

    def _take(self, data: bytes) -> None:
        self.output += data

    async def until_printed(self, text: bytes) -> None:
        while text not in self.output:
            await asyncio.sleep(0.02)


async def test_output_of_both_streams_comes_in_order_and_the_exit_code_is_the_commands() -> None:
    running = Running("echo one; echo two >&2; printf three; exit 7")
    assert await running.task == Ended(7, "ended with exit code 7")
    assert running.output.endswith(b"one\ntwo\nthree")
    assert running.attempt.has_begun.is_set()


async def test_a_training_command_has_not_begun_before_its_workers_are_up() -> None:
    running = Running("true", Kind.TRAIN)
    await running.task
    assert not running.attempt.has_begun.is_set()


async def test_what_the_command_leaves_in_the_background_ends_with_it() -> None:
    running = Running("sleep 1000 & echo pid $!; exit 0")
    assert (await running.task).exit_code == 0
    pid = int(running.output.split(b"pid ")[-1].split()[0])
    assert _has_ended(pid)


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_a_program_under_a_shell_may_save_although_the_shell_obeys_sooner() -> None:
    program = (
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(0.5); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); print('up', flush=True)\nwhile True: time.sleep(0.1)"
    )
    running = Running(f'"{sys.executable}" -c "$PROGRAM"; true', env={"PROGRAM": program})
    await running.until_printed(b"up\n")
    running.attempt.stop(grace_s=60.0)
    ended = await running.task
    assert ended.exit_code == -signal.SIGTERM
    assert b"saved" in running.output


async def test_a_command_that_ignores_the_signal_is_killed_at_the_deadline() -> None:
    running = Running("trap '' TERM; echo up; while :; do sleep 0.1; done")
    await running.until_printed(b"up\n")
    running.attempt.stop(grace_s=0.5)
    ended = await running.task
    assert ended.exit_code == -signal.SIGKILL
    assert ended.message == "did not end in time and was killed: test"


async def test_a_cancelled_command_is_killed_after_its_own_stop_wait_whatever_the_deadline() -> None:
    running = Running("trap '' TERM; echo up; while :; do sleep 0.1; done", env={"RAY_JOB_STOP_WAIT_TIME_S": "0.3"})
    await running.until_printed(b"up\n")
    running.attempt.stop(grace_s=10_000.0, cause=StopCause.CANCELLED)
    assert (await running.task).exit_code == -signal.SIGKILL


async def test_a_cancel_after_a_preemption_is_obeyed_at_once() -> None:
    running = Running("echo up; while :; do sleep 0.1; done", Kind.TRAIN)
    await running.until_printed(b"up\n")
    running.attempt.stop(grace_s=10_000.0)
    await asyncio.sleep(0.2)
    assert not running.task.done()
    running.attempt.stop(grace_s=10_000.0, cause=StopCause.CANCELLED)
    assert (await running.task).exit_code == -signal.SIGTERM


async def test_a_training_driver_that_lingers_after_its_workers_is_ended_long_before_the_deadline() -> None:
    running = Running("trap '' TERM; echo up; while :; do sleep 0.1; done", Kind.TRAIN)
    await running.until_printed(b"up\n")
    running.attempt.stop(grace_s=10_000.0)
    running.attempt.leave()
    ended = await running.task
    assert ended.exit_code == -signal.SIGKILL
    assert "killed" in ended.message


async def test_a_training_driver_that_ends_by_itself_after_its_workers_keeps_its_exit_code() -> None:
    running = Running("echo up; read -t 0.3 nothing; exit 7", Kind.TRAIN)
    await running.until_printed(b"up\n")
    running.attempt.stop(grace_s=10_000.0)
    running.attempt.leave()
    assert (await running.task).exit_code == 7


async def test_sigint_reaches_a_command_that_asks_for_it() -> None:
    running = Running(
        "trap 'echo caught; exit 9' INT; echo up; while :; do sleep 0.1; done", env={"RAY_JOB_STOP_SIGNAL": "SIGINT"}
    )
    await running.until_printed(b"up\n")
    running.attempt.stop(grace_s=60.0)
    assert (await running.task).exit_code == 9


async def test_sigint_reaches_a_command_whose_runner_ignores_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what a script starts in the background
    try:
        await test_sigint_reaches_a_command_that_asks_for_it()
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_stop_that_came_first_lets_nothing_start(tmp_path: Path) -> None:
    attempt = FakeAttempt()
    attempt.stop(grace_s=60.0)
    work = CommandWork(Kind.JOB, f"touch {tmp_path / 'ran'}", os.environ, attempt, lambda data: None)
    assert await work.run() == Ended(-15, "stopped before it began")
    assert not (tmp_path / "ran").exists()


async def test_kill_ends_the_whole_group_and_may_be_repeated() -> None:
    running = Running("sleep 1000 & sleep 1000 & echo up; wait")
    await running.until_printed(b"up\n")
    running.task.cancel()
    await running.work.kill()
    await running.work.kill()
    child = running.work._child
    assert child is not None and living_in_group(child.group) == ()


CRASHING = """
import asyncio, os, sys
from rayorch.actors.runner_command import Child
async def main():
    child = Child.start("sleep 1000 & sleep 1000 & wait", os.environ, lambda data: None)
    print(child.group, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_the_commands_processes_end_when_their_starter_is_killed() -> None:
    starter = subprocess.Popen([sys.executable, "-c", CRASHING], stdout=subprocess.PIPE, cwd=ROOT)
    assert starter.stdout is not None
    group = int(starter.stdout.readline())
    starter.stdout.close()
    assert len(living_in_group(group)) >= 1
    starter.kill()
    starter.wait()
    deadline_s = time.monotonic() + 60.0
    while living_in_group(group):
        assert time.monotonic() < deadline_s, "the command outlived its starter"
        time.sleep(0.05)


async def test_a_process_that_leaves_the_group_with_the_output_open_does_not_hold_up_the_end() -> None:
    child = Child.start("setsid sleep 30 & exit 4", os.environ, lambda data: None)
    await child.exited
    assert await child.finish() == 4


@pytest.mark.parametrize(
    ("kind", "cause", "times"),
    [
        (Kind.JOB, StopCause.PREEMPTED, StopTimes(100.0, 129.5)),
        (Kind.TRAIN, StopCause.PREEMPTED, StopTimes(126.5, 129.5)),
        (Kind.TRAIN, StopCause.CANCELLED, StopTimes(100.0, 103.0)),
        (Kind.JOB, StopCause.CANCELLED, StopTimes(100.0, 103.0)),
    ],
)
def test_stop_times_by_kind_and_cause(kind: Kind, cause: StopCause, times: StopTimes) -> None:
    assert stop_times(kind, StopOrder(cause, "", 100.0, 130.0), seen_s=100.0) == times


def test_a_stop_heard_of_after_its_deadline_signals_and_kills_at_once() -> None:
    late = StopOrder(StopCause.RECLAIMED, "", 100.0, 130.0)
    assert stop_times(Kind.TRAIN, late, seen_s=140.0) == StopTimes(140.0, 140.0)


def test_workers_that_are_down_bring_the_end_forward_and_never_put_it_off() -> None:
    order = StopOrder(StopCause.PREEMPTED, "", 100.0, 130.0)
    assert stop_times(Kind.TRAIN, order, 100.0, left_s=105.0) == StopTimes(106.0, 106.5)
    assert stop_times(Kind.TRAIN, order, 100.0, left_s=129.0) == stop_times(Kind.TRAIN, order, 100.0)
    assert stop_times(Kind.JOB, order, 100.0, left_s=105.0) == stop_times(Kind.JOB, order, 100.0)


def test_a_short_grace_is_not_eaten_by_the_lead() -> None:
    times = stop_times(Kind.TRAIN, StopOrder(StopCause.PREEMPTED, "", 100.0, 102.0), seen_s=100.0)
    assert times.signal_s == pytest.approx(101.5)
    assert times.kill_s == pytest.approx(101.9)


def test_rays_variables_choose_signal_and_wait_and_nonsense_is_not_obeyed() -> None:
    assert stop_signal({"RAY_JOB_STOP_SIGNAL": "SIGINT"}) is signal.SIGINT
    assert stop_signal({"RAY_JOB_STOP_SIGNAL": "SIGSTOP"}) is signal.SIGTERM
    assert stop_wait_s({"RAY_JOB_STOP_WAIT_TIME_S": "10"}) == 10.0
    assert stop_wait_s({"RAY_JOB_STOP_WAIT_TIME_S": "soon"}) == 3.0
