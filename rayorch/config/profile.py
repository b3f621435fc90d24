"""A profile from import strings: the names of policies become the functions themselves."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from pydantic.alias_generators import to_camel

from rayorch.core.errors import SpecError
from rayorch.core.policy import PlacementKnobs, Profile

PolicyFunction = Callable[..., object]

PRESETS = ("default", "kai", "kueue", "slurm", "volcano", "yunikorn")
"""The profiles that come with rayorch: one module each in `rayorch.policies.presets`."""

POLICY_SLOTS: Mapping[str, tuple[str, ...]] = {
    "order": ("workload", "view"),
    "queue_order": ("head", "view"),
    "score": ("bundle", "node", "view"),
    "device": ("bundle", "node", "view"),
    "victims": ("workload", "allocation", "now_s"),
    "train_size": ("workload", "now_s"),
    "serve_size": ("workload", "now_s"),
    "recover": ("workload", "allocation", "lost_nodes", "now_s"),
    "scale": ("waiting",),
    "moves": ("view",),
}
"""The slots of a profile that take a function, and what it is called with; see `core.policy`."""

HOMES: Mapping[str, tuple[str, str]] = {
    "order": ("order", "key"),
    "queue_order": ("queue_order", "key"),
    "score": ("place", "score"),
    "device": ("place", "device"),
    "victims": ("victims", "cost"),
    "train_size": ("adapt", "size"),
    "serve_size": ("serve", "size"),
    "recover": ("recover", "recover"),
    "scale": ("scale", "wanted"),
    "moves": ("moves", "moves"),
}
"""Where the policies that come with rayorch are, by slot: the package in `rayorch.policies`, and the usual function."""

Knob = float | bool | int | str | tuple[float, ...] | tuple[str, ...] | tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """A profile as text can say it: what differs from the `preset`.

    `policies`: by slot, the name of one of ours ("usage", "las:promoting_key") or an import string
    ("module:function"). `knobs`, `ordering`, `models`, `eviction`, `defragment`, `packing`: values by the field names
    of Profile, OrderKnobs, ModelKnobs, EvictionKnobs, DefragmentKnobs and PackingKnobs. `placement` None, `name` empty:
    the preset's.
    """

    name: str = ""
    policies: Mapping[str, str] = field(default_factory=dict)
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    preset: str = "default"
    ordering: Mapping[str, Knob] = field(default_factory=dict)
    models: Mapping[str, Knob] = field(default_factory=dict)
    eviction: Mapping[str, Knob] = field(default_factory=dict)
    backfill: Mapping[str, Knob] = field(default_factory=dict)
    reservations: Mapping[str, float] = field(default_factory=dict)
    placement: PlacementKnobs | None = None
    defragment: Mapping[str, Knob] = field(default_factory=dict)
    packing: Mapping[str, Knob] = field(default_factory=dict)


def load_profile(settings: ProfileSettings | None = None, field_path: str = "spec.policies") -> Profile:
    """The profile with its functions imported; SpecError names the slot of a policy that does not exist."""
    settings = settings or ProfileSettings()
    for slot in settings.policies:
        if slot not in POLICY_SLOTS:
            raise SpecError(f"{field_path}.{slot}", f"is no policy; there are {', '.join(POLICY_SLOTS)}")
    preset = load_preset(settings.preset, f"{field_path}.preset")
    paths = {slot: _whole_path(slot, path) for slot, path in settings.policies.items()}
    fields = {slot: f"{field_path}.{to_camel(slot)}" for slot in paths}
    functions = {slot: load_function(path, fields[slot]) for slot, path in paths.items()}
    for slot, function in functions.items():
        _check_takes(function, POLICY_SLOTS[slot], fields[slot])
    profile = replace(preset, name=settings.name or preset.name, **functions)  # type: ignore[arg-type]  # by slot
    ordering = replace(profile.ordering, **settings.ordering)  # type: ignore[arg-type]  # checked by the document
    models = replace(profile.models, **settings.models)  # type: ignore[arg-type]  # checked by the document
    eviction = replace(profile.eviction, **settings.eviction)  # type: ignore[arg-type]  # checked by the document
    backfill = replace(profile.backfill, **settings.backfill)  # type: ignore[arg-type]  # checked by the document
    reservations = replace(profile.reservations, **settings.reservations)
    defragment = replace(profile.defragment, **settings.defragment)  # type: ignore[arg-type]  # as above
    profile = replace(profile, ordering=ordering, models=models, eviction=eviction, defragment=defragment)
    packing = replace(profile.packing, **settings.packing)  # type: ignore[arg-type]  # as above
    profile = replace(profile, backfill=backfill, reservations=reservations, packing=packing)
    if settings.placement is not None:
        profile = replace(profile, placement=settings.placement)
    return replace(profile, **settings.knobs)  # type: ignore[arg-type]  # checked by the document


def load_preset(name: str, field_path: str = "spec.policies.preset") -> Profile:
    """One of the profiles that come with rayorch; SpecError for a name that is none of PRESETS."""
    if name not in PRESETS:
        raise SpecError(field_path, f"is none of {', '.join(PRESETS)}: {name!r}")
    preset = importlib.import_module(f"rayorch.policies.presets.{name}").PRESET
    assert isinstance(preset, Profile), f"{name} is no profile"
    return preset


def _whole_path(slot: str, path: str) -> str:
    """The import string of a policy: where only a name is given, of one that comes with rayorch."""
    module, colon, function = path.partition(":")
    if not module.isidentifier():
        return path
    package, usual = HOMES[slot]
    if colon and importlib.util.find_spec(f"rayorch.policies.{package}.{module}") is None:
        return path
    return f"rayorch.policies.{package}.{module}:{function if colon else usual}"


def load_function(path: str, field_path: str) -> PolicyFunction:
    """What "module:function" names; SpecError when there is no such module, or no such function in it."""
    module_name, colon, function_name = path.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise SpecError(field_path, f'must be an import string "module:function", got {path!r}')
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever its own code raises
        if (ours := _beside(module_name)) and module_name.rpartition(".")[2] not in ours:
            raise SpecError(field_path, f"can't import {module_name}: there are only {', '.join(ours)}") from error
        raise SpecError(field_path, f"can't import {module_name}: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SpecError(field_path, f"{module_name} has no function {function_name}")
    return cast(PolicyFunction, function)


def _beside(module_name: str) -> list[str]:
    """The policies that come with rayorch for this slot, if it is one of those that is named."""
    parent, _, _ = module_name.rpartition(".")
    if parent not in {f"rayorch.policies.{package}" for package, _ in HOMES.values()}:
        return []
    return sorted(found.name for found in pkgutil.iter_modules(importlib.import_module(parent).__path__))


def _check_takes(function: PolicyFunction, arguments: tuple[str, ...], field_path: str) -> None:
    """SpecError for a function that can't be called so: found now, not in every turn of the loop."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some that are written in C don't say
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        wanted = ", ".join(arguments)
        raise SpecError(field_path, f"can't be called as a policy is, with ({wanted}): {error}") from error
