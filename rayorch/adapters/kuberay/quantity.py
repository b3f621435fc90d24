"""Kubernetes quantities ("500m", "64Gi", 8) as exact numbers."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
LONGEST = 64  # characters; a quantity is short, and Decimal accepts exponents that would fill the memory
FORM = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([kMGTPE]i?|Ki|[num])|[eE]([+-]?\d{1,2}))?", re.ASCII)


def parse_quantity(text: str | int | float) -> Decimal:
    """The number that a quantity means; ValueError for what is none, infinite or not positive nor zero."""
    if isinstance(text, bool):
        raise ValueError(f"not a quantity: {text!r}")
    shown = str(text).strip()
    match = FORM.fullmatch(shown) if len(shown) <= LONGEST else None
    if match is None:
        raise ValueError(f"not a quantity: {shown[:LONGEST]!r}")
    number, suffix, exponent = match.groups()
    value = Decimal(number) * (Decimal(10) ** int(exponent) if exponent else SUFFIXES[suffix or ""])
    if value < 0:
        raise ValueError(f"is negative: {shown!r}")
    return value


def whole(text: str | int | float) -> int:
    """A quantity rounded up to a whole number, as KubeRay and Ray's autoscaler take CPUs, GPUs and bytes."""
    return int(parse_quantity(text).to_integral_value(rounding=ROUND_CEILING))
