"""What the real vLLM does in its own way, and how Instar starts and ends it. Run by `make soak-vllm`."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from instar.engines.client import HttpEngine
from instar.errors import EngineError
from instar.records import BASE, Sampling
from tests.contract.conftest import CONTEXT, Endpoint, eventually, gather_answer, ids_of, write_adapter
from tests.contract.test_adapters import DAMAGES
from tests.contract.test_grammars import SCHEMA, obeys, text_of
from tests.kit.live_server import running_server
from tests.kit.vllm_server import vllm_program

pytestmark = [pytest.mark.soak, pytest.mark.vllm]
PROMPT = [40, 41, 42, 43]


@pytest.fixture
def engine(vllm_url: str, tmp_path: Path) -> Endpoint:
    return Endpoint("vllm", vllm_url, BASE, None, tmp_path)


def running(engine: Endpoint) -> float:
    text = httpx.get(engine.url + "/metrics", timeout=30).text
    found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.MULTILINE)
    assert found
    return sum(map(float, found))


def tokens_made(engine: Endpoint) -> float:
    text = httpx.get(engine.url + "/metrics", timeout=30).text
    (made,) = re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
    return float(made)


async def test_versions_side_by_side_answer_nearly_as_if_alone(engine: Endpoint, client: HttpEngine) -> None:
    """Rounding depends on the batch here; what the adapters do is far more."""
    for number in (1, 2):
        await client.load(f"v{number}", write_adapter(engine.tmp / f"v{number}", number))
    plan = [(version, [50 + i, 51, 52, 60]) for i in range(4) for version in (BASE, "v1", "v2")]
    look = Sampling(max_tokens=1, temperature=0, top_logprobs=5)

    async def likeliest(version: str, prompt: list[int]) -> dict[int, float]:
        (chunk,) = await gather_answer(client, version, prompt, look)
        return dict((chunk.top or [])[0])

    alone = [await likeliest(*asked) for asked in plan]
    together = await asyncio.gather(*(likeliest(*asked) for asked in plan))
    for one, mixed in zip(alone, together, strict=True):
        assert len(one.keys() & mixed.keys()) >= 4
        assert all(mixed[i] == pytest.approx(one[i], abs=0.1) for i in one.keys() & mixed.keys())
    base, first, second = (set(found) for found in alone[:3])
    assert len(base & first) < 4
    assert len(first & second) < 4
    for name in ("v1", "v2"):
        await client.unload(name)


async def test_who_leaves_is_not_computed_for_any_longer(engine: Endpoint) -> None:
    client, before = HttpEngine(engine.url, BASE, []), tokens_made(engine)
    answer = client.sample(BASE, PROMPT, Sampling(max_tokens=CONTEXT - 10, temperature=0))
    seen = len((await anext(answer)).ids)
    await answer.aclose()
    await eventually(lambda: running(engine) == 0)
    assert seen < CONTEXT - 10
    assert tokens_made(engine) < before + CONTEXT - 10
    await client.close()


async def test_a_schema_is_obeyed(client: HttpEngine) -> None:
    for seed in range(3):
        sampling = Sampling(300, temperature=1.0, seed=seed, grammar={"json": SCHEMA})
        chunks = await gather_answer(client, BASE, [9, seed + 3], sampling)
        assert chunks[-1].finish_reason == "stop"
        text = text_of(ids_of(chunks))
        assert obeys(json.loads(text)), text
        assert all(chunk.forced is None for chunk in chunks), "vLLM does not tell"


async def test_our_own_grammars_are_obeyed(client: HttpEngine) -> None:
    """Lark in the dialect of llguidance, as calls of tools are written, with a special token in it."""
    lark = 'start: <|im_start|> answer\nanswer: "call " %json {"enum": ["glad", "sad"]}'
    sampling = Sampling(40, temperature=1.0, grammar={"grammar": lark})
    ids = ids_of(await gather_answer(client, BASE, PROMPT, sampling))
    assert ids[0] == 1
    assert text_of(ids[1:]).startswith('call "')


async def test_a_grammar_that_makes_no_sense_is_refused(client: HttpEngine) -> None:
    with pytest.raises(EngineError) as caught:
        await gather_answer(client, BASE, PROMPT, Sampling(4, grammar={"grammar": "start: nowhere"}))
    assert caught.value.status == 400


async def test_the_judges_low_priority_is_taken(client: HttpEngine) -> None:
    chunks = [chunk async for chunk in client.sample(BASE, PROMPT, Sampling(4), priority=10)]
    assert ids_of(chunks)


async def test_a_prompt_that_does_not_fit_is_refused_with_the_bound_in_words(client: HttpEngine) -> None:
    with pytest.raises(EngineError, match=str(CONTEXT)) as caught:
        await gather_answer(client, BASE, [9] * (CONTEXT + 8), Sampling(max_tokens=8))
    assert caught.value.status == 400


async def test_an_answer_that_does_not_fit_is_cut_at_the_bound(client: HttpEngine) -> None:
    """Ours refuses it; the gateway never asks for more than there is room for."""
    chunks = await gather_answer(client, BASE, [9] * (CONTEXT - 2), Sampling(max_tokens=8))
    assert chunks[-1].finish_reason == "length"
    assert len(ids_of(chunks)) <= 2


SERVED_ALL_THE_SAME = {"half of a pair", "unknown tensor", "another rank", "not lora"}
"""Damages that vLLM need not notice. The registry's sha256 does, before an adapter is loaded."""


