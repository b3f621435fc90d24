"""Amounts of named resources, exact: integers of 1/10000 (`UNIT`), which is Ray's own fixed point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rayorch.core.errors import SpecError

UNIT = 10_000
"""One whole GPU, CPU or byte in stored units."""

GPU = "GPU"
CPU = "CPU"
MODEL_LABEL = "ray.io/accelerator-type"
"""The node label that names the model of the node's GPUs, as Ray and KubeRay set it."""

MODEL_PREFIX = "GPU:"
"""Of a resource that queues may limit beside "GPU": "GPU:H100" counts those of that model. No node is asked for it."""

MAX_UNITS = 2**62
"""No stored amount may exceed this; larger input is refused instead of wrapping."""


@dataclass(frozen=True, slots=True)
class Resources:
    """An exact amount of named resources; absent means zero.

    `items` is sorted by name and holds no zero. Negative amounts exist only as differences.
    """

    items: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of_units(amounts: Mapping[str, int]) -> Resources:
        """Build from stored units (1/10000)."""
        if len(amounts) == 1:
            ((name, n),) = amounts.items()
            return Resources(((name, n),) if n else ())
        return Resources(tuple(sorted((name, n) for name, n in amounts.items() if n != 0)))

    @staticmethod
    def of(amounts: Mapping[str, float], field_path: str = "resources") -> Resources:
        """Build from natural numbers as users write them ({"GPU": 0.5, "CPU": 4}).

        Raises SpecError for a negative, NaN, infinite or overflowing amount, or one finer than 1/10000.
        """
        units: dict[str, int] = {}
        for name, amount in amounts.items():
            path = f"{field_path}.{name}"
            if isinstance(amount, bool) or not isinstance(amount, int | float):
                raise SpecError(path, f"must be a number, got {amount!r}")
            if isinstance(amount, float) and not math.isfinite(amount):
                raise SpecError(path, f"must be finite, got {amount!r}")
            if amount < 0:
                raise SpecError(path, f"must not be negative, got {amount!r}")
            scaled = amount * UNIT
            if scaled > MAX_UNITS:
                raise SpecError(path, f"is too large: {amount!r}")
            whole = round(scaled)
            if abs(scaled - whole) > 1e-6 * max(1.0, abs(scaled)) or (amount > 0 and whole == 0):
                raise SpecError(path, f"is finer than 1/{UNIT}: {amount!r}")
            units[name] = whole
        return Resources.of_units(units)

    def units(self, name: str) -> int:
        """The amount of one resource in stored units, 0 when absent."""
        for key, n in self.items:
            if key == name:
                return n
        return 0

    @property
    def gpu_units(self) -> int:
        """GPUs in stored units; 5000 is half a device."""
        return self.units(GPU)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self.items)

    def __bool__(self) -> bool:
        return bool(self.items)

    def __add__(self, other: Resources) -> Resources:
        if not other.items:
            return self
        amounts = dict(self.items)
        for name, n in other.items:
            amounts[name] = amounts.get(name, 0) + n
        return Resources.of_units(amounts)

    def __sub__(self, other: Resources) -> Resources:
        if not other.items:
            return self
        amounts = dict(self.items)
        for name, n in other.items:
            amounts[name] = amounts.get(name, 0) - n
        return Resources.of_units(amounts)

    def times(self, count: int) -> Resources:
        """This amount `count` times over."""
        if count == 1:
            return self
        return Resources.of_units({name: n * count for name, n in self.items})

    def fits_in(self, room: Resources) -> bool:
        """Whether every amount is at most what `room` has."""
        have = dict(room.items)
        return all(n <= have.get(name, 0) for name, n in self.items)

    def floor_zero(self) -> Resources:
        """The same with negative amounts dropped."""
        return Resources.of_units({name: n for name, n in self.items if n > 0})

    def to_floats(self) -> dict[str, float]:
        """As Ray takes it: natural numbers, whole ones as whole floats."""
        return {name: n / UNIT for name, n in self.items}


def gpus_of_model(model: str, units: int) -> Resources:
    """GPUs as they count against limits on their model; nothing where the model is not known."""
    return Resources(((f"{MODEL_PREFIX}{model}", units),)) if model and units else Resources()


def total(parts: Iterable[Resources]) -> Resources:
    """The sum of many amounts."""
    parts = tuple(parts)
    if not parts:
        return Resources()
    first = parts[0]
    if len(parts) == 1 or all(part is first for part in parts):
        return first.times(len(parts))
    amounts: dict[str, int] = {}
    for part in parts:
        for name, n in part.items:
            amounts[name] = amounts.get(name, 0) + n
    return Resources.of_units(amounts)
