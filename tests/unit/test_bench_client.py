"""The benchmark's client against a stub that speaks the same routes: what it sends, what it believes."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from bench.load_arms import audit_database, audit_turns
from bench.prompts import TRAIN
from bench.server import busy
from bench.talk import Answer, Client, evaluate, interact, shuffled_questions
from bench.users import TWO_SENTENCES, WishUser

from instar.config import TrainSettings


class Stub:
    """Answers every chat with the next of `answers`; "…" in one cuts the connection there."""

    def __init__(self, answers: list[str]) -> None:
        self.answers, self.seen = answers, list[dict[str, Any]]()
        stub, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    number = len(stub.seen)
                    stub.seen.append(
                        {"body": body, "headers": {k.lower(): v for k, v in self.headers.items()}}
                    )
                text = stub.answers[number % len(stub.answers)]
                if text == "refuse":
                    self.send_response(503)
                    self.end_headers()
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("x-instar-turn", f"turn_{number}")
                self.send_header("x-instar-version", "v3")
                self.end_headers()
                for piece in text.split(" "):
                    if piece == "…":
                        return
                    self._send({"content": piece + " "}, None)
                self._send({}, "stop")
                self.wfile.write(b"data: [DONE]\n\n")

            def _send(self, delta: dict[str, str], finish: str | None) -> None:
                choice = {"index": 0, "delta": delta, "finish_reason": finish}
                chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "instar"}
                self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()


@pytest.fixture
def stub() -> Iterator[Stub]:
    found = Stub(["One. Two. Three.", "Just this one sentence."])
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_an_answer_carries_turn_version_and_its_proper_end(stub: Stub) -> None:
    answer = Client(stub.url, "k").ask([{"role": "user", "content": "Hello"}])
    assert (answer.text.strip(), answer.turn, answer.version) == ("One. Two. Three.", "turn_0", "v3")
    assert (answer.finish_reason, answer.acknowledged, answer.error) == ("stop", True, None)
    assert stub.seen[0]["body"]["stream"] is True
    assert stub.seen[0]["headers"]["authorization"] == "Bearer k"


def test_a_stream_that_breaks_off_was_never_acknowledged(stub: Stub) -> None:
    stub.answers = ["Half of an … answer"]
    answer = Client(stub.url, "k").ask([{"role": "user", "content": "Hello"}])
    assert answer.text.startswith("Half of")
    assert not answer.acknowledged


def test_a_refusal_is_a_failure_and_not_retried(stub: Stub) -> None:
    stub.answers = ["refuse"]
    answer = Client(stub.url, "k").ask([{"role": "user", "content": "Hello"}])
    assert answer.error is not None
    assert not answer.acknowledged
    assert len(stub.seen) == 1


def test_an_interaction_is_question_answer_reaction_without_special_headers(stub: Stub) -> None:
    seen = interact(Client(stub.url, "k"), WishUser(TWO_SENTENCES, 0), "Why?", think_s=0.0)
    assert (seen.meant, seen.kept) == (-1, False)
    assert seen.reaction in TWO_SENTENCES.corrections
    first, second = (s["body"]["messages"] for s in stub.seen)
    assert first == [{"role": "user", "content": "Why?"}]
    assert [m["role"] for m in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == seen.answer.text
    assert second[2]["content"] == seen.reaction
    ours = {name for s in stub.seen for name in s["headers"] if name.startswith("x-")}
    assert not {name for name in ours if not name.startswith("x-stainless")}


def test_evaluation_is_kept_out_of_learning(stub: Stub) -> None:
    rows = evaluate(Client(stub.url, "k"), ["A?", "B?"], repeats=2, at_once=2)
    assert sorted(r["question"] for r in rows) == ["A?", "A?", "B?", "B?"]
    assert [s["headers"].get("x-instar-learn") for s in stub.seen] == ["off"] * 4
    assert all(len(s["body"]["messages"]) == 1 for s in stub.seen)


def test_no_question_comes_again_before_all_were_asked() -> None:
    asked = shuffled_questions(TRAIN, len(TRAIN) + 5, seed=1)
    assert len(set(asked[: len(TRAIN)])) == len(TRAIN)
    assert asked == shuffled_questions(TRAIN, len(TRAIN) + 5, seed=1)
    assert asked != shuffled_questions(TRAIN, len(TRAIN) + 5, seed=2)


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [
        ({"unjudged": 0, "trainable": TrainSettings().min_batch - 1}, False, False),
        ({"unjudged": 0, "trainable": TrainSettings().min_batch}, False, True),
        ({"unjudged": 1, "trainable": 0}, False, True),
        ({"unjudged": 0, "trainable": 0}, True, True),
    ],
)
def test_a_server_is_busy_while_an_update_runs_or_will(
    waiting: dict[str, int], running: bool, expected: bool
) -> None:
    assert busy({"training": {"running": running}, "counts": {"waiting": waiting}}) is expected


def test_the_audit_finds_what_was_lost_doubled_or_changed() -> None:
    acknowledged = [Answer(text=f"text {i}", turn=f"t{i}", acknowledged=True) for i in range(5)]
    turns = [
        {"id": "t0", "status": "done", "answer": "text 0"},
        {"id": "t1", "status": "done", "answer": "another text"},
        {"id": "t2", "status": "failed", "answer": "text 2"},
        {"id": "t4", "status": "done", "answer": "text 4"},
        {"id": "t4", "status": "done", "answer": "text 4"},
    ]
    assert audit_turns(acknowledged, turns) == {"acknowledged": 5, "lost": 2, "doubled": 1, "changed": 1}


def test_the_audit_finds_a_sample_used_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE uses (turn_id TEXT, update_id TEXT, pass INTEGER)")
        rows = [
            ("a", "u1", 0),
            ("a", "u1", 1),
            ("b", "u1", 0),
            ("b", "u1", 0),
            ("c", "u1", 0),
            ("c", "u2", 0),
        ]
        db.executemany("INSERT INTO uses VALUES (?, ?, ?)", rows)
    db.close()
    assert audit_database(path) == {"database": "ok", "uses": 6, "double_uses": 1, "turns_in_two_updates": 1}
