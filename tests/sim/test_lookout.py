"""Looking at what is new and what is not at rest gives the same actions as looking at everything, in whole lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rayorch.core.lookout import Lookout
from rayorch.core.policy import Profile
from rayorch.core.reconcile import Action, Known, reconcile
from rayorch.core.runners import RunnerKey, RunnerView
from rayorch.core.snapshot import Snapshot
from rayorch.sim import controller
from tests.sim.lives import Life


class BothWays:
    """In place of `reconcile`: finds out by itself what is new, and compares."""

    def __init__(self) -> None:
        self._lookout = Lookout()
        self._before: list[dict[Any, Any]] = [{}, {}, {}, {}]
        self.looked = self.actions = 0

    def __call__(
        self, snapshot: Snapshot, runners: Mapping[RunnerKey, RunnerView], profile: Profile
    ) -> tuple[Action, ...]:
        expected = reconcile(snapshot, runners, profile)
        if not snapshot.synced:
            return expected
        now: list[dict[Any, Any]] = [
            {w.id: w for w in snapshot.workloads},
            {(a.workload, a.attempt): a for a in snapshot.allocations},
            dict(runners),
            {node.id: node for node in snapshot.nodes},
        ]
        news = [_news(before, after) for before, after in zip(self._before, now, strict=True)]
        keys = {(id, w.attempt) for id in news[0] for known in (self._before, now) if (w := known[0].get(id))}
        self._before = now
        workloads, held, views, nodes = now
        known = Known(workloads, held, views, nodes, snapshot.now_s, profile)
        found = self._lookout.look(known, keys | news[1] | news[2], news[3])
        assert found == expected
        self.actions += len(found)
        self.looked += 1
        return found


def _news(before: dict[Any, Any], after: dict[Any, Any]) -> set[Any]:
    return {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}


@pytest.mark.parametrize("seed", range(10))
def test_a_life_goes_the_same_way(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both = BothWays()
    monkeypatch.setattr(controller, "reconcile", both)
    Life(seed).run()
    assert both.looked > 50 and both.actions > 30
