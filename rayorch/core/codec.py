"""Core values as JSON text and back, exactly.

`decode(encode(value)) == value` for every type that the registry reaches: events, workloads, snapshots, plans, the
queue tree's state. Each type's encoder and decoder is compiled once from its annotations:

    dataclass    {"field": …}, with {"@": "Name", …} where the annotation leaves several types open
    tuple, mapping with string keys      array, object;  other mappings: an array of [key, value]
    enum         its value;   float that is not finite: "inf", "-inf", "nan"

Both directions check every type, because a value that is written wrongly is lost only when it is read. An unknown
tag, field or enum value, a missing field without default and a wrong type raise SpecError with the path.

`FORMAT_VERSION` goes up when text written before can't be read any more (a field renamed, removed or given another
meaning); a new field with a default needs no new version. The journal holds the migrations.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import TypeVar

from rayorch.core import cron, decisions, events, grants, queues, reports, requests, snapshot, views
from rayorch.core import types as nouns
from rayorch.core.errors import SpecError

FORMAT_VERSION = 1

TAG = "@"

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Encoder = Callable[[object], Json]
Decoder = Callable[[Json], object]
T = TypeVar("T")

ROOTS: tuple[object, ...] = (
    events.Event,
    reports.AttemptReport,
    nouns.Workload,
    nouns.QueueSpec,
    queues.TreeState,
    queues.QueueChanges,
    snapshot.Snapshot,
    decisions.Plan,
    grants.Grant,
    requests.OwnerStatus,
    requests.EventsPage,
    requests.WorkloadPage,
    requests.EntriesPage,
    cron.CronView,
    requests.SubmitResult,
    views.Overview,
    views.ExplainView,
)
"""Everything reachable from these by annotation is known; nothing else can be written or read."""


# ---------------------------------------------------------------- the interface


def encode(value: object) -> str:
    """A known value as one line of JSON. SpecError when the value, or a part of it, has no place in the format."""
    return _text(to_data(value))


def encode_in_parts(value: object) -> str:
    """The same text as `encode`, made part by part: for a large value in a thread, which lets others run meanwhile."""
    fields = []
    for name, data in to_data(value).items():
        text = "[" + ",".join([_text(item) for item in data]) + "]" if isinstance(data, list) else _text(data)
        fields.append(f"{_text(name)}:{text}")
    return "{" + ",".join(fields) + "}"


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)


def _text(data: Json) -> str:
    try:
        return _ENCODER.encode(data)
    except ValueError as error:  # an integer of thousands of digits
        raise SpecError("", str(error)) from error


def decode(text: str) -> object:
    """The value that `encode` wrote. SpecError with the path of what is wrong."""
    return from_data(parse(text))


def decode_as(expected: type[T], text: str) -> T:
    """`decode` for a caller that knows which type it wrote."""
    value = decode(text)
    if not isinstance(value, expected):
        raise SpecError("", f"expected {expected.__name__}, found {type(value).__name__}")
    return value


def to_data(value: object) -> dict[str, Json]:
    """A known value as plain JSON data with its tag."""
    shape = _BY_TYPE.get(type(value))
    if shape is None:
        raise SpecError("", f"{type(value).__name__} is not a type of the format")
    try:
        return {TAG: shape.name, **shape.encode(value)}
    except SpecError as error:
        raise _inside(shape.name, error) from error


def from_data(data: Json) -> object:
    """The value that `to_data` gave."""
    if not isinstance(data, dict):
        raise SpecError("", f"expected an object with {TAG!r}, found {_kind(data)}")
    return _decode_tagged(data, _BY_NAME)


def known_types() -> tuple[type, ...]:
    """Every dataclass of the format, by name."""
    return tuple(_BY_NAME[name].cls for name in sorted(_BY_NAME))


# ---------------------------------------------------------------- one shape for each type


class _Dataclass:
    """How one dataclass is written and read; its fields are compiled at first use, so types may be recursive."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.name = cls.__name__
        self._fields: tuple[tuple[str, Encoder, Decoder], ...] | None = None
        self._required: frozenset[str] = frozenset()

    def compiled(self) -> tuple[tuple[str, Encoder, Decoder], ...]:
        if self._fields is None:
            hints = typing.get_type_hints(self.cls)
            fields = dataclasses.fields(self.cls)
            self._required = frozenset(
                f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
            )
            self._fields = tuple((f.name, *_compile(hints[f.name])) for f in fields)
        return self._fields

    def encode(self, value: object) -> dict[str, Json]:
        """The fields, without a tag; `value` must be exactly of this class."""
        if type(value) is not self.cls:
            raise SpecError("", f"expected {self.name}, found {type(value).__name__}")
        data: dict[str, Json] = {}
        name = ""
        try:
            for name, encode_field, _ in self.compiled():
                data[name] = encode_field(getattr(value, name))
        except SpecError as error:
            raise _inside(name, error) from error
        return data

    def decode(self, data: Json) -> object:
        """A value from its fields; a tag, if there is one, must have been checked and taken out."""
        if not isinstance(data, dict):
            raise SpecError("", f"expected {self.name} as an object, found {_kind(data)}")
        values: dict[str, object] = {}
        name = ""
        try:
            for name, _, decode_field in self.compiled():
                if name in data:
                    values[name] = decode_field(data[name])
        except SpecError as error:
            raise _inside(name, error) from error
        if len(values) != len(data):
            unknown = sorted(set(data) - set(values))
            raise SpecError(unknown[0], f"is not a field of {self.name}")
        if not self._required <= values.keys():
            missing = sorted(self._required - values.keys())
            raise SpecError(missing[0], f"is missing in {self.name}")
        return self.cls(**values)


