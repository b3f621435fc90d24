"""Options that are several words in one, such as "node=60d,repair=4h": their parts, and the figures in them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rayorch.core.errors import SpecError


def pairs_of(parts: Iterable[str], keys: Sequence[str], field: str, where: str = "") -> dict[str, str]:
    """ "KEY=VALUE" of each part. SpecError for another key, and for one that is given twice. `where`: they stand."""
    given: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.strip().partition("=")
        if key not in keys or not equals or key in given:
            raise SpecError(field, f"takes {', '.join(keys)}{where}, each once; got {part!r}")
        given[key] = value
    return given


def bounded(text: str, least: float, most: float, field: str, name: str, got: str) -> float:
    """A number from `least` to `most`. SpecError for anything else, with what was `got`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise SpecError(field, f"{name} must be {least:g} to {most:g}, got {got!r}")
    return value
