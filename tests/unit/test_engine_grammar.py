"""Sampling under a grammar: from the right distribution, and honest about what it changed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from instar.engines.embedded.sampler import Choosing, sample
from instar.engines.grammar import Grammars, parse_grammar
from instar.errors import RequestError
from tests.kit.tiny_model import byte_tokenizer

LOGITS = torch.tensor([[0.0, 1.0, 2.0, 3.0, 1.5]])


class Only:
    """A matcher that allows the same tokens always."""

    is_complete = False

    def __init__(self, *allowed: int) -> None:
        self.allowed, self.taken = allowed, 0

    def allowed_V(self) -> np.ndarray:
        return np.isin(np.arange(LOGITS.shape[1]), self.allowed)

    def take(self, token_id: int) -> None:
        assert token_id in self.allowed
        self.taken += 1


def row(matcher: object, temperature: float = 1.0, seed: int = 0, top_p: float = 1.0) -> Choosing:
    return Choosing(temperature, top_p, random.Random(seed), 0, matcher)  # type: ignore[arg-type]


def test_it_is_the_models_distribution_restricted_to_what_is_allowed() -> None:
    count = 6_000
    choosing = row(Only(0, 2, 4))
    drawn = [found for _ in range(count // 50) for found in sample(LOGITS.repeat(50, 1), [choosing] * 50)]
    wanted = torch.softmax(LOGITS[0, [0, 2, 4]], 0)
    seen = Counter(found.token_id for found in drawn)
    for token_id, share in zip((0, 2, 4), wanted.tolist(), strict=True):
        assert seen[token_id] / count == pytest.approx(share, abs=0.025)
    # forced where the free model would have said something else: as often as that is likely
    refused = float(torch.softmax(LOGITS[0], 0)[[1, 3]].sum())
    assert sum(found.forced for found in drawn) / count == pytest.approx(refused, abs=0.025)
    raw = torch.log_softmax(LOGITS[0], 0)
    assert all(found.logprob == pytest.approx(float(raw[found.token_id]), abs=1e-5) for found in drawn[:99])


def test_greedy_takes_the_likeliest_that_is_allowed() -> None:
    (found,) = sample(LOGITS, [row(Only(0, 4), temperature=0.0)])
    assert (found.token_id, found.forced) == (4, True)
    (found,) = sample(LOGITS, [row(Only(0, 3), temperature=0.0)])
    assert (found.token_id, found.forced) == (3, False)


def test_a_token_without_an_alternative_is_forced_even_if_the_model_wanted_it() -> None:
    (found,) = sample(LOGITS, [row(Only(3), temperature=0.0)])
    assert (found.token_id, found.forced) == (3, True)


def test_other_rows_are_not_touched() -> None:
    free, bound = Choosing(0.0, 1.0, random.Random(0)), row(Only(0), temperature=0.0)
    first, second = sample(LOGITS.repeat(2, 1), [free, bound])
    assert (first.token_id, first.forced) == (3, False)
    assert second.token_id == 0


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_tokenizer().save(str(path))
    return Grammars(path, 262)  # a model's matrix is often larger than its vocabulary


def test_a_compiled_grammar_is_kept_and_each_answer_has_its_own_place(grammars: Grammars) -> None:
    grammar = parse_grammar({"regex": "ab"})
    assert grammar is not None
    first, second = grammars.matcher(grammar, [2]), grammars.matcher(grammar, [2])
    a, b = byte_tokenizer().encode("ab").ids
    first.take(a)
    assert np.flatnonzero(first.allowed_V()).tolist() == [b]
    assert np.flatnonzero(second.allowed_V()).tolist() == [a]
    assert len(second.allowed_V()) == 262
    first.take(b)
    assert np.flatnonzero(first.allowed_V()).tolist() == [2]
    assert first.is_complete


def test_a_grammar_that_gets_out_of_hand_ends_its_own_answer(grammars: Grammars) -> None:
    matcher = grammars.matcher(parse_grammar({"regex": "ab"}) or "", [2])
    matcher.take(byte_tokenizer().encode("x").ids[0])  # not allowed: the matcher is in error from here on
    with pytest.raises(RequestError, match="could not be followed"):
        matcher.allowed_V()
    logits = torch.zeros(1, 262)
    (found,) = sample(logits, [row(matcher)])
    assert found.error is not None
