"""A profile from import strings: the names of policies become the functions themselves."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from rayorch.core.errors import SpecError
from rayorch.core.policy import OrderPolicy, Profile, RecoverPolicy, ScalePolicy, ScorePolicy, SizePolicy, VictimPolicy

PolicyFunction = Callable[..., object]

DEFAULT_POLICIES: Mapping[str, str] = {
    "order": "rayorch.policies.order.priority:key",
    "score": "rayorch.policies.place.best_fit:score",
    "victims": "rayorch.policies.victims.lost_work:cost",
    "train_size": "rayorch.policies.adapt.elastic:size",
    "serve_size": "rayorch.policies.serve.demand:size",
    "recover": "rayorch.policies.recover.whole_gang:recover",
    "scale": "rayorch.policies.scale.gangs:wanted",
}
"""The policies in force where a profile names no other, by slot of `core.policy.Profile`."""

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "order": ("workload", "now_s"),
    "score": ("bundle", "node", "free"),
    "victims": ("workload", "allocation", "now_s"),
    "train_size": ("workload", "now_s"),
    "serve_size": ("workload", "now_s"),
    "recover": ("workload", "allocation", "lost_nodes", "now_s"),
    "scale": ("waiting",),
}
"""What each slot's function is called with; see `core.policy`."""


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """A profile as text can say it: import strings ("module:function") and knobs by their field names."""

    name: str = "default"
    policies: Mapping[str, str] = field(default_factory=dict)
    knobs: Mapping[str, float | bool] = field(default_factory=dict)


def load_profile(settings: ProfileSettings | None = None, field_path: str = "spec.policies") -> Profile:
    """The profile with its functions imported; SpecError names the slot of a policy that does not exist."""
    settings = settings or ProfileSettings()
    for slot in settings.policies:
        if slot not in DEFAULT_POLICIES:
            raise SpecError(f"{field_path}.{slot}", f"is no policy; there are {', '.join(DEFAULT_POLICIES)}")
    functions = {
        slot: load_function(settings.policies.get(slot, default), f"{field_path}.{slot}")
        for slot, default in DEFAULT_POLICIES.items()
    }
    for slot, function in functions.items():
        _check_takes(function, _ARGUMENTS[slot], f"{field_path}.{slot}")
    profile = Profile(
        name=settings.name,
        order=cast(OrderPolicy, functions["order"]),
        score=cast(ScorePolicy, functions["score"]),
        victims=cast(VictimPolicy, functions["victims"]),
        train_size=cast(SizePolicy, functions["train_size"]),
        serve_size=cast(SizePolicy, functions["serve_size"]),
        recover=cast(RecoverPolicy, functions["recover"]),
        scale=cast(ScalePolicy, functions["scale"]),
    )
    return replace(profile, **settings.knobs)  # type: ignore[arg-type]  # names and types were checked by the document


def load_function(path: str, field_path: str) -> PolicyFunction:
    """What "module:function" names; SpecError when there is no such module, or no such function in it."""
    module_name, colon, function_name = path.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise SpecError(field_path, f'must be an import string "module:function", got {path!r}')
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever its own code raises
        raise SpecError(field_path, f"can't import {module_name}: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SpecError(field_path, f"{module_name} has no function {function_name}")
    return cast(PolicyFunction, function)


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
