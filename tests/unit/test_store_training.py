from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from instar.errors import StoreError
from instar.records import NextKind, Origin, Sample, Source
from instar.store.schema import uses
from tests.kit.store_scenes import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "instar.db")


def finish(scene: Scene, update_id: str, status: str, version: str | None = None, **more: Any) -> None:
    values = {"note": None, "activate": False} | more
    scene.store.finish_update(update_id, status=status, version=version, **values)


def reason(scene: Scene, turn_id: str) -> str | None:
    found: str | None = next(v["reason"] for v in scene.store.turn_views() if v["id"] == turn_id)
    return found


def samples(scene: Scene, current: int = 0) -> dict[str, Sample]:
    return {s.turn_id: s for s in scene.store.trainable(99, current=current, max_staleness=4)}


def all_uses(scene: Scene) -> list[tuple[str, str, int]]:
    with scene.store._db.reading() as conn:
        return [tuple(row) for row in conn.execute(select(uses).order_by(uses.c.turn_id, uses.c["pass"]))]


# ── samples ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_judged_turn_becomes_a_sample(scene: Scene) -> None:
    scene.corrected("t", version="v1", outcome={"finish_reason": "length"})
    assert samples(scene)["t"] == Sample(
        turn_id="t", learner="ann", version="v1", source=Source.USER, origin=Origin.SAMPLED,
        request_messages=[{"role": "user", "content": "question t"}], prompt_ids=[1, 2, 3], response_ids=[4, 5],
        logprobs=[-0.5, -0.25], score=-1, hint="shorter", was_cut=True, created_at=100.0,
    )  # fmt: skip


def test_oldest_first_and_no_more_than_asked_for(scene: Scene) -> None:
    for turn_id in "abcde":
        scene.corrected(turn_id)
    assert scene.trainable(limit=3) == ["a", "b", "c"]


def test_what_is_too_long_carries_its_reason(scene: Scene) -> None:
    scene.corrected("short")
    scene.corrected("long", outcome={"prompt_ids": [1] * 9})
    found = scene.store.trainable(9, current=0, max_staleness=4, longest=10)
    assert [s.turn_id for s in found] == ["short"]
    assert (reason(scene, "short"), reason(scene, "long")) == (None, "too_long")


def test_a_learner_s_own_verdicts_are_told_newest_kept_and_oldest_first(scene: Scene) -> None:
    scene.corrected("a")
    scene.corrected("b", score=1)
    scene.corrected("c", score=0)
    scene.corrected("of another", learner="bob")
    scene.answered("by a tool")
    scene.said("by a tool", "error", NextKind.TOOL_RESULT)
    scene.judge("by a tool", -1, source=Source.TOOL)
    scene.answered("kept out", learn=False, reason="opt_out")
    scene.said("kept out", "too long")
    scene.corrected("d")
    found = scene.store.verdicts("ann", 10)
    assert [(h.question, h.answer, h.score, h.hint) for h in found] == [
        ("question a", "answer a", -1, "shorter"),
        ("question b", "answer b", 1, "shorter"),
        ("question d", "answer d", -1, "shorter"),
    ]
    assert [h.question for h in scene.store.verdicts("ann", 2)] == ["question b", "question d"]


def test_a_verdict_that_says_nothing_teaches_nothing_unless_a_correction_comes_with_it(scene: Scene) -> None:
    for turn_id, score, correction in (
        ("zero", 0, None),
        ("none", None, None),
        ("edit", None, "so"),
        ("e0", 0, "so"),
    ):
        scene.answered(turn_id)
        scene.said(turn_id, "hm")
        scene.judge(turn_id, score, correction=correction)
    found = samples(scene)
    assert {t: (s.score, s.correction) for t, s in found.items()} == {"edit": (None, "so"), "e0": (0, "so")}


def test_an_empty_answer_is_never_trained_on_and_says_so(scene: Scene) -> None:
    scene.corrected("t", outcome={"response_ids": [], "logprobs": []})
    assert scene.trainable() == []
    assert reason(scene, "t") == "empty_answer"


def test_logprobs_that_do_not_fit_the_answer_are_dropped(scene: Scene) -> None:
    scene.corrected("t", outcome={"logprobs": [-0.5]})
    assert samples(scene)["t"].logprobs == []


def test_the_user_s_verdict_beats_the_tool_s_whichever_came_last(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "exit 0", NextKind.TOOL_RESULT)
    scene.judge("t", 1, Source.TOOL)
    assert samples(scene)["t"].source is Source.TOOL
    scene.said("t", "wrong file")
    assert scene.trainable() == [], "the old verdict waits while the user's word is being read"
    scene.judge("t", -1, Source.USER, hint="wrong file")
    assert (samples(scene)["t"].source, samples(scene)["t"].score) == (Source.USER, -1)
    scene.feedback("t", "more", score=-1)
    scene.judge("t", 1, Source.TOOL)  # a chain may say so; the user has spoken
    assert (samples(scene)["t"].source, samples(scene)["t"].score) == (Source.USER, -1)


