"""Part c: what the gateway adds, before an engine that answers by the clock. Every turn is recorded durably."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import psutil

from bench.server import Server
from bench.serving.goals import Figures, Plan, Row, median
from bench.serving.houses import Texts, loop_pid, ours, pss_bytes, quiet, run_facts, scripted_model
from bench.serving.load import Body, Endpoint, ask, block, figures, session

FIRST_S, TOKEN_S, TOKENS, PROMPT = 0.1, 0.02, 60, 200
STREAMS = (1, 32)
SESSIONS, WARM_UP_SESSIONS = 2_000, 300


def run(plan: Plan) -> Figures:
    texts = Texts(plan.model_dir)
    answer = texts.ids(texts.of(TOKENS))[:TOKENS]
    model = scripted_model(plan.model_dir, plan.work / "scripted", answer, FIRST_S, TOKEN_S)
    settings = quiet(0, ENGINE__KIND="scripted", ENGINE__MAX_STREAMS="64")
    with ours(plan.work / "gateway", model, **settings) as server:
        found = _added(plan, server, texts)
        found["memory"] = asyncio.run(_memory(plan, server))
    return found


def _added(plan: Plan, server: Server, texts: Texts) -> Figures:
    """The same answers through the gateway and from the engine itself, in turns."""
    facts = run_facts(server)
    through = Endpoint("gateway", server.url, server.key, "instar", "/v1/chat/completions")
    direct = Endpoint("engine", facts["engine_url"], facts["engine_key"], "base")
    gateway = psutil.Process(loop_pid(server, "gateway"))

    def said(_: int) -> Body:
        return {"messages": [{"role": "user", "content": texts.of(PROMPT)}], "max_tokens": TOKENS}

    def sent(_: int) -> Body:  # what the gateway's own client asks for
        named = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 0}
        return {"prompt": texts.ids(texts.of(PROMPT)), "max_tokens": TOKENS, "stream_options": None, **named}

    bodies: dict[str, Callable[[int], Body]] = {"gateway": said, "engine": sent}
    block(through, 2, 1, bodies["gateway"])
    streams = (1, 4) if plan.is_quick else STREAMS
    found: dict[str, list[dict[str, Any]]] = {str(count): [] for count in streams}
    for number, count in itertools.product(range(plan.rounds), streams):
        requests = 2 if plan.is_quick else (10 if count == 1 else 3)
        row: dict[str, Any] = {}
        for to in (through, direct) if number % 2 else (direct, through):
            plan.step(f"gateway, round {number + 1}: {count} streams, {to.name}")
            before = sum(gateway.cpu_times()[:2])
            row[to.name] = figures(block(to, count, requests, bodies[to.name]), count)
            spent = sum(gateway.cpu_times()[:2]) - before
            row[to.name]["gateway_cpu_ms"] = round(1_000 * spent / (count * requests), 3)
        found[str(count)].append(row)
    return {"streams": found}


async def _memory(plan: Plan, server: Server) -> Figures:
    """Sessions of one turn that nobody ever closes."""
    to = Endpoint("gateway", server.url, server.key, "instar", "/v1/chat/completions")
    pid = loop_pid(server, "gateway")
    sessions, warm_up = (60, 30) if plan.is_quick else (SESSIONS, WARM_UP_SESSIONS)
    numbers = itertools.count()

    async with session() as http:

        async def client(last: int) -> None:
            while (number := next(numbers)) < last:
                said = [{"role": "user", "content": f"Question {number}: how do tides work?"}]
                body = {"messages": said, "max_tokens": 4}
                reply = await ask(http, to, body, {"X-Session-Id": f"never-closed-{number}"})
                if reply.error:
                    raise RuntimeError(f"a request failed: {reply.error}")

        sizes = []
        for last in (warm_up, warm_up + sessions):
            plan.step(f"gateway: {last} sessions that are never closed")
            numbers = itertools.count(0 if last == warm_up else warm_up)
            await asyncio.gather(*(client(last) for _ in range(4 if plan.is_quick else 32)))
            sizes.append(pss_bytes(pid))
    return {"sessions": sessions, "before_mb": sizes[0] / 1e6, "after_mb": sizes[1] / 1e6}


def rows(found: Figures) -> list[Row]:
    lines: list[Row] = []
    for count, blocks in found["streams"].items():
        added = median([b["gateway"]["first_ms"] - b["engine"]["first_ms"] for b in blocks])
        longer = median([b["gateway"]["total_s"] / b["engine"]["total_s"] for b in blocks])
        processor = median([b["gateway"]["gateway_cpu_ms"] for b in blocks])
        note = f"{median([b['gateway']['first_ms'] for b in blocks]):.1f} ms through it"
        where, bound = f"gateway, {count} streams", 3 if count == "1" else 15
        lines += [
            Row(f"{where}: added to the first content", added, bound, unit=" ms", note=note),
            Row(f"{where}: total time", longer, 1.05, unit="×"),
            Row(f"{where}: processor a request of {TOKENS} tokens", processor, 6, unit=" ms"),
        ]
    memory = found["memory"]
    grown = memory["after_mb"] - memory["before_mb"]
    lines.append(Row(f"gateway: {memory['sessions']} sessions never closed", grown, 20, unit=" MB"))
    return lines
