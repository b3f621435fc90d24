"""Requests to the gateway, with bounded retries and its problem documents as errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import urlsplit

import httpx

from rayorch.client.address import Target
from rayorch.client.errors import UnreachableError, error_of
from rayorch.core.errors import ClusterError
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
        """The answer, whatever its status below 500; UnreachableError when none comes after all tries."""
        failure = ""
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                answer = self._client.request(
                    method,
                    path,
                    json=json,
                    params=params,
                    content=content,
                    timeout=httpx.Timeout(answer_within_s, connect=CONNECT_TIMEOUT_S),
                )
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
        value = answer.json()
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
