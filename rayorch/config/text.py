"""Text to plain values, without YAML's surprises.

One rule for YAML and JSON: at most 1 MiB, at most 32 levels, no key twice, text keys only, no NUL and no half
character (surrogate) in text, which neither a command nor a file can hold. For YAML also: no anchors, aliases or
tags; `yes`, `no`, `on` and `010` are words, not booleans and octal numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

import yaml

from rayorch.core.errors import SpecError
from rayorch.core.payload import Json

MAX_TEXT_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_DOCUMENTS = 1000
MAX_DURATION_S = 10 * 365 * 86400.0

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]{1,4})?\Z")
_SPECIAL = {".nan": math.nan, ".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf}
_WORDS: dict[str, Json] = {"": None, "~": None, "null": None, "true": True, "false": False}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Plain = Json


def load_yaml(text: str | bytes, source: str = "") -> tuple[Plain, ...]:
    """The documents of a YAML stream as plain values; SpecError names the field and line of what is refused.

    `source` (a file name) goes into messages.
    """
    text = _checked(text)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return tuple(_documents(_Events(yaml.parse(text, Loader=loader), source)))
    except yaml.YAMLError as error:
        raise SpecError("", f"{source or 'text'} is not YAML: {' '.join(str(error).split())}") from error


def load_json(text: str | bytes) -> Plain:
    """One JSON value, under the same rules as `load_yaml`; NaN and Infinity are no JSON."""
    text = _checked(text)
    _check_json_depth(text)
    try:
        value: Plain = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except ValueError as error:
        raise SpecError("", f"is not JSON: {error}") from error
    _check_json_text(value, "")
    return value


def duration_s(value: object) -> float:
    """Seconds of a duration as people write it: 90, "120s", "30m", "24h", "1h30m", "500ms", "7d".

    ValueError for anything else, for negative, NaN or infinite numbers and for more than ten years.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= MAX_DURATION_S else math.inf  # an int may be beyond any float
    elif isinstance(value, str):
        parts = list(_DURATION_PART.finditer(value))
        if not parts or "".join(p.group(0) for p in parts) != value or len(value) > 40:
            raise ValueError(f"must be a duration such as 120s, 30m or 24h, got {value!r}")
        seconds = sum(float(p.group(1)) * _UNIT_S[p.group(2)] for p in parts)
    else:
        raise ValueError(f"must be a duration such as 120s, 30m or 24h, got {value!r}")
    if not 0 <= seconds <= MAX_DURATION_S:
        raise ValueError(f"must be between 0 and ten years, got {str(value)[:40]}")
    return seconds


def typed_duration_s(text: str) -> float:
    """The same of what somebody typed, where a bare number is seconds."""
    return duration_s(float(text) if text.isdecimal() else text)


# ---------------------------------------------------------------- YAML


class _Events:
    """The parser's events, one at a time, and where we are for messages."""

    def __init__(self, events: Iterator[yaml.Event], source: str) -> None:
        self._events = events
        self._source = source

    def next(self) -> yaml.Event:
        return next(self._events)

    def refuse(self, event: yaml.Event, field: str, message: str) -> SpecError:
        line = event.start_mark.line + 1 if event.start_mark else 0
        place = f"{self._source}:{line}" if self._source else f"line {line}"
        return SpecError(field, f"{message} ({place})")


def _documents(events: _Events) -> Iterator[Plain]:
    count = 0
    while not isinstance(event := events.next(), yaml.StreamEndEvent):
        if isinstance(event, yaml.DocumentStartEvent):
            count += 1
            if count > MAX_DOCUMENTS:
                raise events.refuse(event, "", f"has more than {MAX_DOCUMENTS} documents")
            value = _value(events, events.next(), "", 1)
            if value is not None:  # an empty document between two separators
                yield value


