"""What holds of every policy that comes with rayorch, whatever it prefers: all invariants in lives with faults, and the
same decisions by a planner that remembers nothing. `test_determinism` has the rest."""

from __future__ import annotations

import pkgutil
from dataclasses import replace

import pytest

import rayorch.policies
from rayorch.config.profile import POLICY_SLOTS
from rayorch.core.types import State
from rayorch.sim.trace.run import run
from tests.policies.registry import REGISTERED, Registered, modules, used_by, whole_profiles
from tests.sim import test_random_groups as groups
from tests.sim.lives import PROFILE, Life
from tests.sim.trace.replanned import planned_twice
from tests.sim.trace.test_properties import QUEUES, ROUGH, crowd
from tests.sim.trace.worlds import nodes

HELPERS = frozenset({"rayorch.policies.queue_order.tree"})
"""Modules beside the policies that have none themselves."""
NO_POLICIES = frozenset({"default", "presets"})
"""What is in `rayorch.policies` beside the packages of the slots."""
LIVES, EVENTS = (1, 4), 120
"""Seeds: 1 of those that are rich (arrays, joint gangs, reservations, …), 4 of the plain ones."""
JOBS = 16


def _homes() -> set[str]:
    return {module.__name__ for slot in POLICY_SLOTS for module in modules(slot)}


def _named(policy: Registered) -> str:
    return str(policy)


# ---------------------------------------------------------------- nothing is left out


def test_every_module_of_policies_has_a_registered_one() -> None:
    found = {policy.function.__module__ for policy in REGISTERED}
    assert _homes() - HELPERS == found, "a function that is called as a policy is, but has other types, isn't found"

    beside = {module.name for module in pkgutil.iter_modules(rayorch.policies.__path__)}
    packages = {name.split(".")[2] for name in _homes()}
    assert beside - NO_POLICIES == packages, "a package that belongs to no slot of a profile"


def test_what_a_profile_uses_is_registered() -> None:
    known = {policy.function for policy in REGISTERED}
    for name, profile in whole_profiles().items():
        ours = {f for f in used_by(profile) if f.__module__.startswith("rayorch.policies.")}
        assert ours, name
        assert ours <= known, name


def test_each_is_registered_once_under_a_name_that_a_document_takes() -> None:
    assert len({str(policy) for policy in REGISTERED}) == len(REGISTERED)
    for policy in REGISTERED:
        assert getattr(policy.profile(), policy.slot) is policy.function


# ---------------------------------------------------------------- invariants


@pytest.mark.parametrize("policy", REGISTERED, ids=_named)
def test_nothing_is_lost_whatever_happens(policy: Registered) -> None:
    """Nodes die, owners are killed, messages come late or twice; every invariant is looked at after every event."""
    used = policy.profile()
    bounds = {
        name: getattr(PROFILE, name) for name in ("lease_s", "start_deadline_s", "retry_backoff_s", "block_node_s")
    }
    for seed in LIVES:
        Life(seed, EVENTS, profile=replace(used, **bounds)).run()


@pytest.mark.parametrize("policy", [one for one in REGISTERED if one.slot == "scale"], ids=_named)
def test_groups_come_to_rest(policy: Registered, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where nodes come and go by groups: in the end there is none too many."""
    monkeypatch.setattr(groups, "EVENTS", EVENTS)
    for seed in LIVES:
        used = replace(groups.PROFILE, scale=policy.function)  # type: ignore[arg-type]  # by its slot
        sim = groups.random_life(seed, profile=used)
        sim.run_to_rest(1500.0)


@pytest.mark.parametrize("policy", REGISTERED, ids=_named)
def test_a_planner_that_remembers_nothing_decides_the_same(policy: Registered, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what a policy says of itself (for how long a key or a score holds) is true."""
    turns = planned_twice(monkeypatch)
    outcome = run(crowd(2, JOBS), nodes(3), policy.profile(), queues=QUEUES, models=ROUGH, seed=3)

    assert len(turns) > 20
    assert all(record.state is State.SUCCEEDED for record in outcome.records)