def test_a_reply_that_nobody_could_read_leaves_the_tool_s_verdict(scene: Scene) -> None:
    scene.answered("t")
    scene.said("t", "exit 1", NextKind.TOOL_RESULT)
    scene.judge("t", -1, Source.TOOL)
    scene.said("t", "hm")
    scene.judge("t", None, Source.USER)
    assert (samples(scene)["t"].source, samples(scene)["t"].score) == (Source.TOOL, -1)


def test_the_last_word_of_explicit_feedback_counts(scene: Scene) -> None:
    scene.corrected("t")
    scene.feedback("t", correction="better")
    scene.judge("t", -1, hint="the comment", correction="better")
    found = samples(scene)["t"]
    assert (found.hint, found.correction) == ("the comment", "better")


def test_the_answer_that_the_user_accepted_after_a_correction_comes_along(scene: Scene) -> None:
    scene.corrected("first")
    scene.corrected("retry", score=1, parent_id="first")
    found = samples(scene)
    assert found["first"].accepted == "answer retry"
    assert found["retry"].accepted is None


@pytest.mark.parametrize(
    "retry",
    [
        {"score": -1},
        {"session_id": "other"},
        {"episode_id": "first"},  # no word of the user between them: the same answer going on
        {"parent_id": "else"},
        {"outcome": {"answer": {"role": "assistant", "content": "", "tool_calls": [{}]}}},
        {"outcome": {"answer": {"role": "assistant", "content": "calling", "tool_calls": [{}]}}},
        {"outcome": {"answer": None}},
    ],
)
def test_what_is_no_accepted_retry(scene: Scene, retry: dict[str, Any]) -> None:
    scene.corrected("first")
    scene.corrected("retry", **({"score": 1, "parent_id": "first"} | retry))
    assert samples(scene)["first"].accepted is None


def test_an_accepted_retry_follows_only_a_rejected_answer(scene: Scene) -> None:
    scene.corrected("first", score=1)
    scene.corrected("second", score=1, parent_id="first")
    assert samples(scene)["first"].accepted is None


def wordless(scene: Scene, turn_id: str, score: int = -1, **turn: Any) -> None:
    """A turn with a verdict and no words that say what to do instead."""
    scene.answered(turn_id, **turn)
    scene.said(turn_id, "no")
    scene.judge(turn_id, score)


def test_a_sample_of_an_old_version_is_left_out_for_good_and_says_why(scene: Scene) -> None:
    wordless(scene, "base", version="base")
    wordless(scene, "v1", version="v1")
    wordless(scene, "v9", version="v9", pinned=True)
    assert scene.trainable(current=4, max_staleness=4) == ["base", "v1"]
    assert scene.trainable(current=5, max_staleness=4) == ["v1"]
    assert scene.trainable(current=4, max_staleness=4) == ["v1"]
    assert {t: reason(scene, t) for t in ("base", "v1", "v9")} == {"base": "stale", "v1": None, "v9": "stale"}


def with_versions(scene: Scene, parents: dict[str, str]) -> None:
    for version, parent in parents.items():
        turn_id = scene.corrected(f"makes-{version}")
        update = scene.store.begin_update([turn_id], parent, "{}")
        finish(scene, update.id, "proposed", version)


def test_age_counts_updates_along_the_parents_not_numbers(scene: Scene) -> None:
    """Back from v5 to base, and on from there: v6 is base's own child."""
    line = {f"v{n}": f"v{n - 1}" if n > 1 else "base" for n in range(1, 6)}
    with_versions(scene, {**line, "v6": "base"})
    assert scene.store.parents()["v6"] == "base"
    for version in ("base", "v3", "v4", "v6"):
        wordless(scene, version, version=version)
    assert scene.trainable(current=6, max_staleness=4) == ["base", "v3", "v6"], "v4 is five updates away"
    assert reason(scene, "v4") == "stale"


def test_an_old_sample_with_words_is_kept_without_its_logprobs(scene: Scene) -> None:
    """A revision is looked for under base: it needs none."""
    scene.corrected("words", version="base")
    scene.corrected("pinned", version="v9", pinned=True)
    wordless(scene, "wordless", version="base")
    assert {t: (s.hint, s.logprobs) for t, s in samples(scene, current=9).items()} == {
        "words": ("shorter", []),
        "pinned": ("shorter", []),
    }
    assert reason(scene, "wordless") == "stale"


def test_an_old_sample_with_the_user_s_own_text_is_kept_without_its_logprobs(scene: Scene) -> None:
    scene.answered("edit")
    scene.feedback("edit", correction="so")
    scene.judge("edit", -1, correction="so")
    scene.corrected("first")
    wordless(scene, "retry", score=1, parent_id="first")
    found = samples(scene, current=50)
    assert {t: (s.logprobs, s.correction, s.accepted) for t, s in found.items()} == {
        "edit": ([], "so", None),
        "first": ([], None, "answer retry"),
    }
    assert reason(scene, "retry") == "stale"


def test_many_stale_samples_do_not_hide_the_fresh_ones_behind_them(scene: Scene) -> None:
    for n in range(12):
        wordless(scene, f"old{n}")
    wordless(scene, "new", version="v9")
    assert scene.trainable(current=9, limit=2) == ["new"]


