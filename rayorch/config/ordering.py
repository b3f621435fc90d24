"""The `ordering` section of the Cluster document: the knobs of the order policies."""

from __future__ import annotations

from rayorch.config.fields import Duration, Model
from rayorch.config.profile import Knob


class OrderingSection(Model):
    """The knobs of `core.ordering.OrderKnobs`; what is left out is the preset's."""

    strict_fifo: bool | None = None
    usage_half_life: Duration | None = None

    def to_knobs(self) -> dict[str, Knob]:
        """By the field names of OrderKnobs."""
        given = self.model_dump(exclude_none=True)
        return {f"{name}_s" if name in DURATIONS else name: value for name, value in given.items()}


DURATIONS = frozenset({"usage_half_life"})
"""Knobs that are lengths of time: in core their names end in `_s`."""
