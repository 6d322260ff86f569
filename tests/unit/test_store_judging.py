from __future__ import annotations

from pathlib import Path

import pytest

from instar.errors import LeaseLost
from instar.records import Judgement, Kind, NextKind, NextState, Source, TurnStatus
from instar.store import open_store
from instar.store.steady import Instant
from tests.kit.store_scenes import Scene, make_outcome, make_turn, url_of


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "instar.db")


def verdict(turn_id: str, score: int | None = -1) -> Judgement:
    return Judgement(turn_id, score, Source.USER, "link", 1.0)


def test_only_finished_turns_that_may_be_learned_from_and_were_followed_wait(scene: Scene) -> None:
    scene.answered("waits")
    scene.answered("silent")
    scene.answered("off", learn=False)
    scene.answered("doubt", reason="ambiguous_session")
    scene.answered("cut off", outcome={"status": TurnStatus.CANCELLED})
    scene.store.open_turns([make_turn("open")], [])
    for turn_id in ("waits", "off", "doubt", "cut off", "open"):
        scene.said(turn_id, "no")
    assert scene.waiting() == ["waits"]


def test_a_turn_that_was_followed_before_its_end_waits_from_its_end_on(scene: Scene) -> None:
    scene.store.open_turns([make_turn("t")], [])
    scene.said("t", "stop")
    assert scene.waiting() == []
    scene.store.close_turn("t", make_outcome("t"))
    assert scene.waiting() == ["t"]


def test_oldest_first_and_no_more_than_asked_for(scene: Scene) -> None:
    for turn_id in "abc":
        scene.answered(turn_id)
    for turn_id in "cba":
        scene.said(turn_id, "no")
    assert [i.turn.id for i in scene.store.lease_unjudged("w", 2, 60)] == ["a", "b"]
    assert [i.turn.id for i in scene.store.lease_unjudged("w", 2, 60)] == ["c"]


def test_the_judge_sees_all_that_followed_in_order(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "file not found", NextKind.TOOL_RESULT)
    scene.said("t", "no, \x00 \ud800")
    [item] = scene.store.lease_unjudged("w", 1, 60)
    assert [(s.kind, s.text) for s in item.next_states] == [
        (NextKind.TOOL_RESULT, "file not found"),
        (NextKind.USER_REPLY, "no, \x00 \ud800"),
    ]
    assert item.turn.answer == {"role": "assistant", "content": "answer t"}


def test_a_reply_that_arrives_again_with_the_history_is_not_judged_again(scene: Scene) -> None:
    scene.corrected("t")
    scene.said("t", "reaction to t")
    assert scene.waiting() == []
    assert len(scene.store.turn_views()[0]["next_states"]) == 1


def test_another_reply_does_not_reopen_what_the_user_has_judged(scene: Scene) -> None:
    scene.corrected("t")
    scene.said("t", "something else")
    scene.said("t", "", NextKind.REGENERATE)
    assert scene.waiting() == []


def test_the_user_is_heard_after_a_tool_has_spoken(scene: Scene) -> None:
    scene.answered("t", kind=Kind.TOOL_STEP)
    scene.said("t", "ok", NextKind.TOOL_RESULT)
    scene.judge("t", 1, Source.TOOL)
    scene.said("t", "more output", NextKind.TOOL_RESULT)
    assert scene.waiting() == []
    scene.said("t", "you should have looked first")
    assert scene.waiting() == ["t"]
    scene.judge("t", -1, Source.USER)
    scene.said("t", "thanks")
    assert scene.waiting() == []


@pytest.mark.parametrize("kind", [NextKind.EDIT, NextKind.REGENERATE])
def test_the_user_is_heard_after_a_button_has_spoken(scene: Scene, kind: NextKind) -> None:
    """An edit or another try opens a branch; what the user says when they come back counts."""
    scene.answered("t")
    scene.said("t", "", kind)
    scene.judge("t", None)
    scene.said("t", "", NextKind.REGENERATE)
    assert scene.waiting() == []
    scene.said("t", "thanks, this one")
    assert scene.waiting() == ["t"]
    scene.judge("t", 1)
    scene.said("t", "and something else")
    assert scene.waiting() == []


def test_explicit_feedback_is_always_heard(scene: Scene) -> None:
    scene.corrected("t")
    scene.feedback("t", "good after all", score=1)
    assert scene.waiting() == ["t"]
    scene.judge("t", 1)
    assert scene.waiting() == []


