"""Caddy and nginx with the documented blocks before the real gateway over the scripted engine: TLS, streams, limits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from instar.engines.scripted import Failure
from tests.kit import client_cache
from tests.kit.proxies import behind_caddy, behind_nginx
from tests.kit.scripted_gateway import Gateway, scripted_gateway

pytestmark = pytest.mark.clients

Behind = Callable[[Path, Path, str, dict[str, str]], AbstractContextManager[httpx.Client]]
PROXIES: dict[str, Behind] = {"caddy": behind_caddy, "nginx": behind_nginx}
HI: dict[str, Any] = {"model": "instar", "messages": [{"role": "user", "content": "hi"}]}
MEGABYTE = 2**20


@dataclass
class Place:
    """`http` goes through the proxy, with the key."""

    gateway: Gateway
    http: httpx.Client

    def chunks(self, **more: Any) -> Iterator[dict[str, Any]]:
        with self.http.stream("POST", "/v1/chat/completions", json={**HI, "stream": True, **more}) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))


@pytest.fixture(scope="module", params=list(PROXIES))
def proxy(request: pytest.FixtureRequest) -> tuple[Behind, Path]:
    program = client_cache.program(request.param)
    if program is None:
        pytest.skip(f"{request.param} is neither on PATH nor in {client_cache.cache_dir() / 'bin'}")
    return PROXIES[request.param], program


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with scripted_gateway(tmp_path_factory.mktemp("behind")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def place(
    gateway: Gateway, proxy: tuple[Behind, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    behind, program = proxy
    with behind(program, tmp_path_factory.mktemp("proxy") / "home", gateway.url, {}) as http:
        http.headers.update(gateway.headers)
        yield Place(gateway, http)


def said(chunk: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def test_key_session_and_answer_pass_both_ways(place: Place) -> None:
    assert place.http.post("/v1/chat/completions", json=HI, headers={"authorization": ""}).status_code == 401
    answer = place.http.post("/v1/chat/completions", json=HI, headers={"session_id": "from-afar"})
    assert answer.status_code == 200, answer.text
    turn = place.gateway.store.turn(answer.headers["x-instar-turn"])
    assert turn is not None
    assert (turn.id, turn.session_id) == (answer.json()["id"], "from-afar")


def test_pieces_come_while_the_answer_is_made_and_a_client_that_leaves_ends_it(place: Place) -> None:
    """The engine never goes on after its second token, and no empty pieces push it out of a buffer (`ping_s`)."""
    aborted = place.gateway.engine.aborted
    place.gateway.engine.fail(Failure.HANG, after=2)
    chunks = place.chunks()
    assert next(text for chunk in chunks if (text := said(chunk)))
    chunks.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 20
    while place.gateway.engine.aborted == aborted:
        assert time.monotonic() < deadline, "the engine still works for a client that has gone"
        time.sleep(0.05)


def test_streams_through_it_say_the_same_as_whole_answers(place: Place) -> None:
    whole = place.http.post("/v1/chat/completions", json={**HI, "temperature": 0}).json()
    assert "".join(map(said, place.chunks(temperature=0))) == whole["choices"][0]["message"]["content"]


def test_long_conversations_pass_and_endless_ones_do_not(place: Place) -> None:
    """Two megabytes reach us, who say that they are too many tokens; beyond our own limit nothing is read."""
    long, endless = (
        {**HI, "messages": [{"role": "user", "content": "x" * size}]}
        for size in (2 * MEGABYTE, 17 * MEGABYTE)
    )
    answer = place.http.post("/v1/chat/completions", json=long)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert place.http.post("/v1/chat/completions", json=endless).status_code == 413


def test_long_waits_stay_alive(
    proxy: tuple[Behind, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt takes three seconds; nginx, which has such a limit, gives up after one of silence."""
    behind, program = proxy
    impatient = {"proxy_read_timeout 600s": "proxy_read_timeout 1s"} if behind is behind_nginx else {}
    monkeypatch.setattr("instar.gateway.turns.PATIENCE_S", 0.01)
    with (
        scripted_gateway(tmp_path, ping_s=0.2) as gateway,
        behind(program, tmp_path / "home", gateway.url, impatient) as http,
    ):
        http.headers.update(gateway.headers)
        gateway.engine.first_token_s = 3.0
        chunks = list(Place(gateway, http).chunks())
    assert chunks[-1]["choices"][0]["finish_reason"]
    assert [said(chunk) for chunk in chunks[:4]] == [""] * 4, "what kept it alive"
