"""Turns in which the real OpenClaw really runs tools. The scripted engine asks for them, through the real gateway."""

from __future__ import annotations

import pytest

from tests.client.conftest import Scene
from tests.client.test_openclaw_talks import CORRECTION, PRAISE
from tests.kit.fault_proxy import Fault
from tests.kit.told import Told

pytestmark = [pytest.mark.clients, pytest.mark.soak, pytest.mark.timeout(600)]


def note(scene: Scene, name: str, text: str) -> None:
    (scene.client.workspace / name).write_text(text, "utf-8")


def test_scripted_engine_asks_to_read_a_file_and_the_client_reads_it(scene: Scene) -> None:
    """The tool's result is for the step that called it; the user's reaction is for every step of the episode."""
    note(scene, "note.txt", "the secret is 42\n")
    scene.house.script.call("What is in the note?", ("read", {"path": "note.txt"}))
    scene.house.script.on("the secret is 42", "It says 42.", role="tool")
    assert scene.say("What is in the note?", "note") == "It says 42."
    scene.say(CORRECTION, "note")
    scene.say(PRAISE, "note")
    scene.check([
        Told("main", "What is in the note?", "", (CORRECTION,), ("the secret is 42",), -1, CORRECTION),
        Told("tool_step", "What is in the note?", "It says 42.", (CORRECTION,), (), -1, CORRECTION),
        Told("main", CORRECTION, "Answer 2 of base.", said=(PRAISE,), score=1),
        Told("main", PRAISE, "Answer 3 of base."),
    ], "AAAA")  # fmt: skip
    rows = scene.rows()
    assert rows[1]["episode_id"] == rows[0]["id"]
    assert rows[0]["finish_reason"] == "tool_calls"


def test_scripted_engine_asks_to_run_a_command_and_the_client_runs_it(scene: Scene) -> None:
    made = scene.client.workspace / f"made-{scene.setting}.txt"
    scene.house.script.call(
        "Make a file", ("exec", {"command": f"echo done > {made.name} && echo it-is-made"})
    )
    scene.house.script.on("it-is-made", "I made it.", role="tool")
    assert scene.say("Make a file, please", "make") == "I made it."
    assert made.read_text("utf-8") == "done\n"
    scene.say(PRAISE, "make")
    first, second, third = scene.rows()
    assert (first["kind"], second["kind"], third["kind"]) == ("main", "tool_step", "main")
    assert (first["score"], second["score"], third["score"]) == (1, 1, None)
    assert [state["kind"] for state in first["next_states"]] == ["tool_result", "user_reply"]
    assert "it-is-made" in first["next_states"][0]["text"]


def test_scripted_engine_asks_for_two_tools_at_once(scene: Scene) -> None:
    """Both results are about the one answer that called for them."""
    note(scene, "one.txt", "first file\n")
    note(scene, "two.txt", "second file\n")
    calls = [("read", {"path": name}) for name in ("one.txt", "two.txt")]
    scene.house.script.call("Read both", *calls)
    scene.house.script.on("file", "One and two.", role="tool")
    assert scene.say("Read both files", "both") == "One and two."
    scene.say(CORRECTION, "both")
    first, second, third = scene.rows()
    assert sorted(s["text"].strip() for s in first["next_states"] if s["kind"] == "tool_result") == [
        "first file", "second file",
    ]  # fmt: skip
    assert (first["score"], second["score"]) == (-1, -1)
    assert (first["hint"], second["hint"]) == (CORRECTION, CORRECTION)
    assert [s["text"] for s in second["next_states"]] == [CORRECTION]
    assert third["next_states"] == []


def test_scripted_engine_asks_for_a_tool_that_fails(scene: Scene) -> None:
    """The tool says no, the user says nothing yet: the verdict on the step is the tool's alone."""
    scene.house.script.call("Show me the lost file", ("read", {"path": "there-is-no-such-file.txt"}))
    scene.house.script.on("", "It is not there.", role="tool")
    assert scene.say("Show me the lost file", "lost") == "It is not there."
    first, second = scene.rows()
    assert [state["kind"] for state in first["next_states"]] == ["tool_result"]
    assert (first["score"], first["link"]) == (-1, "tools")
    assert (second["score"], second["next_states"]) == (None, [])


def test_scripted_engine_asks_for_three_tools_in_a_row(scene: Scene) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        note(scene, name, f"this is {name}\n")
    scene.house.script.call("Read them in turn", ("read", {"path": "a.txt"}))
    for after, then in (("this is a.txt", "b.txt"), ("this is b.txt", "c.txt")):
        scene.house.script.call(after, ("read", {"path": then}), role="tool")
    scene.house.script.on("this is c.txt", "All are read.", role="tool")
    assert scene.say("Read them in turn", "turn") == "All are read."
    scene.say(CORRECTION, "turn")
    rows = scene.rows()
    assert [row["kind"] for row in rows] == ["main", "tool_step", "tool_step", "tool_step", "main"]
    assert [row["score"] for row in rows] == [-1, -1, -1, -1, None]
    assert {row["episode_id"] for row in rows[:4]} == {rows[0]["id"]}
    tools = [[s["text"].strip() for s in row["next_states"] if s["kind"] == "tool_result"] for row in rows]
    assert tools == [["this is a.txt"], ["this is b.txt"], ["this is c.txt"], [], []]


def test_scripted_engine_calls_a_tool_and_the_next_step_fails_once(scene: Scene) -> None:
    """The client asks again, with "Continue the current task" as a message of its own behind the tool's result."""
    note(scene, "again.txt", "read me twice\n")
    scene.house.script.call("Read it again", ("read", {"path": "again.txt"}))
    scene.house.script.on("read me twice", "I read it.", role="tool")
    scene.house.script.on("Continue the current task", "I read it.")
    scene.house.proxy.fail(Fault(), Fault(status=500))
    assert scene.say("Read it again", "again") == "I read it."
    scene.say(CORRECTION, "again")
    scene.say(PRAISE, "again")
    scene.check([
        Told("main", "Read it again", "", (CORRECTION,), ("read me twice",), -1, CORRECTION),
        Told("retry", "Read it again", "I read it.", (CORRECTION,), (), -1, CORRECTION),
        Told("main", CORRECTION, "Answer 2 of base.", said=(PRAISE,), score=1),
        Told("main", PRAISE, "Answer 3 of base."),
    ], "AAAA")  # fmt: skip
    rows = scene.rows()
    assert rows[1]["episode_id"] == rows[0]["id"]
