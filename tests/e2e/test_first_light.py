"""The whole loop on the real model: talk, correct, update, be served a new version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.live_server import Server, running_server

pytestmark = pytest.mark.alone  # an update takes what answers leave

QUESTIONS = ["Why do cats purr?", "How do I boil an egg?", "What is rain?", "Who was Mozart?"]


def converse(server: Server, question: str, reaction: str) -> str:
    """A plain SDK client without any header: question, streamed answer, reaction. Returns the turn's id."""
    messages = [{"role": "user", "content": question}]
    with server.openai as client:
        stream = client.chat.completions.create(model="instar", messages=messages, stream=True, max_tokens=24)
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": reaction}]
        client.chat.completions.create(model="instar", messages=messages, max_tokens=4)
    turn_id: str = chunks[0].id
    return turn_id


@pytest.mark.model
@pytest.mark.timeout(1000)
def test_talk_correct_update_and_be_served_a_new_version(tmp_path: Path) -> None:
    options = ["--set", "train.batch_size=4", "--set", "train.passes=1", "--set", "gate.held_back=0"]
    with running_server(tmp_path / "data", *options) as server:
        corrected = [converse(server, q, "Too long. One short sentence, please.") for q in QUESTIONS]
        judged = server.until(
            "/v1/turns", lambda body: sum(t["score"] == -1 for t in body["data"]) == len(QUESTIONS), 60
        )
        turns = {t["id"]: t for t in judged["data"]}
        for turn_id in corrected:
            assert turns[turn_id]["hint"] == "Too long. One short sentence, please."
            assert turns[turn_id]["version"] == "base"

        server.until("/v1/status", lambda body: body["served_version"] == "v1", 800)
        with server.openai as client:
            answer = client.chat.completions.with_raw_response.create(
                model="instar", messages=[{"role": "user", "content": "What is snow?"}], max_tokens=8
            )
        assert answer.headers["x-instar-version"] == "v1"

        (version,) = [v for v in server.get("/v1/versions")["data"] if v["name"] == "v1"]
        assert sorted(version["turn_ids"]) == sorted(corrected)
        assert version["gate"]["passed"] is True
        learned = {t["id"] for t in server.get("/v1/turns")["data"] if t["learned"]}
        assert learned == set(corrected)
        assert server.stop() == 0
