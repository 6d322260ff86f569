"""Where an answer should have ended: a matter of how the words change the urge to stop, told by probabilities alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from instar.trainers.ending import FEWEST_TOKENS, Ending, earlier_ending, ending_time_T

PROMPT, HINTED, STOP = [30, 40], [9, 30, 40], 2
BODY = list(range(100, 120))


class StandIn:
    """Base with a given probability of stopping after each token, with and without the words in front."""

    def __init__(self, plain: dict[int, float], hinted: dict[int, float]) -> None:
        self._stop = {tuple(PROMPT): plain, tuple(HINTED): hinted}

    def hidden_ND(self, rows: list[list[int]], starts: list[int]) -> torch.Tensor:
        (row,), (start,) = rows, starts
        stop = self._stop[tuple(row[:start])]
        return torch.tensor([stop.get(t, 0.0) for t in range(len(row) - start)])

    def logp_NV(self, stop_T: torch.Tensor) -> torch.Tensor:
        logp_TV = torch.full((len(stop_T), 3), -1e9)
        logp_TV[:, STOP] = stop_T.log()
        return logp_TV


def end(plain: dict[int, float], hinted: dict[int, float], body: list[int] = BODY) -> Ending | None:
    base: Any = StandIn(plain, hinted)
    return earlier_ending(base, PROMPT, HINTED, body, [STOP])


def test_words_that_ask_for_less_end_the_answer_at_the_median() -> None:
    found = end({6: 0.01, 12: 0.01}, {6: 0.2, 12: 0.5, 18: 0.5})
    assert found is not None
    assert found.at == 12
    assert found.hinted_mass == pytest.approx(0.2 + 0.8 * 0.5 + 0.4 * 0.5)
    assert found.plain_mass == pytest.approx(0.01 + 0.99 * 0.01)


def test_words_that_ask_for_something_else_end_nothing() -> None:
    assert end({6: 0.01}, {6: 0.1, 12: 0.2}) is None


def test_an_end_that_was_likely_anyway_is_no_answer_to_the_words() -> None:
    assert end({12: 0.5}, {12: 0.6}) is None


@pytest.mark.parametrize("size", range(FEWEST_TOKENS + 1))
def test_a_tiny_answer_cannot_end_earlier(size: int) -> None:
    assert end({}, dict.fromkeys(range(size), 1.0), BODY[:size]) is None


def test_nothing_ends_before_it_has_said_something() -> None:
    assert end({}, dict.fromkeys(range(FEWEST_TOKENS), 1.0)) is None
    found = end({}, dict.fromkeys(range(FEWEST_TOKENS + 1), 1.0))
    assert found is not None
    assert found.at == FEWEST_TOKENS


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_ending_times_are_probabilities_of_one_event(stop: list[float]) -> None:
    time_T = ending_time_T(torch.tensor(stop))
    assert (time_T >= 0).all()
    assert float(time_T.sum()) <= 1.0 + 1e-5
