from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from instar.errors import StoreError
from instar.records import Kind, NextKind, NextState, TurnStatus
from instar.store import open_store
from instar.store.schema import pieces
from tests.kit.store_scenes import Scene, make_outcome, make_turn, url_of

ODD = "half \ud83d, nul \x00, 한국어"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "instar.db")


def test_a_turn_comes_back_exactly_in_another_process_s_eyes(scene: Scene) -> None:
    messages = [
        {"role": "system", "content": ODD, "z": 1, "a": 2},
        {"role": "user", "content": [{"type": "text", "text": ODD}], "name": "x"},
    ]
    turn = make_turn(
        "t1", session_id=ODD, parent_id="t0", kind=Kind.TOOL_STEP, version="v3", pinned=True, messages=messages,
        choice=2, params={"stop": [ODD], "t": 0.5}, learner=ODD,
    )  # fmt: skip
    outcome = make_outcome(
        "t1", prompt_ids=list(range(1000)), response_ids=[7, 2**31 - 1], logprobs=[-0.5, -2.0],
        answer={"role": "assistant", "content": ODD, "tool_calls": [{"id": "c"}]}, finish_reason="length",
    )  # fmt: skip
    scene.store.open_turns([turn], [])
    scene.store.close_turn("t1", outcome)
    found = open_store(url_of(scene.path)).turn("t1")
    assert found is not None
    for name in ("id", "session_id", "episode_id", "parent_id", "key_id", "learner", "kind", "version", "pinned",
                 "messages", "request_hash", "created_at", "learn", "reason", "choice", "params"):  # fmt: skip
        assert getattr(found, name) == getattr(turn, name), name
    for name in ("status", "prompt_ids", "response_ids", "logprobs", "answer", "context_hash", "finish_reason",
                 "closed_at"):  # fmt: skip
        assert getattr(found, name) == getattr(outcome, name), name
    assert [list(m) for m in found.messages] == [list(m) for m in messages], "templates see the order of keys"
    assert found.was_cut


def test_unknown_turn_is_none(scene: Scene) -> None:
    assert scene.store.turn("nobody") is None


def test_several_choices_open_together_or_not_at_all(scene: Scene) -> None:
    scene.store.open_turns([make_turn("a", choice=0), make_turn("b", choice=1)], [])
    with pytest.raises(StoreError):
        scene.store.open_turns([make_turn("c"), make_turn("a")], [])
    assert scene.store.turn("c") is None


def test_a_next_state_of_an_unknown_turn_undoes_the_whole_request(scene: Scene) -> None:
    with pytest.raises(StoreError):
        scene.store.open_turns([make_turn("a")], [NextState("ghost", NextKind.USER_REPLY, "no", 1.0)])
    assert scene.store.turn("a") is None


@pytest.mark.parametrize("status", list(TurnStatus)[1:])
def test_a_turn_ends_once(scene: Scene, status: TurnStatus) -> None:
    scene.store.open_turns([make_turn("t")], [])
    scene.store.close_turn("t", make_outcome("t", status=status))
    with pytest.raises(StoreError, match="not open"):
        scene.store.close_turn("t", make_outcome("t", answer={"content": "other"}))
    kept = scene.store.turn("t")
    assert kept is not None
    assert kept.answer == {"role": "assistant", "content": "answer t"}
    assert kept.reason == {"done": None}.get(status.value, status.value)


def test_closing_what_was_never_opened_keeps_no_pieces(scene: Scene) -> None:
    with pytest.raises(StoreError, match="not open"):
        scene.store.close_turn("nobody", make_outcome("nobody"))
    assert _count_pieces(scene) == 0


def test_why_a_turn_is_never_learned_from(scene: Scene) -> None:
    scene.answered("off", learn=False)
    scene.answered("side", learn=False, kind=Kind.SIDE)
    scene.answered("doubt", reason="ambiguous_session", outcome={"reason": "stale"})
    scene.answered("fine")
    reasons = {view["id"]: view["reason"] for view in scene.store.turn_views()}
    assert reasons == {"off": "opted_out", "side": "side", "doubt": "ambiguous_session", "fine": None}


def test_equal_results_of_two_calls_are_two_and_the_history_sent_again_adds_none(scene: Scene) -> None:
    scene.answered("t")
    results = [NextState("t", NextKind.TOOL_RESULT, text, 1.0) for text in ("ok", "ok", "error")]
    for _ in range(2):
        scene.store.open_turns([], results)
    [view] = scene.store.turn_views()
    assert [state["text"] for state in view["next_states"]] == ["ok", "ok", "error"]


def test_newest_of_some_sessions_whatever_became_of_them(scene: Scene) -> None:
    scene.answered("a")
    scene.answered("b", session_id="s:1")
    scene.answered("c", session_id="elsewhere")
    scene.answered("d", key_id="stranger")
    scene.store.open_turns([make_turn("e")], [])
    assert [turn.id for turn in scene.store.newest_of("key", ["s", "s:1"], 8)] == ["e", "b", "a"]
    assert [turn.id for turn in scene.store.newest_of("key", ["s", "s:1"], 2)] == ["e", "b"]
    assert scene.store.newest_of("key", [], 8) == []


