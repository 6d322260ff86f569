"""A fault of ours, and the end of the server: the client is told, in a stream as well, and the log quotes nobody."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import httpx
import pytest
import structlog

from instar import compose
from instar.config import Settings
from tests.kit.live_gateway import Live, live_gateway

SECRET = 'what the user said\n{"event": "forged", "level": "info"}\x1b[2J'


def events(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def fault(*_: object, **__: object) -> None:
    raise RuntimeError(SECRET)


async def test_fault_is_told_in_the_error_shape_and_logged_without_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_gateway(tmp_path) as live:
        monkeypatch.setattr(live.store, "turn_views", fault)
        with structlog.testing.capture_logs() as logged:
            answer = await live.http.get("/v1/turns")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal"
        [line] = logged
        assert (line["event"], line["route"], line["error"]) == (
            "request_failed",
            "/v1/turns",
            "RuntimeError",
        )
        assert any(place.endswith(" fault") for place in line["where"])
        assert "user said" not in json.dumps(line)
        assert (await live.http.get("/v1/status")).status_code == 200


async def test_fault_in_mid_stream_is_an_event_without_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_gateway(tmp_path) as live:
        monkeypatch.setattr(live.store, "close_turn", fault)
        answer = await live.ask("hi", stream=True)
        assert answer.status_code == 200
        last = json.loads(events(answer.text)[-1])
        assert last["error"]["code"] == "internal"
        assert "user said" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_fault_in_one_of_several_answers_ends_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    async with live_gateway(tmp_path) as live:
        monkeypatch.setattr(live.store, "close_turn", fault)
        answer = await asyncio.wait_for(live.ask("hi", n=2, stream=stream), 30)
        told = json.loads(events(answer.text)[-1]) if stream else answer.json()
        assert (answer.status_code, told["error"]["code"]) == (200 if stream else 500, "internal")


ANTHROPIC = {"model": "instar", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}


async def test_fault_in_a_message_is_told_in_the_shape_of_anthropic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_gateway(tmp_path) as live:
        monkeypatch.setattr(live.store, "close_turn", fault)
        answer = await live.http.post("/v1/messages", json=ANTHROPIC)
        told = {"type": "error", "error": {"type": "api_error", "message": answer.json()["error"]["message"]}}
        assert (answer.status_code, answer.json()) == (500, told)
        stream = await live.http.post("/v1/messages", json=ANTHROPIC | {"stream": True})
        assert stream.status_code == 200
        assert stream.text.split("\n\n")[-2].startswith("event: error\n")
        assert json.loads(events(stream.text)[-1]) == told


async def stop_while(live: Live, asking: asyncio.Task[httpx.Response]) -> httpx.Response:
    while not live.engine.sampling:
        await asyncio.sleep(0.01)
    live.server.should_exit = True
    return await asking


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_under_way_is_finished_when_the_server_stops(tmp_path: Path, stream: bool) -> None:
    async with live_gateway(tmp_path) as live:
        live.engine.pause_s = 0.03
        answer = await stop_while(live, asyncio.create_task(live.ask("hi", stream=stream)))
        assert answer.status_code == 200
        assert (
            "answer of base"
            in "".join(
                json.loads(e)["choices"][0]["delta"].get("content", "") for e in events(answer.text)[:-1]
            )
            if stream
            else answer.json()["choices"][0]["message"]["content"]
        )
        assert not stream or events(answer.text)[-1] == "[DONE]"


async def test_stream_that_takes_too_long_is_told_that_the_server_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_gateway(tmp_path) as live:
        seen_at_the_end = []

        async def close() -> None:
            seen_at_the_end.extend(turn["status"] for turn in live.store.turn_views())

        monkeypatch.setattr(live.engine, "close", close)
        live.server.finish_s = 0.3
        live.engine.gate = asyncio.Event()
        answer = await stop_while(live, asyncio.create_task(live.ask("hi", stream=True)))
        assert answer.status_code == 200  # and httpx has seen the proper end of its body
        assert json.loads(events(answer.text)[-1])["error"]["code"] == "stopping"
    assert seen_at_the_end == ["cancelled"], "it was ended before what it needs is closed"


async def test_whole_answer_that_takes_too_long_is_to_come_again(tmp_path: Path) -> None:
    async with live_gateway(tmp_path) as live:
        live.server.finish_s = 0.3
        live.engine.prefill = asyncio.Event()
        answer = await stop_while(live, asyncio.create_task(live.ask("hi")))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "stopping")
        assert int(answer.headers["retry-after"]) >= 1
        assert [turn.status for turn in await store_turns(live)] == ["cancelled"]


async def store_turns(live: Live) -> list[object]:
    """Read past the gateway, which has stopped."""
    return [live.store.turn(view["id"]) for view in live.store.turn_views()]


def test_one_log_line_is_one_object_whoever_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        compose.configure_logging(Settings(data_dir=tmp_path))
        structlog.get_logger().info("ours", what=SECRET)
        logging.getLogger("library").warning("theirs %s", SECRET)
        try:
            fault()
        except RuntimeError:
            logging.getLogger("library").exception("it failed")
    finally:
        structlog.configure(**before)
        root.handlers[:], root.level = handlers, level
    out, err = capsys.readouterr()
    ours, theirs, failed = map(json.loads, err.splitlines())
    assert out == ""
    assert (ours["what"], theirs["event"]) == (SECRET, f"theirs {SECRET}")
    assert (failed["error"], failed["event"]) == ("RuntimeError", "it failed")
    assert "user said" not in json.dumps(failed)
    assert "\x1b" not in err
