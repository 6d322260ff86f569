"""The engine's HTTP side: one aiohttp application over any Backend. It knows the contract and no model."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from instar.engines import wire
from instar.errors import RequestError
from instar.runtime import new_id

_MAX_BODY_BYTES = 64 * 2**20
_KEEP_ALIVE_S = 75.0
_BACKEND: web.AppKey[wire.Backend] = web.AppKey("backend")
_KEY: web.AppKey[str | None] = web.AppKey("key")
log = structlog.get_logger("instar.engine")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CutConnection(Exception):
    """Raised by a backend that wants the connection closed without a word."""


def make_app(backend: wire.Backend, api_key: str | None = None) -> web.Application:
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors, _authorised])
    app[_BACKEND] = backend
    app[_KEY] = api_key
    app.router.add_get("/health", _health)
    app.router.add_get("/v1/models", _models)
    app.router.add_post("/v1/completions", _completions)
    app.router.add_post("/v1/load_lora_adapter", _load)
    app.router.add_post("/v1/unload_lora_adapter", _unload)
    return app


def runner(app: web.Application) -> web.AppRunner:
    """`handler_cancellation`: a client that leaves cancels its handler, wherever that waits."""
    return web.AppRunner(
        app, access_log=None, handler_cancellation=True, keepalive_timeout=_KEEP_ALIVE_S, shutdown_timeout=2.0
    )


async def serve_until_told(app: web.Application, host: str, port: int, work: Awaitable[object]) -> None:
    """Serve until SIGTERM or SIGINT, or until `work` fails (its error is raised) or ends."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    served = runner(app)
    await served.setup()
    await web.TCPSite(served, host, port).start()
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        stopping.cancel()
        working.cancel()
        await served.cleanup()


# ── the boundary of a request ───────────────────────────────────────────────────────────────────────────


def _error_response(error: RequestError) -> web.Response:
    headers = {"Retry-After": "1"} if error.status == 429 else {}
    return web.json_response(wire.error_body(error), status=error.status, headers=headers)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return _error_response(error)
    except web.HTTPException as error:
        return _error_response(RequestError(error.reason, status=error.status))
    except (CutConnection, ConnectionError):
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError from None  # nobody is left to answer
    except Exception as error:  # noqa: BLE001 - the boundary: one broken request must not end the engine
        log.error("a request failed", path=request.path, traceback=traceback.format_exc())
        return _error_response(
            RequestError(f"The engine failed: {error}", status=500, kind="internal_error", code="internal")
        )


@web.middleware
async def _authorised(request: web.Request, handler: Handler) -> web.StreamResponse:
    key = request.app[_KEY]
    if key is not None and request.path != "/health":
        given = request.headers.get("Authorization", "")
        if given != f"Bearer {key}":
            raise RequestError("A valid API key is needed.", status=401, code="invalid_api_key")
    return await handler(request)


def _ready_backend(request: web.Request) -> wire.Backend:
    backend = request.app[_BACKEND]
    if not backend.ready():
        raise RequestError(
            "The engine is still loading.", status=503, code="not_ready", kind="unavailable_error"
        )
    return backend


# ── the routes ──────────────────────────────────────────────────────────────────────────────────────────


async def _health(request: web.Request) -> web.Response:
    _ready_backend(request)
    return web.json_response({"status": "ready"})


async def _models(request: web.Request) -> web.Response:
    backend = _ready_backend(request)
    base = {
        "id": backend.base_name,
        "object": "model",
        "parent": None,
        "max_model_len": backend.max_model_len,
    }
    loaded = [
        {"id": name, "object": "model", "parent": backend.base_name, "root": str(folder)}
        for name, folder in backend.adapters().items()
    ]
    return web.json_response({"object": "list", "data": [base, *loaded]})


def _name_field(fields: dict[str, Any], field: str) -> str:
    value = fields.get(field)
    if not isinstance(value, str) or not value:
        raise wire.bad(f"'{field}' must be a non-empty string.", field)
    return value


async def _load(request: web.Request) -> web.Response:
    backend = _ready_backend(request)
    fields = wire.parse_object(await request.read())
    name, folder = _name_field(fields, "lora_name"), Path(_name_field(fields, "lora_path"))
    if name == backend.base_name:
        raise wire.bad(f"'{name}' is the base model's name. Choose another.", "lora_name", "name_taken")
    known = backend.adapters().get(name)
    if known is not None and known != folder:
        raise wire.bad(
            f"'{name}' is taken by the adapter in {known}. Unload it first.", "lora_name", "name_taken"
        )
    if known is None:
        await backend.load(name, folder)
    return web.json_response({"status": "loaded", "lora_name": name})


async def _unload(request: web.Request) -> web.Response:
    backend = _ready_backend(request)
    name = _name_field(wire.parse_object(await request.read()), "lora_name")
    if name not in backend.adapters():
        raise wire.unknown_model(name)
    await backend.unload(name)
    return web.json_response({"status": "unloaded", "lora_name": name})


async def _completions(request: web.Request) -> web.StreamResponse:
    backend = _ready_backend(request)
    asked = wire.parse_completion(
        await request.read(), vocab_size=backend.vocab_size, max_model_len=backend.max_model_len
    )
    answer = await backend.submit(asked)
    try:
        if asked.stream:
            return await _stream(request, asked, answer)
        return await _whole(asked, answer)
    finally:
        answer.cancel()


async def _stream(request: web.Request, asked: wire.Completion, answer: wire.Answer) -> web.StreamResponse:
    answer_id, created = new_id("cmpl"), int(time.time())
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    started = False
    try:
        async for chunk in answer:
            if not started:  # not before: an answer that fails at once still gets a proper status
                await response.prepare(request)
                started = True
            body = wire.envelope(answer_id, created, asked.model, [wire.choice(asked, chunk)])
            await response.write(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")
    except RequestError as error:
        if not started:
            raise
        await response.write(b"data: " + json.dumps(wire.error_body(error)).encode() + b"\n\n")
    if not started:
        await response.prepare(request)
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def _whole(asked: wire.Completion, answer: wire.Answer) -> web.Response:
    chunk = wire.join([chunk async for chunk in answer])
    found = wire.choice(asked, chunk)
    if answer.prompt_logprobs is not None:
        found["prompt_logprobs"] = wire.prompt_logprobs(answer.prompt_logprobs)
    body = wire.envelope(new_id("cmpl"), int(time.time()), asked.model, [found])
    prompt, sampled = len(asked.prompt_ids), len(chunk.ids)
    body["usage"] = {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
    return web.json_response(body)