def test_the_same_feedback_sent_twice_counts_once_but_a_changed_mind_counts(scene: Scene) -> None:
    scene.answered("t")
    for score in (1, 1):
        scene.feedback("t", score=score)
    scene.judge("t", 1)
    scene.feedback("t", score=1)
    assert scene.waiting() == []
    scene.feedback("t", score=-1)
    scene.judge("t", -1)
    scene.feedback("t", score=1)
    assert scene.waiting() == ["t"]
    assert len(scene.store.turn_views()[0]["next_states"]) == 3


def test_feedback_that_comes_while_the_judge_is_at_work_is_judged_next(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "no")
    [item] = scene.store.lease_unjudged("w", 1, 60)
    scene.feedback("t", "I mean: shorter", score=-1)
    scene.store.record_judgement(verdict("t"), item.lease)
    [again] = scene.store.lease_unjudged("w", 1, 60)
    assert [s.text for s in again.next_states] == ["no", "I mean: shorter"]


def test_an_abstention_is_not_asked_for_again(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "hm")
    scene.judge("t", None)
    assert scene.waiting() == []


def test_a_held_turn_is_given_to_nobody_else_until_its_time_is_up(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "no")
    [first] = scene.store.lease_unjudged("w1", 9, 60)
    scene.steady.seconds += 59.9
    assert scene.store.lease_unjudged("w2", 9, 60) == []
    scene.steady.seconds += 0.1
    [second] = scene.store.lease_unjudged("w2", 9, 60)
    with pytest.raises(LeaseLost):
        scene.store.record_judgement(verdict("t", 1), first.lease)
    scene.store.record_judgement(verdict("t", -1), second.lease)
    assert scene.store.turn_views()[0]["score"] == -1
    with pytest.raises(LeaseLost):
        scene.store.record_judgement(verdict("t", 1), second.lease)


def test_a_late_judge_is_believed_while_nobody_took_over(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "no")
    [item] = scene.store.lease_unjudged("w", 1, 1)
    scene.steady.seconds += 100
    scene.store.record_judgement(verdict("t"), item.lease)
    assert scene.waiting() == []


def test_a_judge_that_waited_for_the_lock_does_not_take_what_was_leased_meanwhile(scene: Scene) -> None:
    """Its first look at the clock is older than the other's lease, as if the machine had been started again."""
    scene.answered("t")
    scene.said("t", "no")
    other = open_store(url_of(scene.path), steady=scene.steady)
    looks = 0

    def slow_steady() -> Instant:
        nonlocal looks
        looks += 1
        now = scene.steady()
        if looks == 1:
            scene.steady.seconds += 5
            assert len(other.lease_unjudged("quick", 9, 60)) == 1
        return now

    slow = open_store(url_of(scene.path), steady=slow_steady)
    assert slow.lease_unjudged("slow", 9, 60) == []


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_a_changed_date_frees_no_lease_and_holds_none(scene: Scene, jump_s: float) -> None:
    scene.answered("t")
    scene.said("t", "no")
    assert scene.store.lease_unjudged("w", 1, 60)
    scene.clock.wall += jump_s
    assert scene.store.lease_unjudged("w", 1, 60) == []
    scene.steady.seconds += 60
    assert scene.store.lease_unjudged("w", 1, 60)


@pytest.mark.parametrize(("boot", "seconds"), [("boot-2", 1010.0), ("boot-1", 3.0)])
def test_a_restarted_machine_frees_all_leases(scene: Scene, boot: str, seconds: float) -> None:
    """Also where the system does not tell its starts apart, by the clock that begins anew."""
    scene.answered("t")
    scene.said("t", "no")
    assert scene.store.lease_unjudged("w", 1, 60)
    scene.steady.boot, scene.steady.seconds = boot, seconds
    assert scene.store.lease_unjudged("w", 1, 60)


def test_a_turn_that_kills_its_judge_three_times_is_set_aside_and_the_others_go_on(scene: Scene) -> None:
    scene.answered("bad")
    scene.said("bad", "x")
    for _ in range(3):
        assert [i.turn.id for i in scene.store.lease_unjudged("w", 9, 60)] == ["bad"]
        scene.steady.seconds += 61
    scene.answered("good")
    scene.said("good", "y")
    assert [i.turn.id for i in scene.store.lease_unjudged("w", 9, 60)] == ["good"]
    reasons = {v["id"]: v["reason"] for v in scene.store.turn_views()}
    assert reasons == {"bad": "poison", "good": None}
    scene.said("bad", "z")
    scene.feedback("bad", "no", -1)
    scene.steady.seconds += 61
    assert "bad" not in scene.waiting()