_BY_TYPE: dict[type, _Dataclass] = {}
_BY_NAME: dict[str, _Dataclass] = {}


def _register(cls: type) -> _Dataclass:
    shape = _BY_TYPE.get(cls)
    if shape is None:
        shape = _Dataclass(cls)
        if shape.name in _BY_NAME:
            raise TypeError(f"two types of the format are named {shape.name}")
        _BY_TYPE[cls] = _BY_NAME[shape.name] = shape
        shape.compiled()
    return shape


def _decode_tagged(data: dict[str, Json], allowed: Mapping[str, _Dataclass]) -> object:
    name = data.get(TAG)
    if not isinstance(name, str) or name not in allowed:
        raise SpecError(TAG, f"unknown tag {name!r}, expected one of {', '.join(sorted(allowed))}")
    shape = allowed[name]
    try:
        return shape.decode({key: value for key, value in data.items() if key != TAG})
    except SpecError as error:
        raise _inside(name, error) from error


def _inside(name: str, error: SpecError) -> SpecError:
    """The same error, one level further out."""
    return SpecError(f"{name}.{error.field}" if error.field else name, error.message)


def _kind(data: object) -> str:
    return "null" if data is None else type(data).__name__


def _refuse_constant(text: str) -> Json:
    raise SpecError("", f"{text} is not JSON")


_PARSER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse(text: str) -> Json:
    """JSON text as data. SpecError when it is none."""
    try:
        data: Json = _PARSER.decode(text)
    except (ValueError, RecursionError) as error:
        raise SpecError("", f"is not JSON: {error}") from error
    return data


# ---------------------------------------------------------------- compiling an annotation


