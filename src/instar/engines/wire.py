"""The wire contract as data: requests parsed and checked, answers written. Shared by all of our own engines.

docs/engine-contract.md says what the fields mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from instar.engines.grammar import parse_grammar
from instar.errors import RequestError
from instar.ports import TokenChunk

MAX_ALTERNATIVES = 20
_JSON = "application/json"

# Fields that would change what is sampled. An engine that cannot honour one must not ignore it in silence:
# what is stored as the policy's own words would be something else.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stop": ([], ""),
    "suffix": ("",),
    "echo": (False,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "response_format": (),
    "prompt_embeds": (),
}


@dataclass(frozen=True, slots=True)
class Completion:
    """One checked request. `alternatives` is None when no log-probs were asked for."""

    model: str
    prompt_ids: list[int]
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    stream: bool = False
    alternatives: int | None = None
    token_ids: bool = False
    priority: int = 0
    prompt_alternatives: int | None = None
    grammar: str | None = None
    """What the answer must obey, as llguidance serialises it."""


class Answer(Protocol):
    """An answer being sampled. Iterating gives its tokens; `cancel` frees its slot, at any time, twice too."""

    @property
    def prompt_logprobs(self) -> list[dict[int, float] | None] | None:
        """Per prompt token id → ln p, None for the first; whole once the answer has begun."""
        ...

    def __aiter__(self) -> AsyncIterator[TokenChunk]: ...

    def cancel(self) -> None: ...


class Backend(Protocol):
    """What the HTTP server asks of an engine. Every method is called on the server's event loop.

    Refusals are RequestErrors: 404 for an unknown model, 429 for a full queue, 400 for what cannot be served.
    """

    base_name: str
    max_model_len: int
    vocab_size: int

    def ready(self) -> bool: ...

    def adapters(self) -> dict[str, Path]: ...

    async def load(self, name: str, folder: Path) -> None: ...

    async def unload(self, name: str) -> None: ...

    async def submit(self, request: Completion) -> Answer: ...


# ── reading requests ────────────────────────────────────────────────────────────────────────────────────


def bad(message: str, param: str | None = None, code: str | None = None) -> RequestError:
    return RequestError(message, status=400, param=param, code=code)


def unknown_model(name: str) -> RequestError:
    return RequestError(
        f"The model '{name}' is not loaded here.", status=404, code="model_not_found", kind="not_found_error"
    )


def queue_full() -> RequestError:
    return RequestError(
        "Too many requests are waiting. Try again in a moment.",
        status=429,
        code="queue_full",
        kind="rate_limit_error",
    )


def too_many_adapters(limit: int) -> RequestError:
    return bad(
        f"{limit} adapters are loaded, as many as this engine holds (engine.max_loras). Unload one first.",
        "lora_name",
        "too_many_adapters",
    )


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request body. Raises RequestError (400)."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad(f"The body is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise bad("The body must be a JSON object.")
    return value


def parse_completion(body: bytes, *, vocab_size: int, max_model_len: int) -> Completion:
    """Check a completions request. Raises RequestError (400) naming the field that is wrong."""
    fields = parse_object(body)
    _refuse_unsupported(fields)
    alternatives = _whole(fields, "logprobs", None, 0, MAX_ALTERNATIVES)
    request = Completion(
        model=_text(fields, "model"),
        prompt_ids=_ids(fields, "prompt", vocab_size),
        max_tokens=_whole(fields, "max_tokens", 16, 1, 1 << 31) or 16,
        temperature=_number(fields, "temperature", 1.0, 0.0, 1e6),
        top_p=_number(fields, "top_p", 1.0, 0.0, 1.0),
        seed=_whole(fields, "seed", None, -(1 << 63), (1 << 64) - 1),
        stop_ids=frozenset(_ids(fields, "stop_token_ids", None)),
        stream=_flag(fields, "stream"),
        alternatives=alternatives,
        token_ids=_flag(fields, "return_token_ids"),
        priority=_whole(fields, "priority", 0, -(1 << 31), 1 << 31) or 0,
        prompt_alternatives=_whole(fields, "prompt_logprobs", None, 0, MAX_ALTERNATIVES),
        grammar=parse_grammar(fields.get("structured_outputs")),
    )
    if not request.prompt_ids:
        raise bad("'prompt' must hold at least one token id.", "prompt")
    if request.top_p == 0:
        raise bad("'top_p' must be above 0.", "top_p")
    if request.stream and request.prompt_alternatives is not None:
        raise bad("'prompt_logprobs' cannot be streamed.", "prompt_logprobs")
    _flag(fields, "return_tokens_as_token_ids")
    _check_length(request, max_model_len)
    return request


def _check_length(request: Completion, max_model_len: int) -> None:
    prompt, answer = len(request.prompt_ids), request.max_tokens
    if prompt + answer > max_model_len:
        raise bad(
            f"The context holds {max_model_len} tokens; this prompt has {prompt} and max_tokens asks for "
            f"{answer} more. Shorten the prompt or lower max_tokens.",
            "prompt" if prompt >= max_model_len else "max_tokens",
            "context_length_exceeded",
        )


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            raise bad(f"'{name}' is not supported by this engine. Leave it out.", name, "unsupported")


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise bad(f"'{name}' must be a non-empty string.", name)
    return value


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad(f"'{name}' must be true or false.", name)
    return value


def _whole(fields: dict[str, Any], name: str, default: int | None, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad(f"'{name}' must be a whole number from {low} to {high}.", name)
    return value


def _number(fields: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad(f"'{name}' must be a number from {low:g} to {high:g}.", name)
    return float(value)


def _ids(fields: dict[str, Any], name: str, vocab_size: int | None) -> list[int]:
    value = fields.get(name)
    if value is None and vocab_size is None:
        return []
    if not isinstance(value, list):
        raise bad(f"'{name}' must be a list of token ids.", name)
    # one C-speed pass over the types: prompts have thousands of ids
    if set(map(type, value)) - {int} or (value and min(value) < 0):
        raise bad(f"'{name}' must be a list of token ids (whole numbers from 0).", name)
    if vocab_size is not None and value and max(value) >= vocab_size:
        raise bad(f"'{name}' has an id outside the vocabulary of {vocab_size}.", name)
    return value


# ── writing answers ─────────────────────────────────────────────────────────────────────────────────────


def token_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _finite(logprob: float) -> float:
    """JSON has no infinity; this floor is what vLLM writes."""
    return logprob if math.isfinite(logprob) else -9999.0


def _logprobs(chunk: TokenChunk) -> dict[str, Any]:
    tops = chunk.top or [[] for _ in chunk.ids]
    alternatives = []
    for token_id, logprob, top in zip(chunk.ids, chunk.logprobs, tops, strict=True):
        named = {token_name(token_id): _finite(logprob)}
        named.update((token_name(other), _finite(value)) for other, value in top)
        alternatives.append(named)
    return {
        "tokens": [token_name(token_id) for token_id in chunk.ids],
        "token_logprobs": [_finite(value) for value in chunk.logprobs],
        "top_logprobs": alternatives,
    }


def choice(request: Completion, chunk: TokenChunk) -> dict[str, Any]:
    """One element of `choices`. `text` stays empty: an engine knows no text."""
    found: dict[str, Any] = {"index": 0, "text": "", "finish_reason": chunk.finish_reason}
    found["logprobs"] = None if request.alternatives is None else _logprobs(chunk)
    if request.token_ids:
        found["token_ids"] = chunk.ids
    if request.grammar is not None:
        found["forced"] = chunk.forced
    return found


def envelope(answer_id: str, created: int, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": answer_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
    }


def join(chunks: list[TokenChunk]) -> TokenChunk:
    """All chunks of an answer as one."""
    has_top = any(chunk.top is not None for chunk in chunks)
    return TokenChunk(
        ids=[token_id for chunk in chunks for token_id in chunk.ids],
        logprobs=[value for chunk in chunks for value in chunk.logprobs],
        finish_reason=chunks[-1].finish_reason if chunks else None,
        top=[top for chunk in chunks for top in (chunk.top or [])] if has_top else None,
        forced=[forced for chunk in chunks for forced in (chunk.forced or [])] or None,
    )


def prompt_logprobs(values: list[dict[int, float] | None]) -> list[dict[str, Any] | None]:
    """Per prompt token, id → log-prob, in vLLM's nesting; None for the first, which nothing predicts."""
    return [
        None if at is None else {str(token): {"logprob": _finite(value)} for token, value in at.items()}
        for at in values
    ]


def error_body(error: RequestError) -> dict[str, Any]:
    return {
        "error": {
            "message": str(error),
            "type": error.kind,
            "param": error.param,
            "code": error.code or error.status,
        }
    }
