"""A server, or a network, that fails the real OpenClaw in mid-conversation: its tries again are nobody's verdict."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from instar.engines.scripted import Failure
from tests.client.conftest import Scene, only
from tests.client.test_openclaw_talks import CORRECTION, PRAISE
from tests.kit.fault_proxy import LOST_END, Fault
from tests.kit.told import Told, talk

pytestmark = [pytest.mark.clients, pytest.mark.soak, pytest.mark.timeout(600)]

UNHEARD = Told("main", CORRECTION, "Answer 2 of base.")
"""The server gave its answer to the end, and the client did not get it."""
FAILED = Told("main", CORRECTION, "", status="failed", reason="failed")


def proxy(*faults: Fault) -> Callable[[Scene], None]:
    return lambda scene: scene.house.proxy.fail(*faults)


def engine(failure: Failure, after: int = 1) -> Callable[[Scene], None]:
    return lambda scene: scene.house.engine.fail(failure, after=after)


FAULTS: dict[str, tuple[Callable[[Scene], None], tuple[Told, ...], str]] = {
    "500": (proxy(Fault(status=500)), (), "retry"),
    "503": (proxy(Fault(status=503)), (), "retry"),
    "502 twice": (proxy(Fault(status=502), Fault(status=502)), (), "retry"),
    "429 and when to come again": (proxy(Fault(status=429, retry_after_s=3)), (), "retry"),
    "the end is lost": (proxy(LOST_END), (UNHEARD,), "retry"),
    "cut after the server had finished": (proxy(Fault(cut_after=2, late=True)), (UNHEARD,), "retry"),
    "the end is lost, then 503, then lost again": (
        proxy(LOST_END, Fault(status=503), LOST_END),
        (UNHEARD, Told("retry", CORRECTION, "Answer 2 of base.")),
        "retry",
    ),
    "the engine is full": (engine(Failure.FULL), (FAILED,), "retry"),
    "the engine fails at once": (engine(Failure.ERROR), (FAILED,), "retry"),
    "the engine fails midway": (
        engine(Failure.BROKEN), (Told("main", CORRECTION, "Answer 2", status="failed", reason="failed"),), "retry",
    ),
    "the network is slow": (proxy(Fault(before_s=6.0)), (), "main"),
}  # fmt: skip
"""What goes wrong when the correction is sent, the turns that are left of it, and the kind of the one that is heard."""


@only("named", "unnamed")
@pytest.mark.parametrize("name", FAULTS)
def test_a_correction_that_is_answered_late_is_one_correction(scene: Scene, name: str) -> None:
    happens, left, kind = FAULTS[name]
    question, session = f"What is a fault like: {name}?", "fault-" + name.replace(" ", "-").replace(",", "")
    scene.say(question, session)
    happens(scene)
    scene.say(CORRECTION, session)
    scene.say(PRAISE, session)
    scene.check(talk(question, CORRECTION, PRAISE, *left, kind=kind))
    assert len({row["session_id"] for row in scene.rows()}) == 1


@only("named", "unnamed")
def test_cut_in_the_middle_of_an_answer(scene: Scene) -> None:
    """The server notices and stops sampling; what it had said is never learned from."""
    scene.say("What is a cut?", "cut")
    scene.house.engine.fail(Failure.HANG, after=2)
    scene.house.proxy.fail(Fault(cut_after=3))  # the first event has no text
    scene.say(CORRECTION, "cut")
    scene.say(PRAISE, "cut")
    left = Told("main", CORRECTION, "Answer 2 of base", status="cancelled", reason="cancelled")
    scene.check(talk("What is a cut?", CORRECTION, PRAISE, left, kind="retry"), "AAAA")


@only("named", "unnamed")
def test_the_very_first_message_fails(scene: Scene) -> None:
    scene.house.proxy.fail(Fault(status=500))
    for text in ("What is a start?", CORRECTION, PRAISE):
        scene.say(text, "start")
    first, *rest = talk("What is a start?", CORRECTION, PRAISE)
    scene.check(
        [Told("retry", *[first.question, first.answer], said=first.said, score=-1, hint=first.hint), *rest],
        "AAA",
    )


@only("named", "unnamed")
def test_the_server_waits_long_before_its_first_word(scene: Scene) -> None:
    scene.say("What is patience?", "patience")
    scene.house.engine.first_token_s = 20.0
    scene.say(CORRECTION, "patience")
    scene.house.engine.first_token_s = 0.0
    scene.say(PRAISE, "patience")
    scene.check(talk("What is patience?", CORRECTION, PRAISE), "AAA")


@only("named", "unnamed")
def test_an_answer_without_words(scene: Scene) -> None:
    """The client asks for the visible answer in the user's place; that is no reaction of theirs."""
    scene.say("What is silence?", "silence")
    scene.house.script.on(CORRECTION, "")
    scene.say(CORRECTION, "silence")
    scene.house.script.rules.clear()
    scene.say(PRAISE, "silence")
    wanted = talk("What is silence?", CORRECTION, PRAISE, Told("main", CORRECTION, ""), kind="retry")
    wanted[2] = replace(wanted[2], answer="Answer 3 of base.")  # it counts the client's own words, too
    scene.check(wanted, "AAAA")


