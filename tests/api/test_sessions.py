"""Which turn a message judges, told by what clients really send: their whole history, with or without an id."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from instar.gateway.response_models import TurnView
from instar.records import Judgement, Source
from tests.kit.live_gateway import Live, live_gateway

_count = itertools.count()


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """Every answer is another one, as from a model that samples."""
    async with live_gateway(tmp_path, lambda version, prompt: f"answer {next(_count)}") as live:
        yield live


def said(answer: httpx.Response) -> str:
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


async def test_reply_judges_the_answer_before_it(live: Live) -> None:
    first = await live.ask("why is the sky blue?")
    second = await live.ask("why is the sky blue?", said(first), "too long")
    items = live.judge_items()
    assert [(i.turn.id, [(s.kind, s.text) for s in i.next_states]) for i in items] == [
        (first.json()["id"], [("user_reply", "too long")])
    ]
    turns = {t["id"]: t for t in await live.turns()}
    assert turns[second.json()["id"]]["session_id"] == turns[first.json()["id"]]["session_id"]
    assert turns[second.json()["id"]]["parent_id"] == first.json()["id"]


async def test_history_sent_again_says_nothing_new(live: Live) -> None:
    a = await live.ask("q")
    b = await live.ask("q", said(a), "shorter")
    await live.ask("q", said(a), "shorter", said(b), "thanks")
    items = {i.turn.id: i for i in live.judge_items()}
    assert [s.text for s in items[a.json()["id"]].next_states] == ["shorter"]
    assert [s.text for s in items[b.json()["id"]].next_states] == ["thanks"]


async def test_fresh_sessions_do_not_mix(live: Live) -> None:
    a = await live.ask("q")
    b = await live.ask("q")
    turns = {t["id"]: t for t in await live.turns()}
    assert turns[a.json()["id"]]["session_id"] != turns[b.json()["id"]]["session_id"]
    assert live.judge_items() == [], "asking the same in a fresh session is no judgement"


async def test_trailing_white_space_and_a_clock_in_the_system_message_change_nothing(live: Live) -> None:
    body = {"model": "instar"}
    system = {"role": "system", "content": "It is 10:08."}
    first = await live.http.post(
        "/v1/chat/completions", json={**body, "messages": [system, {"role": "user", "content": "q"}]}
    )
    later = [
        {"role": "system", "content": "It is 10:09."},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": said(first) + " \n"},
        {"role": "user", "content": "shorter"},
    ]
    await live.http.post("/v1/chat/completions", json={**body, "messages": later})
    assert [i.turn.id for i in live.judge_items()] == [first.json()["id"]]


async def test_same_history_in_two_sessions_is_not_guessed(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, lambda version, prompt: "yes") as live:
        await live.ask("q")
        await live.ask("q")
        third = await live.ask("q", "yes", "shorter")
        assert live.judge_items() == []
        turn = next(t for t in await live.turns() if t["id"] == third.json()["id"])
        assert turn["reason"] == "ambiguous_session"


@pytest.mark.parametrize(
    "header",
    ["X-Session-Id", "x-session-affinity", "session_id", "X-OpenWebUI-Chat-Id", "x-claude-code-session-id"],
)
async def test_explicit_session_tells_same_histories_apart(tmp_path: Path, header: str) -> None:
    async with live_gateway(tmp_path, lambda version, prompt: "yes") as live:
        first = await live.ask("q", headers={header: "one"})
        await live.ask("q", headers={header: "two"})
        await live.ask("q", "yes", "shorter", headers={header: "one"})
        assert [i.turn.id for i in live.judge_items()] == [first.json()["id"]]
        assert len(await live.turns(session="one")) == 2


@pytest.mark.parametrize("field", ["prompt_cache_key", "session_id", "litellm_session_id"])
async def test_session_in_the_body(live: Live, field: str) -> None:
    await live.ask("q", **{field: "mine"})
    assert len(await live.turns(session="mine")) == 1


async def test_asking_the_same_again_in_a_known_session_is_a_regenerate(live: Live) -> None:
    first = await live.ask("q", headers={"X-Session-Id": "s"})
    await live.ask("q", headers={"X-Session-Id": "s"})
    assert [(i.turn.id, i.next_states[0].kind) for i in live.judge_items()] == [
        (first.json()["id"], "regenerate")
    ]


async def test_user_reply_reaches_every_step_of_the_episode_and_tool_results_only_theirs(live: Live) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    user = {"role": "user", "content": "fix it"}
    body = {"model": "instar"}
    first = await live.http.post("/v1/chat/completions", json={**body, "messages": [user]})
    step = {"role": "assistant", "content": said(first)}
    tool = {"role": "tool", "tool_call_id": call["id"], "content": "no such file"}
    second = await live.http.post("/v1/chat/completions", json={**body, "messages": [user, step, tool]})
    end = {"role": "assistant", "content": said(second)}
    reply = {"role": "user", "content": "you should have read it first"}
    await live.http.post("/v1/chat/completions", json={**body, "messages": [user, step, tool, end, reply]})
    items = {i.turn.id: [(s.kind, s.text) for s in i.next_states] for i in live.judge_items()}
    assert items == {
        first.json()["id"]: [
            ("tool_result", "no such file"),
            ("user_reply", "you should have read it first"),
        ],
        second.json()["id"]: [("user_reply", "you should have read it first")],
    }
    kinds = {t["id"]: t["kind"] for t in await live.turns()}
    assert kinds[second.json()["id"]] == "tool_step"


async def test_request_kept_out_of_learning_leaves_no_trace_in_it(live: Live) -> None:
    off = {"X-Instar-Learn": "off"}
    first = await live.ask("q", headers=off)
    second = await live.ask("q2")
    await live.ask("q", said(first), "shorter")
    await live.ask("q2", said(second), "my secret", headers=off)
    assert live.judge_items() == []
    turn = next(t for t in await live.turns() if t["id"] == first.json()["id"])
    assert turn["reason"] == "opted_out"


async def test_opting_out_by_metadata(live: Live) -> None:
    await live.ask("q", metadata={"instar_learn": "off"})
    assert (await live.turns())[0]["reason"] == "opted_out"


async def test_side_request_is_no_feedback_and_gets_none(live: Live) -> None:
    first = await live.ask("q")
    await live.ask("q", said(first), "make a title", headers={"X-Turn-Type": "side"})
    assert live.judge_items() == []
    assert (await live.turns())[0]["reason"] == "side"


async def test_feedback_reaches_the_judge_with_score_comment_and_correction(live: Live) -> None:
    first = await live.ask("q")
    body = {"turn": first.json()["id"], "score": -1, "comment": "shorter", "correction": "yes."}
    assert (await live.http.post("/v1/feedback", json=body)).status_code == 200
    (item,) = live.judge_items()
    state = item.next_states[0]
    assert (state.kind, state.score, state.text, state.correction) == ("feedback", -1, "shorter", "yes.")


@pytest.mark.parametrize("session", ["../../etc/passwd", "a" * 5000, "x\r\nforged: line", "s\x1b[31m"])
async def test_hostile_session_ids_are_stored_harmlessly(live: Live, session: str) -> None:
    answer = await live.ask("q", session_id=session)
    assert answer.status_code == 200
    stored = (await live.turns())[0]["session_id"]
    assert stored.isprintable()
    assert len(stored) <= 200


async def test_status_counts_what_waits_for_training(live: Live) -> None:
    first = await live.ask("q")
    await live.ask("q", said(first), "shorter")
    (item,) = live.judge_items()
    judgement = Judgement(item.turn.id, -1, Source.USER, "test", created_at=1.0, hint="shorter")
    live.store.record_judgement(judgement, item.lease)
    assert (await live.http.get("/v1/status")).json()["training"]["waiting"] == 1


async def test_status_tells_how_the_judges_agree_with_the_users_ratings(live: Live) -> None:
    first = (await live.ask("Why?")).json()
    turn = first["id"]
    await live.ask("Why?", first["choices"][0]["message"]["content"], "Too long, shorter please.")
    assert (await live.http.get("/v1/status")).json()["judge"] == {"agreement": {}, "own_ratings": {}}
    for score, link in ((-1, "heads"), (1, "explicit")):
        [item] = [item for item in live.judge_items() if item.turn.id == turn]
        live.store.record_judgement(Judgement(turn, score, Source.USER, link, 1.0), item.lease)
        await live.http.post("/v1/feedback", json={"turn": turn, "score": 1})
    status = (await live.http.get("/v1/status")).json()
    assert status["judge"]["agreement"] == {"heads": {"turns": 1, "agree": 0, "wrong_sign": 1, "share": 0.0}}


async def test_a_chat_window_with_its_own_titles_and_an_edit(live: Live) -> None:
    """As Open WebUI does it: every request carries the chat's id, also those for title and tags."""
    chat = {"X-OpenWebUI-Chat-Id": "c1"}
    first = await live.ask("hello", headers=chat)
    task = "### Task:\nGenerate 1-3 broad tags.\n### Chat History:\n<chat_history>\n…\n</chat_history>"
    await live.ask(task, headers=chat)
    await live.ask("hello there", headers=chat)
    assert [(i.turn.id, i.next_states[0].kind) for i in live.judge_items()] == [(first.json()["id"], "edit")]
    kinds = [(turn["kind"], turn["recognised"]) for turn in await live.turns(session="c1")]
    assert kinds == [("main", None), ("side", "webui_task"), ("main", None)]


