"""Part b: how soon the second turn of a long session begins, and the first one after a swap.

The 11,000-token session is longer than the starter's context, so it is held with the starter's architecture, random
weights and 32,768 positions: what it says means nothing, what it costs is the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bench.server import Server
from bench.serving.goals import Figures, Plan, Row, median
from bench.serving.houses import Texts, activate, ours, publish, quiet, random_model, young_adapter
from bench.serving.load import Endpoint, Reply, ask, session

STARTER_TOKENS, LONG_TOKENS, POSITIONS = 2_000, 11_000, 32_768
NEW_TOKENS, ANSWER_TOKENS = 40, 16
"""Of each later message, and of each answer: together at most 64 new tokens a turn, with the template's own."""


def run(plan: Plan) -> Figures:
    adapter = young_adapter(plan.model_dir, plan.work / "turns-adapter")
    plan.step("turns: a model with random weights")
    long_model = random_model(plan.model_dir, plan.work / "random-model", POSITIONS)
    short, long = (200, 600) if plan.is_quick else (STARTER_TOKENS, LONG_TOKENS)
    found: Figures = {"new_tokens": NEW_TOKENS, "sessions": {}}
    for name, model, tokens in (("starter", plan.model_dir, short), ("random weights", long_model, long)):
        texts = Texts(plan.model_dir)
        with ours(plan.work / f"turns-{tokens}", model, **quiet(plan.threads)) as server:
            publish(server.data_dir, server.model_dir(), adapter, "v1")
            publish(server.data_dir, server.model_dir(), adapter, "v2")
            activate(server, "v1")
            talks = []
            for number in range(plan.rounds):
                plan.step(f"turns: {tokens} tokens, session {number + 1}")
                talks.append(_talk(server, texts, tokens, f"{tokens}-{number}", number))
        found["sessions"][f"{tokens} tokens, {name}"] = talks
    return found


def _talk(server: Server, texts: Texts, tokens: int, name: str, number: int) -> dict[str, Any]:
    """Two turns, a swap, and a third: milliseconds to the first token of each."""
    to = Endpoint("ours", server.url, server.key, "instar", "/v1/chat/completions")
    messages: list[dict[str, str]] = []
    firsts, versions = [], []

    def turn(length: int) -> None:
        messages.append({"role": "user", "content": texts.of(length)})
        reply = asyncio.run(_one(to, messages, name))
        if reply.error or reply.first_s is None:
            raise RuntimeError(f"a turn failed: {reply.error}")
        messages.append({"role": "assistant", "content": reply.text})
        firsts.append(round(1_000 * reply.first_s, 2))
        versions.append(reply.version)

    turn(tokens)
    turn(NEW_TOKENS - 8)
    new = "v2" if number % 2 == 0 else "v1"
    waited = activate(server, new)
    turn(NEW_TOKENS - 8)
    return {"first_ms": firsts, "versions": versions, "swap_s": round(waited, 2)}


async def _one(to: Endpoint, messages: list[dict[str, str]], name: str) -> Reply:
    body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    async with session() as http:
        return await ask(http, to, body, {"X-Session-Id": name})


def rows(found: Figures) -> list[Row]:
    lines: list[Row] = []
    for name, talks in found["sessions"].items():
        first, second, swapped = (median([t["first_ms"][at] for t in talks]) for at in range(3))
        note = f"{first:.0f} → {second:.0f} ms"
        ratio = median([t["first_ms"][1] / t["first_ms"][0] for t in talks])
        lines.append(Row(f"{name}: second turn of the first", ratio, 0.1, unit="×", note=note))
        ratio = median([t["first_ms"][2] / t["first_ms"][1] for t in talks])
        swaps = median([t["swap_s"] for t in talks])
        note = f"{swapped:.0f} ms; the swap took {swaps:.1f} s"
        lines.append(Row(f"{name}: first turn after a swap, of the second", ratio, 1.2, unit="×", note=note))
    return lines
