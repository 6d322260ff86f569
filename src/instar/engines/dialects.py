"""What differs between the engines that one client speaks to: field names, routes, and how refusals are worded."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from instar.errors import EngineError, EngineUnavailable
from instar.ports import TokenChunk
from instar.records import Sampling

Reader = Callable[[dict[str, Any]], TokenChunk | None]
"""Makes tokens of one event of a stream; None where it has none. Raises EngineError. For one answer only."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer to be sampled. `adapter` is None for the untouched model, which is called `base`."""

    base: str
    adapter: str | None
    prompt_ids: Sequence[int]
    sampling: Sampling
    stop_ids: Sequence[int]
    priority: int = 0


class Dialect(Protocol):
    sample_path: str
    load_path: str
    unload_path: str
    no_adapters: str
    """What to say where the engine has no routes for adapters."""

    def body(self, asked: Asked) -> dict[str, Any]:
        """The request for a stream. Raises EngineError (status 400) for what cannot be asked of this engine."""
        ...

    def reader(self, sampling: Sampling) -> Reader: ...

    def scoring(self, base: str, adapter: str | None, ids: Sequence[int]) -> dict[str, Any]:
        """The request, not streamed, for the log-probs of a text."""
        ...

    def scores(self, reply: dict[str, Any], ids: Sequence[int]) -> list[float]:
        """ln p of each id but the first, in their order. Raises EngineError."""
        ...

    def is_unknown(self, error: EngineError) -> bool:
        """Whether a refusal to unload means that there is no such adapter."""
        ...


