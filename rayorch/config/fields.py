"""The field types of the documents, and pydantic's errors as ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from rayorch.config.devices import with_memory
from rayorch.config.text import duration_s
from rayorch.core.errors import SpecError
from rayorch.core.types import CPU, GPU, Resources

MAX_MEMBERS = 100_000
MAX_PRIORITY = 1_000_000
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_])?"
_NAME = re.compile(_PART + r"\Z")
_QUEUE = re.compile(rf"{_PART}(?:/{_PART}){{0,15}}\Z")
_SPELLINGS = {"gpu": GPU, "gpus": GPU, "cpu": CPU, "cpus": CPU}


Version = Literal["rayorch/v1"]


class Model(BaseModel):
    """Base of all documents: unknown fields are refused, nothing is converted, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True)


def _name(value: str) -> str:
    if not _NAME.match(value):
        raise ValueError("must be letters, digits, '.', '_' and '-', at most 128, starting with a letter or digit")
    return value


def _queue(value: str) -> str:
    if not _QUEUE.match(value) or len(value) > 253:
        raise ValueError("must be a path such as research/nlp (letters, digits, '.', '_', '-' between slashes)")
    return value


def _workers(value: object) -> object:
    """2, or [2, 4]: from 2 to 4 members."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value, value)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("must be a number, or [least, most]")
    low, high = value
    for number in (low, high):
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"must be whole numbers, got {number!r}")
    if low < 1:
        raise ValueError(f"a gang needs at least one member, got {low}")
    if high < low:
        raise ValueError(f"the most ({high}) must not be below the least ({low})")
    if high > MAX_MEMBERS:
        raise ValueError(f"at most {MAX_MEMBERS} members, got {high}")
    return (low, high)


def _gpus_or_amounts(value: object) -> object:
    """A bare number counts GPUs."""
    return {GPU: value} if isinstance(value, int | float) and not isinstance(value, bool) else with_memory(value)


def _one_or_more(value: object) -> object:
    """H100, or [H100, A100]."""
    return (value,) if isinstance(value, str) else _as_tuple(value)


def _patience(value: object) -> object:
    return -1.0 if value == "never" else duration_s(value)


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Item = TypeVar("Item")
Name = Annotated[str, AfterValidator(_name)]
QueuePath = Annotated[str, AfterValidator(_queue)]
Workers = Annotated[tuple[int, int], BeforeValidator(_workers)]
Amounts = Annotated[Mapping[str, float], BeforeValidator(_gpus_or_amounts)]
"""Amounts of resources; a bare number counts GPUs. Checked for sign, NaN and size in `resources`."""
Countables = Mapping[str, float]
"""Amounts of what the cluster has as a whole, by the names that its Cluster document gives them."""
Duration = Annotated[float, BeforeValidator(duration_s)]
"""Seconds; written 120s, 30m, 24h."""
Patience = Annotated[float, BeforeValidator(_patience)]
"""The same, or `never`, which is -1."""
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Items = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]
Accelerators = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
"""Models in order of preference; one may stand alone."""


def resources(amounts: Mapping[str, float], field: str) -> Resources:
    """Exact amounts of what a document names; SpecError with the field. `gpu` and `cpu` are Ray's GPU and CPU."""
    named: dict[str, float] = {}
    for name, amount in amounts.items():
        ray_name = _SPELLINGS.get(name.lower(), name)
        if not name or len(name) > 128:
            raise SpecError(f"{field}.{name}", "is not a resource's name")
        if ray_name in named:
            raise SpecError(f"{field}.{name}", f"names {ray_name} a second time")
        named[ray_name] = amount
    return Resources.of(named, field)


AnyModel = TypeVar("AnyModel", bound=BaseModel)


def validate(model: type[AnyModel], value: object, prefix: str = "") -> AnyModel:
    """The value as that model; SpecError with the path of the first wrong field, the others in the message."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = [(_path(location, prefix), message) for location, message in wrong_fields(error)]
        (field, message), others = found[0], [path for path, _ in found[1:6]]
        also = f"; also wrong: {', '.join(others)}" if others else ""
        raise SpecError(field, message + also) from error


def wrong_fields(error: ValidationError) -> list[tuple[tuple[int | str, ...], str]]:
    """Where what is wrong, in plain words."""
    plain = {"extra_forbidden": "there is no such field"}
    return [(e["loc"], plain.get(e["type"], e["msg"].removeprefix("Value error, "))) for e in error.errors()]


def _path(location: tuple[int | str, ...], prefix: str) -> str:
    path = prefix
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else part
    return path