@only("named", "unnamed")
def test_the_gateway_is_killed_in_the_middle_of_an_answer(scene: Scene) -> None:
    scene.say("What is a crash?", "crash")
    scene.house.engine.fail(Failure.HANG, after=1)
    talking = threading.Thread(target=scene.say, args=(CORRECTION, "crash"))
    talking.start()
    scene.house.until_running()
    os.kill(scene.house.server.pid("gateway"), signal.SIGKILL)
    talking.join(120)
    scene.house.server.until_ready()
    scene.say(PRAISE, "crash")
    left = Told("main", CORRECTION, "", status="failed", reason="interrupted")
    scene.check(talk("What is a crash?", CORRECTION, PRAISE, left, kind="retry"), "AAAA")


@only("named", "unnamed")
def test_the_user_stops_an_answer_and_says_something_else(scene: Scene) -> None:
    """OpenClaw hands what was said before along with the next message, then forgets it."""
    scene.say("What is a stop?", "stop")
    scene.house.engine.fail(Failure.HANG, after=0)
    with pytest.raises(httpx.ReadTimeout):
        scene.client.post(CORRECTION, "stop", timeout_s=4.0)
    scene.house.until_idle()
    scene.say("And what is a start?", "stop")
    scene.say(PRAISE, "stop")
    rows = scene.rows()
    assert [row["kind"] for row in rows] == ["main", "main", "main", "main"]
    assert [row["status"] for row in rows] == ["done", "cancelled", "done", "done"]
    assert [row["score"] for row in rows] == [-1, None, 1, None]
    said = [state["text"] for state in rows[0]["next_states"]]
    assert said.count(CORRECTION) == 1, "one correction is one reaction"
    assert [(s["kind"], s["text"]) for s in rows[2]["next_states"]] == [("user_reply", PRAISE)]


@only("named")
def test_a_turn_that_fails_for_good(scene: Scene) -> None:
    """After eight tries the message stays in the history without an answer, and the next one is joined to it."""
    scene.say("What is an end?", "end")
    scene.house.proxy.fail(*[Fault(status=500)] * 12)
    assert scene.client.post(CORRECTION, "end").status_code >= 500
    scene.house.proxy.faults.clear()
    scene.say("Are you there?", "end")
    scene.say(PRAISE, "end")
    rows = scene.rows()
    assert [row["kind"] for row in rows] == ["main"] * 3
    assert [row["score"] for row in rows] == [-1, 1, None]
    assert rows[0]["next_states"][0]["text"].startswith(CORRECTION)
    assert [(s["kind"], s["text"]) for s in rows[1]["next_states"]] == [("user_reply", PRAISE)]
