"""Frozen values with some fields changed, sooner than `dataclasses.replace` does it for a value of many fields.

A frozen dataclass sets each of its fields by a call. A class of the same slots that is not frozen is filled by plain
assignments, and then becomes one of the frozen class: their layout is the same. For each class and each set of fields
that are changed there is one function of such assignments, made when it is first asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")

_CHANGERS: dict[tuple[type, tuple[str, ...]], Callable[..., object]] = {}
"""As many as there are calls of `changed` in the code."""


def changed(value: T, **fields: object) -> T:
    """`dataclasses.replace` for a class of several fields that are all given when it is made.

    KeyError for a field that it does not have, TypeError for another class.
    """
    key = (type(value), tuple(fields))
    change = _CHANGERS.get(key)
    if change is None:
        change = _CHANGERS[key] = _changer(*key)
    return cast(T, change(value, *fields.values()))


def _changer(cls: type, changes: tuple[str, ...]) -> Callable[..., object]:
    """The function of (old value, what these fields are to be)."""
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields]
    frozen_slots = "__slots__" in vars(cls) and not hasattr(cls, "__post_init__")
    if not frozen_slots or any(not field.init or field.kw_only for field in fields):
        raise TypeError(f"{cls.__name__} is not made of slots that are all given when it is made")
    if unknown := [name for name in changes if name not in names]:
        raise KeyError(f"{cls.__name__} has no field {unknown[0]}")
    namespace: dict[str, object] = {"Open": type(f"Open{cls.__name__}", (), {"__slots__": tuple(names)}), "cls": cls}
    sources = [f"changed_{name}" if name in changes else f"old.{name}" for name in names]
    lines = [
        f"def change({', '.join(('old', *(f'changed_{name}' for name in changes)))}):",
        " new = Open()",
        *(f" new.{name} = {source}" for name, source in zip(names, sources, strict=True)),
        " new.__class__ = cls",
        " return new",
    ]
    exec("\n".join(lines), namespace)  # as dataclasses makes its own methods; the names are those of the fields
    return cast("Callable[..., object]", namespace["change"])
