"""Who may pass the door."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from rayorch.core.errors import SpecError
from rayorch.serve_apps.gateway import GatewaySettings, UvicornGateway, create_app, token_from
from rayorch.serve_apps.gateway.fake import FakeBackend

TOKEN = "a-long-enough-token"


async def _get(
    settings: GatewaySettings,
    headers: Mapping[str, str] | None = None,
    client: str = "127.0.0.1",
    path: str = "/api/v1/version",
    method: str = "GET",
    content: bytes = b"",
) -> httpx.Response:
    transport = httpx.ASGITransport(create_app(FakeBackend(), settings), client=(client, 5000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8266") as http:
        return await http.request(method, path, headers=headers, content=content)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8266", "localhost:8266", "[::1]:8266", "127.1.2.3"])
async def test_without_a_token_loopback_names_pass(host: str) -> None:
    assert (await _get(GatewaySettings(), {"Host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8266", "10.0.0.5:8266", "", "127.0.0.1.evil.example"])
async def test_without_a_token_another_host_is_dns_rebinding(host: str) -> None:
    answer = await _get(GatewaySettings(), {"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (403, "denied")


async def test_without_a_token_another_machine_is_refused() -> None:
    assert (await _get(GatewaySettings(), client="10.0.0.5")).status_code == 403


async def test_a_page_of_another_site_is_refused() -> None:
    assert (await _get(GatewaySettings(), {"Origin": "http://evil.example"})).status_code == 403
    assert (await _get(GatewaySettings(), {"Origin": "null"})).status_code == 403
    assert (await _get(GatewaySettings(), {"Origin": "http://["})).status_code == 403
    crossing = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert (await _get(GatewaySettings(), crossing)).status_code == 403
    assert (await _get(GatewaySettings(), {"Origin": "http://127.0.0.1:8266"})).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 403),
        ({"Authorization": "Basic !!!"}, 403),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"bearer {TOKEN}"}, 200),
        ({"X-Ray-Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()}, 200),
    ],
)
async def test_with_a_token_every_request_must_carry_it(headers: dict[str, str], status: int) -> None:
    answer = await _get(GatewaySettings(token=TOKEN), {"Host": "rayorch.example", **headers}, client="10.0.0.5")
    assert answer.status_code == status


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_needs_no_token(path: str) -> None:
    assert (await _get(GatewaySettings(token=TOKEN), path=path)).status_code == 200


async def test_a_large_body_is_refused_with_and_without_its_length() -> None:
    small = GatewaySettings(max_body_bytes=1000)
    answer = await _get(small, method="POST", path="/api/v1/workloads", content=b"x" * 1001)
    assert answer.status_code == 413

    async def pieces() -> object:
        for _ in range(11):
            yield b"x" * 100

    transport = httpx.ASGITransport(create_app(FakeBackend(), small))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        streamed = await http.post("/api/v1/workloads", content=pieces())  # type: ignore[arg-type]
    assert (streamed.status_code, streamed.json()["code"]) == (413, "too_large")


async def test_answers_carry_a_strict_policy() -> None:
    headers = (await _get(GatewaySettings())).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_listening_beyond_this_machine_needs_a_token() -> None:
    settings = GatewaySettings()
    with pytest.raises(SpecError):
        UvicornGateway(create_app(FakeBackend(), settings), "0.0.0.0", 0, settings)


def test_the_token_comes_from_a_variable_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert token_from({}) is None
    assert token_from({"RAYORCH_TOKEN": TOKEN}) == TOKEN
    assert token_from({"RAYORCH_TOKEN_FILE": str(file)}) == TOKEN
    with pytest.raises(SpecError):
        token_from({"RAYORCH_TOKEN_FILE": str(tmp_path / "none")})
    for bad in ("", "short", "has a space in the middle", "ünïcode-ünïcode-ünïcode"):
        with pytest.raises(SpecError):
            token_from({"RAYORCH_TOKEN": bad})


async def test_a_length_that_is_no_number_is_refused() -> None:
    for length in (b"\xb2", b"-1", b"1e9", b"9" * 5000):
        app = create_app(FakeBackend(), GatewaySettings())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8266") as http:
            answer = await http.post("/api/v1/workloads", headers=[(b"Content-Length", length)], content=b"x")
        assert answer.status_code == 413, length
