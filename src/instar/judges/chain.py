"""The judge's chain: links are asked in order, the first that speaks is believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from instar.judges.heads import HeadsLink
from instar.judges.model import ModelLink
from instar.ports import JudgeLink
from instar.records import EXPLICIT, Abstention, JudgeItem, Judgement, NextKind, Source, Verdict

NOBODY = "none"
"""Name that stands in `Judgement.link` where every link abstained."""

TOOL_LINK = "tools"
"""Name of the link whose verdicts are the tool's and not the user's."""

UNTOLD = "no judge could tell what this reaction says about the answer"


class Chain:
    """Links in order of trust. A model that judges is one more link, the only one that takes long.

    `notes` are sentences for `status`: what is missing from the chain, and what to do about it.
    """

    def __init__(self, links: Sequence[JudgeLink], notes: Sequence[str] = ()) -> None:
        self.links = tuple(links)
        self.notes = list(notes)

    def judge(self, item: JudgeItem, now: float) -> Judgement:
        """Judge one turn. `now` is wall time in seconds. Errors of a link propagate to the lease boundary."""
        return _first(self.links, item, now)

    def at_once(self, item: JudgeItem, now: float) -> Judgement | None:
        """Judge one turn if that takes milliseconds; None where a model would have to be asked."""
        judged = _first(self._before_model(), item, now)
        if judged.link != NOBODY:
            return judged
        if any(not model.paused for model in self._models()):
            return None
        return self.judge(item, now)

    def without_model(self, item: JudgeItem, now: float, why: str) -> Judgement:
        """Judge one turn by the other links, saying why no model was asked."""
        quick = [link for link in self.links if not isinstance(link, ModelLink)]
        return _first(quick, item, now, [why])

    def facts(self) -> dict[str, Any]:
        """What `status` tells of the chain. `problem` is one line about all that is wrong with it."""
        models = [model.facts() for model in self._models()]
        wrong = [*self.notes, *(model["problem"] for model in models if model["problem"])]
        return {
            "chain": [link.name for link in self.links],
            "model": models[0] if models else None,
            "own_ratings": next((link.facts() for link in self.links if isinstance(link, HeadsLink)), {}),
            "problem": "; ".join(wrong) or None,
        }

    def close(self) -> None:
        for model in self._models():
            model.close()

    def _models(self) -> list[ModelLink]:
        return [link for link in self.links if isinstance(link, ModelLink)]

    def _before_model(self) -> list[JudgeLink]:
        models = self._models()
        return list(self.links[: self.links.index(models[0])] if models else self.links)


def _first(links: Sequence[JudgeLink], item: JudgeItem, now: float, silence: Sequence[str] = ()) -> Judgement:
    reasons = [UNTOLD, *silence]
    for link in links:
        said = link.judge(item)
        if isinstance(said, Verdict):
            judged = to_judgement(item, said, link.name, now)
            return replace(judged, others=_others(links, item, now)) if link.name == EXPLICIT else judged
        if isinstance(said, Abstention):
            reasons.append(said.why)
    return Judgement(
        turn_id=item.turn.id,
        score=None,
        source=_source_of(item),
        link=NOBODY,
        created_at=now,
        why="; ".join(reasons),
    )


def _others(links: Sequence[JudgeLink], item: JudgeItem, now: float) -> tuple[Judgement, ...]:
    """What those would have said who read the user's words and cost nothing, had the user not rated the answer."""
    quick = [
        link for link in links if link.name not in {EXPLICIT, TOOL_LINK} and not isinstance(link, ModelLink)
    ]
    said = ((link, link.judge(item)) for link in quick)
    return tuple(to_judgement(item, s, link.name, now) for link, s in said if isinstance(s, Verdict))


def to_judgement(item: JudgeItem, verdict: Verdict, link: str, now: float) -> Judgement:
    """Sign a verdict with the turn it is about and the link that gave it."""
    return Judgement(
        turn_id=item.turn.id,
        score=verdict.score,
        source=Source.TOOL if link == TOOL_LINK else _source_of(item),
        link=link,
        created_at=now,
        votes=verdict.votes,
        hint=verdict.hint,
        correction=verdict.correction,
        why=verdict.why,
    )


def _source_of(item: JudgeItem) -> Source:
    """Whose word it is: the tool's only if nothing but tool results followed."""
    kinds = {state.kind for state in item.next_states}
    return Source.TOOL if kinds == {NextKind.TOOL_RESULT} else Source.USER
