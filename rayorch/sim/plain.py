"""Core's values from plain data, as a scenario's file has it: numbers for amounts, objects for values within values."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing
from collections.abc import Mapping

from rayorch.core.errors import SpecError
from rayorch.core.resources import GPU, Resources


def fields_of(cls: type, data: Mapping[str, object], path: str = "") -> dict[str, object]:
    """The named fields of a dataclass of core, each as its annotation says. SpecError with the path of a wrong one."""
    hints = typing.get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}
    found = {}
    for name, value in data.items():
        at = f"{path}.{name}" if path else name
        if name not in names:
            raise SpecError(at, f"is not a field of {cls.__name__}; there are {', '.join(sorted(names))}")
        found[name] = value_of(hints[name], value, at)
    return found


def value_of(hint: object, data: object, path: str) -> object:
    """The value that the data stands for. A bare number is that many GPUs where amounts are meant."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType or origin is typing.Union:
        (one,) = [a for a in arguments if a is not type(None)]
        return None if data is None else value_of(one, data, path)
    if hint is Resources:
        amounts = {GPU: data} if isinstance(data, int | float) and not isinstance(data, bool) else data
        if not isinstance(amounts, dict):
            raise SpecError(path, f"must be a number of GPUs or amounts by resource, got {data!r:.80}")
        return Resources.of(amounts, path)
    if origin is tuple:
        return _tuple(arguments, data, path)
    if origin in (collections.abc.Mapping, dict):
        if not isinstance(data, dict):
            raise SpecError(path, f"must be an object, got {data!r:.80}")
        return {key: value_of(arguments[1], value, f"{path}.{key}") for key, value in data.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        known = {member.value: member for member in hint}
        if data not in known:
            raise SpecError(path, f"must be one of {', '.join(map(str, known))}, got {data!r:.80}")
        return known[data]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(data, dict):
            raise SpecError(path, f"must be an object, got {data!r:.80}")
        try:
            return hint(**fields_of(hint, data, path))
        except TypeError as error:
            raise SpecError(path, str(error)) from error
    return data  # scalars: the door checks their types


def _tuple(arguments: tuple[object, ...], data: object, path: str) -> tuple[object, ...]:
    if not isinstance(data, list | tuple):
        raise SpecError(path, f"must be an array, got {data!r:.80}")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(value_of(arguments[0], item, f"{path}[{n}]") for n, item in enumerate(data))
    if len(arguments) != len(data):
        raise SpecError(path, f"must have {len(arguments)} entries, got {len(data)}")
    return tuple(
        value_of(hint, item, f"{path}[{n}]") for n, (hint, item) in enumerate(zip(arguments, data, strict=True))
    )
