"""The one client for every engine: vLLM, the embedded engine, the scripted one. docs/engine-contract.md."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from instar.errors import EngineError, EngineUnavailable
from instar.ports import TokenChunk
from instar.records import BASE, Sampling

_CONNECT_S = 5.0
_SILENCE_S = 600.0  # between two bytes: a queue may be long, a dead engine closes its connections
_KEEP_IDLE_S = 3.0  # below vLLM's 5 s: else a request may go out on a connection that is just being closed
_LINE_BYTES = 1 << 22


class HttpEngine:
    """Implements `instar.ports.Engine` over one long-lived HTTP session.

    `base_model_name` is the base model's name at the engine, meant by the version BASE. `stop_token_ids` end
    every answer. Belongs to the event loop in which it is first used.
    """

    def __init__(
        self, base_url: str, base_model_name: str, stop_token_ids: Sequence[int], api_key: str | None = None
    ) -> None:
        self._url = base_url.rstrip("/")
        self._base_name = base_model_name
        self._stop_ids = list(stop_token_ids)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http: aiohttp.ClientSession | None = None
        self.context_length: int | None = None

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_IDLE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S),
                read_bufsize=_LINE_BYTES,
            )
        return self._http

    async def sample(
        self, version: str, prompt_ids: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncIterator[TokenChunk]:
        """See `instar.ports.Engine.sample`."""
        body = self._body(version, prompt_ids, sampling, priority)
        response = await self._post("/v1/completions", body)
        finished = False
        try:
            async for payload in _events(response):
                chunk = _chunk(payload, sampling.top_logprobs)
                if chunk is None:
                    continue
                finished = chunk.finish_reason is not None
                yield chunk
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise EngineUnavailable(f"The engine broke off in mid-answer: {_why(error)}") from error
        finally:
            # an unread rest means that the caller has left: closing tells the engine to stop sampling
            response.release() if response.content.at_eof() else response.close()
        if not finished:
            raise EngineUnavailable("The engine ended an answer without saying why.")

    def _body(
        self, version: str, prompt_ids: Sequence[int], sampling: Sampling, priority: int
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._base_name if version == BASE else version,
            "prompt": list(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # vLLM takes defaults for these from the model's folder, unasked: say that they are off
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": self._stop_ids,
            "stream": True,
            "logprobs": sampling.top_logprobs,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if sampling.grammar is not None:
            body["structured_outputs"] = sampling.grammar
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if priority:  # vLLM refuses the field unless it schedules by priority
            body["priority"] = priority
        return body

    async def _post(self, path: str, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """A response with status 200. Raises EngineError, EngineUnavailable."""
        data = json.dumps(body, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json"}
        try:
            try:
                response = await self._session().post(self._url + path, data=data, headers=headers)
            except aiohttp.ServerDisconnectedError:
                # the engine closed an idle connection just as we took it; nothing was answered yet
                response = await self._session().post(self._url + path, data=data, headers=headers)
            if response.status == 200:
                return response
            async with response:
                raise _refusal(response.status, await response.text(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise EngineUnavailable(f"The engine at {self._url} does not answer: {_why(error)}") from error

    async def load(self, version: str, adapter_dir: Path) -> None:
        """See `instar.ports.Engine.load`."""
        try:
            response = await self._post(
                "/v1/load_lora_adapter", {"lora_name": version, "lora_path": str(adapter_dir)}
            )
        except EngineError as error:
            if error.status == 400 and "already" in str(error):
                return
            if error.status == 404 and "Not Found" in str(error):
                raise EngineError(
                    "The engine loads no adapters at run time. Start vLLM with --enable-lora and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.",
                    status=404,
                ) from error
            raise
        response.release()

    async def unload(self, version: str) -> None:
        """See `instar.ports.Engine.unload`."""
        try:
            response = await self._post("/v1/unload_lora_adapter", {"lora_name": version})
        except EngineError as error:
            if error.status == 404:
                return
            raise
        response.release()

    async def loaded(self) -> set[str]:
        """See `instar.ports.Engine.loaded`."""
        try:
            async with self._session().get(f"{self._url}/v1/models") as response:
                text = await response.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise EngineUnavailable(f"The engine at {self._url} does not answer: {_why(error)}") from error
        if response.status != 200:
            raise _refusal(response.status, text)
        try:
            models = json.loads(text)["data"]
            adapters = {str(model["id"]) for model in models if model.get("parent")}
            bases = {
                str(model["id"]): model.get("max_model_len") for model in models if not model.get("parent")
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError("The engine's list of models cannot be read.", status=200) from error
        length = bases.get(self._base_name)
        self.context_length = length if isinstance(length, int) and length > 0 else None
        return adapters | ({BASE} if self._base_name in bases else set())

    async def healthy(self) -> bool:
        """True when the engine can serve now. Never raises."""
        try:
            timeout = aiohttp.ClientTimeout(total=_CONNECT_S)
            async with self._session().get(f"{self._url}/health", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return False

    async def close(self) -> None:
        """Close the session; answers under way break off. Twice is fine."""
        if self._http is not None:
            await self._http.close()
            self._http = None


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _refusal(status: int, text: str) -> EngineError:
    message = text.strip()
    try:
        body = json.loads(text)
        inner = body.get("error", body)  # older vLLM: the error object without the wrapper
        message = str(inner.get("message") or body.get("detail") or message)
    except (ValueError, AttributeError):
        pass  # no JSON: a proxy's page, say; its text is all there is
    message = message[:2000] or f"status {status}"
    return (EngineUnavailable if status == 503 else EngineError)(message, status=status)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON payloads of a server-sent-event stream, up to [DONE]."""
    rest = b""
    async for piece in response.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == b"[DONE]":
                # read on to the end of the body, or the connection could not be used again
                await response.content.read()
                return
            try:
                found = json.loads(payload)
            except ValueError as error:
                raise EngineError("The engine sent an event that is not JSON.", status=200) from error
            if isinstance(found, dict):
                yield found


def _chunk(payload: dict[str, Any], alternatives: int) -> TokenChunk | None:
    """Tokens of one event; None where it has none (usage, vLLM's first event with the prompt's ids)."""
    error = payload.get("error")
    if error is not None:
        known = error if isinstance(error, dict) else {"message": error}
        code = known.get("code")
        status = code if isinstance(code, int) else 500
        raise EngineError(str(known.get("message") or "The engine failed in mid-answer."), status=status)
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