def test_children_are_what_continues_an_answer_newest_first(scene: Scene) -> None:
    for name, parent in (("a", None), ("b", "a"), ("c", "a"), ("d", "b")):
        scene.answered(name, parent_id=parent)
    assert [turn.id for turn in scene.store.children("a")] == ["c", "b"]
    assert scene.store.children("d") == []


def test_found_by_what_the_client_sends_back_newest_first(scene: Scene) -> None:
    scene.answered("a", outcome={"context_hash": "h1"})
    scene.answered("b", session_id="other", outcome={"context_hash": "h1"})
    scene.answered("c", outcome={"context_hash": "h2"})
    scene.answered("d", key_id="stranger", outcome={"context_hash": "h1"})
    scene.answered("e", outcome={"context_hash": "h1", "status": TurnStatus.CANCELLED})
    scene.store.open_turns([make_turn("f", context_hash="h1")], [])
    find = scene.store.find_by_context
    assert [t.id for t in find("key", ["h1", "h2", "h1", "h3"])] == ["c", "b", "a"]
    assert [t.id for t in find("key", ["h1", "h2"], "s")] == ["c", "a"]
    assert find("key", []) == []
    many = [f"x{i}" for i in range(2500)] + ["h2"]
    assert [t.id for t in find("key", many)] == ["c"]


def test_found_by_the_same_request_again(scene: Scene) -> None:
    scene.answered("a", request_hash="r")
    scene.answered("b", request_hash="r", outcome={"status": TurnStatus.CANCELLED})
    scene.answered("c", request_hash="r", session_id="other")
    scene.answered("d", request_hash="r", key_id="stranger")
    assert [t.id for t in scene.store.find_by_request("key", "s", "r")] == ["b", "a"]


def test_turns_that_are_looked_up_come_without_what_is_slow_to_read(scene: Scene) -> None:
    scene.answered("a", request_hash="r", outcome={"context_hash": "h"})
    whole = scene.store.turn("a")
    assert whole is not None
    assert (len(whole.messages), whole.prompt_ids) == (1, [1, 2, 3])
    light = replace(whole, messages=[], prompt_ids=[])
    assert scene.store.find_by_context("key", ["h"]) == [light]
    assert scene.store.find_by_request("key", "s", "r") == [light]
    assert scene.store.episode("a") == [light]


def test_an_episode_is_read_in_the_order_it_happened(scene: Scene) -> None:
    scene.answered("a", episode_id="e", created_at=9.0)
    scene.answered("b", episode_id="e", created_at=1.0)  # the date was set back in between
    scene.answered("c")
    assert [t.id for t in scene.store.episode("e")] == ["a", "b"]


def test_a_dead_server_s_open_turns_are_swept_once(scene: Scene) -> None:
    scene.answered("done")
    scene.store.open_turns([make_turn("open"), make_turn("side", learn=False)], [])
    assert scene.store.sweep_open("interrupted") == 2
    assert scene.store.sweep_open("interrupted") == 0
    reasons = {v["id"]: (v["status"], v["reason"]) for v in scene.store.turn_views()}
    assert reasons == {
        "done": ("done", None),
        "open": ("failed", "interrupted"),
        "side": ("failed", "opted_out"),
    }
    with pytest.raises(StoreError, match="not open"):
        scene.store.close_turn("open", make_outcome("open"))


def test_a_growing_conversation_is_stored_once_not_again_with_every_turn(scene: Scene) -> None:
    history: list[dict[str, str]] = [{"role": "system", "content": "long " * 1000}]
    ids: list[int] = list(range(512))
    for n in range(30):
        history += [{"role": "user", "content": f"q{n}"}]
        scene.answered(f"t{n}", messages=list(history), outcome={"prompt_ids": list(ids)})
        history += [{"role": "assistant", "content": f"a{n}"}]
        ids += [n] * 256
    last = scene.store.turn("t29")
    assert last is not None
    assert last.messages == history[:-1]
    assert last.prompt_ids == ids[:-256]
    assert _count_pieces(scene) == (1 + 30 + 29) + (2 + 29)


def test_feedback_for_an_unknown_turn_is_refused(scene: Scene) -> None:
    with pytest.raises(StoreError, match="no turn ghost"):
        scene.feedback("ghost", "bad", -1)


def _count_pieces(scene: Scene) -> int:
    with scene.store._db.reading() as conn:
        return conn.execute(select(func.count()).select_from(pieces)).scalar_one()


def test_sessions_in_use_are_told_by_their_newest_turn(scene: Scene) -> None:
    def ended(turn_id: str, at: float, **changes: Any) -> None:
        outcome = {"prompt_ids": [1, 2], "response_ids": [int(turn_id)], "closed_at": at}
        scene.answered(turn_id, outcome=outcome, **changes)

    ended("1", 400.0, session_id="long ago")
    ended("2", 500.0, session_id="talk")
    ended("3", 600.0, session_id="talk", kind=Kind.TOOL_STEP)
    ended("4", 700.0, session_id="other")
    ended("5", 800.0, session_id="title", kind=Kind.SIDE)
    ended("6", 800.0, session_id="comparison", pinned=True)
    scene.store.open_turns([make_turn("7", session_id="talk")], [])
    assert scene.store.ids_in_use(500.0, 10) == [[1, 2, 4], [1, 2, 3]]
    assert scene.store.ids_in_use(500.0, 1) == [[1, 2, 4]]
    assert scene.store.ids_in_use(701.0, 10) == []
