"""Which profile a name means, and what tells one profile from another."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from rayorch.config import PRESETS, load_preset, load_profile
from rayorch.core.errors import SpecError
from rayorch.core.policy import Profile
from rayorch.experiment.documents import cluster_in, documents_in

FIELD = "--profile"

SAMPLES = Path("configs/profiles")
"""Where profiles lie in a clone; only to name one to somebody who leaves the folder out."""


def profiles_of(given: Sequence[str | Profile]) -> tuple[Profile, ...]:
    """The profiles under names that differ; SpecError for one that does not exist, and for none at all."""
    if not given:
        raise SpecError(FIELD, "must name at least one profile")
    found: list[Profile] = []
    names: set[str] = set()
    for one in given:
        profile = one if isinstance(one, Profile) else profile_of(one)
        name, number = profile.name, 2
        while name in names:
            name, number = f"{profile.name}-{number}", number + 1
        names.add(name)
        found.append(replace(profile, name=name))
    return tuple(found)


def profile_of(text: str) -> Profile:
    """A preset by its name, a file with a Cluster document, or "module:NAME" of a Profile. SpecError otherwise."""
    if text in PRESETS:
        return load_preset(text, FIELD)
    if Path(text).suffix in (".yaml", ".yml"):
        return _from_file(Path(text))
    module, colon, name = text.partition(":")
    if colon:
        return _from_module(module, name)
    path = SAMPLES / f"{text}.yaml"
    there = f"; there is {path}" if text and path.is_file() else ""
    raise SpecError(FIELD, f"{text!r} is none of {', '.join(PRESETS)}, no YAML file and no module:NAME{there}")


def _from_file(path: Path) -> Profile:
    document = cluster_in(documents_in(path, FIELD), path, FIELD)
    settings = document.to_core().profile
    return load_profile(settings if settings.name else replace(settings, name=document.metadata.name))


def _from_module(module: str, name: str) -> Profile:
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever its own code raises
        raise SpecError(FIELD, f"can't import {module}:{name}: {type(error).__name__}: {error}") from error
    if not isinstance(found, Profile):
        raise SpecError(FIELD, f"{module}:{name} is no Profile")
    return found


def fingerprint(profile: Profile) -> str:
    """What decides what it does: its knobs, and of each policy its name, with its source where it is none of ours."""
    parts = []
    for one in fields(profile):
        value = getattr(profile, one.name)
        parts.append(f"{one.name}={_of_function(value) if callable(value) else value!r}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _of_function(function: object) -> str:
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}"
    if name.startswith("rayorch."):
        return name  # a run's key has the digest of our own code
    try:
        return f"{name} {inspect.getsource(function)}"  # type: ignore[arg-type]  # a TypeError says that it has none
    except (OSError, TypeError):
        return name