def _value(events: _Events, event: yaml.Event, field: str, depth: int) -> Plain:
    if depth > MAX_DEPTH:
        raise events.refuse(event, field, f"is nested deeper than {MAX_DEPTH} levels")
    anchor = getattr(event, "anchor", None)
    if anchor is not None:
        what = "aliases" if isinstance(event, yaml.AliasEvent) else "anchors"
        raise events.refuse(event, field, f"{what} are not allowed, got {anchor}")
    if getattr(event, "tag", None) not in (None, "!"):
        raise events.refuse(event, field, f"tags are not allowed, got {getattr(event, 'tag', '')}")
    if isinstance(event, yaml.ScalarEvent):
        if _NO_TEXT.search(event.value):
            raise events.refuse(event, field, NO_TEXT)
        return _scalar(event)
    if isinstance(event, yaml.SequenceStartEvent):
        return _sequence(events, field, depth)
    return _mapping(events, field, depth)


def _sequence(events: _Events, field: str, depth: int) -> Plain:
    items: list[Plain] = []
    while not isinstance(event := events.next(), yaml.SequenceEndEvent):
        items.append(_value(events, event, f"{field}[{len(items)}]", depth + 1))
    return items


def _mapping(events: _Events, field: str, depth: int) -> Plain:
    result: dict[str, Plain] = {}
    while not isinstance(event := events.next(), yaml.MappingEndEvent):
        key = _value(events, event, field, depth + 1)
        if not isinstance(key, str) and isinstance(event, yaml.ScalarEvent):
            raise events.refuse(event, field, f"keys must be text; put {event.value!r} in quotes")
        if not isinstance(key, str):
            raise events.refuse(event, field, "keys must be text")
        path = f"{field}.{key}" if field else key
        if key == "<<":
            raise events.refuse(event, field, "merge keys are not allowed")
        if key in result:
            raise events.refuse(event, path, "is given twice")
        result[key] = _value(events, events.next(), path, depth + 1)
    return result


def _scalar(event: yaml.ScalarEvent) -> Plain:
    text: str = event.value
    if not event.implicit[0]:  # quoted, or a block
        return text
    if text.lower() in _WORDS and text in (text.lower(), text.upper(), text.capitalize()):
        return _WORDS[text.lower()]
    if text.lower() in _SPECIAL:
        return _SPECIAL[text.lower()]
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text


# ---------------------------------------------------------------- JSON


def _unique(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    result: dict[str, Plain] = {}
    for key, value in pairs:
        if key in result:
            raise SpecError(_NO_TEXT.sub("?", key), "is given twice")
        result[key] = value
    return result


def _no_constant(name: str) -> float:
    raise SpecError("", f"{name} is not JSON; numbers must be finite")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise SpecError("", f"the number {text[:40]} is too large")
    return number


_NO_TEXT = re.compile("[\0\ud800-\udfff]")
NO_TEXT = "holds a NUL or half a character (surrogate)"


def _check_json_text(value: Plain, field: str) -> None:
    match value:
        case str():
            if _NO_TEXT.search(value):
                raise SpecError(field, NO_TEXT)
        case list():
            for n, item in enumerate(value):
                _check_json_text(item, f"{field}[{n}]")
        case dict():
            for key, item in value.items():
                if _NO_TEXT.search(key):
                    raise SpecError(field, f"the key {key!r} {NO_TEXT}")
                _check_json_text(item, f"{field}.{key}" if field else key)


# A text without an end takes all that is left: to begin again at each quote in it would cost the square of its length.
_OUTSIDE_TEXT = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|([\[{])|([\]}])', re.DOTALL)


def _check_json_depth(text: str) -> None:
    """Before the parser recurses."""
    depth = 0
    for match in _OUTSIDE_TEXT.finditer(text):
        depth += bool(match.group(1)) - bool(match.group(2))
        if depth > MAX_DEPTH:
            raise SpecError("", f"is nested deeper than {MAX_DEPTH} levels")


def _checked(text: str | bytes) -> str:
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_TEXT_BYTES:
        raise SpecError("", f"has {size} bytes, at most {MAX_TEXT_BYTES} are accepted")
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError("", f"is not UTF-8: {error}") from error
