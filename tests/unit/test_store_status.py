from __future__ import annotations

import json
from pathlib import Path

import pytest

from instar.records import Fate, Judgement, NextKind, Source
from tests.kit.store_scenes import Scene, make_outcome, make_turn


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "instar.db")


def test_a_view_tells_everything_about_a_turn(scene: Scene) -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": "the"}, {"type": "text", "text": "last"}]},
        {"role": "tool", "content": "output"},
    ]
    scene.answered("t", messages=messages, parent_id="p")
    scene.said("t", "too long")
    scene.judge("t", -1, votes=(-1, -1, 1), hint="too long", why="Two of three heads said so.")
    [view] = scene.store.turn_views()
    assert view == {
        "id": "t", "session_id": "s", "episode_id": "t", "parent_id": "p", "kind": "main", "version": "base",
        "status": "done", "finish_reason": "stop", "created_at": 100.0, "prompt_tokens": 3, "response_tokens": 2,
        "question": "the\nlast", "answer": "answer t", "next_states": [{"kind": "user_reply", "text": "too long"}],
        "score": -1, "votes": [-1, -1, 1], "link": "a link", "hint": "too long",
        "why": "Two of three heads said so.", "learned": False, "updates": [], "reason": None,
        "recognised": None, "kind_why": "",
    }  # fmt: skip
    json.dumps(view)


def test_a_view_tells_what_a_request_was_recognised_by(scene: Scene) -> None:
    scene.answered("t", params={"recognised": "heartbeat", "why": "a wake-up"})
    [view] = scene.store.turn_views()
    assert (view["recognised"], view["kind_why"]) == ("heartbeat", "a wake-up")


def test_a_views_question_is_what_the_user_said_and_not_what_their_client_wrote(scene: Scene) -> None:
    stamped = "[Mon 2026-11-30 10:08 UTC] fix it\n\nRuntime: agent=main | sessionId=s | host=machine"
    note = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnone\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    scene.answered("t", messages=[{"role": "user", "content": stamped}, {"role": "user", "content": note}])
    assert scene.store.turn_views()[0]["question"] == "fix it"


def test_a_view_of_a_turn_that_has_only_begun(scene: Scene) -> None:
    scene.store.open_turns([make_turn("t", messages=[{"role": "system", "content": "x"}])], [])
    [view] = scene.store.turn_views()
    assert (view["status"], view["question"], view["answer"], view["score"]) == ("open", "", "", None)


def test_an_abstention_is_shown_with_its_reason(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "hm")
    scene.judge("t", None, why="The heads disagree.")
    [view] = scene.store.turn_views()
    assert (view["score"], view["why"]) == (None, "The heads disagree.")


def test_views_newest_first_page_by_page_and_by_session(scene: Scene) -> None:
    for n in range(5):
        scene.answered(f"t{n}", session_id="odd" if n % 2 else "even", created_at=-float(n))
    ids = [v["id"] for v in scene.store.turn_views(limit=2)]
    assert ids == ["t4", "t3"]
    assert [v["id"] for v in scene.store.turn_views(limit=2, before="t3")] == ["t2", "t1"]
    assert [v["id"] for v in scene.store.turn_views(session_id="odd")] == ["t3", "t1"]
    assert scene.store.turn_views(before="t0") == []
    assert scene.store.turn_views(before="ghost") == []


def test_counts(scene: Scene) -> None:
    assert scene.store.counts() == {
        "turns": {}, "judged": {}, "waiting": {"unjudged": 0, "trainable": 0}, "used": 0, "published": 0,
        "reasons": {},
    }  # fmt: skip
    for turn_id, score in (("a", 1), ("b", -1), ("c", -1)):
        scene.corrected(turn_id, score=score)
    scene.answered("d")
    scene.said("d", "hm")
    scene.judge("d", None)
    scene.answered("e")
    scene.said("e", "no")
    scene.answered("off", learn=False)
    scene.store.open_turns([make_turn("open")], [])
    update = scene.store.begin_update(["a"], "base", "{}", passes=2)
    scene.store.finish_update(update.id, status="proposed", version="v1", note=None, activate=False)
    assert scene.store.counts() == {
        "turns": {"done": 6, "open": 1}, "judged": {"1": 1, "-1": 2, "none": 1},
        "waiting": {"unjudged": 1, "trainable": 2}, "used": 1, "published": 0,
        "reasons": {"opted_out": 1},
    }  # fmt: skip


