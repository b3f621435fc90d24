"""Frozen values with some fields changed, sooner than `dataclasses.replace` does it for a value of many fields.

A frozen dataclass sets each of its fields by a call. A class of the same slots that is not frozen is filled by plain
assignments, and then becomes one of the frozen class: their layout is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")

_COPIERS: dict[type, Callable[[object], object]] = {}


def changed(value: T, **fields: object) -> T:
    """`dataclasses.replace` for a class of several fields that are all given when it is made.

    KeyError for a field that it does not have, TypeError for another class.
    """
    cls = type(value)
    copy = _COPIERS.get(cls)
    if copy is None:
        copy = _COPIERS[cls] = _copier(cls)
    new = copy(value)
    try:
        for name, field in fields.items():
            setattr(new, name, field)
    except AttributeError:
        raise KeyError(f"{cls.__name__} has no field among {', '.join(fields)} of that name") from None
    new.__class__ = cls
    return cast(T, new)


def _copier(cls: type) -> Callable[[object], object]:
    """What makes an object with the same values that can still be changed."""
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields]
    frozen_slots = "__slots__" in vars(cls) and not hasattr(cls, "__post_init__")
    if not frozen_slots or any(not field.init or field.kw_only for field in fields):
        raise TypeError(f"{cls.__name__} is not made of slots that are all given when it is made")
    namespace: dict[str, object] = {"Open": type(f"Open{cls.__name__}", (), {"__slots__": tuple(names)})}
    lines = ["def copy(old):", " new = Open()", *(f" new.{name} = old.{name}" for name in names), " return new"]
    exec("\n".join(lines), namespace)  # as dataclasses makes its own methods; the names are those of the fields
    return cast("Callable[[object], object]", namespace["copy"])