def test_tries_are_counted_anew_after_a_judgement(scene: Scene) -> None:
    scene.answered("t")
    for round_ in range(4):
        scene.feedback("t", f"word {round_}", score=-1)
        assert scene.waiting() == ["t"]
        scene.judge("t", -1)
    assert scene.store.turn_views()[0]["reason"] is None


def test_feedback_on_a_turn_that_was_learned_from_changes_its_verdict_and_teaches_nothing(
    scene: Scene,
) -> None:
    scene.corrected("t")
    update = scene.store.begin_update(["t"], "base", "{}")
    assert rate(scene, "t", "good", 1) == "in_update"
    scene.judge("t", 1)
    scene.store.finish_update(update.id, status="proposed", version="v1", note=None, activate=False)
    assert rate(scene, "t", "bad after all", -1, "so") == "learned"
    assert (scene.waiting(), scene.trainable()) == (["t"], [])
    scene.judge("t", -1, correction="so")
    assert (scene.waiting(), scene.trainable()) == ([], [])
    assert scene.store.turn_views()[0]["score"] == -1
    assert [h.score for h in scene.store.verdicts("ann", 9)] == [-1]
    scene.said("t", "what is said in passing changes nothing any more")
    assert scene.waiting() == []


def test_feedback_on_a_turn_that_is_not_learned_from_changes_its_verdict_and_says_why(scene: Scene) -> None:
    scene.corrected("t", 1)
    update = scene.store.begin_update(["t"], "base", "{}")
    scene.store.finish_update(update.id, status="unused", version=None, note=None, activate=False)
    assert rate(scene, "t", "no", -1) == "nothing_to_learn"
    scene.judge("t", -1)
    assert scene.store.turn_views()[0]["score"] == -1
    assert scene.trainable() == []
    scene.corrected("free")
    assert rate(scene, "free", "no", -1) is None


def rate(scene: Scene, turn_id: str, text: str, score: int, correction: str | None = None) -> str | None:
    state = NextState(turn_id, NextKind.FEEDBACK, text, 300.0, score=score, correction=correction)
    return scene.store.add_feedback(state)


def test_feedback_on_a_turn_whose_update_was_rejected_is_heard(scene: Scene) -> None:
    scene.corrected("t")
    update = scene.store.begin_update(["t"], "base", "{}")
    scene.feedback("t", "good", score=1)
    scene.store.finish_update(update.id, status="rejected", version=None, note=None, activate=False)
    assert scene.trainable() == [], "the old verdict waits until the new word was judged"
    scene.judge("t", 1)
    assert [s.score for s in scene.store.trainable(9, current=0, max_staleness=4)] == [1]


def test_a_renewed_lease_runs_from_now_on(scene: Scene) -> None:
    for turn_id in "ab":
        scene.answered(turn_id)
        scene.said(turn_id, "no")
    held, dropped = scene.store.lease_unjudged("w", 9, 60)
    scene.steady.seconds += 59
    scene.store.renew_leases([held.lease], 60)
    scene.steady.seconds += 59
    assert [i.turn.id for i in scene.store.lease_unjudged("w2", 9, 1)] == ["b"]
    scene.store.record_judgement(verdict("a"), held.lease)
    with pytest.raises(LeaseLost):
        scene.store.record_judgement(verdict("b"), dropped.lease)


def test_a_lease_that_was_lost_is_not_renewed(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "no")
    [first] = scene.store.lease_unjudged("w1", 9, 1)
    scene.steady.seconds += 2
    [second] = scene.store.lease_unjudged("w2", 9, 1)
    scene.store.renew_leases([first.lease], 1000)
    scene.steady.seconds += 2
    assert len(scene.store.lease_unjudged("w3", 9, 1)) == 1
    assert second.lease != first.lease


def test_a_turn_that_was_given_back_can_be_taken_at_once_and_was_no_attempt(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "no")
    for _ in range(5):
        [item] = scene.store.lease_unjudged("w", 9, 60)
        scene.store.return_leases([item.lease])
    assert scene.waiting() == ["t"]
    assert scene.store.turn_views()[0]["reason"] is None
