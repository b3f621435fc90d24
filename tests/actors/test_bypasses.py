"""The watch: how often it looks, what it keeps, and that it says each thing once."""

from __future__ import annotations

import logging

import pytest

from rayorch.actors import bypasses
from rayorch.actors.bypasses import PERIOD_S, BypassWatch
from rayorch.core.bypass import Bypass
from rayorch.core.errors import ClusterError

ONE, TWO = Bypass("one", "true", "eve", 1.0), Bypass("two", "true", "eve", 2.0)


class Scripted:
    """Finds what the test says, or fails with it."""

    def __init__(self) -> None:
        self.answers: list[tuple[Bypass, ...] | ClusterError] = []
        self.groups: list[frozenset[str]] = []

    def find(self, our_groups: frozenset[str]) -> tuple[Bypass, ...]:
        """The next answer."""
        self.groups.append(our_groups)
        answer = self.answers.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        return answer


def test_it_looks_once_in_a_period_and_says_each_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    finder = Scripted()
    monkeypatch.setattr(bypasses, "BypassFinder", lambda _: finder)
    monkeypatch.setattr(bypasses, "group_rows", lambda _: ({"placement_group_id": "aa"},))
    watch = BypassWatch(clock=lambda: now[0], run=lambda work: work())
    finder.answers = [(ONE,), (ONE, TWO), ClusterError("the GCS is away"), (TWO,)]

    seen = []
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            watch.tick()
            watch.tick()
            seen.append(watch.seen)
            now[0] += PERIOD_S
    assert seen == [(ONE,), (ONE, TWO), (ONE, TWO), (TWO,)], "what can't be read stays as it was"
    assert finder.groups == [frozenset({"aa"})] * 4
    told = [record.getMessage().split(":")[0] for record in caplog.records]
    assert told == [
        "Ray job one came past the queues",
        "Ray job two came past the queues",
        "work past the queues is not known",
    ]


def test_a_slow_look_holds_up_nobody_and_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bypasses, "BypassFinder", lambda _: Scripted())
    started: list[bypasses.Work] = []
    now = [0.0]
    watch = BypassWatch(clock=lambda: now[0], run=started.append)
    for _ in range(5):
        watch.tick()
        now[0] += PERIOD_S
    assert len(started) == 1


def test_an_error_that_nobody_expected_is_logged_and_the_next_look_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(bypasses, "BypassFinder", lambda _: Scripted())  # has no answers
    monkeypatch.setattr(bypasses, "group_rows", lambda _: ())
    watch = BypassWatch(clock=lambda: now[0], run=lambda work: work())
    for _ in range(2):
        watch.tick()
        now[0] += PERIOD_S
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_a_ray_job_is_named_and_kubernetes_asked_only_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    finder = Scripted()
    answers: list[dict[str, str] | ClusterError] = [ClusterError("no answer"), {"one": "nightly"}, {"two": "sweep"}]
    monkeypatch.setattr(bypasses, "BypassFinder", lambda _: finder)
    monkeypatch.setattr(bypasses, "group_rows", lambda _: ())

    def ray_jobs() -> dict[str, str]:
        answer = answers.pop(0)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    watch = BypassWatch(ray_jobs, lambda: now[0], run=lambda work: work())
    finder.answers = [(), (ONE,), (ONE,), (ONE,), (TWO,)]
    seen = []
    for _ in range(5):
        watch.tick()
        seen.append([bypass.who for bypass in watch.seen])
        now[0] += PERIOD_S
    assert seen == [[], ["eve"], ["RayJob nightly (eve)"], ["RayJob nightly (eve)"], ["RayJob sweep (eve)"]]
    assert answers == []
