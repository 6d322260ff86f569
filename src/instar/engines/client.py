"""The one client for every engine: vLLM, SGLang, the embedded engine, the scripted one. docs/engine-contract.md."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from instar.engines.dialects import Asked, Dialect, Vllm
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
    every answer. `shared`: the engine outlives our server and may serve others, so that a version's name there
    must tell what is in it. Belongs to the event loop in which it is first used.
    """

    def __init__(
        self,
        base_url: str,
        base_model_name: str,
        stop_token_ids: Sequence[int],
        api_key: str | None = None,
        *,
        dialect: Dialect | None = None,
        shared: bool = False,
    ) -> None:
        self._url = base_url.rstrip("/")
        self._base_name = base_model_name
        self._stop_ids = list(stop_token_ids)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._dialect = dialect or Vllm()
        self._shared = shared
        self._names: dict[str, str] = {}
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
        asked = Asked(self._base_name, self._adapter(version), prompt_ids, sampling, self._stop_ids, priority)
        read = self._dialect.reader(sampling)
        response = await self._post(self._dialect.sample_path, self._dialect.body(asked))
        finished = False
        try:
            async for payload in _events(response):
                chunk = read(payload)
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

    def _adapter(self, version: str) -> str | None:
        """What a version is called at the engine; None for the untouched model."""
        return None if version == BASE else self._names.get(version, version)

    async def score(self, version: str, ids: Sequence[int]) -> list[float]:
        """ln p under a version of each id but the first, in their order; for checks, since it is computed in one
        piece and nothing of it is kept. Raises EngineError, EngineUnavailable."""
        body = self._dialect.scoring(self._base_name, self._adapter(version), ids)
        async with await self._post(self._dialect.sample_path, body) as response:
            try:
                reply = await response.json(content_type=None)
            except ValueError as error:
                raise EngineError("The engine's answer is not JSON.", status=200) from error
        return self._dialect.scores(reply if isinstance(reply, dict) else {}, ids)

    async def load(self, version: str, adapter_dir: Path) -> None:
        """See `instar.ports.Engine.load`."""
        if self._shared:
            self._names[version] = await asyncio.to_thread(_telling_name, version, adapter_dir)
        name = self._names.get(version, version)
        try:
            response = await self._post(
                self._dialect.load_path, {"lora_name": name, "lora_path": str(adapter_dir)}
            )
        except EngineError as error:
            if error.status == 400 and "already" in str(error):
                return
            if error.status == 404 and "Not Found" in str(error):
                raise EngineError(self._dialect.no_adapters, status=404) from error
            raise
        response.release()

    async def unload(self, version: str) -> None:
        """See `instar.ports.Engine.unload`."""
        name = self._names.pop(version, version)
        try:
            response = await self._post(self._dialect.unload_path, {"lora_name": name})
        except EngineError as error:
            if self._dialect.is_unknown(error):
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
        if self._base_name not in bases:
            raise EngineError(
                f"The engine serves no model named '{self._base_name}' but {', '.join(sorted(bases)) or 'none'}. "
                "Set engine.base to the name of the untouched model there.",
                status=404,
            )
        ours = {name: version for version, name in self._names.items()}
        return {BASE} | ({ours[name] for name in adapters if name in ours} if self._shared else adapters)

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


def _telling_name(version: str, adapter_dir: Path) -> str:
    """Never another adapter's: engines keep what they computed, and what they loaded, by name."""
    digest = hashlib.sha256((adapter_dir / "adapter_model.safetensors").read_bytes()).hexdigest()
    return f"{version}-{digest[:12]}"


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _refusal(status: int, text: str) -> EngineError:
    message = text.strip()
    try:
        body = json.loads(text)
        inner = body.get("error", body)  # older vLLM: the error object without the wrapper
        told = inner.get("message") or body.get("error_message") or body.get("detail")
        message = str(told or message)
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
