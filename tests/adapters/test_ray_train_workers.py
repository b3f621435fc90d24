"""What a training loop did about a notice, step by step as its worker sees it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.train.v2.api.preemption import PreemptionInfo

from rayorch.adapters.ray_train.callback import checkpoint_uri, step_of
from rayorch.adapters.ray_train.workers import GrantNotice, NoticeDesk

NOTICE = GrantNotice(5, {}, 2)


def test_a_report_begun_before_the_loop_saw_the_notice_is_no_answer() -> None:
    desk = NoticeDesk()
    desk.saw(None, reports_begun=3)
    desk.saw(NOTICE, reports_begun=4)
    assert desk.polls
    assert [desk.is_answer(k) for k in (3, 4, 5, 6)] == [False, False, True, True]


def test_a_loop_that_never_asks_answers_nothing() -> None:
    desk = NoticeDesk()
    assert not desk.polls
    assert not desk.is_answer(1)


class Counting(threading.Event):
    """Counts how often somebody waited for it."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return True


@pytest.mark.parametrize(
    ("seen", "saved", "held"),
    [(None, True, 0), (NOTICE, False, 0), (NOTICE, True, 1), (PreemptionInfo(5, {}), True, 0)],
)
def test_only_a_loop_that_answered_a_notice_of_ours_is_held(
    seen: PreemptionInfo | None, saved: bool, held: int
) -> None:
    desk, gone = NoticeDesk(), Counting()
    desk.saw(seen, reports_begun=0)
    if saved:
        desk.checkpointed()
    desk.hold(gone)
    assert gone.waits == held


@pytest.mark.parametrize(
    ("metrics", "step"),
    [
        ({"step": 7}, 7),
        ({"step": np.int64(7)}, 7),
        ({"step": 7.0}, 7),
        ({"step": 7.5}, 42),
        ({"step": "seven"}, 42),
        ({"step": True}, 42),
        ({"loss": 0.1}, 42),
        ({}, 42),
    ],
)
def test_a_report_s_step_is_what_it_says_or_the_count(metrics: dict[str, Any], step: int) -> None:
    assert step_of(metrics, 42) == step


@pytest.mark.parametrize(
    ("filesystem", "storage", "path", "uri"),
    [
        ("local", "/mnt/runs", "/mnt/runs/x", "/mnt/runs/x"),
        ("s3", "s3://bucket/runs", "bucket/runs/x", "s3://bucket/runs/x"),
        ("py::fsspec", "gs://bucket/runs", "bucket/runs/x", "gs://bucket/runs/x"),
        ("hdfs", "/runs", "runs/x", "hdfs://runs/x"),
    ],
)
def test_a_checkpoint_is_named_as_one_opens_it(filesystem: str, storage: str, path: str, uri: str) -> None:
    checkpoint: Any = SimpleNamespace(path=path, filesystem=SimpleNamespace(type_name=filesystem))
    assert checkpoint_uri(checkpoint, storage) == uri
