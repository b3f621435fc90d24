"""Turns: the phases by hand, and the profile that combines turns, parts kept apart and moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rayorch.core.decisions import Start
from rayorch.core.errors import SpecError
from rayorch.core.ordering import OrderKnobs, OrderView, rank_changes_s, rank_of
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.core.types import Kind, State, StopCause, Workload
from rayorch.experiment.profiles import profile_of
from rayorch.policies.order.gandiva import CAME, HAD_TURN, IN_TURN, WAITS, begun_s, keeps, key, owner_key, phase
from rayorch.policies.place import apart
from tests.core.test_consolidation import saved, seats
from tests.scenes import NOW, node, pending, running, snapshot, stopped
from tests.source_tree import ROOT

SLICE_S = 600.0
BEGUN = begun_s(NOW, SLICE_S)
FILE = ROOT / "configs" / "profiles" / "gandiva.yaml"


@pytest.fixture(scope="module")
def profile() -> Profile:
    """The one in configs/profiles."""
    return profile_of(str(FILE))


def _runs(since_s: float, start_took_s: float = 0.0, **more: object) -> Workload:
    work, _ = running("w", ["n1"], gpu=2, started_s=since_s)
    return replace(work, ready_s=since_s + start_took_s, **more)  # type: ignore[arg-type]


def test_slices_begin_at_the_same_time_for_all_and_rounding_does_not_hide_one() -> None:
    assert [begun_s(at, SLICE_S) for at in (0.0, 599.9, 600.0, 1199.9999999)] == [0, 0, 600, 1200]


def test_work_has_had_its_turn_when_it_ran_for_half_a_slice_and_five_times_its_start() -> None:
    def at(work: Workload) -> int:
        return phase(work, BEGUN, SLICE_S)

    assert at(_runs(BEGUN - 300)) == HAD_TURN and at(_runs(BEGUN - 299)) == IN_TURN
    assert at(_runs(BEGUN - 500, 100.0)) == HAD_TURN and at(_runs(BEGUN - 499, 100.0)) == IN_TURN
    assert at(replace(_runs(BEGUN - 900), ready_s=None)) == IN_TURN, "it has not begun to work"
    assert at(replace(_runs(BEGUN - 900), state=State.STOPPING)) == IN_TURN, "it is leaving already"
    assert at(pending("w", submitted_s=BEGUN - 1)) == WAITS and at(pending("w", submitted_s=BEGUN)) == CAME
    back = replace(pending("w", submitted_s=0.0), requeued_s=BEGUN + 5)
    assert at(back) == CAME, "who was stopped when this slice began takes nobody's room before the next"


def test_only_what_saves_its_work_is_stopped_for_turns() -> None:
    assert keeps(_runs(0.0)), "it was never stopped: nobody knows"
    assert keeps(_runs(0.0, attained_gpu_s=400.0, progress_s=100.0)) and not keeps(
        _runs(0.0, attained_gpu_s=402.0, progress_s=100.0)
    )
    resized = _runs(0.0, attained_gpu_s=2000.0, progress_s=0.0, resized_s=1000.0)
    assert keeps(resized), "what it did before its seats changed is not lost"
    for kind in (Kind.GANG, Kind.SERVE):
        work = _runs(0.0)
        assert not keeps(replace(work, spec=replace(work.spec, kind=kind)))


def test_ranks_change_when_the_next_slice_begins_and_only_those_of_who_runs() -> None:
    view = OrderView(NOW, OrderKnobs(slice_s=SLICE_S))
    assert rank_changes_s(key, _runs(BEGUN - 900), view) == BEGUN + SLICE_S
    assert rank_changes_s(key, pending("w"), view) is None


def test_who_waits_outranks_who_has_had_its_turn_and_nobody_else() -> None:
    had, turn = _runs(BEGUN - 900), _runs(BEGUN - 10)
    waits, came = pending("x", submitted_s=BEGUN - 50), pending("y", submitted_s=NOW)
    view = OrderView(NOW, OrderKnobs(slice_s=SLICE_S), workloads=(had, turn, waits, came))

    for policy in (key, owner_key):
        ranks = [found[0] for work in (turn, waits, had, came) if (found := rank_of(policy, work, view)) is not None]
        assert ranks == sorted(ranks) and len(set(ranks)) == 4, policy.__name__
    important = pending("z", priority=1, submitted_s=NOW)
    found = rank_of(key, important, view)
    assert found is not None and found[0] < ranks[0], "priorities go before turns"


# ---------------------------------------------------------------- the profile


def test_the_profile_takes_turns_and_keeps_parts_apart(profile: Profile) -> None:
    assert profile.order is key and profile.eviction.by_order and profile.ordering.slice_s == 1800.0
    assert profile.score is apart.score and profile.device is apart.device
    begun = begun_s(NOW, 1800.0)
    (work, held), waits = running("w", ["n1"], gpu=8, started_s=begun - 900), pending("x", gpu=8, submitted_s=begun - 5)
    made = plan(snapshot([node("n1")], [(replace(work, ready_s=begun - 900), held), waits]), profile)
    assert stopped(made) == {"w": StopCause.PREEMPTED}


def test_the_profile_empties_a_little_used_node_by_a_move_while_nobody_waits(profile: Profile) -> None:
    nodes = [node("n1", 8), node("n2", 8)]
    work = [saved("a", "n1", gpu=1), saved("b", "n2", gpu=4), saved("c", "n2", gpu=2)]
    made = plan(snapshot(nodes, work), profile)
    assert stopped(made) == {"a": StopCause.MOVED} and seats(made) == {"a": ["n2"]}, "one node is partly used, not two"


def test_the_profile_puts_a_part_on_a_free_gpu_before_it_shares_one(profile: Profile) -> None:
    where = replace(node("n1", 2), exact=True)
    first = running("a", ["n1"], gpu=0.5)
    made = plan(snapshot([where], [first, pending("b", gpu=0.5)]), profile)
    assert [member.devices for d in made.decisions if isinstance(d, Start) for member in d.members] == [(1,)]


@pytest.mark.parametrize("slice_s", [0, -600.0, float("nan"), float("inf"), True, "600"])
def test_a_length_of_turns_that_is_none_is_refused(slice_s: float) -> None:
    with pytest.raises(SpecError, match="slice_s: must be a finite number of seconds above 0"):
        OrderKnobs(slice_s=slice_s)
