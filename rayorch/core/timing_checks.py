"""The door for what is asked of time: SpecError with the path of the first field that can't be right on any cluster."""

from __future__ import annotations

from rayorch.core.errors import SpecError
from rayorch.core.timing import After, ArraySpec, Dependency, RetryRule
from rayorch.core.types import Kind, WorkloadSpec
from rayorch.core.wellformed import check_moment, check_seconds, check_text, check_whole

MAX_ENTRIES = 100_000
"""Entries of one array."""

MAX_DEPENDENCIES = 1_000
MAX_RULES = 32
MAX_RETRIES = 1_000_000
MAX_EXIT_CODE = 255


def check_timing(spec: WorkloadSpec) -> None:
    """Wall limit, begin, retries, dependencies and array of a workload."""
    for field in ("wall_limit_s", "expected_s", "preemption_delay_s"):
        if (value := getattr(spec, field)) is not None:
            check_seconds(value, field)
    if spec.stale_grace_s is not None and spec.stale_grace_s != -1:  # -1: for ever
        check_seconds(spec.stale_grace_s, "stale_grace_s")
    if spec.wall_limit_s == 0:
        raise SpecError("wall_limit_s", "must not be zero: it could never run")
    for field in ("begin_s", "deadline_s"):
        if (moment := getattr(spec, field)) is not None:
            check_moment(moment, field)
    if spec.total_steps is not None:
        _check_count(spec.total_steps, "total_steps", 1, 2**53 - 1)
    if spec.max_requeues is not None:
        _check_count(spec.max_requeues, "max_requeues", 0, MAX_RETRIES)
    check_text(spec.reservation, "reservation")
    if spec.entry is not None:
        raise SpecError("entry", "is set by the queue owner; submit the array")
    _check_retries(spec.retries)
    _check_after(spec)
    if spec.array is not None:
        _check_array(spec)


def check_own_times(spec: WorkloadSpec) -> None:
    """Of these what differs from job to job: how long it takes."""
    if spec.expected_s is not None:
        check_seconds(spec.expected_s, "expected_s")
    if spec.total_steps is not None:
        _check_count(spec.total_steps, "total_steps", 1, 2**53 - 1)


def _check_retries(rules: tuple[RetryRule, ...]) -> None:
    if not isinstance(rules, tuple):
        raise SpecError("retries", f"must be a tuple of rules, got {type(rules).__name__}")
    if len(rules) > MAX_RULES:
        raise SpecError("retries", f"has {len(rules)} rules, at most {MAX_RULES}")
    for n, rule in enumerate(rules):
        path = f"retries[{n}]"
        if not isinstance(rule, RetryRule):
            raise SpecError(path, f"must be a RetryRule, got {rule!r}")
        _check_count(rule.max_retries, f"{path}.max_retries", 0, MAX_RETRIES)
        if rule.backoff_s is not None:
            check_seconds(rule.backoff_s, f"{path}.backoff_s")
        if not isinstance(rule.exit_codes, tuple):
            raise SpecError(f"{path}.exit_codes", f"must be a tuple of numbers, got {rule.exit_codes!r}")
        for code in rule.exit_codes:
            _check_count(code, f"{path}.exit_codes", -MAX_EXIT_CODE, MAX_EXIT_CODE)
            if code == 0:
                raise SpecError(f"{path}.exit_codes", "0 is a success, which is not retried")
        if not rule.exit_codes and n + 1 < len(rules):
            raise SpecError(f"{path}.exit_codes", "names no code, so it takes all: no rule after it can count")


def _check_after(spec: WorkloadSpec) -> None:
    if not isinstance(spec.after, tuple):
        raise SpecError("after", f"must be a tuple of dependencies, got {type(spec.after).__name__}")
    if len(spec.after) > MAX_DEPENDENCIES:
        raise SpecError("after", f"has {len(spec.after)} dependencies, at most {MAX_DEPENDENCIES}")
    for n, dependency in enumerate(spec.after):
        path = f"after[{n}]"
        if not isinstance(dependency, Dependency) or not isinstance(dependency.kind, After):
            raise SpecError(path, f"must be a Dependency, got {dependency!r}")
        if dependency.kind is After.SINGLETON:
            if dependency.workload is not None:
                raise SpecError(f"{path}.workload", "singleton names no other workload")
            continue
        if dependency.workload is None:
            raise SpecError(f"{path}.workload", f"{dependency.kind.value} needs the other workload's id")
        check_text(dependency.workload, f"{path}.workload")
        if dependency.workload == spec.id:
            raise SpecError(f"{path}.workload", "is the workload itself")
        if dependency.kind is After.CORRESPONDING and spec.array is None:
            raise SpecError(f"{path}.kind", "aftercorr is for arrays, entry by entry")
    if len(set(spec.after)) != len(spec.after):
        raise SpecError("after", "names a dependency twice")


def _check_array(spec: WorkloadSpec) -> None:
    array = spec.array
    if not isinstance(array, ArraySpec):
        raise SpecError("array", f"must be an ArraySpec, got {array!r}")
    _check_count(array.count, "array.count", 1, MAX_ENTRIES)
    _check_count(array.first, "array.first", 0, 2**31)
    if array.max_running is not None:
        _check_count(array.max_running, "array.max_running", 1, MAX_ENTRIES)
    if spec.kind not in (Kind.TRAIN, Kind.JOB):
        raise SpecError("array", f"is for kinds train and job, not {spec.kind.value}")
    if spec.joint is not None:
        raise SpecError("array", "and joint exclude each other: entries start one by one")


def _check_count(value: object, field: str, least: int, most: int) -> None:
    check_whole(value, field)
    assert isinstance(value, int)
    if not least <= value <= most:
        raise SpecError(field, f"must be from {least} to {most}, got {value}")
