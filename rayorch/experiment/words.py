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
    """A number from `least` to `most`, which may be infinite. SpecError for anything else; `got`: all that was said."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        bounds = f"{least:g} to {most:g}" if math.isfinite(most) else f"at least {least:g}"
        raise SpecError(field, f"{name} must be {bounds}, got {text!r}{within(text, got)}")
    return value


def within(text: str, whole: str) -> str:
    """ " in 'node=5x,repair=1h'" for a word of it; nothing where it is all."""
    return "" if text == whole else f" in {whole!r}"