@pytest.mark.parametrize("damage", [DAMAGES[name] for name in DAMAGES if name not in SERVED_ALL_THE_SAME])
async def test_a_damaged_adapter_is_refused_and_serving_goes_on(
    engine: Endpoint, client: HttpEngine, damage: Callable[[Path], None]
) -> None:
    before = engine.complete()["token_ids"]
    folder = write_adapter(engine.tmp / "bad", 1)
    damage(folder)
    with pytest.raises(EngineError):
        await client.load("bad", folder)
    assert engine.names() == {BASE}
    assert engine.complete()["token_ids"] == before


async def test_a_shared_engine_takes_two_adapters_of_one_name(engine: Endpoint) -> None:
    """Two servers, or a data folder that was begun anew: both call their first version v1."""
    one, two = (HttpEngine(engine.url, BASE, [2], shared=True) for _ in range(2))
    await one.load("v1", write_adapter(engine.tmp / "one", 1))
    await two.load("v1", write_adapter(engine.tmp / "two", 2))
    first, second = [await gather_answer(c, "v1", PROMPT, Sampling(12, temperature=0)) for c in (one, two)]
    assert ids_of(first) != ids_of(second)
    assert await one.loaded() == await two.loaded() == {BASE, "v1"}
    for client in (one, two):
        await client.unload("v1")
        assert await client.loaded() == {BASE}
        await client.close()


# ── as a part of the server ──────────────────────────────────────────────────────────────────────────────
@pytest.mark.model
def test_a_server_talks_through_vllm_and_is_rid_of_it_at_the_end(tmp_path: Path) -> None:
    options = ["--set", "engine.kind=vllm", "--set", f"engine.program={vllm_program()}"]
    options += ["--set", "engine.max_model_len=2048", "--set", "train.enabled=false"]
    with running_server(tmp_path, *options, patience_s=1500) as server:
        answer = server.openai.chat.completions.create(
            model="instar", messages=[{"role": "user", "content": "Say hello."}], max_tokens=12, logprobs=True
        )
        assert answer.choices[0].message.content
        assert answer.choices[0].logprobs is not None
        worker = psutil.Process(server.pid("engine"))
        below = worker.children(recursive=True)
        assert below
        worker.send_signal(signal.SIGKILL)  # the worst case: nobody is there to end vLLM
        _, alive = psutil.wait_procs(below, timeout=60)
        assert not alive
        server.until_ready(1500)
        below = psutil.Process(server.pid("engine")).children(recursive=True)
    assert not psutil.wait_procs(below, timeout=60)[1]
