"""The frozen set for the judge keeps its form, its spread and its bytes, and nothing in the product names it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FROZEN = ROOT / "bench" / "data" / "judge_frozen.jsonl"
README = FROZEN.with_name("README.md")
SHA256 = "2f74f0320265579e8dd69288f5e2de41b6aadae9df15f7d606b2c1010a0a8906"

FIELDS = {"response", "next_role", "next_text", "label", "language", "kind"}

# kind -> the labels its rows may have, and the least number of rows
KINDS: dict[str, tuple[set[int], int]] = {
    "praise": ({1}, 80),
    "indirect_praise": ({1}, 60),
    "praise_then_next": ({1}, 10),
    "complaint": ({-1}, 45),
    "polite_correction": ({-1}, 35),
    "terse": ({-1}, 20),
    "thanks_but": ({-1}, 25),
    "mixed": ({-1}, 20),
    "repeat": ({-1}, 20),
    "fact_fix": ({-1}, 35),
    "pasted_error": ({-1}, 20),
    "sarcasm": ({-1}, 25),
    "unclear": ({-1}, 15),
    "followup": ({0}, 50),
    "new_topic": ({0}, 20),
    "quote": ({0}, 25),
    "own_slip": ({0}, 10),
    "pause": ({0}, 15),
    "greeting": ({0}, 10),
    "farewell": ({0, 1}, 15),
    "ack": ({0, 1}, 30),
    "more": ({0, 1}, 30),
    "noise": ({-1, 0, 1}, 30),
    "slang": ({-1, 0, 1}, 20),
    "tool_success": ({1}, 45),
    "tool_warning": ({1}, 8),
    "tool_word_error": ({1}, 10),
    "tool_failure": ({-1}, 80),
    "tool_no_match": ({0}, 7),
    "tool_empty": ({0}, 4),
    "tool_unclear": ({0}, 20),
}
USER_ROWS = {"en": 250, "ko": 100, "de": 60, "es": 60, "zh": 60}
SCRIPTS = {
    "ko": r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]",
    "zh": r"[\u4e00-\u9fff]",
    "ja": r"[\u3040-\u30ff]",
}
# fmt: off
PROGRAMS = {
    "pytest", "git", "gcc", "cargo", "npm", "pip", "docker", "curl", "ls", "cat", "grep", "python", "node", "make",
    "tsc", "ssh", "sqlite3", "psql", "kubectl", "ffmpeg", "systemctl", "rg", "jq",
}
# fmt: on


def load() -> list[dict[str, Any]]:
    lines = FROZEN.read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [json.loads(line) for line in lines]


ROWS = load()


def rows_of(role: str) -> list[dict[str, Any]]:
    return [row for row in ROWS if row["next_role"] == role]


# ── form ──────────────────────────────────────────────────────────────────────────────────────────────
def test_the_bytes_are_the_frozen_ones() -> None:
    assert hashlib.sha256(FROZEN.read_bytes()).hexdigest() == SHA256, (
        "see bench/data/README.md before changing it"
    )


def test_every_row_has_exactly_the_fields_and_their_types() -> None:
    for row in ROWS:
        assert set(row) == FIELDS, row
        assert all(isinstance(row[name], str) for name in FIELDS - {"label"}), row
        assert type(row["label"]) is int, row
        assert row["next_role"] in ("user", "tool"), row
        assert re.fullmatch("[a-z]{2}", row["language"]), row
        assert row["response"].strip(), row


def test_every_kind_has_only_the_labels_its_rule_allows() -> None:
    assert {row["kind"] for row in ROWS} == set(KINDS)
    wrong = [row for row in ROWS if row["label"] not in KINDS[row["kind"]][0]]
    assert not wrong


def test_tool_kinds_are_for_tools_and_only_for_tools() -> None:
    assert [row for row in ROWS if row["kind"].startswith("tool_") != (row["next_role"] == "tool")] == []


def test_only_a_silent_tool_may_have_no_text() -> None:
    blank = [row for row in ROWS if not row["next_text"].strip()]
    assert [(row["next_role"], row["kind"], row["label"]) for row in blank] == [("tool", "tool_empty", 0)]


def test_no_text_comes_twice_within_a_language() -> None:
    texts = Counter((row["language"], " ".join(row["next_text"].casefold().split())) for row in ROWS)
    assert [text for text, times in texts.items() if times > 1] == []


@pytest.mark.parametrize("language", sorted(SCRIPTS))
def test_words_are_in_the_script_of_their_language(language: str) -> None:
    """Emoji, dots and pasted errors need none; any other text without such letters sits under the wrong code."""
    for row in rows_of("user"):
        if row["language"] == language and row["kind"] not in ("noise", "pasted_error"):
            assert re.search(SCRIPTS[language], row["next_text"]), row


# ── spread ────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("language", "least"), USER_ROWS.items())
def test_every_main_language_has_enough_users_and_all_labels(language: str, least: int) -> None:
    labels = Counter(row["label"] for row in rows_of("user") if row["language"] == language)
    assert sum(labels.values()) >= least
    assert all(labels[label] >= 15 for label in (-1, 0, 1)), labels


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_enough_rows(kind: str) -> None:
    assert sum(row["kind"] == kind for row in ROWS) >= KINDS[kind][1]


def test_every_label_a_kind_may_have_occurs() -> None:
    seen = defaultdict(set)
    for row in ROWS:
        seen[row["kind"]].add(row["label"])
    assert seen == {kind: labels for kind, (labels, _) in KINDS.items()}


def test_tool_output_comes_from_many_programs_and_both_ways() -> None:
    labels = defaultdict(set)
    for row in rows_of("tool"):
        for word in re.findall(r"[\w-]+", " ".join(re.findall("`(.+?)`", row["response"]))):
            labels[word].add(row["label"])
    assert PROGRAMS - set(labels) == set()
    assert {program for program in PROGRAMS if not {-1, 1} <= labels[program]} == set()


def test_most_answers_have_reactions_of_several_labels() -> None:
    """Otherwise a judge could score by the answer alone."""
    labels = defaultdict(set)
    for row in ROWS:
        labels[row["response"]].add(row["label"])
    assert sum(len(found) > 1 for found in labels.values()) >= 0.9 * len(labels)


# ── frozen ────────────────────────────────────────────────────────────────────────────────────────────
def test_the_readme_counts_what_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    told = {
        kind: [int(number) for number in numbers.split(", ")]
        for kind, numbers in re.findall(r"^\| `(\w+)` \| [01−, ]+ \| ([\d, ]+?) \|", text, re.M)
    }
    counted = Counter((row["kind"], row["label"]) for row in ROWS)
    assert told == {
        kind: [counted[kind, label] for label in (1, 0, -1) if label in KINDS[kind][0]] for kind in KINDS
    }
    assert f"{len(ROWS)} assistant answers" in text


def test_nothing_in_the_product_names_the_set() -> None:
    named = [
        path for path in (ROOT / "src").rglob("*") if path.is_file() and b"judge_frozen" in path.read_bytes()
    ]
    assert [path for path in named if path.suffix != ".pyc"] == []
