"""Names that lead elsewhere: refused, nothing opened outside the data folder, nobody called, nothing started."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from tests.kit import wire
from tests.kit.audit import audited
from tests.kit.live_gateway import KEY, Live, live_gateway
from tests.kit.malformed import routes_with_body
from tests.kit.malformed_tables import HI, TRAVERSALS, VALID

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAYS = ["../", "../../../../", "..\\", "/", "....//", "%2e%2e%2f", "file:///", "v1/../../", "~/", "./.././../",
        "base/../", "\x00../", "v1\x00/../", "//", "..;/", "\u2025/", "\uff0e\uff0e/", "v1\r\n../", "$HOME/",
        "http://127.0.0.1:1/"]  # fmt: skip
GOALS = ["etc/passwd", "instar.db", "api_key", "run/state.json", "versions/v1/manifest.json"]
PAYLOADS = [way + goal for way, goal in product(WAYS, GOALS)]
assert len(PAYLOADS) == 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path_factory.mktemp("paths")) as live:
        live.publish("v1")
        await visit(live, "v1")  # imports what is imported at first use
        yield live


def named_routes(live: Live) -> list[tuple[str, str]]:
    """Method and path of every route with a name in its path."""
    paths = live.app.openapi()["paths"]
    return [(method.upper(), path) for path, ways in paths.items() if "{" in path for method in ways]


async def visit(live: Live, name: str, places: slice = slice(None)) -> list[int]:
    """Use a name where a version, a model or a turn is named: everywhere, or in some places. Returns the statuses."""
    quoted = quote(name, safe="")
    asked = [
        live.http.request(method, path.partition("{")[0] + quoted + path.rpartition("}")[2])
        for method, path in named_routes(live)
    ]
    for path in routes_with_body(live.app.openapi()):
        for field in ("model", "turn", "to"):
            if field in VALID[path]:
                value = f"instar@{name}" if field == "model" else name
                asked.append(live.http.post(path, json={**VALID[path], field: value}))
    asked.append(live.http.get("/v1/turns", params={"before": name}))
    chosen = asked[places]
    for left_out in set(asked) - set(chosen):
        left_out.close()
    return [answer.status_code for answer in await asyncio.gather(*chosen)]


async def test_hundred_names_that_lead_elsewhere_are_refused_and_open_nothing(live: Live) -> None:
    """Each in a third of the places where a name may stand, in turn."""
    with audited() as audit:
        found = {name: await visit(live, name, slice(at % 3, None, 3)) for at, name in enumerate(PAYLOADS)}
    wrong = {name: statuses for name, statuses in found.items() if not all(400 <= s < 500 for s in statuses)}
    assert not wrong
    assert sum(map(len, found.values())) >= 300
    assert not audit.outside(live.settings.data_dir)
    assert not audit.programs
    assert audit.paths, "the audit was on: a name that is no version is looked for among the versions"


async def test_names_as_they_stand_in_a_path_open_nothing_either(live: Live) -> None:
    with audited() as audit:
        for (method, path), name in product(named_routes(live), TRAVERSALS):
            target = path.partition("{")[0] + name + path.rpartition("}")[2]
            head = wire.head_of(method, target, KEY, "content-length: 0")
            assert 400 <= (await wire.exchange(live.url, head)).status < 500
    assert not audit.outside(live.settings.data_dir)


def opaque(name: str) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Bodies and headers that carry a name which is ours to keep and not to understand."""
    printable = name if name.isascii() and name.isprintable() else "x"
    return [
        ({"session_id": name}, {}),
        ({"prompt_cache_key": name}, {}),
        ({"metadata": {"session_id": name, "instar_learn": name}}, {}),
        (
            {
                "user": name,
                "tools": [{"type": "function", "function": {"name": "look", "description": name}}],
            },
            {},
        ),
        ({"messages": [{"role": "user", "content": name, "name": name}]}, {}),
        ({}, {"x-session-id": printable, "x-turn-type": printable}),
        ({}, {"x-instar-learn": printable, "session_id": printable, "x-session-affinity": printable}),
    ]


async def test_ids_that_are_only_kept_open_nothing(live: Live) -> None:
    """Each name in one of the places, in turn."""
    with audited() as audit:
        for number, name in enumerate(PAYLOADS):
            kinds = opaque(name)
            body, headers = kinds[number % len(kinds)]
            whole = {"model": "instar", "messages": HI, **body}
            answer = await live.http.post("/v1/chat/completions", json=whole, headers=headers)
            assert answer.status_code == 200
    assert not audit.outside(live.settings.data_dir)
    assert not audit.programs


async def test_addresses_in_what_is_said_are_never_called(live: Live) -> None:
    address = "http://instar.invalid/picture.png"
    contents: list[Any] = [
        f"Look at {address} and ![this]({address})",
        [{"type": "text", "text": address}],
        [{"type": "image_url", "image_url": {"url": address}}],
        [{"type": "file", "file": {"file_url": address, "filename": "../../etc/passwd"}}],
    ]
    with audited() as audit:
        for content in contents:
            await live.ask(content)  # type: ignore[arg-type]
        await live.http.post("/v1/feedback", json={"turn": "turn_x", "comment": address, "score": 1})
    assert not [where for where in audit.addresses if "127.0.0.1" not in where]
    assert "invalid" not in json.dumps(audit.addresses)
