"""Moving to a better GPU model on a simulated cluster: seats kept, work saved, evictions that end; any seed."""

from __future__ import annotations

import json

import pytest

from rayorch.sim.replay import report
from rayorch.sim.scenario import Scenario


def played(steps: list[object], end: dict[str, object], seed: int = 0, upgrade: bool = True) -> None:
    text = {
        "about": "One node of each model.",
        "nodes": [{"name": "a", "gpu": 4, "model": "A100"}, {"name": "h", "gpu": 4, "model": "H100"}],
        "models": {
            "upgrade": upgrade,
            "upgrade_gain": 0.9,
            "upgrade_cooldown_s": 20,
            "upgrade_after_checkpoint_s": 5,
        },
        "seed": seed,
        "steps": steps,
        "end": end,
    }
    lines = list(report(Scenario.parse(json.dumps(text)), at_calls=False))
    assert lines[-1][1], "\n".join(line for line, _ in lines)


def gang(id: str, *models: str, steps: int = 150, **more: object) -> dict[str, object]:
    work = {"checkpoint_every": 10}
    return {"id": id, "members": 1, "gpu": 4, "accelerators": models, "steps": steps, "work": work, **more}


@pytest.mark.parametrize("seed", range(2))
def test_a_gang_moves_once_when_the_better_model_comes_free_and_loses_nothing(seed: int) -> None:
    steps = [
        {"at": 0, "submit": gang("first", "H100", steps=60)},
        {"at": 2, "submit": gang("w", "H100", "A100", expected_s=1000)},
        {"at": 10, "expect": {"states": {"first": "RUNNING", "w": "RUNNING"}}},
    ]
    played(steps, {"states": {"w": "SUCCEEDED"}, "attempts": {"w": 2}}, seed)


def test_it_stays_where_the_profile_does_not_move_it() -> None:
    steps = [
        {"at": 0, "submit": gang("first", "H100", steps=60)},
        {"at": 2, "submit": gang("w", "H100", "A100", expected_s=1000)},
    ]
    played(steps, {"states": {"w": "SUCCEEDED"}, "attempts": {"w": 1}}, upgrade=False)


@pytest.mark.parametrize("seed", range(2))
def test_who_comes_meanwhile_does_not_get_the_seats_that_it_moves_to(seed: int) -> None:
    late = [{"at": 40 + n, "submit": gang(f"late{n}", "H100", steps=30)} for n in range(0, 36, 12)]
    steps = [
        {"at": 0, "submit": gang("first", "H100", steps=45)},
        {"at": 2, "submit": gang("w", "H100", "A100", expected_s=1000)},
        *late,
    ]
    states = {"w": "SUCCEEDED"} | {f"late{n}": "SUCCEEDED" for n in range(0, 36, 12)}
    played(steps, {"states": states}, seed)
