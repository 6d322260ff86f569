"""The whole server with a model judge on another server: key, verdict and hint arrive, and nobody waits for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.judge_server import judge_server, verdict
from tests.kit.live_server import Server, running_server
from tests.kit.tiny_model import weightless_model


def ask(server: Server, session: str, *said: str) -> str:
    """One request; `said` alternates user, assistant, user. Returns the turn's id."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    body = {"model": "instar", "messages": messages, "max_tokens": 4}
    with server.http as http:
        answer = http.post("/v1/chat/completions", json=body, headers={"X-Session-Id": session})
    answer.raise_for_status()
    return str(answer.json()["id"])


def react(server: Server, session: str, reaction: str) -> str:
    """A question, its answer, and a reaction to it. Returns the id of the turn that was reacted to."""
    turn_id = ask(server, session, "Why?")
    rows = server.get("/v1/turns")["data"]
    answer = next(row["answer"] for row in rows if row["id"] == turn_id)
    ask(server, session, "Why?", answer, reaction)
    return turn_id


@pytest.mark.timeout(300)
def test_a_model_judges_what_is_left_open_while_ratings_are_read_at_once(tmp_path: Path) -> None:
    def script(prompt: str, n: int) -> str:
        server_of_judges.hang()
        return verdict(prompt, -1, "Say why.")

    with judge_server(script) as server_of_judges:
        settings = {"url": server_of_judges.url, "model": "m", "key": "sk-judge", "chain": "explicit,model"}
        options = ["--model", str(weightless_model(tmp_path / "model"))]
        for pair in ("engine.kind=scripted", *(f"judge.{k}={v}" for k, v in settings.items())):
            options += ["--set", pair]
        with running_server(tmp_path / "data", *options) as server:
            read = react(server, "a", "The train leaves at nine.")
            assert server_of_judges.hanging.wait(60)
            rated = ask(server, "b", "Why?")
            with server.http as http:
                http.post("/v1/feedback", json={"turn": rated, "score": 1}).raise_for_status()

            def turn(turn_id: str) -> dict[str, object]:
                return next(row for row in server.get("/v1/turns")["data"] if row["id"] == turn_id)

            server.until("/v1/turns", lambda _: turn(rated)["score"] == 1, 60)
            assert turn(read)["link"] is None, "the model is still being asked"
            server_of_judges.release.set()
            server.until("/v1/turns", lambda _: turn(read)["score"] == -1, 60)
            assert (turn(read)["link"], turn(read)["hint"]) == ("model", "Say why.")
            assert turn(read)["votes"] == [-1, -1, -1]
            assert {headers["authorization"] for headers in server_of_judges.headers} == {"Bearer sk-judge"}
            status = server.until("/v1/status", lambda body: body["loops"]["judge"].get("judged") == 2, 60)
            assert status["loops"]["judge"]["model"]["spoke"] == 1

            server_of_judges.release.clear()
            server_of_judges.hanging.clear()
            react(server, "c", "It rains in Rome.")
            assert server_of_judges.hanging.wait(60)
            assert server.stop() == 0
            record = json.loads((tmp_path / "data" / "run" / "pids.json").read_text("utf-8"))
            assert record["loops"]["judge"]["last_exit"] == 0, "it ended by itself in the middle of asking"
