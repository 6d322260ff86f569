"""Fitting the small reward model: the shipped file is what the shipped phrases give."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from instar.judges.calibration import read_cases
from instar.judges.embedding import BUNDLED, Floats, load_embedding
from instar.judges.fit import (
    TOLERANCE,
    Phrase,
    bootstrap_weights,
    facts,
    fit_heads,
    fit_softmax,
    largest_difference,
    main,
    phrases_sha256,
    read_phrases,
)
from instar.judges.heads import FACTS_FILE, load_heads


class Letters:
    """A toy embedding: how often each of four letters occurs."""

    name, dim = "letters", 4

    def embed(self, texts: Sequence[str]) -> Floats:
        rows = [[text.count(letter) / (len(text) or 1) for letter in "abcd"] for text in texts]
        return np.asarray(rows, dtype=np.float32)


def toy() -> list[Phrase]:
    rng = np.random.default_rng(0)
    made = []
    for label, letter in ((-1, "a"), (0, "b"), (1, "c")):
        for _ in range(12):
            text = letter * int(rng.integers(3, 9)) + "d" * int(rng.integers(0, 3))
            made.append(Phrase(text, label, "en", instructs="d" in text if label < 0 else None))
    return made


def test_the_shipped_facts_name_the_shipped_phrases() -> None:
    stated = json.loads(FACTS_FILE.read_text("utf-8"))
    embedding = load_embedding(BUNDLED)
    assert stated == facts(read_phrases(), embedding, load_heads(embedding))
    assert stated["phrases_sha256"] == phrases_sha256()


def test_phrases_are_many_labelled_and_not_repeated() -> None:
    phrases = read_phrases()
    by_lang = Counter(phrase.lang for phrase in phrases)
    assert len(phrases) >= 1500
    assert by_lang["en"] >= 900
    assert by_lang["ko"] >= 500
    assert min(by_lang[lang] for lang in ("de", "es", "ja")) >= 100
    assert {phrase.label for phrase in phrases} == {-1, 0, 1}
    assert all((phrase.instructs is not None) == (phrase.label == -1) for phrase in phrases)
    seen = Counter((phrase.text, phrase.question) for phrase in phrases)
    assert [text for text, times in seen.items() if times > 1] == []


def test_no_held_out_sentence_is_trained_on() -> None:
    held_out = read_cases(Path(__file__).parents[2] / "bench" / "data" / "reactions_heldout.jsonl")
    trained = {phrase.text.casefold().strip(" .!?") for phrase in read_phrases()}
    assert [case.next_text for case in held_out if case.next_text.casefold().strip(" .!?") in trained] == []


def test_fitting_twice_gives_the_same_bytes() -> None:
    first, second = (fit_heads(toy(), Letters(), heads=3, steps=5) for _ in range(2))
    assert largest_difference(first, second) == 0.0
    assert largest_difference(first, fit_heads(toy(), Letters(), heads=3, seed=8, steps=5)) > 0.0


def test_the_fit_learns_what_is_there_to_learn() -> None:
    phrases = toy()
    rows = np.eye(3, dtype=np.float32)[[phrase.label + 1 for phrase in phrases]]
    weight, bias = fit_softmax(
        rows, np.array([p.label + 1 for p in phrases]), np.ones((1, len(phrases)), dtype=np.float32), 3
    )
    assert weight.shape == (1, 3, 3)
    assert ((rows @ weight[0].T + bias[0]).argmax(axis=1) == rows.argmax(axis=1)).all()


def test_weight_zero_is_as_good_as_not_there() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(20, 5)).astype(np.float32)
    classes = rng.integers(0, 3, 20)
    seen = np.zeros((1, 20), dtype=np.float32)
    seen[0, :10] = 1.0
    changed = classes.copy()
    changed[10:] = (changed[10:] + 1) % 3
    for ours, theirs in zip(
        fit_softmax(rows, classes, seen, 3), fit_softmax(rows, changed, seen, 3), strict=True
    ):
        assert np.array_equal(ours, theirs)


def test_bootstraps_draw_whole_templates_and_do_not_depend_on_how_many_there_are() -> None:
    phrases = [replace(phrase, group="g" if i < 5 else None) for i, phrase in enumerate(toy())]
    weights = bootstrap_weights(phrases, 4, seed=3)
    assert weights.shape == (4, len(phrases))
    assert (weights[:, :5] == weights[:, :1]).all()
    assert np.array_equal(weights[:2], bootstrap_weights(phrases, 2, seed=3))
    assert not np.array_equal(weights[0], weights[1])


@pytest.mark.soak
def test_refitting_gives_the_shipped_heads() -> None:
    """Some minutes: embeds every phrase."""
    embedding = load_embedding(BUNDLED)
    assert largest_difference(fit_heads(read_phrases(), embedding), load_heads(embedding)) <= TOLERANCE


def test_check_mode_writes_nothing_and_says_by_how_much(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    embedding = load_embedding(BUNDLED)
    shipped = load_heads(embedding)
    before = FACTS_FILE.read_bytes()
    monkeypatch.setattr("instar.judges.fit.fit_heads", lambda phrases, embedding: shipped)
    assert main(["--check"]) == 0
    assert "0.00e+00" in capsys.readouterr().out
    other = replace(shipped, instructs_bias=shipped.instructs_bias + 1.0)
    monkeypatch.setattr("instar.judges.fit.fit_heads", lambda phrases, embedding: other)
    assert main(["--check"]) == 1
    assert FACTS_FILE.read_bytes() == before
