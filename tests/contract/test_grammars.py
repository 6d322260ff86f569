"""Answers under a grammar: the field, its refusals, and what the embedded engine makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from instar.engines.client import HttpEngine
from instar.errors import RequestError
from instar.records import BASE, Sampling
from tests.contract.conftest import COMMON, STOP, Endpoint, Server, gather_answer, ids_of, logprobs_of
from tests.kit.tiny_model import byte_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["glad", "sad"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 3},
        "deep": {
            "type": "object",
            "properties": {"yes": {"type": "boolean"}},
            "required": ["yes"],
            "additionalProperties": False,
        },
    },
    "required": ["mood", "count", "words", "deep"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_pattern": " ?"},
}


def text_of(ids: list[int]) -> str:
    return byte_tokenizer().decode(ids)


def obeys(value: Any) -> bool:
    """The schema in Python."""
    return (
        list(value) == ["mood", "count", "words", "deep"]
        and value["mood"] in ("glad", "sad")
        and isinstance(value["count"], int)
        and 0 <= value["count"] <= 99
        and 1 <= len(value["words"]) <= 3
        and all(isinstance(word, str) and len(word) <= 4 for word in value["words"])
        and list(value["deep"]) == ["yes"]
        and isinstance(value["deep"]["yes"], bool)
    )


@pytest.mark.ours
def test_each_token_is_told_forced_or_not(engine: Endpoint) -> None:
    choice = engine.complete(structured_outputs={"json": SCHEMA}, max_tokens=20)
    assert len(choice["forced"]) == len(choice["token_ids"])
    assert set(choice["forced"]) <= {True, False}
    assert "forced" not in engine.complete()


@pytest.mark.ours
@pytest.mark.parametrize(
    "value",
    [
        3,
        {},
        {"json": SCHEMA, "regex": "a"},
        {"json": "{"},
        {"json": [1]},
        {"json": {"type": "wat"}},
        {"json": {"type": "string", "pattern": "(?=x)"}},
        {"json": {"$ref": "http://127.0.0.1/schema.json"}},
        {"regex": "(["},
        {"grammar": "start: nowhere"},
        {"grammar": 3},
        {"structural_tag": "{}"},
        {"choice": ["a", "b"]},
        {"regex": "a" * 1_000_001},
    ],
)
def test_what_cannot_be_obeyed_is_refused(engine: Endpoint, value: Any) -> None:
    response = engine.post("/v1/completions", model=engine.base, prompt=[5], structured_outputs=value)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "structured_outputs"


@pytest.mark.ours
async def test_the_client_passes_it_on_and_brings_back_what_was_forced(
    engine: Endpoint, client: HttpEngine
) -> None:
    chunks = await gather_answer(client, BASE, [5, 6, 7], Sampling(12, grammar={"json": SCHEMA}))
    assert all(chunk.forced is not None and len(chunk.forced) == len(chunk.ids) for chunk in chunks)
    free = await gather_answer(client, BASE, [5, 6, 7], Sampling(12))
    assert all(chunk.forced is None for chunk in free)


# ── the embedded engine obeys ─────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def obeying(embedded_server: Server, tmp_path: Path) -> Endpoint:
    return Endpoint(
        "embedded", embedded_server.url, embedded_server.backend.base_name, embedded_server, tmp_path
    )


def test_a_model_with_random_weights_always_gives_valid_json(obeying: Endpoint) -> None:
    for seed in range(20):
        hot = {"temperature": (0.0, 0.7, 1.5)[seed % 3], "top_p": (1.0, 0.8)[seed % 2], "seed": seed}
        choice = obeying.complete(
            structured_outputs={"json": SCHEMA}, max_tokens=300, prompt=[9, seed + 3], **hot
        )
        assert choice["finish_reason"] == "stop"
        assert choice["token_ids"][-1] == STOP
        assert obeys(json.loads(text_of(choice["token_ids"]))), text_of(choice["token_ids"])


def test_a_cut_answer_says_so(obeying: Endpoint) -> None:
    choice = obeying.complete(structured_outputs={"json": SCHEMA}, max_tokens=10)
    assert choice["finish_reason"] == "length"
    assert text_of(choice["token_ids"]).startswith("{")


def test_without_a_stop_token_the_answer_ends_where_the_grammar_does(obeying: Endpoint) -> None:
    choice = obeying.complete(structured_outputs={"regex": "yes|no"}, stop_token_ids=[], max_tokens=9)
    assert text_of(choice["token_ids"]) in ("yes", "no")
    assert choice["finish_reason"] == "stop"


def test_logprobs_are_those_of_the_free_policy(obeying: Endpoint) -> None:
    """The sampled tokens, scored as a prompt, where no grammar is."""
    choice = obeying.complete(
        structured_outputs={"json": SCHEMA}, max_tokens=60, temperature=1.2, top_p=0.7, seed=3
    )
    ids = choice["token_ids"]
    scored = obeying.complete(prompt=[5, 6, 7, *ids], prompt_logprobs=0, max_tokens=1)["prompt_logprobs"][3:]
    raw = [scored[i][str(token_id)]["logprob"] for i, token_id in enumerate(ids)]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(raw, abs=1e-3)
    assert min(raw) < -5, "a free policy would not have said all of that"


def test_tokens_without_an_alternative_are_forced_and_the_models_own_are_not(obeying: Endpoint) -> None:
    choice = obeying.complete(
        structured_outputs={"regex": "ab[a-z]{30}"}, stop_token_ids=[], temperature=1.0, seed=1, max_tokens=40
    )
    assert choice["forced"][:2] == [True, True]
    # in a grammar that allows everything, nothing is forced
    free = obeying.complete(structured_outputs={"regex": r"(?s:.*)"}, max_tokens=40, prompt=[4, 5])
    plain = obeying.complete(max_tokens=40, prompt=[4, 5])
    at = next((i for i, forced in enumerate(free["forced"]) if forced), len(free["forced"]))
    assert free["token_ids"][:at] == plain["token_ids"][:at]


class Tired:
    """A matcher whose grammar gets out of hand after two tokens."""

    is_complete = False

    def __init__(self) -> None:
        self.steps = 0

    def allowed_V(self) -> np.ndarray:
        self.steps += 1
        if self.steps > 2:
            raise RequestError("The grammar could not be followed.", param="structured_outputs")
        return np.ones(259, dtype=bool)

    def take(self, token_id: int) -> None:
        pass


def test_a_grammar_that_gets_out_of_hand_fails_its_own_request(
    obeying: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = obeying.server.backend._grammars  # type: ignore[attr-defined]
    monkeypatch.setattr(grammars, "matcher", lambda grammar, stop_ids: Tired())
    for _ in range(6):  # more than there are streams: a slot that is not freed would be missed
        response = obeying.post(
            "/v1/completions", **COMMON, model=obeying.base, structured_outputs={"regex": "a*"}
        )
        assert response.status_code == 400
        assert "could not be followed" in response.json()["error"]["message"]
    assert obeying.complete()["token_ids"]


async def test_free_answers_in_the_same_batch_are_not_touched(obeying: Endpoint) -> None:
    import asyncio

    client = HttpEngine(obeying.url, obeying.base, [STOP])
    alone = await gather_answer(client, BASE, [7, 8], Sampling(30, temperature=0.0))
    bound, beside = await asyncio.gather(
        gather_answer(client, BASE, [5, 6, 7], Sampling(60, temperature=0.0, grammar={"json": SCHEMA})),
        gather_answer(client, BASE, [7, 8], Sampling(30, temperature=0.0)),
    )
    await client.close()
    assert ids_of(beside) == ids_of(alone)
    assert logprobs_of(beside) == pytest.approx(logprobs_of(alone), abs=1e-4)
    assert text_of(ids_of(bound)).startswith("{")
