"""The judge's chain: links are asked in order, the first that speaks is believed."""

from __future__ import annotations

from collections.abc import Sequence

from instar.ports import JudgeLink
from instar.records import JudgeItem, Judgement, Source, Verdict

NOBODY = "none"
"""Name that stands in `Judgement.link` where every link abstained."""

TOOL_LINK = "tools"
"""Name of the link whose verdicts are the tool's and not the user's."""


class Chain:
    """Links in order of trust. A generative judge is one more link, after those that cost nothing.

    `notes` are sentences for `status`: what is missing from the chain, and what to do about it.
    """

    def __init__(self, links: Sequence[JudgeLink], notes: Sequence[str] = ()) -> None:
        self.links = tuple(links)
        self.notes = list(notes)

    def judge(self, item: JudgeItem, now: float) -> Judgement:
        """Judge one turn. `now` is wall time in seconds. Errors of a link propagate to the lease boundary."""
        for link in self.links:
            verdict = link.judge(item)
            if verdict is not None:
                return to_judgement(item, verdict, link.name, now)
        return Judgement(
            turn_id=item.turn.id,
            score=None,
            source=_source_of(item),
            link=NOBODY,
            created_at=now,
            why="no judge could tell what this reaction says about the answer",
        )


def to_judgement(item: JudgeItem, verdict: Verdict, link: str, now: float) -> Judgement:
    """Sign a verdict with the turn it is about and the link that gave it."""
    return Judgement(
        turn_id=item.turn.id,
        score=verdict.score,
        source=Source.TOOL if link == TOOL_LINK else Source.USER,
        link=link,
        created_at=now,
        votes=verdict.votes,
        hint=verdict.hint,
        correction=verdict.correction,
        why=verdict.why,
    )


def _source_of(item: JudgeItem) -> Source:
    """Who would have spoken: the tool only if nothing but tool results followed."""
    kinds = {state.kind.value for state in item.next_states}
    return Source.TOOL if kinds == {"tool_result"} else Source.USER
