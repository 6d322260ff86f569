"""Conversations of the real OpenClaw, without any plugin. The scripted engine answers; all else is real."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.client.conftest import Scene, only
from tests.kit import real_openclaw
from tests.kit.real_openclaw import OpenClaw
from tests.kit.scripted_house import scripted_house
from tests.kit.told import Told, check, talk

pytestmark = [pytest.mark.clients, pytest.mark.soak, pytest.mark.timeout(600)]

CORRECTION = "Too long. One short sentence, please."
PRAISE = "Perfect, thank you!"


def test_a_correction_judges_the_answer_before_it(scene: Scene) -> None:
    for text in ("Why do cats purr?", CORRECTION, PRAISE):
        scene.say(text, "purr")
    scene.check(talk("Why do cats purr?", CORRECTION, PRAISE), "AAA")


@only("named")
def test_messages_typed_at_the_command_line(scene: Scene) -> None:
    for text in ("Why is the sky blue?", CORRECTION, PRAISE):
        scene.client.say(text, "sky")
    scene.check(talk("Why is the sky blue?", CORRECTION, PRAISE), "AAA")


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_without_a_gateway(tmp_path: Path, named: bool) -> None:
    """`openclaw agent --local`: a process of its own for each message."""
    with scripted_house(tmp_path) as house:
        client = real_openclaw.install(tmp_path / "home", house.url, house.server.key, named_sessions=named)
        for text in ("Who was Mozart?", CORRECTION, PRAISE):
            client.say(text, "mozart", local=True)
        check(house.judged(), talk("Who was Mozart?", CORRECTION, PRAISE), "AAA")


def test_a_home_without_any_configuration(tmp_path: Path) -> None:
    """What a newcomer does: install OpenClaw, `instar connect openclaw --small --write`, talk."""
    with scripted_house(tmp_path) as house:
        client = OpenClaw(tmp_path / "home")
        client.home.mkdir()
        done = real_openclaw.connect(client.home, house.url, house.server.key, "--small", "--write")
        assert done.returncode == 0, done.stderr
        assert client.command("config", "validate")
        for text in ("Who was Bach?", CORRECTION, PRAISE):
            client.say(text, "bach", local=True)
        check(house.judged(), talk("Who was Bach?", CORRECTION, PRAISE), "AAA")


def test_two_conversations_that_say_the_same(scene: Scene) -> None:
    """They begin alike, word for word, and alternate; the reaction goes to the one in which it was said."""
    for text in ("What is rain?", CORRECTION):
        for session in ("rain-1", "rain-2"):
            scene.say(text, session)
    scene.say(PRAISE, "rain-2")
    first = Told("main", "What is rain?", "Answer 1 of base.", said=(CORRECTION,), score=-1, hint=CORRECTION)
    second = Told("main", CORRECTION, "Answer 2 of base.")
    praised = Told("main", CORRECTION, "Answer 2 of base.", said=(PRAISE,), score=1)
    scene.check([first, first, second, praised, Told("main", PRAISE, "Answer 3 of base.")], "ABABB")


def test_five_turns_in_a_row(scene: Scene) -> None:
    said = ["What is snow?", CORRECTION, PRAISE, CORRECTION, PRAISE]
    for text in said:
        scene.say(text, "snow")
    scores = [-1, 1, -1, 1]
    wanted = [
        Told("main", question, f"Answer {i + 1} of base.", said=(said[i + 1],), score=scores[i])
        for i, question in enumerate(said[:-1])
    ]
    scene.check([*wanted, Told("main", PRAISE, "Answer 5 of base.")], "AAAAA")


def test_blanks_at_the_end_of_an_answer_are_kept(scene: Scene) -> None:
    scene.house.script.on("What is hail?", "Hail is ice. \n\n- one\n- two  ")
    for text in ("What is hail?", CORRECTION, PRAISE):
        scene.say(text, "hail")
    wanted = talk("What is hail?", CORRECTION, PRAISE)
    answer = "Hail is ice. \n\n- one\n- two  "
    wanted[0] = Told("main", "What is hail?", answer, said=(CORRECTION,), score=-1, hint=CORRECTION)
    scene.check(wanted, "AAA")


def test_a_version_that_comes_between_two_turns(scene: Scene) -> None:
    scene.say("What is fog?", "fog")
    scene.house.publish("v1")
    scene.house.activate("v1")
    try:
        scene.say(CORRECTION, "fog")
        scene.say(PRAISE, "fog")
    finally:
        scene.house.activate("base")
    scene.check([
        Told("main", "What is fog?", "Answer 1 of base.", said=(CORRECTION,), score=-1, hint=CORRECTION),
        Told("main", CORRECTION, "Answer 2 of v1.", said=(PRAISE,), score=1, version="v1"),
        Told("main", PRAISE, "Answer 3 of v1.", version="v1"),
    ], "AAA")  # fmt: skip


def test_a_version_that_comes_in_the_middle_of_an_answer(scene: Scene) -> None:
    scene.house.publish("v2")
    scene.house.engine.token_s = 0.2
    talking = threading.Thread(target=scene.say, args=("What is dew?", "dew"))
    talking.start()
    scene.house.until_running()
    scene.house.activate("v2")
    talking.join(60)
    scene.house.engine.token_s = 0.0
    try:
        scene.say(CORRECTION, "dew")
    finally:
        scene.house.activate("base")
    scene.say(PRAISE, "dew")
    scene.check([
        Told("main", "What is dew?", "Answer 1 of base.", said=(CORRECTION,), score=-1, hint=CORRECTION),
        Told("main", CORRECTION, "Answer 2 of v2.", said=(PRAISE,), score=1, version="v2"),
        Told("main", PRAISE, "Answer 3 of base."),
    ], "AAA")  # fmt: skip
