"""What becomes of each request of a real Open WebUI. The recordings are whole but for its long texts, and masked.

It held these talks through the interface of its own page, in front of the real server over the scripted engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.live_gateway import Live, live_gateway

FOLDER = Path(__file__).resolve().parents[1] / "unit" / "data" / "openwebui"
Said = list[tuple[str, str]]
TWO, FIVE, PERFECT = "At most two words, please.", "At most five words, please.", "Perfect, thank you!"
CONCISE = "Make it more concise, please."

EXPECTED: dict[str, list[tuple[str, Said]]] = {
    "three_turns_and_an_edit": [
        ("What is a moult?", [("user_reply", TWO), ("user_reply", FIVE)]),
        (TWO, [("user_reply", PERFECT), ("edit", FIVE)]),
        (PERFECT, []),
        (FIVE, []),
    ],
    "regenerated": [
        ("Name a river.", [("regenerate", "")]),
        ("Name a river.", [("user_reply", CONCISE)]),
        (CONCISE, [("user_reply", PERFECT)]),
        (PERFECT, []),
    ],
}
"""Of each talk its turns in order, and what was said of each."""


async def play(live: Live, name: str, *, named: bool) -> None:
    """Send what was recorded, one after the other; the answers are those of then."""
    for request in json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["requests"]:
        live.engine.script = lambda version, prompt, answer=request["answer"]: answer
        headers = {k: v for k, v in request["headers"].items() if named or not k.startswith("x-openwebui-")}
        answer = await live.http.post("/v1/chat/completions", json=request["body"], headers=headers)
        assert answer.status_code == 200, answer.text


def in_short(turn: dict[str, Any]) -> tuple[str, Said]:
    return turn["question"], [(s["kind"], s["text"] or "") for s in turn["next_states"]]


@pytest.mark.parametrize(
    ("name", "named"),
    # another answer to the very first message is a new conversation where nothing names the old one
    [("three_turns_and_an_edit", True), ("three_turns_and_an_edit", False), ("regenerated", True)],
)
async def test_talks_are_told_from_what_it_does_for_itself(tmp_path: Path, name: str, named: bool) -> None:
    async with live_gateway(tmp_path, context_length=32_768) as live:
        await play(live, name, named=named)
        turns = (await live.turns(limit=100))[::-1]
    own = [turn for turn in turns if turn["kind"] == "side"]
    assert {turn["recognised"] for turn in own} == {"webui_task"}
    assert [turn["next_states"] for turn in own] == [[]] * len(own)
    talk = [turn for turn in turns if turn["kind"] != "side"]
    assert [in_short(turn) for turn in talk] == EXPECTED[name]
    assert len({turn["session_id"] for turn in talk}) == 1
