"""Requests to the gateway, with bounded retries and its problem documents as errors."""

from __future__ import annotations

import json as json_text
import logging
import math
import time
from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import quote, urlsplit

import httpx

from rayorch.client.address import Target
from rayorch.client.errors import NotFoundError, UnreachableError, error_of
from rayorch.core.errors import ClusterError, SpecError
from rayorch.core.payload import Json

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
RETRY_PAUSES_S = (0.1, 0.3, 1.0, 2.0)
"""Pauses between tries. Every request of this API may be repeated: submissions carry their id."""

JsonObject = dict[str, Json]
Params = Mapping[str, str | int | float | bool | list[str]]


class Http:
    """One gateway. Safe to use from several threads."""

    def __init__(self, target: Target, transport: httpx.BaseTransport | None = None) -> None:
        self.target = target
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        here = urlsplit(target.url).hostname in ("127.0.0.1", "localhost", "::1")
        self._client = httpx.Client(
            base_url=target.url,
            headers=target.headers(),
            timeout=timeout,
            transport=transport,
            trust_env=not here,  # no proxy stands between this machine and itself
        )

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Params | None = None,
        content: bytes | None = None,
        answer_within_s: float = ANSWER_TIMEOUT_S,
    ) -> httpx.Response:
        """The answer, whatever its status below 500; UnreachableError when none comes after all tries.

        SpecError, with the path in `json`, for what can't be sent.
        """
        failure = ""
        headers: dict[str, str] = {}
        if json is not None:
            content, headers = _encoded(json), {"Content-Type": "application/json"}
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                answer = self._client.request(
                    method,
                    path,
                    params=params,
                    content=content,
                    headers=headers,
                    timeout=httpx.Timeout(answer_within_s, connect=CONNECT_TIMEOUT_S),
                )
            except (httpx.InvalidURL, UnicodeEncodeError) as error:
                raise SpecError("", f"can't be asked of a gateway: {error}") from error
            except httpx.TransportError as error:
                failure = f"no gateway answers at {self.target.url}: {str(error) or type(error).__name__}"
            else:
                if answer.status_code not in (429, 503):
                    return answer
                failure = str(_problem(answer).get("detail") or f"HTTP status {answer.status_code}")
            if pause_s is not None:
                log.info("%s; again in %.1f s", failure, pause_s)
                time.sleep(pause_s)
        raise UnreachableError(failure)

    def call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Params | None = None,
        answer_within_s: float = ANSWER_TIMEOUT_S,
    ) -> JsonObject:
        """The JSON object of a good answer; else the error that the gateway named."""
        answer = self.request(method, path, json=json, params=params, answer_within_s=answer_within_s)
        raise_for(answer)
        if not answer.content:
            return {}
        try:
            value = answer.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ClusterError(f"{self.target.url} does not speak rayorch's API")
        return cast(JsonObject, value)

    def lines(self, path: str, params: Params) -> Iterator[str]:
        """The lines of a stream that may be silent for as long as it likes."""
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        try:
            with self._client.stream("GET", path, params=params, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise_for(answer)
                yield from answer.iter_lines()
        except httpx.TransportError as error:
            raise UnreachableError(f"the connection to {self.target.url} broke: {error}") from error


def path_part(name: str) -> str:
    """A name as one part of a URL's path, whatever is in it. NotFoundError for what can't be one ("", "..")."""
    try:
        if name not in ("", ".", ".."):
            return quote(name, safe="", errors="surrogateescape")
    except UnicodeEncodeError:  # half a character
        log.debug("%r is no text", name)
    raise NotFoundError(f"there is nothing named {name!r}")


def _encoded(value: object) -> bytes:
    try:
        return json_text.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        field, what = _unsendable(value, "") or ("", str(error))
        raise SpecError(field, what) from error


def _unsendable(value: object, field: str) -> tuple[str, str] | None:
    """(path, why) of the first part of a value that JSON can't hold, None when there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return field, f"must be finite, got {value!r}"
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        return field, f"is not text: {value!r}"
    if isinstance(value, Mapping):
        for key, item in value.items():
            path = f"{field}.{key!s}" if field else str(key)
            if found := _unsendable(key, field) or _unsendable(item, path):
                return found
    elif isinstance(value, list | tuple):
        for n, item in enumerate(value):
            if found := _unsendable(item, f"{field}[{n}]"):
                return found
    elif not (value is None or isinstance(value, bool | int | float | str)):
        return field, f"JSON has no {type(value).__name__}, got {value!r}"
    return None


def raise_for(answer: httpx.Response) -> None:
    """Raise the error of a bad answer."""
    if answer.status_code >= 400:
        raise error_of(answer.status_code, _problem(answer))


def _problem(answer: httpx.Response) -> dict[str, object]:
    try:
        body = answer.json()
    except ValueError:
        return {"detail": answer.text[:500]}
    return body if isinstance(body, dict) else {}
