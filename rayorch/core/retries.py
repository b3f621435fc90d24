"""What becomes of a failure of the workload's own: retried after a wait, or final.

The first rule of `WorkloadSpec.retries` that names the exit code counts, with a number of retries and a back-off of
its own; where none does, `max_retries` and the profile's back-off. What the cluster did to an attempt (preemption,
reclaim, a drained or lost node, a start that failed) is never counted here; `max_requeues` bounds that where asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayorch.core.policy import Profile
from rayorch.core.types import Workload, WorkloadSpec


@dataclass(frozen=True, slots=True)
class Retry:
    """The wait before the next attempt, which is retry number `number` (from 1) of `most`."""

    number: int
    most: int
    delay_s: float


def rule_of(spec: WorkloadSpec, exit_code: int | None) -> int | None:
    """Which of the workload's rules names this exit code, by its place; None: none does."""
    for place, rule in enumerate(spec.retries):
        if not rule.exit_codes or exit_code in rule.exit_codes:
            return place
    return None


def counted(workload: Workload, exit_code: int | None) -> tuple[int, ...]:
    """`Workload.rule_failures` after one more failure of its own with this exit code."""
    place = rule_of(workload.spec, exit_code)
    if place is None:
        return workload.rule_failures
    counts = [*workload.rule_failures, *[0] * (place + 1 - len(workload.rule_failures))]
    counts[place] += 1
    return tuple(counts)


def next_retry(workload: Workload, exit_code: int | None, profile: Profile) -> Retry | None:
    """What follows from one more failure with this exit code; None: it was the last one."""
    place = rule_of(workload.spec, exit_code)
    if place is None:
        most, first_s = workload.spec.max_retries, profile.retry_backoff_s
        number = workload.failures - sum(workload.rule_failures) + 1
    else:
        rule = workload.spec.retries[place]
        most = rule.max_retries
        first_s = profile.retry_backoff_s if rule.backoff_s is None else rule.backoff_s
        number = counted(workload, exit_code)[place]
    if number > most:
        return None
    return Retry(number, most, doubled_s(first_s, number, max(first_s, profile.retry_backoff_max_s)))


def doubled_s(first_s: float, number: int, most_s: float) -> float:
    """The wait after failure `number` (from 1): `first_s`, doubled each time, at most `most_s`."""
    return min(first_s * 2.0 ** min(number - 1, 32), most_s)


def may_requeue(workload: Workload) -> bool:
    """Whether the workload may go back to its queue once more for a cause that is not its own."""
    most = workload.spec.max_requeues
    return most is None or workload.requeues < most
