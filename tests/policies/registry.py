"""Every policy that comes with rayorch, found where users' names are looked up: a new one is in all tests by itself."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, get_args, get_type_hints

from rayorch.config import PRESETS, ProfileSettings, load_preset, load_profile
from rayorch.config.profile import HOMES, POLICY_SLOTS
from rayorch.core.policy import Profile
from rayorch.experiment.profiles import profile_of
from rayorch.policies.place import spread
from tests.scenes import LIVELY
from tests.source_tree import ROOT

TYPES = get_type_hints(Profile)
FILES = tuple(sorted((ROOT / "configs" / "profiles").glob("*.yaml")))


@dataclass(frozen=True, slots=True)
class Registered:
    """A policy: its slot, the text by which a document names it, and the function."""

    slot: str
    name: str
    function: Callable[..., object]

    def __str__(self) -> str:
        return f"{self.slot}-{self.name}"

    def profile(self) -> Profile:
        """The default with it in its slot, as a document that names it has it; one that ranks running work evicts."""
        settings = ProfileSettings(name=str(self), policies={self.slot: self.name})
        made = load_profile(settings)
        if getattr(self.function, "ranks", None):
            made = replace(made, eviction=replace(made.eviction, by_order=True))
        if self.slot == "moves":  # lives are short, and what lies close together needs none
            made = replace(made, defragment=LIVELY, score=spread.score)
        return made


def modules(slot: str) -> Iterator[ModuleType]:
    """All that are in the package of a slot."""
    package = importlib.import_module(f"rayorch.policies.{HOMES[slot][0]}")
    for found in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{package.__name__}.{found.name}")


def policies_in(module: ModuleType, slot: str) -> Iterator[Registered]:
    """Its public functions that are called, and answer, as the slot wants it."""
    takes, answers = get_args(TYPES[slot])
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if name.startswith("_") or function.__module__ != module.__name__:
            continue
        hints: dict[str, Any] = get_type_hints(function)
        if hints.pop("return", None) == answers and list(hints.values()) == list(takes):
            yield Registered(slot, f"{module.__name__.rpartition('.')[2]}:{name}", function)


REGISTERED: tuple[Registered, ...] = tuple(
    policy for slot in POLICY_SLOTS for module in modules(slot) for policy in policies_in(module, slot)
)


def whole_profiles() -> dict[str, Profile]:
    """The presets and the profiles of configs/profiles/, by how a user names them."""
    presets = {name: load_preset(name) for name in PRESETS}
    return {**presets, **{f"configs/profiles/{path.name}": profile_of(str(path)) for path in FILES}}


def every_profile() -> dict[str, Profile]:
    """Those, and the default with each registered policy in turn."""
    return {**whole_profiles(), **{str(policy): policy.profile() for policy in REGISTERED}}


def used_by(profile: Profile) -> set[Callable[..., object]]:
    """The policies of a profile that have a home."""
    return {getattr(profile, slot) for slot in POLICY_SLOTS}
