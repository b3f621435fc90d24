"""The presets: each is a profile, and each documented knob changes the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

import rayorch.policies.presets
from rayorch.config import PRESETS, ProfileSettings, load_preset, load_profile
from rayorch.core.errors import SpecError
from rayorch.core.planner import plan
from rayorch.policies.default import DEFAULT
from tests.scenes import node, pending, snapshot, started


def test_every_preset_has_its_module_and_the_other_way_round() -> None:
    folder = Path(str(rayorch.policies.presets.__file__)).parent
    assert sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__") == sorted(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_starts_what_fits(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name
    assert started(plan(snapshot([node("n1", 8)], [pending("a", 8)]), preset)) == {"a": ["n1"] * 8}


def test_nothing_configured_is_the_default_preset() -> None:
    assert load_profile() == DEFAULT == load_preset("default")


def test_what_is_set_stands_in_place_of_the_presets() -> None:
    settings = ProfileSettings(preset="kueue", knobs={"lease_s": 7.0}, ordering={"strict_fifo": True})
    profile = load_profile(settings)
    assert (profile.name, profile.lease_s, profile.ordering.strict_fifo) == ("kueue", 7.0, True)


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.policies\.preset: is none of default, kai"):
        load_profile(ProfileSettings(preset="lsf"))