def _compile(hint: object) -> tuple[Encoder, Decoder]:
    """The encoder and decoder of one annotation; TypeError for one that the format does not have."""
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin is types.UnionType or origin is typing.Union:
        return _compile_union(arguments)
    if origin is tuple:
        return _compile_tuple(arguments)
    if origin in (collections.abc.Mapping, dict):
        return _compile_mapping(*arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _compile_enum(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        shape = _register(hint)
        return shape.encode, shape.decode
    raise TypeError(f"the format has no place for {hint!r}")


def _compile_union(arguments: tuple[object, ...]) -> tuple[Encoder, Decoder]:
    """`X | None`, or several dataclasses (told apart by a tag), or both."""
    members = [a for a in arguments if a is not type(None)]
    optional = len(members) < len(arguments)
    if len(members) == 1:
        encode_member, decode_member = _compile(members[0])
    else:
        encode_member, decode_member = _compile_choice(members)
    if not optional:
        return encode_member, decode_member

    def encode_optional(value: object) -> Json:
        return None if value is None else encode_member(value)

    def decode_optional(data: Json) -> object:
        return None if data is None else decode_member(data)

    return encode_optional, decode_optional


def _compile_choice(members: list[object]) -> tuple[Encoder, Decoder]:
    shapes: dict[type, _Dataclass] = {}
    for member in members:
        if not (isinstance(member, type) and dataclasses.is_dataclass(member)):
            raise TypeError(f"the format can't tell {member!r} from the other types of its union")
        shapes[member] = _register(member)
    allowed = {shape.name: shape for shape in shapes.values()}
    expected = ", ".join(sorted(allowed))

    def encode_choice(value: object) -> Json:
        shape = shapes.get(type(value))
        if shape is None:
            raise SpecError("", f"expected one of {expected}, found {type(value).__name__}")
        return {TAG: shape.name, **shape.encode(value)}

    def decode_choice(data: Json) -> object:
        if not isinstance(data, dict):
            raise SpecError("", f"expected an object with {TAG!r}, found {_kind(data)}")
        return _decode_tagged(data, allowed)

    return encode_choice, decode_choice


def _compile_tuple(arguments: tuple[object, ...]) -> tuple[Encoder, Decoder]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _compile_sequence(arguments[0])
    parts = tuple(_compile(a) for a in arguments)
    encoders = tuple(e for e, _ in parts)
    decoders = tuple(d for _, d in parts)
    length = len(parts)

    def encode_fixed(value: object) -> Json:
        if type(value) is not tuple or len(value) != length:
            raise SpecError("", f"expected a tuple of {length}, found {value!r:.80}")
        return [encode(item) for encode, item in zip(encoders, value, strict=True)]

    def decode_fixed(data: Json) -> object:
        if type(data) is not list or len(data) != length:
            raise SpecError("", f"expected an array of {length}, found {_kind(data)}")
        return tuple([decode(item) for decode, item in zip(decoders, data, strict=True)])

    return encode_fixed, decode_fixed


def _compile_sequence(item_hint: object) -> tuple[Encoder, Decoder]:
    encode_item, decode_item = _compile(item_hint)

    def encode_sequence(value: object) -> Json:
        if type(value) is not tuple:
            raise SpecError("", f"expected a tuple, found {type(value).__name__}")
        done: list[Json] = []
        try:
            for item in value:
                done.append(encode_item(item))
        except SpecError as error:
            raise _inside(f"[{len(done)}]", error) from error
        return done

    def decode_sequence(data: Json) -> object:
        if type(data) is not list:
            raise SpecError("", f"expected an array, found {_kind(data)}")
        done: list[object] = []
        try:
            for item in data:
                done.append(decode_item(item))
        except SpecError as error:
            raise _inside(f"[{len(done)}]", error) from error
        return tuple(done)

    return encode_sequence, decode_sequence


def _is_text(hint: object) -> bool:
    while isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    return hint is str


def _compile_mapping(key_hint: object, value_hint: object) -> tuple[Encoder, Decoder]:
    encode_key, decode_key = _compile(key_hint)
    encode_value, decode_value = _compile(value_hint)
    textual = _is_text(key_hint)

    def encode_mapping(value: object) -> Json:
        if not isinstance(value, Mapping):
            raise SpecError("", f"expected a mapping, found {type(value).__name__}")
        pairs = [(encode_key(k), encode_value(v)) for k, v in value.items()]
        return {str(k): v for k, v in pairs} if textual else [[k, v] for k, v in pairs]

    def decode_mapping(data: Json) -> object:
        if textual and isinstance(data, dict):
            return {key: decode_value(value) for key, value in data.items()}
        if not textual and isinstance(data, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in data):
            return {decode_key(pair[0]): decode_value(pair[1]) for pair in data}  # type: ignore[index]
        raise SpecError("", f"expected a mapping, found {_kind(data)}")

    return encode_mapping, decode_mapping


def _compile_enum(cls: type[enum.Enum]) -> tuple[Encoder, Decoder]:
    by_value = {member.value: member for member in cls}
    values: dict[object, Json] = {member: member.value for member in cls}

    def encode_enum(value: object) -> Json:
        if type(value) is not cls:
            raise SpecError("", f"expected {cls.__name__}, found {value!r:.80}")
        return values[value]

    def decode_enum(data: Json) -> object:
        try:
            return by_value[data]
        except (KeyError, TypeError):
            raise SpecError("", f"{data!r:.80} is not one of {cls.__name__}") from None

    return encode_enum, decode_enum


# ---------------------------------------------------------------- scalars


def _exact(cls: type, word: str) -> tuple[Encoder, Decoder]:
    """Values of this very class; a bool is no integer, a NumPy number is none either."""

    def check(value: object) -> object:
        if type(value) is not cls:
            raise SpecError("", f"expected {word}, found {_kind(value)}")
        return value

    return typing.cast(Encoder, check), check


def _encode_text(value: object) -> Json:
    if not isinstance(value, str):
        raise SpecError("", f"expected text, found {_kind(value)}")
    return value


_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def _encode_number(value: object) -> Json:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if type(value) is int:
        return value
    raise SpecError("", f"expected a number, found {_kind(value)}")


def _decode_number(data: Json) -> object:
    if type(data) is float or type(data) is int:
        return data
    if isinstance(data, str) and data in _NOT_FINITE:
        return _NOT_FINITE[data]
    raise SpecError("", f"expected a number, found {data!r:.80}")


_SCALARS: dict[object, tuple[Encoder, Decoder]] = {
    str: (_encode_text, _exact(str, "text")[1]),
    int: _exact(int, "an integer"),
    float: (_encode_number, _decode_number),
    bool: _exact(bool, "true or false"),
}

for _root in ROOTS:
    _compile(_root)
