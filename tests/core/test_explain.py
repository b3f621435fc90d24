"""Every reason has its sentence, and a workload's story is told whole."""

from __future__ import annotations

from dataclasses import replace

from rayorch.core.decisions import WaitReason
from rayorch.core.explain import SENTENCES, UNBLOCKS, explain
from rayorch.core.planner import plan
from rayorch.core.types import State, WorkloadId
from rayorch.policies.default import DEFAULT
from tests.scenes import NOW, node, pending, queue, running, snapshot, stopping


def test_every_reason_has_its_sentence_and_says_what_ends_it() -> None:
    assert set(SENTENCES) == set(WaitReason)
    assert set(UNBLOCKS) == set(WaitReason)
    assert all(sentence.endswith(".") for sentence in SENTENCES.values())


def test_a_waiting_workload_is_told_its_place_and_all_reasons_with_numbers_and_blockers() -> None:
    work = [running("x", ["n1"] * 2, preemptible=False), pending("a", 4), pending("b", 4, submitted_s=1.0)]
    seen = snapshot([node("n1", 4)], work, [queue("q", 2)])
    story = explain(WorkloadId("b"), plan(seen, DEFAULT), seen)
    assert (story.state, story.position, story.of, story.starts_in_s) == (State.PENDING, 2, 2, None)
    summary, quota, room = story.lines
    assert summary == "b is number 2 of 2 that wait."
    assert quota == (
        "Quota: The queue, or one above it, may hold no more. queue q holds 2 GPU of the 2 that it deserves"
        " and may take 0 more; 4 are needed. In the way: x."
        " Ends when: work in that queue ends, others lend more, or the queue's share is raised."
    )
    assert room == (
        "Resources: Not enough is free in all. 4 GPU are needed, 2 are free. In the way: x."
        " Ends when: running work ends or shrinks, or nodes are added."
    )


def test_an_estimate_is_given_where_something_is_known() -> None:
    work = [stopping(running("x", ["n1"], gpu=8), "a", NOW + 20), pending("a", gpu=8)]
    seen = snapshot([node("n1")], work)
    story = explain(WorkloadId("a"), plan(seen, DEFAULT), seen)
    assert story.starts_in_s == 20
    assert story.lines[0] == "a is number 1 of 1 that wait, expected to start in 20 s."


def test_what_starts_runs_stops_or_is_gone_is_told_in_one_line() -> None:
    work = [pending("new"), running("run", ["n1"]), stopping(running("stop", ["n1"]))]
    seen = snapshot([node("n1")], work)
    made = plan(seen, DEFAULT)
    assert explain(WorkloadId("new"), made, seen).lines == ("new starts in this turn.",)
    assert explain(WorkloadId("run"), made, seen).lines == ("run is RUNNING in attempt 1 with 1 worker.",)
    assert explain(WorkloadId("stop"), made, seen).lines == ("stop is being stopped (preempted): asked to.",)
    assert explain(WorkloadId("gone"), made, seen).lines == ("gone has ended, or does not exist.",)


def test_what_came_after_the_plan_waits_for_the_next_one() -> None:
    seen = snapshot([node("n1")], [])
    later = replace(seen, workloads=(pending("a"),))
    assert "Planning" in explain(WorkloadId("a"), plan(seen, DEFAULT), later).lines[1]
