"""Run cases: one session with the listed actions, or rounds of all of them, and count agreement by action."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rayorch.core.eviction import Action
from rayorch.core.planner import plan
from rayorch.core.policy import Profile
from rayorch.policies.presets.kai import PRESET
from rayorch.sim.conformance.adapter import apply, snapshot_of
from rayorch.sim.conformance.cases import ROUNDS, Case
from rayorch.sim.conformance.compare import Difference, difference, happened
from rayorch.sim.conformance.pods import World

BEGIN_S = 1_000_000.0
ROUND_S = 1.0
"""How much time passes between two rounds: the cases follow on each other at once."""

ProfileOf = Callable[[Case], Profile]
"""The profile that a case is run under."""


def kai_profile(case: Case) -> Profile:
    """The preset that promises KAI's behaviour, with the case's actions alone.

    As in the original harness consolidation looks at any number of victims, and in rounds gangs have no time to be
    below their minimum.
    """
    knobs = replace(
        PRESET.eviction,
        passes=tuple(Action(action) for action in case.actions),
        consolidation_victims=-1,
        stale_grace_s=0.0 if case.mode == ROUNDS else PRESET.eviction.stale_grace_s,
    )
    return replace(PRESET, eviction=knobs)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one case went. `unstable`: what had been reached did not stay in the further rounds."""

    case: Case
    difference: Difference
    unstable: bool = False

    @property
    def agrees(self) -> bool:
        """Placed and evicted as expected, and it stayed so."""
        return not self.difference and not self.unstable


def judge(case: Case, profile_of: ProfileOf) -> Verdict:
    """Run one case on the planner."""
    profile = profile_of(case)
    world = World.of(case, BEGIN_S)
    rounds = case.rounds_until_match if case.mode == ROUNDS else 1
    for number in range(rounds):
        if number:
            world.settle(ROUND_S)
        apply(world, plan(snapshot_of(world), profile))
    found = difference(case, world)
    reached = happened(world)
    if case.mode != ROUNDS:
        return Verdict(case, found)
    for _ in range(case.rounds_after_match):
        world.settle(ROUND_S)
        apply(world, plan(snapshot_of(world), profile))
        after = happened(world)
        if after != reached:
            return Verdict(case, found, unstable=True)
    return Verdict(case, found)


@dataclass(frozen=True, slots=True)
class Tally:
    """Agreement over many cases; `by_action`: action -> (agree, cases)."""

    cases: int
    agree: int
    stability_broken: int
    by_action: dict[str, tuple[int, int]]


def tally(verdicts: Iterable[Verdict]) -> Tally:
    """Count."""
    by_action: dict[str, tuple[int, int]] = {}
    broken = 0
    for verdict in verdicts:
        agree, cases = by_action.get(verdict.case.group, (0, 0))
        by_action[verdict.case.group] = (agree + verdict.agrees, cases + 1)
        broken += verdict.unstable
    return Tally(
        cases=sum(cases for _, cases in by_action.values()),
        agree=sum(agree for agree, _ in by_action.values()),
        stability_broken=broken,
        by_action=dict(sorted(by_action.items())),
    )
