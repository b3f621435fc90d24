"""Failures of the workload's own: retried by exit code, with back-off; the cluster's own faults never count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayorch.core.endings import Facts, ending
from rayorch.core.events import AttemptEnded, Started
from rayorch.core.lifecycle import Move
from rayorch.core.retries import doubled_s, next_retry
from rayorch.core.runners import RunnerPhase, RunnerView
from rayorch.core.timing import RetryRule
from rayorch.core.types import State, StopCause, StopOrder, Workload, WorkloadId, WorkloadSpec
from rayorch.policies.default import DEFAULT
from tests.build import apply, seats, tree, workload

PROFILE = replace(DEFAULT, retry_backoff_s=5.0, retry_backoff_max_s=40.0, failure_settle_s=0.0)
W = WorkloadId("w")
CRASH, OOM, QUOTA = 1, 137, 3


def live(spec: WorkloadSpec, **facts: object) -> Workload:
    base = Workload(spec, State.RUNNING, 0.0, attempt=1, placement=seats("n1", 1), started_s=50.0, ready_s=60.0)
    return replace(base, **facts)  # type: ignore[arg-type]


def after_exit(of: Workload, code: int, now_s: float = 100.0) -> AttemptEnded:
    view = RunnerView(of.id, of.attempt, RunnerPhase.ENDED, exit_code=code, ended_s=now_s)
    end = ending(Facts(of, None, view, (), (), now_s, PROFILE))
    assert end is not None
    return end


def test_the_first_rule_that_names_the_code_counts_and_has_retries_of_its_own() -> None:
    spec = workload("w", max_retries=1, retries=(RetryRule((OOM,), 2, 7.0), RetryRule((QUOTA,), 0)))
    first = after_exit(live(spec), OOM)
    assert (first.move, first.not_before_s, first.reason) == (Move.REQUEUED, 107.0, "exit code 137; retry 1 of 2")
    again = after_exit(live(spec, failures=1, rule_failures=(1,)), OOM)
    assert (again.move, again.not_before_s) == (Move.REQUEUED, 114.0)
    assert after_exit(live(spec, failures=2, rule_failures=(2,)), OOM).move is Move.FAILED
    assert after_exit(live(spec), QUOTA).move is Move.FAILED
    other = after_exit(live(spec, failures=2, rule_failures=(2,)), CRASH)
    assert (other.move, other.reason) == (Move.REQUEUED, "exit code 1; retry 1 of 1"), "rules have not used it up"


def test_a_rule_without_codes_takes_all_that_is_left() -> None:
    spec = workload("w", max_retries=9, retries=(RetryRule((OOM,), 3), RetryRule((), 1)))
    assert after_exit(live(spec), CRASH).move is Move.REQUEUED
    assert after_exit(live(spec, failures=1, rule_failures=(0, 1)), CRASH).move is Move.FAILED


@pytest.mark.parametrize("cause", [c for c in StopCause if c not in (StopCause.CANCELLED, StopCause.TIME_LIMIT)])
def test_what_the_cluster_did_is_no_failure_of_the_work(cause: StopCause) -> None:
    spec = workload("w", retries=(RetryRule((), 0),))
    built = tree(waiting=[spec])
    for attempt in (1, 2, 3):
        apply(built, [Started(W, attempt, seats("n1", 1), 0, 0, 0, "", attempt * 10.0)])
        apply(built, built.end_attempt(AttemptEnded(W, attempt, Move.REQUEUED, cause, 1, "", 0.0, attempt * 10.0 + 5)))
    now = built.workloads[W]
    assert (now.state, now.failures, now.rule_failures, now.requeues) == (State.PENDING, 0, (), 3)


def test_a_bound_on_requeues_ends_it_when_it_would_go_back_once_too_often() -> None:
    order = StopOrder(StopCause.PREEMPTED, "for others", 90.0, 95.0)
    spec = workload("w", max_requeues=2)
    gone = RunnerView(W, 1, RunnerPhase.ENDED, exit_code=None, ended_s=99.0)
    ends = [
        ending(Facts(live(spec, state=State.STOPPING, stop=order, requeues=n), None, gone, (), (), 100.0, PROFILE))
        for n in (0, 1, 2)
    ]
    assert [end.move for end in ends if end] == [Move.REQUEUED, Move.REQUEUED, Move.FAILED]
    assert ends[2] is not None
    assert "it may be requeued 2 times, and was" in ends[2].reason


codes = st.sampled_from((CRASH, OOM, QUOTA))
rules = st.lists(
    st.builds(RetryRule, st.lists(codes, max_size=2, unique=True).map(tuple), st.integers(0, 3)), max_size=3
)


@given(rules.map(tuple), st.integers(0, 3), st.lists(codes, min_size=20, max_size=20))
def test_no_sequence_of_failures_gets_more_retries_than_the_rules_allow(
    given_rules: tuple[RetryRule, ...], most: int, exits: list[int]
) -> None:
    spec = workload("w", retries=given_rules, max_retries=most)
    built = tree(waiting=[spec])
    seen: list[int] = []
    for attempt, code in enumerate(exits, start=1):
        apply(built, [Started(W, attempt, seats("n1", 1), 0, 0, 0, "", 50.0)])
        end = after_exit(built.workloads[W], code)
        apply(built, built.end_attempt(end))
        seen.append(code)
        # The naive count: of the failures so far, those that fall under the same rule.
        falls = [
            next((n for n, r in enumerate(given_rules) if not r.exit_codes or c in r.exit_codes), -1) for c in seen
        ]
        place = falls[-1]
        allowed = most if place < 0 else given_rules[place].max_retries
        assert (end.move is Move.REQUEUED) == (falls.count(place) <= allowed)
        if end.move is Move.FAILED:
            return
        assert end.not_before_s > 100.0
    raise AssertionError("twenty failures were all retried")


def test_the_back_off_doubles_and_is_bounded() -> None:
    assert [doubled_s(5.0, n, 40.0) for n in (1, 2, 3, 4, 5, 1000)] == [5.0, 10.0, 20.0, 40.0, 40.0, 40.0]
    retry = next_retry(live(workload("w", retries=(RetryRule((), 9, 100.0),))), CRASH, PROFILE)
    assert retry is not None
    assert retry.delay_s == 100.0, "a rule may wait longer than the profile's bound"