def test_published_are_all_updates_whose_version_has_served(scene: Scene) -> None:
    for number in range(1, 23):
        scene.corrected(f"t{number}")
        update = scene.store.begin_update([f"t{number}"], "base", "{}")
        waits = number == 22
        scene.store.finish_update(
            update.id, status="proposed", version=f"v{number}", note=None, activate=not waits, waits=waits
        )
    assert scene.store.counts()["published"] == 21, "the last one waits for a person"
    scene.store.activate("v3", "back")
    assert scene.store.counts()["published"] == 21
    scene.store.decide("v22", Fate.APPROVED, "yes", activate="v22")
    assert scene.store.counts()["published"] == 22


def test_how_the_links_agree_with_the_users_own_ratings(scene: Scene) -> None:
    assert scene.store.agreement() == {}
    read = {"same": ("heads", 1), "opposite": ("heads", -1), "unsure": ("heads", 0), "asked": ("model", -1)}
    for turn_id, (link, score) in read.items():
        scene.answered(turn_id)
        scene.said(turn_id, "reaction")
        scene.judge(turn_id, score, link=link)
        scene.feedback(turn_id, "first thought", score=-1)
        scene.judge(turn_id, -1, link="explicit")
        scene.feedback(turn_id, "second thought", score=5 if turn_id != "asked" else -1)
    assert scene.store.agreement() == {
        "heads": {"turns": 3, "agree": 1, "wrong_sign": 1},
        "model": {"turns": 1, "agree": 1, "wrong_sign": 0},
    }


def test_readings_that_were_recorded_beside_a_rating_count_and_decide_nothing(scene: Scene) -> None:
    scene.answered("t")
    scene.feedback("t", "far too long", score=-1)
    other = Judgement("t", 1, Source.USER, "heads", 250.0)
    scene.judge("t", -1, link="explicit", others=(other,))
    assert scene.store.agreement() == {"heads": {"turns": 1, "agree": 0, "wrong_sign": 1}}
    assert scene.store.turn_views()[0]["link"] == "explicit"
    assert scene.store.counts()["judged"] == {"-1": 1}
    assert [sample.score for sample in scene.store.trainable(9, current=0, max_staleness=4)] == [-1]


def test_agreement_leaves_out_what_cannot_be_compared(scene: Scene) -> None:
    scene.corrected("not rated")
    scene.answered("rated only")
    scene.feedback("rated only", score=1)
    scene.judge("rated only", 1, link="explicit")
    scene.answered("nobody could tell")
    scene.said("nobody could tell", "hm")
    scene.judge("nobody could tell", None)
    scene.feedback("nobody could tell", score=1)
    scene.answered("a tool's")
    scene.said("a tool's", "exit 0", NextKind.TOOL_RESULT)
    scene.judge("a tool's", 1, Source.TOOL, link="tools")
    scene.feedback("a tool's", score=-1)
    scene.corrected("a comment")
    scene.feedback("a comment", "just a remark")
    assert scene.store.agreement() == {}


def test_a_corrected_text_without_a_rating_disagrees_with_praise(scene: Scene) -> None:
    scene.corrected("t", score=1)
    update = scene.store.begin_update(["t"], "base", "{}")
    scene.feedback("t", correction="It should have said this.")
    assert scene.store.agreement() == {"a link": {"turns": 1, "agree": 0, "wrong_sign": 1}}
    assert update.status == "running", "also of turns that are trained on already"


