"""What the real OpenClaw asks for itself – summaries, heartbeats, scheduled runs – and where a conversation ends."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from tests.client.conftest import Scene, only
from tests.client.test_openclaw_talks import CORRECTION, PRAISE
from tests.kit.real_openclaw import session_key
from tests.kit.told import ANY, Told, talk

pytestmark = [pytest.mark.clients, pytest.mark.soak, pytest.mark.timeout(600)]


@only("named", "unnamed")
def test_slash_new_ends_a_conversation(scene: Scene) -> None:
    """The command itself reaches no model, and what comes after it is about nothing that was said before."""
    scene.say("What is a river?", "new")
    scene.say(CORRECTION, "new")
    assert "New session" in scene.client.say("/new", "new")
    scene.say("No, that is wrong.", "new")
    scene.say(PRAISE, "new")
    scene.check([
        Told("main", "What is a river?", "Answer 1 of base.", said=(CORRECTION,), score=-1, hint=CORRECTION),
        Told("main", CORRECTION, "Answer 2 of base."),
        Told("main", "No, that is wrong.", "Answer 1 of base.", said=(PRAISE,), score=1),
        Told("main", PRAISE, "Answer 2 of base."),
    ])  # fmt: skip


@only("named", "unnamed")
def test_slash_reset_with_a_text_is_the_first_message_of_another_one(scene: Scene) -> None:
    scene.say("What is a lake?", "reset")
    scene.client.say("/reset That was wrong, tell me of ponds", "reset")
    scene.say(PRAISE, "reset")
    scene.check([
        Told("main", "What is a lake?", "Answer 1 of base."),
        Told("main", "That was wrong, tell me of ponds", "Answer 1 of base.", said=(PRAISE,), score=1),
        Told("main", PRAISE, "Answer 2 of base."),
    ])  # fmt: skip


@only("named", "unnamed")
def test_compaction_is_no_turn_of_the_conversation(scene: Scene) -> None:
    """The summary's request is set aside; a reaction to the last answer before it still finds that answer."""
    for text in ("What is a sea?", CORRECTION, PRAISE, "And what is an ocean?"):
        scene.say(text, "sea")
    scene.client.command("sessions", "compact", session_key("sea"))
    scene.say(CORRECTION, "sea")
    scene.say(PRAISE, "sea")
    rows = [row for row in scene.rows() if row["kind"] != "side"]
    sides = [row for row in scene.rows() if row["kind"] == "side"]
    assert sides, "nothing was summed up"
    assert {row["reason"] for row in sides} == {"compaction"}
    assert all(row["next_states"] == [] and row["score"] is None for row in sides)
    before = talk("What is a sea?", CORRECTION, PRAISE)
    assert [row["score"] for row in rows][:2] == [turn.score for turn in before][:2]
    assert [(s["kind"], s["text"]) for s in rows[3]["next_states"]] == [("user_reply", CORRECTION)]
    assert (rows[3]["score"], rows[3]["hint"]) == (-1, CORRECTION)
    assert [(s["kind"], s["text"]) for s in rows[4]["next_states"]] == [("user_reply", PRAISE)]
    assert rows[4]["score"] == 1
    assert len(rows) == 6


def wake(scene: Scene) -> None:
    """Something happens, and the agent's main session has a look at it."""
    chats = len(scene.house.proxy.chats())
    scene.client.command("system", "event", "--text", "The oven is hot", "--mode", "now")
    until(lambda: len(scene.house.proxy.chats()) > chats and scene.house.proxy.chats()[-1].status == 200)
    scene.house.until_idle()
    time.sleep(1)  # the client writes its history down


def until(holds: object, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    assert callable(holds)
    while not holds():
        assert time.monotonic() < deadline, "OpenClaw never asked"
        time.sleep(0.1)


@only("named", "unnamed")
def test_a_heartbeat_is_no_reaction_and_gets_none(scene: Scene) -> None:
    scene.house.script.on("Follow the heartbeat monitor", "NO_REPLY")
    scene.say("What is a hill?", "main")
    wake(scene)
    scene.say(CORRECTION, "main")
    scene.say(PRAISE, "main")
    beat = Told("side", ANY, "NO_REPLY", reason="heartbeat")
    first, second, third = talk("What is a hill?", CORRECTION, PRAISE)
    answers = [
        row["answer"] for row in scene.rows()
    ]  # how many messages of the heartbeat stay is the client's business
    assert all(answer.startswith("Answer ") and answer.endswith(" of base.") for answer in answers[2:])
    scene.check([first, beat, replace(second, answer=answers[2]), replace(third, answer=answers[3])], "AAAA")


@only("named", "unnamed")
def test_a_heartbeat_that_speaks_takes_no_reaction_from_the_answer_before_it(scene: Scene) -> None:
    """What is said after it may be about either of them: the one is none of the conversation, the other is left out."""
    scene.house.script.on("Follow the heartbeat monitor", "The oven is ready.")
    scene.say("What is a dale?", "main")
    wake(scene)
    scene.say(CORRECTION, "main")
    scene.say(PRAISE, "main")
    rows = scene.rows()
    assert [row["kind"] for row in rows] == ["main", "side", "main", "main"]
    assert [row["score"] for row in rows] == [None, None, 1, None]
    assert rows[1]["next_states"] == []


@only("named", "unnamed")
def test_a_scheduled_run_is_no_conversation(scene: Scene) -> None:
    scene.say("What is a field?", "field")
    added = scene.client.command(
        "cron", "add", "--name", "day", "--at", "40m", "--session", "isolated", "--agent", "main",
        "--message", "Sum the day up", "--json",
    )  # fmt: skip
    job = json.loads(added[added.index("{") :])["id"]
    chats = len(scene.house.proxy.chats())
    scene.client.command("cron", "run", job)
    until(lambda: len(scene.house.proxy.chats()) > chats and scene.house.proxy.chats()[-1].status == 200)
    scene.house.until_idle()
    scene.say(CORRECTION, "field")
    scene.say(PRAISE, "field")
    first, second, third = talk("What is a field?", CORRECTION, PRAISE)
    scene.check([first, Told("side", ANY, "Answer 1 of base.", reason="cron"), second, third], "ABAA")


@only("named")
def test_a_trial_of_the_model_is_no_conversation(scene: Scene) -> None:
    """`openclaw infer model run`"""
    scene.client.command(
        "infer", "model", "run", "--gateway", "--prompt", "Reply with exactly: pong", "--json"
    )
    scene.check([Told("side", ANY, "Answer 1 of base.", reason="model_run")])
