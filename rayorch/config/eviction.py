"""The `eviction` section of the Cluster document: who may be stopped, shrunk or moved for whom."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rayorch.config.fields import Duration, Model, Patience
from rayorch.core.pace import LEAST_S

DURATIONS = frozenset(
    {
        "exempt",
        "start_worth",
        "whole_node_worth",
        "move_after_checkpoint",
        "move_cooldown",
        "stale_grace",
        "order_worth",
    }
)
"""Knobs that are lengths of time: in core their names end in `_s`."""


class EvictionSection(Model):
    """The knobs of `core.eviction.EvictionKnobs`; what is left out is the preset's."""

    exempt: Duration | None = None
    priority_doubles: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    lazy: bool | None = None
    consolidate: bool | None = None
    start_worth: Duration | None = None
    whole_node_worth: Duration | None = None
    move_after_checkpoint: Duration | None = None
    move_cooldown: Duration | None = None
    moves_per_turn: Annotated[int, Field(ge=0, le=1000)] | None = None
    by_order: bool | None = None
    order_worth: Duration | None = None
    by_place: bool | None = None
    surplus_yields: bool | None = None
    saturation: Annotated[float, Field(ge=1, le=1000)] | None = None
    stale_grace: Patience | None = None
    consolidation_victims: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None

    def to_knobs(self) -> dict[str, float | bool]:
        """By the field names of EvictionKnobs."""
        given: dict[str, float | bool] = self.model_dump(exclude_none=True)
        return {f"{name}_s" if name in DURATIONS else name: value for name, value in given.items()}


class DefragmentSection(Model):
    """The knobs of `core.eviction.DefragmentKnobs`; who is moved says `policies.moves`."""

    every: Duration | None = None
    most: Annotated[float, Field(gt=0, le=1)] | None = None
    window: Duration | None = None
    per_turn: Annotated[int, Field(ge=1, le=1000)] | None = None
    cooldown: Duration | None = None
    most_lost: Duration | None = None
    worth: Duration | None = None
    least_gain: Annotated[float, Field(ge=0, le=1000)] | None = None
    across_models: bool | None = None
    while_waiting: bool | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None

    def to_knobs(self) -> dict[str, float | bool]:
        """By the field names of DefragmentKnobs."""
        given: dict[str, float | bool] = self.model_dump(exclude_none=True)
        return {f"{name}_s" if name in TIMES else name: value for name, value in given.items()}


class PackingSection(Model):
    """The knobs of `core.eviction.PackingKnobs`: what becomes of those that hinder each other on one GPU."""

    unpack: bool | None = None
    least_together: Annotated[float, Field(ge=0, le=2)] | None = None
    measure: Annotated[Duration, Field(ge=LEAST_S)] | None = None
    per_turn: Annotated[int, Field(ge=1, le=1000)] | None = None
    cooldown: Duration | None = None
    worth: Annotated[float, Field(ge=0, le=1000)] | None = None

    def to_knobs(self) -> dict[str, float | bool]:
        """By the field names of PackingKnobs."""
        given: dict[str, float | bool] = self.model_dump(exclude_none=True)
        return {f"{name}_s" if name in ("measure", "cooldown") else name: value for name, value in given.items()}


TIMES = frozenset({"every", "window", "cooldown", "most_lost", "worth"})
"""The knobs of defragmentation that are lengths of time."""
