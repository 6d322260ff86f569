"""Both headers for the key, on every route; and browsers on other pages only where the settings say so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.kit.live_gateway import KEY, Live, live_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

PREFLIGHT = {
    "origin": "https://chat.home",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path_factory.mktemp("keys")) as live:
        yield live


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": KEY}, 200),
        ({"X-API-Key": KEY}, 200),
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": "Basic abc", "x-api-key": KEY}, 200),
        ({"authorization": "Bearer of-a-proxy", "x-api-key": KEY}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": f"Bearer {KEY}"}, 401),
        ({}, 401),
    ],
    ids=str,
)
async def test_key_in_either_header(live: Live, headers: dict[str, str], status: int) -> None:
    async with httpx.AsyncClient(base_url=live.url, headers=headers, trust_env=False) as client:
        assert (await client.get("/v1/models")).status_code == status
        assert (await client.get("/v1/turns")).status_code == status
        for path, body in BODIES.items():
            assert (await client.post(path, json=body)).status_code == status, path


async def test_other_pages_are_not_let_in_by_default(live: Live) -> None:
    asked = await live.http.options("/v1/chat/completions", headers=PREFLIGHT)
    assert asked.status_code == 405
    answered = await live.http.get("/v1/models", headers={"origin": "https://chat.home"})
    for answer in (asked, answered):
        assert not any(name.startswith("access-control") for name in answer.headers)


async def test_pages_of_the_settings_may_call_and_still_need_the_key(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, cors_origins="https://chat.home, http://localhost:5173") as live:
        async with httpx.AsyncClient(base_url=live.url, trust_env=False) as page:
            asked = await page.options("/v1/chat/completions", headers=PREFLIGHT)
            assert asked.status_code == 200
            assert asked.headers["access-control-allow-origin"] == "https://chat.home"
            assert "authorization" in asked.headers["access-control-allow-headers"]
            refused = await page.get("/v1/models", headers={"origin": "https://chat.home"})
            assert refused.status_code == 401
            assert refused.headers["access-control-allow-origin"] == "https://chat.home"
            stranger = await page.options(
                "/v1/chat/completions", headers={**PREFLIGHT, "origin": "https://evil.example"}
            )
            assert "access-control-allow-origin" not in stranger.headers
        answer = await live.ask("hi", headers={"origin": "http://localhost:5173"}, stream=True)
        assert answer.headers["access-control-allow-origin"] == "http://localhost:5173"
        assert "x-instar-turn" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers
