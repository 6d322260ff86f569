"""The sentence embedding: any text goes in, a unit vector comes out, and the process stays as it was."""

from __future__ import annotations

import os

import numpy as np
import pytest

from instar.errors import ConfigError
from instar.judges.embedding import HEAD_CHARS, TAIL_CHARS, BundledEmbedding, clean, load_embedding
from instar.judges.features import counts, feature_dim, features, hashed_ngrams, repeated
from instar.judges.heads import load_heads


@pytest.fixture(scope="module")
def bundled() -> BundledEmbedding:
    return BundledEmbedding()


def test_unit_vectors_in_the_order_of_the_texts(bundled: BundledEmbedding) -> None:
    rows = bundled.embed(["good morning", "", "guten Morgen"])
    assert rows.shape == (3, bundled.dim)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0, abs=1e-4)
    assert rows[0] @ rows[2] > rows[0] @ rows[1]
    assert bundled.embed([]).shape == (0, bundled.dim)


def test_nul_is_a_blank_and_not_the_end(bundled: BundledEmbedding) -> None:
    cut, blank, short = bundled.embed(["yes\x00but no", "yes but no", "yes"])
    assert np.array_equal(cut, blank)
    assert not np.array_equal(cut, short)


def test_clean_bounds_length_and_keeps_both_ends() -> None:
    text = clean("begin " + "x" * 1_000_000 + " end")
    assert len(text) <= HEAD_CHARS + TAIL_CHARS + 3
    assert text.startswith("begin x")
    assert text.endswith("x end")
    assert clean("a\ud800b \t\n c") == "ab c"
    assert clean(" " * 1_000_000 + "z").endswith("z")


def test_loading_leaves_the_thread_setting_of_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    BundledEmbedding()
    assert os.environ["OMP_NUM_THREADS"] == "5"
    monkeypatch.delenv("OMP_NUM_THREADS")
    BundledEmbedding()
    assert "OMP_NUM_THREADS" not in os.environ


def test_other_embeddings_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="only 'bundled'"):
        load_embedding("intfloat/multilingual-e5-large")


def test_heads_of_another_embedding_are_refused(bundled: BundledEmbedding) -> None:
    class Other:
        name, dim = "other", bundled.dim
        embed = bundled.embed

    with pytest.raises(ConfigError, match="fitted on"):
        load_heads(Other())


def test_features_have_the_length_they_say_and_are_finite() -> None:
    zero = np.zeros(4, dtype=np.float32)
    for text in ("", "Hello?", "\x00", "あ" * 999):
        row = features(text, "", zero, zero)
        assert row.shape == (feature_dim(4),)
        assert row.dtype == np.float32
        assert np.isfinite(row).all()


def test_ngrams_see_letters_not_case_or_width() -> None:
    assert np.array_equal(hashed_ngrams("Too Long!"), hashed_ngrams("too long!"))
    assert np.array_equal(hashed_ngrams("もう?"), hashed_ngrams("もう\uff1f"))
    assert not np.array_equal(hashed_ngrams("too long"), hashed_ngrams("so long"))
    assert np.linalg.norm(hashed_ngrams("x")) == pytest.approx(1.0)
    assert np.abs(counts("a")).max() <= 1.0


def test_repeating_the_question_is_noticed_and_following_up_is_not() -> None:
    question = "What is the tallest mountain in Europe?"
    assert repeated(question, question) == 1.0
    assert repeated(question + "?? please", question) > 0.5
    assert repeated("And what is the tallest in Asia?", question) == 0.0
    assert repeated("ok", "ok") == 0.0
    assert repeated(question, "") == 0.0
