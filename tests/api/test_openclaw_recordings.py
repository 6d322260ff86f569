"""What becomes of each request of a real OpenClaw client. The expected values were read off the recordings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from instar.records import Message
from tests.kit.live_gateway import live_gateway
from tests.kit.openclaw import CUT, FAULT_500, Player, Recorded, calls, recording, recordings

READ_NOTE = calls(("read", {"path": "note.txt"}))
OURS = frozenset({"x-session-id", "x-turn-type"})


@dataclass(frozen=True)
class Expect:
    """`follows` is the number of the request whose answer is continued, `hears` what is said of this answer.

    Session `sess_` stands for any that we named ourselves.
    """

    session: str
    kind: str
    text: str = ""
    answer: str | Message = "ok."
    follows: int | None = None
    recognised: str | None = None
    hears: list[tuple[str, str]] = field(default_factory=list)


def reply(text: str) -> list[tuple[str, str]]:
    return [("user_reply", text)]


ANN = "My name is Ann. Write one line greeting."
FORMAL, FORMAL_POEM = "No, wrong: use a formal tone instead.", "No, wrong: make it formal"
SILENCE, FOURTH = "Thanks, say nothing", "and now a fourth"
NOTE = [("tool_result", "secret note 42\n")]
SLUG = "slug-generator-0adbede7-1af0-4814-a8be-10e596916ac9:0"
CRON = "openclaw-cron-a22884fe695ee7f053b743c40acc2313"
MAIN = "d9b74164-6e43-450c-be25-5707e91d7770"
OTHER = "e0c85275-6e43-450c-be25-5707e91d7770"
FLUSH = "internal-session-effects-7bcc4023-a6ca-4f94-aa3b-cc4768b59749-1a358851c370ccc0"
TRIAL = "internal-session-effects-0c5cd43b-b4f3-4dcd-81cd-656005bbfb75-:0"

EXPECTED: dict[str, dict[int, Expect]] = {
    "01_default_turn1": {5: Expect("s-gw1", "main", ANN)},
    "02_min_three_turns": {
        7: Expect("m2:0", "main", ANN, "Hey Ann! \n\n- one\n- two  ", hears=reply(FORMAL)),
        8: Expect("m2:0", "main", FORMAL, "Good day, Ms. Ann.", follows=7, hears=reply(SILENCE)),
        9: Expect("m2:0", "main", SILENCE, "NO_REPLY", follows=8),
        10: Expect(
            "m2:0", "retry", SILENCE, "stub reply 3: ok.", follows=8,
            recognised="no_visible_answer", hears=reply(FOURTH),
        ),
        11: Expect("m2:0", "main", FOURTH, follows=10),
    },
    "04_min_tool_turn": {
        5: Expect("s-min1:0", "main", "Hello, USETOOL please", READ_NOTE, hears=NOTE),
        6: Expect("s-min1:0", "tool_step", "Hello, USETOOL please", follows=5),
    },
    "06_retry_after_500_and_cut": {
        24: Expect("h1:0", "main", "Write a poem", "stub reply 1: ok.", hears=reply(FORMAL_POEM)),
        25: Expect("h1:0", "main", FORMAL_POEM, FAULT_500, follows=24),
        26: Expect("h1:0", "retry", FORMAL_POEM, CUT, follows=24, recognised="retry_wrapper"),
        27: Expect(
            "h1:0", "retry", FORMAL_POEM, "stub reply 2: ok.", follows=24,
            recognised="retry_wrapper", hears=reply("Third turn"),
        ),
        28: Expect("h1:0", "main", "Third turn", follows=27),
    },
    "07_first_turn_500_retry": {
        14: Expect("e500:0", "main", "Say hi 500", FAULT_500),
        15: Expect("e500:0", "retry", "Say hi 500", recognised="retry_wrapper"),
    },
    "09_compaction_side_request": {
        32: Expect("f1", "side", recognised="compaction"),
        33: Expect("f1", "side", recognised="compaction"),
    },
    "10_heartbeat": {
        59: Expect("68a7b365-c07d-432a-b92d-da31cd3fda63", "side", recognised="side"),
    },
    "11_ctx8192_default_one_token": {6: Expect("ctx8192", "main", "Hello")},
    "12_reasoning_echo": {
        1: Expect(
            "r1", "main", "Capital of France?", "<think>The user asks for the capital.</think>Paris.",
            hears=reply("Read note.txt"),
        ),
        2: Expect("r1", "main", "Read note.txt", READ_NOTE, follows=1, hears=NOTE),
        3: Expect("r1", "tool_step", "Read note.txt", follows=2),
    },
    "14_new_slug_generator_then_fresh": {
        31: Expect(SLUG, "side", recognised="title"),
        32: Expect("h1:2", "main", "Fresh start"),
    },
    "16_cron_preflight_and_turn": {35: Expect(CRON, "side", recognised="cron")},
    "17_infer_model_run": {36: Expect(TRIAL, "side", recognised="model_run")},
    "19_provider_hook_headers": {
        53: Expect("p1", "main", "USETOOL now please", READ_NOTE, hears=NOTE),
        54: Expect("p1", "tool_step", "USETOOL now please", follows=53),
    },
    "20_upstream_fetch_patch_no_headers": {60: Expect("q1", "main", "Upstream plugin only")},
    "21_faults_compaction_new_reset": {
        0: Expect("k1:0", "main", ANN, "stub reply 1: fine.", hears=reply("No, wrong: use a formal tone.")),
        1: Expect(
            "k1:0", "main", "No, wrong: use a formal tone.", "stub reply 2: fine.", follows=0,
            hears=reply("FAULT500 please say hi"),
        ),
        2: Expect("k1:0", "main", "FAULT500 please say hi", FAULT_500, follows=1),
        3: Expect("k1:0", "retry", "FAULT500 please say hi", FAULT_500, 1, "retry_wrapper"),
        4: Expect(
            "k1:0", "retry", "FAULT500 please say hi", "stub reply 3: fine.", 1, "retry_wrapper",
            hears=reply("and a fourth"),
        ),
        5: Expect(
            "k1:0", "main", "and a fourth", "stub reply 4: fine.", follows=4,
            hears=reply("too long, shorter please"),
        ),
        6: Expect("k1", "side", recognised="compaction"),
        7: Expect(
            "k1:1", "main", "too long, shorter please", "stub reply 6: fine.", follows=5, hears=reply("good")
        ),
        8: Expect("k1:1", "main", "good", follows=7),
        9: Expect("k1:2", "main", "no, wrong"),
        10: Expect("k1:3", "main", "tell me a joke", "stub reply 9: fine.", hears=reply("ha ha, great")),
        11: Expect("k1:3", "main", "ha ha, great", follows=10),
    },
    "22_stock_memory_flush_and_heartbeats": {
        12: Expect(
            "st1", "main", "My name is Bob. Greet me.", "stub reply 11: fine.",
            hears=reply("no, formal please"),
        ),
        13: Expect(FLUSH, "side", recognised="memory_flush"),
        14: Expect("st1", "main", "no, formal please", "stub reply 13: fine.", follows=12, hears=reply("thanks")),
        15: Expect(
            "st1", "main", "thanks", "stub reply 14: fine.", follows=14, hears=reply("and one more thing")
        ),
        16: Expect(MAIN, "side", answer="stub reply 15: fine.", recognised="heartbeat"),
        17: Expect("st1", "main", "and one more thing", follows=15),
        18: Expect("sess_", "side", recognised="model_run"),
        19: Expect(MAIN, "main", "What is a moult?", "stub reply 18: fine."),
        20: Expect(MAIN, "side", answer="stub reply 19: fine.", follows=19, recognised="heartbeat"),
        21: Expect(MAIN, "main", "too long", "stub reply 20: fine.", hears=reply("thanks")),
        22: Expect(MAIN, "main", "thanks", follows=21),
    },
    "23_stock_silent_heartbeat_and_faults": {
        0: Expect(OTHER, "main", "What is an instar?", "stub reply 1: fine.", hears=reply("too long")),
        1: Expect(OTHER, "side", answer="NO_REPLY", follows=0, recognised="heartbeat"),
        2: Expect(
            OTHER, "main", "too long", "stub reply 2: fine.", follows=0, hears=reply("FAULT500 in stock mode")
        ),
        3: Expect(OTHER, "main", "FAULT500 in stock mode", FAULT_500, follows=2),
        4: Expect(OTHER, "retry", "FAULT500 in stock mode", FAULT_500, 2, "retry_wrapper"),
        5: Expect(
            OTHER, "retry", "FAULT500 in stock mode", "stub reply 3: fine.", 2, "retry_wrapper",
            hears=reply("thanks"),
        ),
        6: Expect(OTHER, "main", "thanks", follows=5),
    },
}  # fmt: skip
"""Recording → number of the request → what becomes of it, and what it is answered with."""


@pytest.fixture
async def player(tmp_path: Path) -> AsyncIterator[Player]:
    async with live_gateway(tmp_path, context_length=32_768, served_name="stub") as live:
        yield Player(live)


def chats(name: str) -> list[Recorded]:
    return [request for request in recording(name) if request.body is not None]


def test_every_recorded_request_has_an_expected_value() -> None:
    assert {name: [r.n for r in chats(name)] for name in recordings()} == {
        name: list(rows) for name, rows in EXPECTED.items()
    }


async def replay(player: Player, requests: list[tuple[str, Recorded]]) -> dict[tuple[str, int], Any]:
    """Send them all in this order; what /v1/turns shows of each in the end."""
    ids = {}
    for name, request in requests:
        turn = await player.send(request, EXPECTED[name][request.n].answer)
        ids[name, request.n] = turn["id"]
    turns = {turn["id"]: turn for turn in await player.live.turns(limit=1000)}
    return {key: turns[turn_id] for key, turn_id in ids.items()}


def check(turns: dict[tuple[str, int], Any]) -> None:
    for (name, n), turn in turns.items():
        expected = EXPECTED[name][n]
        parent = turns[name, expected.follows]["id"] if expected.follows is not None else None
        ours = turn["session_id"].startswith("sess_")
        told = {
            "session": "sess_" if ours else turn["session_id"], "kind": turn["kind"], "recognised": turn["recognised"],
            "parent": turn["parent_id"], "hears": [(s["kind"], s["text"]) for s in turn["next_states"]],
        }  # fmt: skip
        assert told == {
            "session": expected.session, "kind": expected.kind, "recognised": expected.recognised,
            "parent": parent, "hears": expected.hears,
        }, (name, n)  # fmt: skip
        if expected.kind == "side":
            assert turn["reason"] == expected.recognised, (name, n)
        else:
            assert turn["question"] == expected.text, (name, n)
        failed = "failed" if expected.answer in (FAULT_500, CUT) else None
        assert failed is None or turn["reason"] == failed, (name, n)


async def test_each_recording_by_itself(player: Player) -> None:
    for name in recordings():
        check(await replay(player, [(name, request) for request in chats(name)]))


async def test_all_recordings_at_once(player: Player) -> None:
    side_by_side = zip_longest(*([(name, r) for r in chats(name)] for name in recordings()))
    check(await replay(player, [one for row in side_by_side for one in row if one is not None]))


async def test_steps_of_a_tool_call_are_one_episode_and_retries_their_own(player: Player) -> None:
    tools = await replay(player, [("04_min_tool_turn", r) for r in chats("04_min_tool_turn")])
    assert len({turn["episode_id"] for turn in tools.values()}) == 1
    name = "06_retry_after_500_and_cut"
    tries = await replay(player, [(name, request) for request in chats(name)])
    assert len({turn["episode_id"] for turn in tries.values()}) == len(tries)


async def test_what_is_judged_and_trained_on_after_faults(player: Player) -> None:
    """The user's turn that was tried three times is one turn: the tries that failed hear nothing."""
    name = "06_retry_after_500_and_cut"
    turns = await replay(player, [(name, request) for request in chats(name)])
    items = {item.turn.id: [(s.kind, s.text) for s in item.next_states] for item in player.live.judge_items()}
    assert items == {
        turns[name, 24]["id"]: [("user_reply", FORMAL_POEM)],
        turns[name, 27]["id"]: [("user_reply", "Third turn")],
    }


