"""Figures about a judge: what counts as right, as wrong sign, and as silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from instar.errors import ConfigError
from instar.judges.calibration import Case, as_item, by_language, by_link, figures, read_cases
from instar.records import Judgement, NextKind, Source


def case(label: int, lang: str = "en") -> Case:
    return Case("answer", "user", "reaction", label, lang=lang)


def said(score: int | None, link: str = "heads") -> Judgement:
    return Judgement("case_0", score, Source.USER, link, 0.0)


def test_shares_are_of_the_cases_they_name() -> None:
    cases = [case(1), case(1), case(-1), case(-1), case(0), case(0)]
    found = figures(cases, [said(1), said(-1), said(None, "none"), said(-1), said(0), said(1)])
    assert found["cases"] == 6
    assert found["accuracy"] == 0.5  # two of four ±1
    assert found["wrong_sign"] == 0.25
    assert found["coverage"] == pytest.approx(5 / 6)
    assert found["accuracy_spoken"] == pytest.approx(3 / 5)
    assert found["alarms"] == 0.5
    assert found["confusion"]["-1"] == {"-1": 1, "+0": 0, "+1": 0, "abstains": 1}


def test_no_cases_give_no_shares() -> None:
    found = figures([], [])
    assert found["accuracy"] is None
    assert found["coverage"] is None
    assert found["confusion"] == {}


def test_figures_per_link_and_language() -> None:
    cases = [case(1), case(-1, "ko"), case(1, "ko")]
    judgements = [said(1, "explicit"), said(-1), said(-1)]
    links = by_link(cases, judgements)
    assert (links["explicit"]["accuracy"], links["heads"]["wrong_sign"]) == (1.0, 0.5)
    assert by_language(cases, judgements)["ko"]["accuracy"] == 0.5


def test_reading_cases(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text('{"response": "a", "next_role": "tool", "next_text": "b", "label": -1}\n\n', "utf-8")
    (read,) = read_cases(path)
    assert read == Case("a", "tool", "b", -1)
    assert as_item(read).next_states[0].kind is NextKind.TOOL_RESULT
    assert as_item(case(1)).next_states[0].kind is NextKind.USER_REPLY


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"response": "a"}',
        '{"response": "a", "next_role": "user", "next_text": "b", "label": 2}',
        '{"response": "a", "next_role": "cat", "next_text": "b", "label": 1}',
        '{"response": "a", "next_role": "user", "next_text": "b", "label": 1, "more": 1}',
    ],
)
def test_a_line_that_is_no_case_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(line + "\n", "utf-8")
    with pytest.raises(ConfigError, match="line 1"):
        read_cases(path)
