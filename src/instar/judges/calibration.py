"""How good is a judge? Figures from labelled cases, per link and in all.

A case is one JSON object a line: `response`, `next_role` (user or tool), `next_text`, `label` (+1, −1, 0);
`request`, the user's message that the response answers, and `lang` may be added.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from instar.errors import ConfigError
from instar.judges.chain import Chain
from instar.records import BASE, JudgeItem, Judgement, Kind, NextKind, NextState, Turn

LABELS = (-1, 0, 1)


@dataclass(frozen=True, slots=True)
class Case:
    response: str
    next_role: str
    next_text: str
    label: int
    request: str = ""
    lang: str = ""


def read_cases(path: Path) -> list[Case]:
    """Raises ConfigError that names the line which is not a case."""
    cases = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            case = Case(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}, line {number} is not a judge case: {error}") from error
        if case.label not in LABELS or case.next_role not in {"user", "tool"}:
            raise ConfigError(f"{path}, line {number}: label must be −1, 0 or 1, next_role user or tool")
        cases.append(case)
    return cases


def as_item(case: Case, number: int = 0) -> JudgeItem:
    """The case as the chain would meet it."""
    turn = Turn(
        id=f"case_{number}",
        session_id="cases",
        episode_id="cases",
        parent_id=None,
        key_id="cases",
        learner="cases",
        kind=Kind.MAIN,
        version=BASE,
        pinned=False,
        messages=[{"role": "user", "content": case.request}],
        request_hash="",
        created_at=0.0,
        answer={"role": "assistant", "content": case.response},
    )
    kind = NextKind.TOOL_RESULT if case.next_role == "tool" else NextKind.USER_REPLY
    return JudgeItem(turn, [NextState(turn.id, kind, case.next_text, 0.0)], lease="")


def judge_cases(chain: Chain, cases: Sequence[Case]) -> list[Judgement]:
    return [chain.judge(as_item(case, number), now=0.0) for number, case in enumerate(cases)]


def figures(cases: Sequence[Case], judgements: Sequence[Judgement]) -> dict[str, Any]:
    """All shares are of the cases named; a share of no cases is None.

    accuracy           right among the cases labelled ±1, where an abstention counts as not right
    wrong_sign         the opposite sign, among the cases labelled ±1
    coverage           cases where the chain spoke (0 is speaking too)
    accuracy_spoken    right among those
    alarms             ±1 among the cases labelled 0
    confusion          label → verdict → count
    """
    pairs = list(zip(cases, judgements, strict=True))
    signed = [(c, j) for c, j in pairs if c.label != 0]
    neutral = [(c, j) for c, j in pairs if c.label == 0]
    spoken = [(c, j) for c, j in pairs if j.score is not None]
    return {
        "cases": len(pairs),
        "accuracy": _share(sum(j.score == c.label for c, j in signed), len(signed)),
        "wrong_sign": _share(sum(j.score == -c.label for c, j in signed), len(signed)),
        "coverage": _share(len(spoken), len(pairs)),
        "accuracy_spoken": _share(sum(j.score == c.label for c, j in spoken), len(spoken)),
        "alarms": _share(sum(bool(j.score) for _, j in neutral), len(neutral)),
        "confusion": confusion(pairs),
    }


def confusion(pairs: Sequence[tuple[Case, Judgement]]) -> dict[str, dict[str, int]]:
    counted = Counter((c.label, j.score) for c, j in pairs)
    verdicts = (*LABELS, None)
    return {
        f"{label:+d}": {_name(score): counted[label, score] for score in verdicts}
        for label in LABELS
        if any(counted[label, score] for score in verdicts)
    }


def by_link(cases: Sequence[Case], judgements: Sequence[Judgement]) -> dict[str, dict[str, Any]]:
    """The same figures for each link that spoke, over the cases on which it did."""
    pairs = list(zip(cases, judgements, strict=True))
    links = sorted({j.link for j in judgements})
    chosen = {link: [(c, j) for c, j in pairs if j.link == link] for link in links}
    return {link: figures([c for c, _ in some], [j for _, j in some]) for link, some in chosen.items()}


def by_language(cases: Sequence[Case], judgements: Sequence[Judgement]) -> dict[str, dict[str, Any]]:
    pairs = list(zip(cases, judgements, strict=True))
    chosen = {lang: [(c, j) for c, j in pairs if c.lang == lang] for lang in sorted({c.lang for c in cases})}
    return {lang: figures([c for c, _ in some], [j for _, j in some]) for lang, some in chosen.items()}


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _name(score: int | None) -> str:
    return "abstains" if score is None else f"{score:+d}"