async def test_a_try_that_was_answered_but_never_arrived_is_no_regenerate(player: Player) -> None:
    """The connection may break behind the last byte that the server sent."""
    name = "06_retry_after_500_and_cut"
    first, _, wrapped, again, third = chats(name)
    await player.send(first, "stub reply 1: ok.")
    lost = await player.send(wrapped, "an answer that got lost")
    got = await player.send(again, "stub reply 2: ok.")
    await player.send(third, "ok.")
    turns = {turn["id"]: turn for turn in await player.live.turns(limit=100)}
    assert turns[lost["id"]]["next_states"] == []
    assert turns[got["id"]]["next_states"] == [{"kind": "user_reply", "text": "Third turn"}]


async def test_heartbeat_is_known_without_help_of_a_plugin(player: Player) -> None:
    [request] = chats("10_heartbeat")
    turn = await player.send(request, "NO_REPLY", without=OURS)
    assert (turn["session_id"], turn["kind"], turn["recognised"], turn["reason"]) == (
        "68a7b365-c07d-432a-b92d-da31cd3fda63", "side", "heartbeat", "heartbeat",
    )  # fmt: skip


async def test_heartbeat_in_the_middle_of_a_conversation_judges_nothing(player: Player) -> None:
    first, second, *_ = chats("02_min_three_turns")
    [beat] = chats("10_heartbeat")
    assert second.body
    assert beat.body
    asked = await player.send(first, "Hey Ann! \n\n- one\n- two  ")
    history = [*second.body["messages"][:-1], *beat.body["messages"][1:]]
    within = Recorded(0, "POST", first.path, second.headers, {**beat.body, "messages": history})
    side = await player.send(within, "NO_REPLY")
    assert (side["session_id"], side["kind"]) == ("m2:0", "side")
    await player.send(second, "Good day, Ms. Ann.")
    turns = {turn["id"]: turn for turn in await player.live.turns(limit=100)}
    assert turns[asked["id"]]["next_states"] == [{"kind": "user_reply", "text": FORMAL}]
    assert turns[side["id"]]["next_states"] == []


@pytest.mark.parametrize("name", ["09_compaction_side_request", "14_new_slug", "16_cron", "17_infer"])
async def test_side_requests_are_known_by_their_text_where_no_session_id_is_sent(
    player: Player, name: str
) -> None:
    request = chats(name)[0]
    assert request.body
    bare = {k: v for k, v in request.body.items() if k != "prompt_cache_key"}
    turn = await player.send(Recorded(0, "POST", request.path, {}, bare), "ok.")
    assert turn["kind"] == "side"
    [expected] = [rows for key, rows in EXPECTED.items() if key.startswith(name)]
    assert turn["recognised"] == expected[request.n].recognised


async def test_list_of_models_is_closed_without_a_key(player: Player) -> None:
    """The client asks for it before a scheduled run, without one, and takes any status for a sign of life."""
    [request, _] = recording("16_cron_preflight_and_turn")
    got = await player.live.http.get(request.path, headers={"authorization": ""})
    assert got.status_code == 401
