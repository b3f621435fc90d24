"""The line to the runner: newer grants, the end of a lease, and reports that arrive in order."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from rayorch.adapters.ray_train.contact import AttemptIds, GrantFollower, Reporter, RunnerLine
from rayorch.core.grants import Grant
from rayorch.core.reports import AttemptReport, CheckpointCommitted, StepReported
from rayorch.core.types import WorkloadId

IDS = AttemptIds("w", 1, "runner", lease_s=0.2)


def grant(version: int, **fields: Any) -> Grant:
    return Grant(
        **{"workload": WorkloadId("w"), "attempt": 1, "version": version, "seats": (), "lease_s": 0.2, **fields}
    )


class ScriptedLine:
    """Answers each call with the next item, raising those that are exceptions; the last one repeats."""

    def __init__(self, *answers: object) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))

    def call(self, method: str, *args: object, timeout_s: float) -> Any:
        self.calls.append((method, *args))
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def follow(line: ScriptedLine) -> tuple[list[int], list[str], list[str]]:
    seen: list[int] = []
    lost: list[str] = []
    over: list[str] = []
    GrantFollower(IDS, lambda g: seen.append(g.version), lost.append, over.append, line).follow()
    return seen, lost, over


def test_newer_grants_are_passed_on_once_each_and_the_known_version_is_told() -> None:
    line = ScriptedLine(grant(3), grant(3), grant(4), grant(5, lapsed=True))
    seen, lost, over = follow(line)
    assert seen == [3, 4]
    assert [args[1] for args in line.calls] == [-1, 3, 3, 4]
    assert lost == [] and "lease of attempt 1 of w is over" in over[0]


def test_a_runner_that_serves_another_attempt_ends_this_one() -> None:
    _, _, over = follow(ScriptedLine(grant(1), grant(2, attempt=2)))
    assert "now serves attempt 2" in over[0]


def test_a_runner_that_does_not_answer_for_a_lease_is_lost() -> None:
    line = ScriptedLine(grant(1), ConnectionError("gone"))
    seen, lost, over = follow(line)
    assert seen == [1] and over == []
    assert "no answer from runner runner for 0.2 s: gone" in lost[0]


def test_an_answer_after_a_failure_confirms_the_lease() -> None:
    line = ScriptedLine(grant(1), ConnectionError("restarting"), grant(2), grant(3, lapsed=True))
    seen, lost, _ = follow(line)
    assert seen == [1, 2] and lost == []


def deliver(line: ScriptedLine, reports: list[AttemptReport]) -> tuple[bool, list[str]]:
    refused: list[str] = []
    reporter = Reporter(IDS, refused.append, line)
    for report in reports:
        reporter.send(report)
    reporter.start()
    return reporter.flush(timeout_s=30.0), refused


def test_reports_arrive_in_order_and_only_the_newest_of_waiting_steps() -> None:
    line = ScriptedLine(True)
    commit = CheckpointCommitted(2, "/c2", 2.0)
    done, refused = deliver(line, [StepReported(1, 1.0), StepReported(2, 2.0), commit, StepReported(3, 3.0)])
    assert done and refused == []
    assert [args[1] for args in line.calls] == [StepReported(2, 2.0), commit, StepReported(3, 3.0)]


def test_a_report_is_repeated_until_it_was_delivered() -> None:
    line = ScriptedLine(ConnectionError("restarting"), True)
    done, refused = deliver(line, [StepReported(1, 1.0)])
    assert done and refused == []
    assert line.calls == [("report", StepReported(1, 1.0))] * 2


def test_a_refused_report_ends_the_reporter() -> None:
    _, refused = deliver(ScriptedLine(False), [StepReported(1, 1.0)])
    assert "the attempt is over" in refused[0]


def test_a_process_that_no_runner_started_has_no_attempt() -> None:
    assert AttemptIds.from_environment({}) is None
    assert AttemptIds.from_environment({"RAYORCH_RUNNER": ""}) is None


def test_the_attempt_is_read_from_what_the_runner_gives() -> None:
    given = {
        "RAYORCH_RUNNER": "runner/main/w/3",
        "RAYORCH_WORKLOAD": "w",
        "RAYORCH_ATTEMPT": "3",
        "RAYORCH_LEASE_S": "7.5",
        "RAYORCH_STORAGE_PATH": "/mnt/runs",
    }
    assert AttemptIds.from_environment(given) == AttemptIds("w", 3, "runner/main/w/3", "rayorch", 7.5, "/mnt/runs")


@pytest.mark.parametrize("missing", ["RAYORCH_WORKLOAD", "RAYORCH_ATTEMPT"])
def test_half_an_identity_is_an_error(missing: str) -> None:
    given = {"RAYORCH_RUNNER": "r", "RAYORCH_WORKLOAD": "w", "RAYORCH_ATTEMPT": "1"}
    del given[missing]
    with pytest.raises(KeyError, match=missing):
        AttemptIds.from_environment(given)


def test_a_look_up_that_blocks_does_not_keep_a_lease_alive_and_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    reachable, looked = threading.Event(), []

    class Runner:
        class ping:
            @staticmethod
            def remote() -> str:
                return "here"

    def get_actor(name: str, namespace: str) -> Runner:
        looked.append((name, namespace))
        assert reachable.wait(60)
        return Runner()

    def get(answer: str, timeout: float) -> str:
        if len(looked) == 2:
            raise ray.exceptions.GetTimeoutError("late")
        return answer

    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get", get)
    line = RunnerLine(IDS)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            line.call("ping", timeout_s=0.05)
    reachable.set()
    assert line.call("ping", timeout_s=60) == "here"
    looked.append(("a call that fails", ""))
    with pytest.raises(ray.exceptions.GetTimeoutError):
        line.call("ping", timeout_s=60)
    assert looked[0] == ("runner", "rayorch") and len(looked) == 2