def test_the_last_activation_is_in_force_whatever_the_date_says(scene: Scene) -> None:
    assert scene.store.active_version() == "base"
    scene.store.activate("v2", "by hand")
    scene.clock.wall -= 86_400
    scene.store.activate("v1", "back")
    assert scene.store.active_version() == "v1"
    assert [(a.version, a.reason) for a in scene.store.activations()] == [("v1", "back"), ("v2", "by hand")]
    assert len(scene.store.activations(limit=1)) == 1


def test_when_was_the_last_activity(scene: Scene) -> None:
    assert scene.store.last_activity_at() is None
    scene.answered("t")
    assert scene.store.last_activity_at() == 101.0
    scene.said("t", "no")
    assert scene.store.last_activity_at() == 200.0
    scene.judge("t", 1, Source.USER)
    assert scene.store.last_activity_at() == 250.0
    scene.feedback("t", "x", 1)
    assert scene.store.last_activity_at() == 300.0
    scene.said("t", "exit 0", NextKind.TOOL_RESULT)
    assert scene.store.last_activity_at() == 250.0, "the newest of each, not the largest date ever seen"
    scene.store.open_turns([make_turn("slow", created_at=scene.clock.now())], [])
    assert scene.store.last_activity_at() == scene.clock.now(), "somebody waits for an answer"


def test_when_was_the_last_request(scene: Scene) -> None:
    assert scene.store.last_served_at() is None
    scene.answered("t")
    assert scene.store.last_served_at() == 101.0
    scene.said("t", "no")
    scene.judge("t", 1, Source.USER)
    assert scene.store.last_served_at() == 101.0, "what is said of an answer is no request"
    scene.store.open_turns([make_turn("slow", created_at=scene.clock.now())], [])
    scene.answered("quick", outcome={"closed_at": 150.0})
    assert scene.store.last_served_at() == scene.clock.now(), "an older one is still being answered"
    scene.store.close_turn("slow", make_outcome("slow", closed_at=160.0))
    assert scene.store.last_served_at() == 160.0, "it began before the newest and ended after it"


@pytest.mark.parametrize("hours", [2, -2])
def test_a_turn_that_was_left_open_is_no_answer_that_somebody_waits_for(scene: Scene, hours: int) -> None:
    scene.corrected("t")
    scene.store.open_turns([make_turn("left", created_at=scene.clock.now() - 3600 * hours)], [])
    assert (scene.store.last_served_at(), scene.store.last_activity_at()) == (101.0, 250.0)


def test_a_date_that_was_set_back_does_not_stand_for_the_newest(scene: Scene) -> None:
    now = scene.clock.now()
    scene.answered("tomorrow", outcome={"closed_at": now + 86400})
    assert scene.store.last_served_at() == now + 86400
    scene.answered("today", outcome={"closed_at": now - 5})
    scene.said("tomorrow", "no")
    assert (scene.store.last_served_at(), scene.store.last_activity_at()) == (now - 5, now - 5)


def test_loops_say_that_they_live(scene: Scene) -> None:
    scene.store.heartbeat("judge", {"doing": "waiting", "judged": 1})
    scene.clock.advance(5)
    scene.store.heartbeat("judge", {"doing": "judging"})
    scene.store.heartbeat("trainer", {})
    assert scene.store.heartbeats() == {
        "judge": {"doing": "judging", "at": scene.clock.wall},
        "trainer": {"at": scene.clock.wall},
    }


def test_documents_are_replaced_whole(scene: Scene) -> None:
    assert scene.store.get_state("x") is None
    scene.store.put_state("x", {"a": 1, "t": "\ud800\x00"})
    scene.store.put_state("x", {"b": [1.5, None]})
    scene.store.put_state("y", {})
    assert scene.store.get_state("x") == {"b": [1.5, None]}
    assert scene.store.get_state("y") == {}
