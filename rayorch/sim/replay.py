"""Play a scenario from its beginning to its end with every invariant checked, and tell what was expected and seen."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rayorch.sim.checked import CheckedCluster, InvariantBroken
from rayorch.sim.scenario import Played, Scenario
from rayorch.sim.scenario_expect import findings


def play(scenario: Scenario, at_calls: bool = True) -> Iterator[Played]:
    """Each step, then the end. InvariantBroken, with the story, when something happens that never may.

    It is looked for after every tick, with `at_calls` also at every call between two actors.
    """
    cluster = scenario.cluster(partial(CheckedCluster, at_calls=at_calls))
    assert isinstance(cluster, CheckedCluster)
    yield from scenario.play(cluster)
    if scenario.quiet and scenario.groups:
        cluster.run_to_rest(scenario.limit_s)
    elif scenario.quiet:
        cluster.run_to_quiet(scenario.limit_s)
    told = "all has ended, nothing is left" if scenario.quiet else "the end"
    yield Played(cluster.now_s - cluster.start_s, told, tuple(findings(cluster, scenario.end)))


def report(scenario: Scenario, at_calls: bool = True) -> Iterator[tuple[str, bool]]:
    """Lines to show, each with whether all in it is as it should be; the last one is the result."""
    yield scenario.about, True
    wrong = looked = 0
    try:
        for played in play(scenario, at_calls):
            yield f"{played.at_s:7.1f} s  {played.told}", True
            for finding in played.findings:
                looked += 1
                wrong += not finding.holds
                yield f"           {'ok   ' if finding.holds else 'WRONG'}  {finding}", finding.holds
    except InvariantBroken as error:
        yield f"an invariant is broken: {error}", False
        yield "an invariant is broken (the story is above)", False
        return
    if wrong:
        yield f"{wrong} of {looked} expectations do not hold", False
    else:
        yield f"all {looked} expectations hold, and every invariant held at every step", True
