"""A quicker way for frozen values through pickle, by which Ray carries them between actors.

A frozen dataclass with slots asks at each value which fields its class has, on both sides. Here a value is its class
called with its fields in order, which both sides do without Python code of our own. What is pickled otherwise (another
release's values, a subclass) is read as before.
"""

from __future__ import annotations

import copyreg
import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter


def register(classes: Iterable[type]) -> None:
    """From now on this process writes these dataclasses so; those that can't be made from their fields stay as they
    are."""
    for cls in classes:
        fields = dataclasses.fields(cls)
        if fields and all(field.init and not field.kw_only for field in fields):
            copyreg.pickle(cls, _reducer(cls, [field.name for field in fields]))


def _reducer(cls: type, names: list[str]) -> Callable[[object], tuple[type, tuple[object, ...]]]:
    values = attrgetter(*names)
    if len(names) == 1:
        return lambda value: (cls, (values(value),))
    return lambda value: (cls, values(value))
