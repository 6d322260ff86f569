"""What `bench.serve` makes of what it measured: figures, ratios, verdicts, by hand-made blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from bench import serve
from bench.serving import gaps, gateway, memory, speed, turns
from bench.serving.goals import Row
from bench.serving.load import Endpoint, Reply, figures, stream_block
from bench.stats import bootstrap_percentile_ratio


def test_bound_is_reached_from_its_own_side() -> None:
    assert Row("", 1.0, 1.0).reached
    assert not Row("", 1.1, 1.0).reached
    assert Row("", 2.1, 2.0, at_most=False).reached
    assert not Row("", 1.9, 2.0, at_most=False).reached
    assert Row("", 1.0).reached is None
    assert Row("", None, 1.0).reached is None


def test_ratio_of_percentiles_and_its_interval() -> None:
    quiet, loud = [[1.0, 2.0, 3.0]] * 6, [[2.0, 4.0, 6.0]] * 6
    assert bootstrap_percentile_ratio(loud, quiet, 50) == (2.0, 2.0, 2.0)
    uneven = [[2.0] * 10, [2.0] * 10, [9.0] * 10]
    value, low, high = bootstrap_percentile_ratio(uneven, quiet, 50)
    assert (value, low) == (1.0, 1.0)
    assert high == 4.5, "a draw in which the slow block comes twice"


def test_block_tells_tokens_of_a_client_times_clients() -> None:
    replies = [Reply(0.1, 1.0, 10, [0.1, 0.3], finish_reason="length"), Reply(0.3, 3.0, 10, [0.2])]
    found = figures(replies, 2)
    assert (found["tokens_per_s"], found["first_ms"], found["gap_p50_ms"]) == (10.0, 200.0, 200.0)
    with pytest.raises(RuntimeError, match="1 of 2 requests failed: 500"):
        figures([*replies[:1], Reply(error="500")], 2)


async def test_client_reads_what_ours_and_vllm_stream() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        response = web.StreamResponse(headers={"x-instar-version": "v3", "x-instar-turn": "t1"})
        await response.prepare(request)
        events: list[dict[str, Any]] = [
            {"choices": [{"text": "", "finish_reason": None}]},
            {"choices": [{"text": "so", "finish_reason": None}]},
            {"choices": [{"delta": {"content": " it"}, "finish_reason": None}]},
            {"choices": [{"text": "", "finish_reason": "length"}]},
        ]
        if asked["prompt"] != "cut":
            events.append({"choices": [], "usage": {"completion_tokens": 7}})
        for event in events[: 3 if asked["prompt"] == "broken" else None]:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    prompts = ["whole", "broken", "cut"]
    async with TestServer(app) as server:
        to = Endpoint("ours", str(server.make_url("")).rstrip("/"), "key", "instar")
        whole, broken, cut = await stream_block(to, 1, 3, lambda number: {"prompt": prompts[number]})
    assert (whole.text, whole.tokens, whole.version, whole.turn) == ("so it", 7, "v3", "t1")
    assert (len(whole.gaps_s), whole.error) == (1, None)
    assert cut.tokens == 2, "counted by pieces where nothing tells"
    assert broken.error == "the answer had no end"


def test_ours_is_compared_within_a_round() -> None:
    def block(tokens: float, first: float) -> dict[str, float]:
        return {"tokens_per_s": tokens, "first_ms": first, "gap_p50_ms": 1.0}

    cells = {
        "200 tokens, 8 streams, greedy": {
            speed.OURS: [block(100, 50), block(10, 500)],
            speed.WITH: [block(50, 100), block(5, 1_000)],
            speed.WITHOUT: [block(80, 50), block(8, 500)],
        }
    }
    found = {"summary": speed.summary(cells), "vllm": True}
    verdicts = {row.what: (row.value, row.reached) for row in speed.rows(found)}
    assert verdicts["  tokens/s, of vLLM, adapter"] == (2.0, True)
    assert verdicts["  tokens/s, of vLLM"] == (1.25, False)
    assert verdicts["  first token, of vLLM, adapter"] == (0.5, True)
    alone = {"200 tokens, 8 streams, greedy": {speed.OURS: [block(100, 50)]}}
    assert "left out" in speed.rows({"summary": speed.summary(alone), "vllm": False})[-1].what


def test_turns_are_compared_within_a_session() -> None:
    talks = [
        {"first_ms": [1_000.0, 90.0, 99.0], "swap_s": 1.0},
        {"first_ms": [4_000.0, 360.0, 468.0], "swap_s": 1.0},
    ]
    second, swapped = turns.rows({"sessions": {"2000 tokens": talks}})
    assert (second.value, second.reached) == (0.09, True)
    assert (swapped.value, swapped.reached) == (1.2, True)


def test_gateway_s_own_time_is_what_the_engine_s_is_not() -> None:
    def row(first: float, total: float, processor: float) -> dict[str, Any]:
        return {"first_ms": first, "total_s": total, "gateway_cpu_ms": processor}

    blocks = [{"gateway": row(103.0, 1.5, 5.0), "engine": row(101.0, 1.25, 0.0)}]
    memory_facts = {"sessions": 2_000, "before_mb": 100.0, "after_mb": 121.0}
    added, longer, processor, grown = gateway.rows({"streams": {"1": blocks}, "memory": memory_facts})
    assert (added.value, longer.value, processor.value, grown.value) == (2.0, 1.2, 5.0, 21.0)
    assert [row.reached for row in (added, longer, processor, grown)] == [True, False, True, False]


def test_gaps_are_compared_with_those_of_blocks_without_training() -> None:
    blocks = [
        {"trains": trains, "gaps_s": [0.02 * (1.5 if trains else 1.0)] * 20, "update_ran": 1.0}
        for trains in (True, False) * 4
    ]
    found = {**gaps.compared(blocks), "blocks": blocks, "updates": 3}
    verdicts = [(row.value, row.reached) for row in gaps.rows(found)]
    assert verdicts == [(1.5, False), (1.0, None), (1.5, False), (1.0, None)]


def test_memory_is_summed_over_processes_and_its_growth_told() -> None:
    mib = 2**20
    samples = [{"engine": size * mib, "judge": 100 * mib} for size in (900, 100, 300, 300, 700, 700)]
    found = memory.summary(samples)
    assert (found["peak_mib"], found["by_process_mib"]) == (1_000, {"engine": 900, "judge": 100})
    assert found["growth"] == 1.0


def test_parts_are_named_by_letter_too_and_merged_into_the_file(tmp_path: Path) -> None:
    options = serve.options_of(["--parts", "b,gateway", "--quick"])
    assert (options.parts, options.rounds) == (["turns", "gateway"], 1)
    assert options.results.name == "serve_quick.json"
    with pytest.raises(SystemExit):
        serve.options_of(["--parts", "f"])
    place = tmp_path / "serve.json"
    serve.merge(place, "turns", {"figures": 1})
    serve.merge(place, "gaps", {"figures": 2})
    serve.merge(place, "turns", {"figures": 3})
    assert json.loads(place.read_text()) == {"parts": {"turns": {"figures": 3}, "gaps": {"figures": 2}}}