async def test_a_resent_request_is_a_retry_and_no_regenerate(live: Live) -> None:
    await live.ask("q", headers={"X-Session-Id": "s"})
    await live.ask("q", headers={"X-Session-Id": "s", "x-stainless-retry-count": "1"})
    assert live.judge_items() == []
    retry = (await live.turns())[0]
    assert retry["kind"] == "retry"
    assert set(retry) == set(TurnView.model_fields), "the document tells all that is there"
    TurnView.model_validate(retry)


@pytest.mark.parametrize("session", ["s" * 300, "line\nend", "한국어 세션"])
async def test_turns_of_a_session_are_found_by_the_id_that_the_client_sent(live: Live, session: str) -> None:
    body = {"model": "instar", "messages": [{"role": "user", "content": "hi"}], "session_id": session}
    answer = await live.http.post("/v1/chat/completions", json=body)
    assert [turn["id"] for turn in await live.turns(session=session)] == [answer.json()["id"]]


async def test_a_session_that_is_done_hears_nothing_more(live: Live) -> None:
    here = {"X-Session-Id": "s"}
    first = await live.ask("q", headers=here)
    last = await live.ask("q", said(first), "shorter", headers={**here, "X-Session-Done": "true"})
    await live.ask("q", said(first), "shorter", said(last), "no, wrong", headers=here)
    assert [i.turn.id for i in live.judge_items()] == [first.json()["id"]]


async def test_a_field_user_is_believed_only_under_a_proxys_key(tmp_path: Path) -> None:
    async with live_gateway(tmp_path, proxy_key=SecretStr("sk-proxy")) as live:
        behind = {"authorization": "Bearer sk-proxy"}
        ids = [
            (await live.ask("q", headers=headers, user=user)).json()["id"]
            for headers, user in (({}, "ann"), (behind, "ann"), (behind, "bob"), (behind, None))
        ]
        turns = [live.store.turn(turn_id) for turn_id in ids]
        assert [turn.learner for turn in turns if turn] == ["default", "proxy/ann", "proxy/bob", "proxy"]
        assert len({turn.key_id for turn in turns if turn}) == 2
        bobs = await live.ask("q", "answer of base", "shorter", headers=behind, user="bob")
        assert [i.turn.id for i in live.judge_items()] == [ids[2]]
        assert bobs.status_code == 200
        assert (
            await live.ask("q", headers={"authorization": "Bearer sk-other"}, user="ann")
        ).status_code == 401