class Vllm:
    """vLLM, and our own engines: docs/engine-contract.md."""

    sample_path = "/v1/completions"
    load_path = "/v1/load_lora_adapter"
    unload_path = "/v1/unload_lora_adapter"
    no_adapters = (
        "The engine loads no adapters at run time. Start vLLM with --enable-lora and "
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment."
    )

    def body(self, asked: Asked) -> dict[str, Any]:
        sampling = asked.sampling
        body: dict[str, Any] = {
            "model": asked.adapter or asked.base,
            "prompt": list(asked.prompt_ids),
            "max_tokens": sampling.max_tokens,
            **_ways_to_sample(asked),
            "stream": True,
            "logprobs": sampling.top_logprobs,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if sampling.grammar is not None:
            body["structured_outputs"] = sampling.grammar
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if asked.priority:  # vLLM refuses the field unless it schedules by priority
            body["priority"] = asked.priority
        return body

    def reader(self, sampling: Sampling) -> Reader:
        return lambda payload: _chunk(payload, sampling.top_logprobs)

    def scoring(self, base: str, adapter: str | None, ids: Sequence[int]) -> dict[str, Any]:
        return {"model": adapter or base, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0}

    def scores(self, reply: dict[str, Any], ids: Sequence[int]) -> list[float]:
        try:
            found = reply["choices"][0]["prompt_logprobs"]
            return [float(at[str(i)]["logprob"]) for i, at in zip(ids[1:], found[1:], strict=True)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError("The engine did not score the text as it was asked to.", status=200) from error

    def is_unknown(self, error: EngineError) -> bool:
        return error.status == 404


def _ways_to_sample(asked: Asked) -> dict[str, Any]:
    """What both engines call alike."""
    return {
        "temperature": asked.sampling.temperature,
        "top_p": asked.sampling.top_p,
        # defaults for these three are taken from the model's folder, unasked: say that they are off
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(asked.stop_ids),
    }


def _chunk(payload: dict[str, Any], alternatives: int) -> TokenChunk | None:
    """None where there are no tokens: usage, vLLM's first event with the prompt's ids."""
    raise_told(payload, 500)
    choices = payload.get("choices")
    if not choices:
        return None
    choice = choices[0]
    found = choice.get("logprobs") or {}
    ids, finish = choice.get("token_ids"), choice.get("finish_reason")
    if ids is None:
        ids = [_token_id(name) for name in found.get("tokens") or []]
    if not ids and finish is None:
        return None
    if finish not in (None, "stop", "length"):
        raise EngineUnavailable(f"The engine ended the answer: {finish}.")
    logprobs = found.get("token_logprobs") or []
    if len(logprobs) != len(ids):
        raise EngineError("The engine sent tokens without their log-probs.", status=200)
    top = None
    if alternatives:
        top = [_alternatives(at, alternatives) for at in found.get("top_logprobs") or [{}] * len(ids)]
    return TokenChunk(ids, logprobs, finish, top, _forced(choice.get("forced"), len(ids)))


def _forced(value: Any, count: int) -> list[bool] | None:
    """Which tokens a grammar decided; engines other than ours do not tell."""
    return [bool(forced) for forced in value] if isinstance(value, list) and len(value) == count else None


def _token_id(name: str) -> int:
    prefix, _, number = name.partition(":")
    if prefix != "token_id" or not number.isdigit():
        raise EngineError(f"The engine sent the token {name!r} without its id.", status=200)
    return int(number)


def _alternatives(named: dict[str, float] | None, count: int) -> list[tuple[int, float]]:
    pairs = [(_token_id(name), value) for name, value in (named or {}).items()]
    return sorted(pairs, key=lambda pair: -pair[1])[:count]


class Sglang:
    """SGLang's own `/generate`: its OpenAI routes give texts where ids are needed.

    Log-probs are the raw policy's only where SGLang runs with SGLANG_RETURN_ORIGINAL_LOGPROB=1.
    """

    sample_path = "/generate"
    load_path = "/load_lora_adapter"
    unload_path = "/unload_lora_adapter"
    no_adapters = "The engine loads no adapters at run time. Start SGLang with --enable-lora."

    def body(self, asked: Asked) -> dict[str, Any]:
        sampling = asked.sampling
        params: dict[str, Any] = {
            "max_new_tokens": sampling.max_tokens,
            **_ways_to_sample(asked),
        }
        if sampling.grammar is not None:
            params["json_schema"] = _schema(sampling.grammar)
        if sampling.seed is not None:
            params["sampling_seed"] = sampling.seed
        body: dict[str, Any] = {
            "input_ids": list(asked.prompt_ids),
            "sampling_params": params,
            "stream": True,
            "return_logprob": True,
            "top_logprobs_num": sampling.top_logprobs,
        }
        if asked.adapter:
            body["lora_path"] = asked.adapter
        if asked.priority:  # SGLang refuses the field unless it schedules by priority
            body["priority"] = asked.priority
        return body

    def reader(self, sampling: Sampling) -> Reader:
        return _SglangReader(sampling.top_logprobs)

    def scoring(self, base: str, adapter: str | None, ids: Sequence[int]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        return {**body, "lora_path": adapter} if adapter else body

    def scores(self, reply: dict[str, Any], ids: Sequence[int]) -> list[float]:
        try:
            found = reply["meta_info"]["input_token_logprobs"]
            if [int(at[1]) for at in found] != list(ids):
                raise ValueError("other tokens")
            return [float(at[0]) for at in found[1:]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError("The engine did not score the text as it was asked to.", status=200) from error

    def is_unknown(self, error: EngineError) -> bool:
        return error.status == 400 and any(
            words in str(error) for words in ("does not exist", "not loaded", "not found")
        )


def _schema(grammar: dict[str, Any]) -> str:
    if set(grammar) != {"json"}:
        raise EngineError(
            "SGLang takes no Lark grammars, so with engine.kind = sglang neither calls of tools can be demanded "
            "(tool_choice) nor schemas beside tools or thinking (response_format). Leave that out, or serve with vLLM.",
            status=400,
        )
    return json.dumps(grammar["json"], separators=(",", ":"))


class _SglangReader:
    """Each event brings all tokens so far or, with --incremental-streaming-output, only the new ones."""

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._seen = 0

    def __call__(self, payload: dict[str, Any]) -> TokenChunk | None:
        raise_told(payload, 400 if self._seen == 0 else 500)
        try:
            meta = payload["meta_info"]
            found: list[Any] = meta.get("output_token_logprobs") or []
            total = int(meta["completion_tokens"])
            first = self._seen if len(found) == total else 0
            if total - self._seen != len(found) - first:
                raise EngineError("The engine sent tokens without their log-probs.", status=200)
            self._seen = total
            ids = [int(at[1]) for at in found[first:]]
            logprobs = [float(at[0]) for at in found[first:]]
            finish = _sglang_finish(meta.get("finish_reason"))
            top = self._top(meta, first) if self._alternatives else None
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError("The engine sent an event that cannot be read.", status=200) from error
        return TokenChunk(ids, logprobs, finish, top) if ids or finish else None

    def _top(self, meta: dict[str, Any], first: int) -> list[list[tuple[int, float]]]:
        rows = (meta.get("output_top_logprobs") or [])[first:]
        tops = [sorted(((int(at[1]), float(at[0])) for at in row), key=lambda pair: -pair[1]) for row in rows]
        return [top[: self._alternatives] for top in tops]


def _sglang_finish(reason: dict[str, Any] | None) -> Literal["stop", "length"] | None:
    kind = reason.get("type") if reason else None
    if kind is None or kind == "stop" or kind == "length":
        return kind
    status = (reason or {}).get("status_code")
    told = str((reason or {}).get("message") or kind)
    if status == 400:
        raise EngineError(told, status=400)
    raise EngineUnavailable(f"The engine ended the answer: {told}.")


def raise_told(payload: dict[str, Any], status: int) -> None:
    """Raise the error that an event tells of. `status` is for where it names none."""
    error = payload.get("error")
    if error is None:
        return
    known = error if isinstance(error, dict) else {"message": error}
    code = known.get("code")
    message = str(known.get("message") or "The engine failed in mid-answer.")
    raise EngineError(message, status=code if isinstance(code, int) else status)


def dialect_of(kind: str) -> Dialect:
    """That of a value of `engine.kind`."""
    return Sglang() if kind == "sglang" else Vllm()
