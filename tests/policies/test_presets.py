"""The presets: each is a profile, and each documented knob changes the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

import rayorch.policies.presets
from rayorch.config import POLICY_SLOTS, PRESETS, ProfileSettings, load_preset, load_profile, parse_document
from rayorch.config.profile import HOMES
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


@pytest.mark.parametrize(
    ("slot", "name", "function"),
    [
        ("order", "usage", "rayorch.policies.order.usage.key"),
        ("order", "las:promoting_key", "rayorch.policies.order.las.promoting_key"),
        ("queue_order", "drf", "rayorch.policies.queue_order.drf.key"),
        ("score", "spread", "rayorch.policies.place.spread.score"),
        ("order", "rayorch.policies.order.fifo:key", "rayorch.policies.order.fifo.key"),
    ],
)
def test_policies_are_named_shortly_or_by_import_string(slot: str, name: str, function: str) -> None:
    found = getattr(load_profile(ProfileSettings(policies={slot: name})), slot)
    assert f"{found.__module__}.{found.__name__}" == function


def test_every_slot_has_a_home_for_short_names() -> None:
    assert HOMES.keys() == POLICY_SLOTS.keys()
    for slot, (package, function) in HOMES.items():
        policy = getattr(DEFAULT, slot)
        assert policy.__module__.startswith(f"rayorch.policies.{package}.") and policy.__name__ == function


def test_a_module_of_ones_own_may_have_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "myorders.py").write_text("def key(workload, view):\n    return (workload.id,)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_profile(ProfileSettings(policies={"order": "myorders:key"})).order.__module__ == "myorders"
    with pytest.raises(SpecError, match=r"spec\.policies\.order: can't import rayorch.policies.order.nonesuch"):
        load_profile(ProfileSettings(policies={"order": "nonesuch"}))


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("weightAge", -1),
        ("weightAge", float("inf")),
        ("weightAge", "10"),
        ("usageHalfLife", "-1h"),
        ("usageHalfLife", "soon"),
        ("lasThresholdsGpuS", [7200, 3250]),
        ("lasThresholdsGpuS", [0]),
        ("priorityMax", 0),
        ("rhoMax", 0),
        ("slice", "149s"),
        ("fairResources", "GPU"),
        ("strictFifo", 1),
        ("weightResources", {"GPU": -1}),
        ("nonesuch", 1),
    ],
)
def test_a_knob_that_can_not_be_right_is_refused_with_its_field(knob: str, value: object) -> None:
    document = {
        "apiVersion": "rayorch/v1",
        "kind": "Cluster",
        "metadata": {"name": "m"},
        "spec": {"ordering": {knob: value}},
    }
    with pytest.raises(SpecError) as caught:
        parse_document(document)
    assert caught.value.field.startswith(f"spec.ordering.{knob}")


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.policies\.preset: is none of default, kai"):
        load_profile(ProfileSettings(preset="lsf"))
