"""What the user said outright: a thumb, a comment, a corrected text, or the button that asks again."""

from __future__ import annotations

from collections.abc import Sequence

from instar.judges.prompt import CONTROL
from instar.records import EXPLICIT, Abstention, JudgeItem, NextKind, NextState, Verdict

MAX_HINT_CHARS = 600
"""A hint goes into the teacher's prompt, so it has to stay short."""


EDITED = "the user changed their own message and asked again: that is about the message, not about the answer"


class ExplicitLink:
    """Reads `POST /v1/feedback` and what buttons say: another try, an edit. Abstains on everything said in passing."""

    name = EXPLICIT

    def judge(self, item: JudgeItem) -> Verdict | Abstention | None:
        if newest(item.next_states, NextKind.FEEDBACK) is not None:
            return rated(item.next_states)
        kinds = {state.kind for state in item.next_states}
        if kinds == {NextKind.EDIT}:
            return Abstention(EDITED)
        if kinds == {NextKind.REGENERATE}:
            return Verdict(
                score=-1,
                votes=(-1,),
                why="the user asked for another answer to the same message and said nothing more: a weak sign",
            )
        return None


def newest(states: Sequence[NextState], kind: NextKind) -> NextState | None:
    """The last state of one kind; of two from the same moment, the one recorded later."""
    found: NextState | None = None
    for state in states:
        if state.kind is kind and (found is None or state.created_at >= found.created_at):
            found = state
    return found


def rated(states: Sequence[NextState]) -> Verdict | None:
    """The user's own rating; None where the newest feedback is none, or there is no feedback."""
    feedback = newest(states, NextKind.FEEDBACK)
    return None if feedback is None else _from_feedback(feedback)


def as_hint(text: str) -> str | None:
    """Words that can stand in a prompt, without control tokens and not longer than fits; None where there are none."""
    words = CONTROL.sub(" ", text.replace("\x00", " ")).strip()
    if len(words) > MAX_HINT_CHARS:
        words = words[: MAX_HINT_CHARS - 1].rstrip() + "…"
    return words or None


def _from_feedback(state: NextState) -> Verdict | None:
    """A corrected text without a score says that the answer was not yet right."""
    score = state.score
    if score is None:
        if state.correction is None:
            return None
        score = -1
    score = (score > 0) - (score < 0)
    return Verdict(
        score=score,
        votes=(score,),
        hint=as_hint(state.text) if score < 0 else None,
        correction=state.correction,
        why="the user's own rating" + (" with a corrected text" if state.correction else ""),
    )
