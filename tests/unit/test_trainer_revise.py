"""Which revision is learned, told by scores alone: the model and its sampling are stand-ins."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from instar.records import Origin, WeightedSample
from instar.trainers import revise
from instar.trainers.canaries import Canaries, token_logp
from instar.trainers.policy import Policy
from instar.trainers.revise import Reviser, Revision, View
from instar.trainers.sampling import Answer
from tests.kit.samples import weighted
from tests.kit.tiny_model import write_tiny_model

PROMPT, HINTED, STOP = [30, 40, 50], [99, 30, 40, 50], 2
REJECTED = [60, 70, 80, 90, STOP]


class StandIn:
    """A policy of which only base is asked."""

    model_dir = Path("model")

    def as_base(self) -> Any:
        return nullcontext()


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[float, float]]:
    """First token of an answer → (hint, margin), as base would find them; base's own revision begins with 5."""
    known: dict[int, tuple[float, float]] = {60: (0.0, 0.5), 5: (-1.0, -1.0)}

    def view_of(self: Reviser, asking: WeightedSample, body: Sequence[int]) -> View:
        assert STOP not in body
        hint, margin = known[body[0]]
        rows = [-2.0, -2.0 + hint, *[-2.0 - margin] * 3]
        return View(torch.tensor([[row] * len(body) for row in rows]), torch.full((5, len(body) + 1), -9.0))

    canary = Canaries([], [], others=[[1], [3], [4]], endings=[], neutral=[], stop_ids=[STOP])
    monkeypatch.setattr(revise, "canaries", lambda model_dir: canary)
    monkeypatch.setattr(Reviser, "_view_of", view_of)
    monkeypatch.setattr(revise, "sample", sample)
    monkeypatch.setattr(revise, "chat_of", lambda model_dir: Letters())
    return known


class Letters:
    """Ids as text."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@dataclass(frozen=True)
class Likes:
    """A scorer by the beginnings of answers."""

    chances: dict[str, float]
    accuracy: float = 1.0

    def probability(self, question: str, answer: str) -> float:
        return next((p for start, p in self.chances.items() if answer.startswith(start)), 0.1)


sampled: list[int] = []
"""Seeds that base's own revisions were sampled with."""


def sample(policy: Any, prompts: Sequence[list[int]], *, seed: int, **_: Any) -> list[Answer]:
    sampled.append(seed)
    return [Answer([5, 6, 7, 8, STOP], ended=True) for _ in prompts]


def asking(*revisions: list[int]) -> WeightedSample:
    return weighted(
        prompt_ids=PROMPT,
        response_ids=REJECTED,
        teacher_prompt_ids=HINTED,
        revise=1.0,
        revisions=list(revisions),
    )


def chosen(sample: WeightedSample, scorer: Any = None) -> list[int] | None:
    lesson = revised(sample, scorer).lesson
    return lesson.response_ids if lesson else None


def revised(sample: WeightedSample, scorer: Any = None) -> Revision:
    return Reviser(StandIn(), max_tokens=8).revise(sample, scorer)  # type: ignore[arg-type]


GOOD, BETTER = [10, 11, 12, 13, STOP], [20, 21, 22, 23, STOP]


def test_the_revision_that_heeds_the_words_most_is_learned(scores: dict[int, tuple[float, float]]) -> None:
    scores.update({10: (0.2, 0.9), 20: (0.6, 0.6)})
    assert chosen(asking(GOOD, BETTER)) == BETTER


def test_heeding_the_words_off_the_subject_is_not_learned(scores: dict[int, tuple[float, float]]) -> None:
    scores.update({10: (0.2, 0.9), 20: (5.0, 0.2)})
    assert chosen(asking(GOOD, BETTER)) == GOOD


def test_an_answer_no_better_than_the_rejected_one_is_not_learned(
    scores: dict[int, tuple[float, float]],
) -> None:
    scores.update({10: (0.0, 0.9), 20: (0.6, 0.2)})
    assert chosen(asking(GOOD, BETTER)) is None


def test_a_correction_that_teaches_nothing_says_why(scores: dict[int, tuple[float, float]]) -> None:
    scores[10] = (0.6, 0.2)
    assert revised(asking(GOOD)).why == revise.WORSE
    scores[10] = (-0.1, 0.9)
    assert revised(asking(GOOD)).why == revise.NOT_SHOWN
    assert revised(asking(GOOD), Likes({})).why == revise.NOT_PLEASING
    assert revised(asking(GOOD), Likes({"10 ": 0.9})).why == revise.TAKEN


def test_gibberish_that_heeds_the_words_is_not_learned(scores: dict[int, tuple[float, float]]) -> None:
    rejected, slow = revise.Score(-1.0, 0.0, 0.5, 9.0, 9.0), revise.FLUENCY_SLACK
    assert revise.Score(-1.0 - slow + 0.01, 9.0, 0.5, 9.0, 9.0).keeps_up_with(rejected)
    assert not revise.Score(-1.0 - slow - 0.01, 9.0, 0.5, 9.0, 9.0).keeps_up_with(rejected)


def test_what_pleases_the_learner_counts_more_than_the_words(scores: dict[int, tuple[float, float]]) -> None:
    scores.update({10: (-0.5, 0.9), 20: (0.6, 0.6)})
    assert chosen(asking(GOOD, BETTER)) == BETTER
    assert chosen(asking(GOOD, BETTER), Likes({"10 ": 0.9})) == GOOD
    assert chosen(asking(GOOD, BETTER), Likes({})) is None


