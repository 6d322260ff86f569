"""Examples of the documentation are run, and what docs/api.md says of routes and fields is held against the code."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from pydantic import BaseModel

from instar.config import load_settings
from instar.gateway.completions import CompletionBody
from instar.gateway.messages.body import MessagesBody
from instar.gateway.responses.body import ResponsesBody
from instar.gateway.schemas import ChatBody
from tests.kit.docs import README, ROOT
from tests.kit.live_gateway import KEY, Live, live_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

API = ROOT / "docs" / "api.md"
HOME = ROOT / "docs" / "home-network.md"
ADDRESS = "http://localhost:30000"
SECTIONS: dict[str, type[BaseModel]] = {
    "Chat completions": ChatBody,
    "Completions": CompletionBody,
    "Responses": ResponsesBody,
    "Messages": MessagesBody,
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


CURLS = [block for page in (README, API) for block in blocks(page, "sh") if block.startswith("curl ")]
SNIPPETS = [block for page in (README, API) for block in blocks(page, "python") if ADDRESS in block]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    async with live_gateway(tmp_path_factory.mktemp("docs"), lambda version, prompt: "A change.") as live:
        yield live


async def send(live: Live, command: str) -> httpx.Response:
    """What curl would send. Other options than these are for this test to learn first."""
    words = shlex.split(command.replace("$(cat ~/.instar/api_key)", KEY).replace("\\\n", ""))
    assert words.pop(0) == "curl"
    url, headers, data = "", {}, ""
    while words:
        match words.pop(0):
            case "-H":
                name, _, value = words.pop(0).partition(":")
                headers[name] = value.strip()
            case "-d":
                data = words.pop(0)
            case word:
                assert word.startswith(ADDRESS), word
                url = word.replace(ADDRESS, live.url)
    async with httpx.AsyncClient(trust_env=False) as stranger:
        return await stranger.post(url, headers=headers, content=data.encode())


@pytest.mark.parametrize("command", CURLS, ids=lambda text: text.split()[1].removeprefix(ADDRESS))
async def test_curl_examples(live: Live, command: str) -> None:
    if "turn_…" in command:
        command = command.replace("turn_…", (await live.ask("hi")).json()["id"])
    answer = await send(live, command)
    assert answer.status_code == 200, answer.text
    said = "".join(re.findall(r'"(?:content|text)": ?"([^"]*)"', answer.text))
    assert said == "A change." or answer.json()["recorded"]


@pytest.mark.parametrize("code", SNIPPETS, ids=lambda text: re.findall(r"import (OpenAI|Anthropic)", text)[0])
async def test_python_examples(
    live: Live, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".instar").mkdir()
    (tmp_path / ".instar" / "api_key").write_text(f"{KEY}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    printed = io.StringIO()

    def run() -> None:
        with contextlib.redirect_stdout(printed):
            exec(compile(code.replace(ADDRESS, live.url), "example", "exec"), {"__name__": "example"})

    await asyncio.to_thread(run)
    assert "A change." in printed.getvalue()


def test_examples_were_found() -> None:
    assert {re.findall(r"/v1/\S+", command)[0] for command in CURLS} == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/feedback",
    }
    assert len(SNIPPETS) == 3


@pytest.mark.parametrize("text", [*blocks(HOME, "toml"), *blocks(README, "toml")])
def test_settings_examples_can_be_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "instar.toml").write_text(text)
    assert tomllib.loads(text)
    load_settings(tmp_path)


async def test_routes_of_the_page_are_those_of_the_server(live: Live) -> None:
    documented = set(re.findall(r"`(GET|POST) (/[^`]*)`", API.read_text("utf-8").split("## Common")[0]))
    paths = live.app.openapi()["paths"]
    assert documented == {(method.upper(), path) for path in paths for method in paths[path]}


@pytest.mark.parametrize("section", SECTIONS)
def test_fields_of_the_page_are_those_of_the_code(section: str) -> None:
    text = API.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (honoured|ignored|refused) \| (.*) \|$", text, re.MULTILINE))
    named = {
        kind: {re.split(r"[.:]", name)[0] for name in re.findall(r"`([a-z_.]+)(?::[^`]*)?`", row)}
        for kind, row in rows.items()
    }
    fields = set(SECTIONS[section].model_fields) - {"session_id"}  # told in the part common to all
    assert named["honoured"] <= fields, "honoured, says the page, but nothing reads it"
    assert fields <= named["honoured"] | named["ignored"] | named["refused"], "the page does not tell of it"
