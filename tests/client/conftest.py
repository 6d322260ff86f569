"""Installations of the real OpenClaw, started once for all scenarios: a start takes half a minute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CHECKED_TURNS
from tests.kit import real_openclaw
from tests.kit.real_openclaw import OpenClaw
from tests.kit.scripted_house import House, scripted_house
from tests.kit.told import Told, check

SETTINGS = {
    "named": {},
    "unnamed": {"named_sessions": False},
    "stock": {"named_sessions": False, "small": False},
}
"""With its session-affinity settings, without them, and with its full prompt, which ends in a block of its own."""


@dataclass
class Scene:
    """A server, a client that talks to it, and a mark: only what came after it belongs to the scenario."""

    house: House
    client: OpenClaw
    setting: str
    properties: list[tuple[str, object]]
    mark: int = field(default=0)

    def __post_init__(self) -> None:
        self.mark = len(self.house.turns())
        self.sent = len(self.house.proxy.chats())

    def say(self, text: str, session: str) -> str:
        """A message through OpenClaw's gateway; its reply, which must be one."""
        answer = self.client.post(text, session)
        assert answer.status_code == 200, f"{answer.text}\n{self.client.log()}"
        reply: str = answer.json()["choices"][0]["message"]["content"]
        return reply

    def rows(self) -> list[dict[str, Any]]:
        return self.house.judged()[self.mark :]

    def check(self, wanted: list[Told], sessions: str | None = None) -> None:
        check(self.rows(), wanted, sessions)
        self.properties.append((CHECKED_TURNS, len(wanted)))


@pytest.fixture(scope="session", params=list(SETTINGS))
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[House, OpenClaw, str]]:
    """OpenClaw's gateway over the real server over the scripted engine."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    with scripted_house(folder) as house:
        client = real_openclaw.install(
            folder / "home", house.url, house.server.key, **SETTINGS[request.param]
        )
        with real_openclaw.running(client):
            yield house, client, request.param


@pytest.fixture
def scene(place: tuple[House, OpenClaw, str], request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A scenario of its own in a place that others use too; it leaves neither faults nor delays behind."""
    house, client, setting = place
    yield Scene(house, client, setting, request.node.user_properties)
    house.proxy.faults.clear()
    house.engine.first_token_s = house.engine.token_s = 0.0
    house.script.rules.clear()


def only(*settings: str) -> pytest.MarkDecorator:
    """Run a scenario in these settings alone."""
    return pytest.mark.parametrize("place", settings, indirect=True, scope="session")
