"""The `models` section of the Cluster document: which GPU model a workload gets that names several."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rayorch.config.fields import Duration, Model

DURATIONS = frozenset({"upgrade_cooldown", "upgrade_after_checkpoint"})
"""Knobs that are lengths of time: in core their names end in `_s`."""


class ModelsSection(Model):
    """The knobs of `core.model_choice.ModelKnobs`; what is left out is the preset's."""

    next_before_borrowing: bool | None = None
    evict_before_next: bool | None = None
    evict_before_borrowing: bool | None = None
    by_score: bool | None = None
    upgrade: bool | None = None
    upgrade_gain: Annotated[float, Field(ge=0, le=1)] | None = None
    upgrade_cooldown: Duration | None = None
    upgrade_after_checkpoint: Duration | None = None

    def to_knobs(self) -> dict[str, float | bool]:
        """By the field names of ModelKnobs."""
        given: dict[str, float | bool] = self.model_dump(exclude_none=True)
        return {f"{name}_s" if name in DURATIONS else name: value for name, value in given.items()}