# ── updates ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_update_from_begin_to_service(scene: Scene) -> None:
    scene.corrected("a")
    scene.corrected("b")
    assert scene.store.running_update() is None
    update = scene.store.begin_update(["b", "a"], "base", '{"seed": 1}', scale=0.5, passes=2)
    assert scene.store.running_update() == (update, '{"seed": 1}')
    assert (update.number, update.status, update.turn_ids, update.scale) == (1, "running", ["b", "a"], 0.5)
    assert scene.trainable() == []
    finish(scene, update.id, "proposed", "v1", activate=True, note="fine", documents={"method": {"n": 1}})
    assert scene.store.running_update() is None
    assert scene.store.active_version() == "v1"
    assert scene.store.get_state("method") == {"n": 1}
    assert all_uses(scene) == [
        ("a", update.id, 0),
        ("a", update.id, 1),
        ("b", update.id, 0),
        ("b", update.id, 1),
    ]
    [done] = scene.store.updates()
    assert (done.status, done.version, done.note, done.finished_at) == (
        "proposed",
        "v1",
        "fine",
        scene.clock.wall,
    )
    assert scene.trainable() == []
    assert [(v["learned"], v["updates"]) for v in scene.store.turn_views()] == [(True, [update.id])] * 2


def test_a_proposed_version_serves_only_if_asked_to(scene: Scene) -> None:
    scene.corrected("a")
    update = scene.store.begin_update(["a"], "base", "{}")
    finish(scene, update.id, "proposed", "v1")
    assert scene.store.active_version() == "base"
    assert scene.store.activations() == []


def test_one_update_at_a_time(scene: Scene) -> None:
    scene.corrected("a")
    scene.corrected("b")
    update = scene.store.begin_update(["a"], "base", "{}")
    with pytest.raises(StoreError, match="is running"):
        scene.store.begin_update(["b"], "base", "{}")
    finish(scene, update.id, "proposed", "v1")
    assert scene.store.begin_update(["b"], "v1", "{}").number == 2


def test_a_sample_is_used_once(scene: Scene) -> None:
    scene.corrected("a")
    scene.corrected("b")
    finish(scene, scene.store.begin_update(["a"], "base", "{}").id, "proposed", "v1")
    with pytest.raises(StoreError, match="used already"):
        scene.store.begin_update(["b", "a"], "base", "{}")
    assert scene.trainable() == ["b"]
    assert scene.store.running_update() is None


@pytest.mark.parametrize("turn_ids", [[], ["a", "a"], ["a", "ghost"]])
def test_an_update_of_nothing_known_is_refused(scene: Scene, turn_ids: list[str]) -> None:
    scene.corrected("a")
    with pytest.raises(StoreError):
        scene.store.begin_update(turn_ids, "base", "{}")
    assert scene.trainable() == ["a"]


def test_an_update_ends_once(scene: Scene) -> None:
    scene.corrected("a")
    update = scene.store.begin_update(["a"], "base", "{}")
    finish(scene, update.id, "proposed", "v1")
    for status, version in (("proposed", "v2"), ("rejected", None)):
        with pytest.raises(StoreError, match="not running"):
            finish(scene, update.id, status, version)
    assert len(all_uses(scene)) == 1


@pytest.mark.parametrize(
    ("status", "version", "activate"),
    [("done", None, False), ("proposed", None, False), ("rejected", "v1", True), ("failed", None, True)],
)
def test_an_ending_that_makes_no_sense_is_refused(
    scene: Scene, status: str, version: str | None, activate: bool
) -> None:
    scene.corrected("a")
    update = scene.store.begin_update(["a"], "base", "{}")
    with pytest.raises(StoreError):
        finish(scene, update.id, status, version, activate=activate)
    assert scene.store.running_update() is not None


@pytest.mark.parametrize(
    ("status", "times", "why"),
    [("rejected", 2, "rejected_by_gate"), ("failed", 3, "poison"), ("unused", 1, "nothing_to_learn")],
)
def test_samples_come_back_for_a_while_and_are_then_given_up(
    scene: Scene, status: str, times: int, why: str
) -> None:
    scene.corrected("a")
    for n in range(times):
        assert scene.trainable() == ["a"]
        assert scene.store.rejected_before(["a", "x"]) == (status == "rejected" and n > 0)
        finish(scene, scene.store.begin_update(["a"], "base", "{}").id, status)
    assert scene.trainable() == []
    assert reason(scene, "a") == why
    assert all_uses(scene) == []


def test_a_version_s_name_is_never_given_twice(scene: Scene) -> None:
    """Not even that of an update which failed after its files were on the disk."""
    assert scene.store.next_version_number() == 1
    for turn_id, status, version in (
        ("a", "proposed", "v2"),
        ("b", "failed", "v10"),
        ("c", "rejected", None),
    ):
        scene.corrected(turn_id)
        finish(scene, scene.store.begin_update([turn_id], "base", "{}").id, status, version)
    assert scene.store.next_version_number() == 11
    assert [(u.number, u.version) for u in scene.store.updates(2)] == [(3, None), (2, "v10")]
