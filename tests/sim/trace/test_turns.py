"""Turns in slices of time (Gandiva) on whole runs: by hand, and what holds whatever comes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rayorch.core.eviction import EvictionKnobs
from rayorch.core.ordering import OrderKnobs
from rayorch.core.policy import Profile
from rayorch.core.types import NodeSpec
from rayorch.policies.default import DEFAULT
from rayorch.policies.order import gandiva
from rayorch.sim.models import RestartCost, RestartModel, SimModels
from rayorch.sim.trace.model import Trace, TraceJob
from rayorch.sim.trace.outcome import JobRecord, Outcome
from rayorch.sim.trace.run import run
from tests.sim.trace.worlds import job, nodes, trace

SLICE_S = 600.0
TURNS = replace(
    DEFAULT,
    name="turns",
    order=gandiva.key,
    ordering=OrderKnobs(slice_s=SLICE_S),
    eviction=EvictionKnobs(by_order=True),
)
OWNERS = replace(TURNS, name="owners in turn", order=gandiva.owner_key)


def _times(record: JobRecord) -> list[tuple[float, float]]:
    return [(stretch.from_s, stretch.to_s) for stretch in record.runs]


def _costing(restart_s: float, **more: float) -> SimModels:
    return SimModels(restart=RestartModel(default=RestartCost(restart_s, **more)))  # type: ignore[arg-type]


def test_two_gangs_of_all_gpus_take_turns_and_the_second_is_not_kept_waiting_for_the_first() -> None:
    made = trace(job("a", 0, 1500, gpus=8), job("b", 10, 900, gpus=8))

    a, b = run(made, nodes(1), TURNS).records

    assert _times(a) == [(0, 600), (1200, 1800), (2100, 2400)]
    assert _times(b) == [(600, 1200), (1800, 2100)]
    assert (a.preemptions, b.preemptions) == (2, 1)


def test_nobody_is_stopped_where_nobody_waits() -> None:
    made = trace(job("a", 0, 5000, gpus=4), job("b", 0, 5000, gpus=4))

    assert [record.preemptions for record in run(made, nodes(1), TURNS).records] == [0, 0]


def test_a_large_gang_has_its_turn_among_small_ones_that_came_at_different_times() -> None:
    small = [job(f"s{n}", 130.0 * n, 6000) for n in range(8)]
    made = trace(*small, job("large", 950, 600, gpus=8))

    large = run(made, nodes(1), TURNS).records[-1]

    assert large.id == "large" and _times(large) == [(1800, 2400)], (
        "those that began in the second half of a slice have the next one too"
    )


def test_who_has_run_longest_gives_way_to_who_has_waited_longest() -> None:
    made = trace(job("old", 0, 9000, gpus=4), job("young", 700, 9000, gpus=4), job("next", 800, 9000, gpus=4))

    old, young, after = run(made, nodes(1), TURNS, until_s=2500.0).records

    assert _times(old)[:1] == [(0, 1200)] and _times(after)[0][0] == 1200
    assert _times(young)[:1] == [(700, 1800)]


def test_work_whose_start_takes_long_has_longer_turns() -> None:
    made = trace(job("a", 0, 4000, gpus=8), job("b", 10, 4000, gpus=8))

    a, b = run(made, nodes(1), TURNS, models=_costing(0.0, start_s=200.0)).records

    assert _times(a)[0] == (0, 1200), "five times the 200 s of its start are more than one slice"
    assert _times(b)[0] == (1200, 2400)


def test_work_that_saves_nothing_is_stopped_for_a_turn_only_once() -> None:
    made = trace(job("a", 0, 4000, gpus=8), job("b", 10, 4000, gpus=8))

    a, b = run(made, nodes(1), TURNS, models=_costing(0.0, interval_s=float("inf"), on_request=False)).records

    assert _times(a) == [(0, 600), (1200, 5200)]
    assert _times(b) == [(600, 1200), (5200, 9200)]


def test_owners_have_equal_parts_however_many_gangs_they_have() -> None:
    gangs = {"one": 1, "two": 2, "many": 4}
    jobs = [replace(job(f"{u}{n}", n, 60_000, gpus=8), user=u) for u, count in gangs.items() for n in range(count)]

    def parts(profile: Profile) -> dict[str, float]:
        records = run(trace(*jobs), nodes(1), profile, until_s=42_000.0).records
        held = {user: [t - f for r in records if r.user == user for f, t in _times(r)] for user in gangs}
        return {user: round(sum(times) / 42_000.0, 2) for user, times in held.items()}

    assert parts(TURNS) == {"one": 0.14, "two": 0.29, "many": 0.57}, "each gang a seventh"
    assert all(abs(part - 1 / 3) < 0.02 for part in parts(OWNERS).values())


def test_the_same_run_gives_the_same_log() -> None:
    made = trace(*(job(f"j{n}", 37.0 * n, 900.0 + 111 * n, gpus=1 + n % 4) for n in range(30)))

    assert run(made, nodes(2), TURNS).log_sha256 == run(made, nodes(2), TURNS).log_sha256


# ---------------------------------------------------------------- whatever comes

JOBS = st.lists(
    st.tuples(st.integers(0, 4000), st.integers(60, 4000), st.sampled_from((1, 2, 4, 8))), min_size=2, max_size=12
)


def _made(drawn: list[tuple[int, int, int]]) -> Trace:
    return trace(*(job(f"j{n:02}", at_s, took_s, gpus=gpus) for n, (at_s, took_s, gpus) in enumerate(drawn)))


def _waits(job_: TraceJob, record: JobRecord) -> list[tuple[float, float]]:
    """From when to when it waited: before its first run, and between its runs."""
    times = [(job_.submit_s, job_.submit_s), *_times(record)]
    return [(before[1], after[0]) for before, after in pairwise(times)]


@settings(max_examples=25, deadline=None)
@given(drawn=JOBS, restart_s=st.sampled_from((0.0, 30.0)))
def test_each_run_that_is_stopped_has_lasted_half_a_slice_and_a_gang_is_stopped_once_a_slice(
    drawn: list[tuple[int, int, int]], restart_s: float
) -> None:
    made = _made(drawn)

    outcome = run(made, nodes(1), TURNS, models=_costing(restart_s))

    for record in outcome.records:
        stops = [to_s for _, to_s in _times(record)[:-1]]
        assert all(to_s - from_s >= SLICE_S / 2 for from_s, to_s in _times(record)[:-1]), record
        assert len({stop // SLICE_S for stop in stops}) == len(stops) == record.preemptions


@settings(max_examples=25, deadline=None)
@given(drawn=JOBS, restart_s=st.sampled_from((0.0, 30.0)))
def test_nobody_waits_longer_than_one_slice_for_each_that_waits_before_it_and_two_more(
    drawn: list[tuple[int, int, int]], restart_s: float
) -> None:
    made = _made(drawn)

    outcome = run(made, nodes(1), TURNS, models=_costing(restart_s))

    _check_waits(made, outcome)


def _check_waits(made: Trace, outcome: Outcome) -> None:
    waits = [(w, r.id) for j, r in zip(made.jobs, outcome.records, strict=True) for w in _waits(j, r)]
    for (from_s, to_s), id in waits:
        before = sum(1 for (since_s, until_s), other in waits if other != id and since_s <= from_s < until_s)
        assert to_s - from_s <= (before + 3) * SLICE_S, f"{id} waited from {from_s} to {to_s}, {before} before it"


def test_by_turns_a_long_queue_is_served_within_its_bound_on_several_nodes() -> None:
    several: tuple[NodeSpec, ...] = nodes(4)
    made = _made([(13 * n, 500 + 97 * n % 3000, (1, 2, 4, 8)[n % 4]) for n in range(60)])

    _check_waits(made, run(made, several, TURNS, models=_costing(30.0)))
