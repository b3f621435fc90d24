"""`rayorch queue`: what it prints and what it changes."""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.types import Budget, QueueId, QueueMode, UserLimits
from rayorch.serve_apps.gateway.fake import FakeBackend
from tests.build import gpus
from tests.cli.conftest import Run

NLP = QueueId("research/nlp")


def test_a_queue_is_shown_with_all_that_it_limits(run: Run, backend: FakeBackend) -> None:
    backend.queues[NLP] = replace(
        backend.queues[NLP], hard_cap=gpus(9), per_user=UserLimits(gpus(1), 2), budget=Budget(10.0), mode=QueueMode.HOLD
    )
    lines = run("queue", "show", "research/nlp").stdout.splitlines()
    shown = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert (shown["mode"], shown["at most"], shown["each user"]) == ("hold", "9 GPU", "1 GPU, 2 running")
    assert shown["budget"] == "0.0 of 10 h"
    assert run("queue", "show", "none").exit_code == 105
    heading, *rows = run("queues").stdout.splitlines()
    assert {"MODE", "BUDGET"} <= set(heading.split())
    assert any("hold" in row and "0.0 of 10 h" in row for row in rows)


def test_a_queue_is_held_drained_opened_and_deleted(run: Run, backend: FakeBackend) -> None:
    for word, mode in (("hold", QueueMode.HOLD), ("drain", QueueMode.DRAIN), ("open", QueueMode.OPEN)):
        assert run("queue", word, "research/nlp").exit_code == 0
        assert backend.queues[NLP].mode is mode
    run("submit", "-q", "research/nlp", "--", "true")
    assert run("queue", "delete", "research/nlp").exit_code != 0
    assert "being deleted" in run("queue", "delete", "research/nlp", "--drain").stderr
    assert backend.queues[NLP].mode is QueueMode.DELETING