def test_of_those_that_please_the_one_that_says_most_about_the_request_is_learned(
    scores: dict[int, tuple[float, float]],
) -> None:
    longer = [20, *range(100, 120), STOP]
    scores.update({10: (9.0, 0.7), 20: (0.1, 0.6)})
    assert chosen(asking(GOOD, longer), Likes({"": 0.9})) == longer
    doubtful = Likes({"10 ": 0.95, "20 ": 0.51})
    scores.update({10: (9.0, 0.7), 20: (0.1, 0.2)})
    assert chosen(asking(GOOD, [20, *range(100, 105), STOP]), doubtful) == GOOD


def test_base_may_find_the_revision_itself(scores: dict[int, tuple[float, float]]) -> None:
    scores[5] = (0.3, 0.8)
    assert chosen(asking()) == [5, 6, 7, 8, STOP]


@pytest.mark.parametrize("broken", [[STOP], [20, 21, STOP], [20, 21, 22, 23] * 4 + [STOP]])
def test_empty_tiny_and_looping_answers_are_no_revisions(
    scores: dict[int, tuple[float, float]], broken: list[int]
) -> None:
    scores[20] = (9.0, 9.0)
    assert chosen(asking(broken)) is None


def test_the_lesson_is_learned_without_the_hint_and_weighs_what_was_asked(
    scores: dict[int, tuple[float, float]],
) -> None:
    scores[10] = (0.2, 0.9)
    lesson = revised(asking(GOOD)).lesson
    assert lesson is not None
    assert (lesson.prompt_ids, lesson.origin, lesson.logprobs) == (PROMPT, Origin.REVISION, [])
    assert sum(lesson.nll_T) == pytest.approx(1.0)
    assert not any([*lesson.pg_T, *lesson.distill_T, *lesson.kl_T])


def test_of_two_that_heed_the_words_the_one_that_says_more_is_learned(
    scores: dict[int, tuple[float, float]],
) -> None:
    longer = [20, *range(100, 120), STOP]
    scores.update({10: (0.6, 0.7), 20: (0.5, 0.6)})
    assert chosen(asking(GOOD, longer)) == longer


def test_the_end_counts_for_the_words_but_not_for_the_subject() -> None:
    stop = torch.full((5, 3), -9.0)
    stop[1, 2] = -1.0
    found = View(torch.full((5, 2), -1.0), stop).score(2)
    assert found == revise.Score(fluency=-1.0, hint=0.0, margin=0.0, subject=0.0, whole=8.0)


def test_the_rejected_answer_is_ended_where_the_words_make_an_end_likely() -> None:
    stop = torch.full((5, 13), -9.0)
    for at, logp in {5: -1.0, 9: -2.0, 2: -0.5, 12: -0.1, 7: -4.5}.items():
        stop[1, at] = logp
    assert View(torch.zeros((5, 12)), stop).endings() == [5, 9]


@pytest.mark.timeout(100)
def test_a_beginning_scores_as_the_same_text_alone(tmp_path: Path) -> None:
    policy = Policy(write_tiny_model(tmp_path), rank=4, alpha=8)
    reviser = Reviser(policy, max_tokens=8)
    asked = replace(asking(), prompt_ids=[30, 40, 50], teacher_prompt_ids=[99, 30, 40, 50])
    body = list(range(60, 72))
    part, alone = reviser._view_of(asked, body).score(5), reviser._view_of(asked, body[:5]).score(5)
    for name in ("fluency", "hint", "margin", "subject", "whole"):
        assert getattr(part, name) == pytest.approx(getattr(alone, name), abs=0.02)
    own = token_logp(policy, [[30, 40, 50]], [[*body[:5], STOP]])[0]
    assert part.fluency == pytest.approx(float(own[:5].mean()), abs=0.02)


def test_a_revision_is_looked_for_once_and_the_same_in_any_company(
    scores: dict[int, tuple[float, float]],
) -> None:
    scores.update({10: (0.2, 0.9), 20: (0.6, 0.6)})
    sampled.clear()
    first, second = Reviser(StandIn(), max_tokens=8), Reviser(StandIn(), max_tokens=8)  # type: ignore[arg-type]
    asked = [asking(GOOD), replace(asking(BETTER), prompt_ids=[30, 40, 50, 55])]
    for sample_ in (asked[1], *asked):
        first.revise(sample_)
    assert len(sampled) == 2
    for sample_ in asked:
        second.revise(sample_)
    assert sampled == [sampled[0], sampled[1], sampled[1], sampled[0]]
    assert sampled[0] != sampled[1]


@pytest.mark.usefixtures("scores")
def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revise, "REMEMBERED", 1)
    sampled.clear()
    reviser = Reviser(StandIn(), max_tokens=8)  # type: ignore[arg-type]
    other = replace(asking(), prompt_ids=[1, 30, 40, 50])
    for asked in (asking(), other, other, asking()):
        reviser.revise(asked)
    assert len(sampled) == 3


def test_an_answer_to_the_correction_that_comes_later_is_still_considered(
    scores: dict[int, tuple[float, float]],
) -> None:
    scores.update({5: (0.2, 0.8), 20: (0.6, 0.9)})
    sampled.clear()
    reviser = Reviser(StandIn(), max_tokens=8)  # type: ignore[arg-type]
    first, second = reviser.revise(asking()).lesson, reviser.revise(asking(BETTER)).lesson
    assert first is not None
    assert second is not None
    assert (first.response_ids, second.response_ids) == ([5, 6, 7, 8, STOP], BETTER)
    assert len(sampled) == 1
