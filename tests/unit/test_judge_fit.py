"""Fitting the small reward model: the shipped file is what the shipped phrases give."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from instar.judges.calibration import read_cases
from instar.judges.embedding import BUNDLED, Floats, load_embedding
from instar.judges.fit import (
    PHRASES_SEEN,
    REACTIONS_SEEN,
    Phrase,
    as_arrays,
    draws,
    facts,
    fit_heads,
    fit_softmax,
    main,
    phrases_sha256,
    read_phrases,
)
from instar.judges.heads import FACTS_FILE, load_heads
from instar.judges.networks import fit_networks, slopes_of


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
    first, second = (as_arrays(fit_heads(toy(), Letters(), heads=3, steps=5)) for _ in range(2))
    other = as_arrays(fit_heads(toy(), Letters(), heads=3, seed=8, steps=5))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["hidden"], other["hidden"])


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


def test_draws_take_whole_templates_and_do_not_depend_on_how_many_there_are() -> None:
    phrases = [replace(phrase, group="g" if i < 5 else None) for i, phrase in enumerate(toy())]
    seen = draws(phrases, 40, seed=3)
    assert seen.shape == (40, len(phrases))
    assert (seen[:, :5] == seen[:, :1]).all()
    assert np.array_equal(seen[:2], draws(phrases, 2, seed=3))
    assert not np.array_equal(seen[0], seen[1])


def test_a_head_sees_most_reactions_and_a_third_of_the_lists() -> None:
    listed = [Phrase(f"text {i}", 0, "en") for i in range(500)]
    seen = draws([*listed, *(replace(phrase, kind="praise") for phrase in listed)], 4, seed=1)
    assert seen[:, :500].mean() == pytest.approx(PHRASES_SEEN, abs=0.05)
    assert seen[:, 500:].mean() == pytest.approx(REACTIONS_SEEN, abs=0.05)


# ── networks ──────────────────────────────────────────────────────────────────────────────────────────────
def a_ring(count: int = 400) -> tuple[Floats, NDArray[np.int64]]:
    """Points inside and outside a circle: nothing that a line could tell apart."""
    points = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    return 2 * points, (np.linalg.norm(points, axis=1) > 1.1).astype(np.int64)


def test_networks_learn_what_no_line_can_tell() -> None:
    points, inside = a_ring()
    networks = fit_networks(points, inside, np.ones((2, len(points)), dtype=bool), 2, seed=1, epochs=120)
    found = np.stack([networks.logits(point) for point in points])
    assert found.shape == (len(points), 2, 2)
    assert (found.mean(axis=1).argmax(axis=1) == inside).mean() > 0.9
    (line,), (bias,) = fit_softmax(points, inside, np.ones((1, len(points)), dtype=np.float32), 2)
    assert ((points @ line.T + bias).argmax(axis=1) == inside).mean() < 0.75


def test_what_a_network_does_not_see_does_not_matter() -> None:
    points, inside = a_ring()
    seen = np.zeros((1, len(points)), dtype=bool)
    seen[0, :200] = True
    turned = inside.copy()
    turned[200:] = 1 - turned[200:]
    ours, theirs = (fit_networks(points, labels, seen, 2, seed=1, epochs=2) for labels in (inside, turned))
    assert all(np.array_equal(a, theirs.arrays()[name]) for name, a in ours.arrays().items())


def test_the_slopes_are_those_of_the_loss() -> None:
    """Against finite differences, in double precision and with nothing dropped."""
    draw = np.random.default_rng(2)
    points, classes = draw.normal(size=(6, 3)), draw.integers(0, 3, 6)
    weights = [draw.normal(size=shape) for shape in ((4, 3), (4,), (3, 4), (3,))]

    def loss() -> float:
        hidden, hidden_bias, out, out_bias = weights
        logits = np.maximum(points @ hidden.T + hidden_bias, 0) @ out.T + out_bias
        return float(-(logits - np.log(np.exp(logits).sum(1, keepdims=True)))[np.arange(6), classes].mean())

    slopes = slopes_of(weights, points, classes, np.ones((6, 4)))  # type: ignore[arg-type]
    for weight, slope in zip(weights, slopes, strict=True):
        for at in np.ndindex(weight.shape):
            there = weight[at]
            weight[at] = there + 1e-6
            more = loss()
            weight[at] = there - 1e-6
            assert slope[at] == pytest.approx((more - loss()) / 2e-6, abs=1e-5)
            weight[at] = there


@pytest.mark.soak
def test_refitting_gives_heads_that_read_alike() -> None:
    """Some minutes: embeds every example."""
    assert main(["--check"]) == 0


def test_check_mode_writes_nothing_and_says_how_much_is_read_alike(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = load_heads(load_embedding(BUNDLED))
    rows = np.random.default_rng(0).normal(size=(20, len(shipped.instructs_weight))).astype(np.float32)
    before = FACTS_FILE.read_bytes()
    monkeypatch.setattr("instar.judges.fit.embed_phrases", lambda *_: (rows, shipped.center))
    monkeypatch.setattr("instar.judges.fit.fit_rows", lambda *_: shipped)
    assert main(["--check"]) == 0
    assert "100.0%" in capsys.readouterr().out
    other = replace(shipped, instructs_bias=shipped.instructs_bias + 100.0)
    monkeypatch.setattr("instar.judges.fit.fit_rows", lambda *_: other)
    assert main(["--check"]) == 1
    assert FACTS_FILE.read_bytes() == before
