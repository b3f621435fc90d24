"""The `ordering` section of the Cluster document: the knobs of the order policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from rayorch.config.fields import Duration, Items, Model
from rayorch.config.profile import Knob

RESTART_S = 30.0
"""What a stop and a new start are taken to cost."""
LEAST_SLICE_S = 5 * RESTART_S
"""The shortest turn: a fifth of it is lost by then."""

Weight = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Amount = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


def _rising(values: tuple[float, ...]) -> tuple[float, ...]:
    if list(values) != sorted(set(values)):
        raise ValueError(f"must rise, got {list(values)}")
    return values


def _worth_a_stop(slice_s: float) -> float:
    """A turn that is not much longer than what a stop and a start take does no work."""
    if slice_s < LEAST_SLICE_S:
        raise ValueError(
            f"must be at least {LEAST_SLICE_S:.0f} s: changing turns takes about {RESTART_S:.0f} s of every slice"
        )
    return slice_s


class OrderingSection(Model):
    """The knobs of `core.ordering.OrderKnobs`; what is left out is the preset's."""

    strict_fifo: bool | None = None
    usage_half_life: Duration | None = None
    usage_penalty: Duration | None = None
    usage_cpu_weight: Weight | None = None
    share_by_usage: Weight | None = None
    fair_resources: Items[str] | None = None
    points_per_hour: Weight | None = None
    age_max: Duration | None = None
    weight_age: Weight | None = None
    weight_fair_share: Weight | None = None
    weight_size: Weight | None = None
    weight_queue: Weight | None = None
    weight_priority: Weight | None = None
    weight_resources: Mapping[str, Weight] | None = None
    favor_small: bool | None = None
    priority_max: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    las_thresholds_gpu_s: Annotated[Items[Amount], AfterValidator(_rising)] | None = None
    las_promote: Weight | None = None
    gittins_delta_gpu_s: Weight | None = None
    rho_max: Amount | None = None
    auction_fairness: Annotated[float, Field(ge=0, le=1)] | None = None
    slice: Annotated[Duration, AfterValidator(_worth_a_stop)] | None = None

    def to_knobs(self) -> dict[str, Knob]:
        """By the field names of OrderKnobs."""
        given: dict[str, Knob] = self.model_dump(exclude_none=True, exclude={"weight_resources"})
        knobs = {f"{name}_s" if name in DURATIONS else name: value for name, value in given.items()}
        if self.weight_resources is not None:
            knobs["weight_resources"] = tuple(sorted(self.weight_resources.items()))
        return knobs


DURATIONS = frozenset({"usage_half_life", "usage_penalty", "age_max", "slice"})
"""Knobs that are lengths of time: in core their names end in `_s`."""
