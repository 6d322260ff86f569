"""Figures about a judge: what counts as right, as wrong sign, and as silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from instar.errors import ConfigError
from instar.judges import Chain
from instar.judges.calibration import Case, as_item, figures, judge_cases, read_cases, report
from instar.records import Abstention, JudgeItem, NextKind, Verdict

GOOD = {"response": "a", "next_role": "user", "next_text": "b", "label": 1}


class Says:
    """A link that has an answer ready for each text; None abstains."""

    def __init__(self, name: str, **scores: int | None) -> None:
        self.name, self.scores, self.asked = name, scores, 0

    def judge(self, item: JudgeItem) -> Verdict | Abstention | None:
        self.asked += 1
        score = self.scores.get(item.next_states[0].text)
        return Abstention("not known") if score is None else Verdict(score)


def case(text: str, label: int, language: str = "", kind: str = "") -> Case:
    return Case("answer", "user", text, label, language=language, kind=kind)


def test_shares_are_of_the_cases_they_name() -> None:
    found = figures([(1, 1), (1, -1), (-1, None), (-1, -1), (0, 0), (0, 1)])
    assert found["cases"] == 6
    assert found["accuracy"] == 0.5  # two of four ±1
    assert found["wrong_sign"] == 0.25
    assert found["coverage"] == pytest.approx(5 / 6)
    assert found["accuracy_spoken"] == pytest.approx(3 / 5)
    assert found["alarms"] == 0.5
    assert found["confusion"]["-1"] == {"-1": 1, "+0": 0, "+1": 0, "abstains": 1}


def test_no_cases_give_no_shares() -> None:
    found = figures([])
    assert found["accuracy"] is None
    assert found["coverage"] is None
    assert found["confusion"] == {}


CASES = [
    case("a", 1, "en", "praise"),
    case("b", -1, "en", "indirect"),
    case("c", -1, "ko", "indirect"),
    case("d", 0, "ko"),
]


def test_links_are_asked_until_one_speaks_and_counted_on_what_they_were_asked() -> None:
    early, late = Says("early", a=1, b=1), Says("late", a=-1, b=-1, c=-1)
    found = report(judge_cases(Chain([early, late]), CASES))
    assert (early.asked, late.asked) == (4, 2)
    assert (found["links"]["early"]["cases"], found["links"]["late"]["cases"]) == (4, 2)
    assert found["links"]["early"]["accuracy"] == pytest.approx(1 / 3)
    assert found["links"]["early"]["wrong_sign"] == pytest.approx(1 / 3)
    assert found["links"]["early"]["coverage"] == 0.5
    assert (found["links"]["late"]["accuracy"], found["links"]["late"]["coverage"]) == (1.0, 0.5)
    assert found["all"]["accuracy"] == pytest.approx(2 / 3)
    assert found["all"]["coverage"] == 0.75


def test_each_link_can_be_asked_about_every_case_without_changing_the_chain() -> None:
    early, late = Says("early", a=1, b=1), Says("late", a=-1, b=-1, c=-1)
    found = report(judge_cases(Chain([early, late]), CASES, each=True))
    assert (early.asked, late.asked) == (4, 4)
    assert found["links"]["late"]["cases"] == 4
    assert found["links"]["late"]["accuracy"] == pytest.approx(2 / 3)
    assert found["all"]["accuracy"] == pytest.approx(2 / 3)


def test_figures_by_language_and_kind_are_the_chains() -> None:
    found = report(judge_cases(Chain([Says("only", a=1, b=1, c=-1)]), CASES))
    assert found["languages"]["en"]["accuracy"] == 0.5
    assert found["languages"]["ko"]["coverage"] == 0.5
    assert found["kinds"]["indirect"]["wrong_sign"] == 0.5
    assert set(found["kinds"]) == {"indirect", "praise"}


def test_reading_cases(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    more = {"request": "r", "lang": "en", "kind": "k", "next_text": "one\u2028line"}
    lines = [
        json.dumps({**GOOD, "next_role": "tool", "label": -1}),
        "",
        json.dumps({**GOOD, **more}, ensure_ascii=False),
    ]
    path.write_text("\r\n".join(lines), "utf-8")
    first, second = read_cases(path)
    assert first == Case("a", "tool", "b", -1)
    assert second == Case("a", "user", "one\u2028line", 1, "r", "en", "k")
    assert as_item(first).next_states[0].kind is NextKind.TOOL_RESULT
    assert as_item(second).next_states[0].kind is NextKind.USER_REPLY


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ({"response": "a"}, "label, next_role, next_text is missing"),
        ({**GOOD, "label": 2}, "label"),
        ({**GOOD, "label": True}, "label"),
        ({**GOOD, "label": "1"}, "label"),
        ({**GOOD, "label": 1.0}, "label"),
        ({**GOOD, "next_role": "cat"}, "next_role"),
        ({**GOOD, "next_text": None}, "next_text must be text"),
        ({**GOOD, "response": {}}, "response must be text"),
        ({**GOOD, "more": 1}, "more"),
    ],
)
def test_a_line_that_is_no_case_is_named(tmp_path: Path, line: Any, told: str) -> None:
    path = tmp_path / "cases.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    path.write_text(f"{json.dumps(GOOD)}\n\n{text}\n", "utf-8")
    with pytest.raises(ConfigError, match="line 3") as caught:
        read_cases(path)
    assert told in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    for wrong in (path, tmp_path):
        with pytest.raises(ConfigError, match=r"cannot be read"):
            read_cases(wrong)
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    with pytest.raises(ConfigError, match="line 2: this is not UTF-8"):
        read_cases(path)
    path.write_text("\n\n", "utf-8")
    with pytest.raises(ConfigError, match="no cases"):
        read_cases(path)
