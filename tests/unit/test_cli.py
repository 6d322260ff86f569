"""The command line against a small server that answers as Instar does."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from instar import __version__
from instar.cli import main
from instar.cli.serve import _address_written, _command, _greet, _other_devices_url, _own_url, nested
from instar.cli.terminal import progress_bar
from instar.config import load_settings
from instar.errors import ConfigError
from instar.workers.state import write_private
from tests.kit.judge_server import judge_server, verdict

KEY = "sk-instar-test-key"


class Handler(BaseHTTPRequestHandler):
    """Answers from `server.answers`; remembers what it was asked in `server.asked`."""

    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle(None)

    def do_POST(self) -> None:
        self._handle(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _handle(self, body: Any) -> None:
        self.server.asked.append((self.command, self.path, body, dict(self.headers)))
        if self.headers.get("authorization") != f"Bearer {KEY}":
            return self._json(
                401, {"error": {"message": "This API key is not known.", "code": "invalid_api_key"}}
            )
        if self.path == "/v1/chat/completions":
            return self._stream()
        status, answer = self.server.answers.get(self.path, (404, {"error": {"message": "Not found."}}))
        return self._json(status, answer)

    def _json(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("x-instar-turn", f"turn_{len(self.server.asked)}")
        self.send_header("x-instar-version", "v3")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for event in self.server.events:
            self.wfile.write(b"data: " + event.encode() + b"\n\n")


class FakeServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, Any, dict[str, str]]] = []
        self.answers: dict[str, tuple[int, Any]] = {"/v1/models": (200, {"data": [{"id": "instar"}]})}
        deltas = [{"role": "assistant"}, {"content": "Hel"}, {"content": "lo [b]"}, {}]
        self.events = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas] + ["[DONE]"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self, path: str) -> list[Any]:
        return [body for _, at, body, _ in self.asked if at == path]


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INSTAR_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("INSTAR_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def server(data_dir: Path) -> Iterator[FakeServer]:
    """A server that `instar serve` would have announced on the data folder."""
    fake = FakeServer()
    thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    write_private(data_dir / "run" / "address.json", json.dumps({"url": fake.url}))
    write_private(data_dir / "api_key", KEY + "\n")
    yield fake
    fake.shutdown()
    fake.server_close()


class Ran:
    """What one run of the command line did."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def instar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, typed: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["instar", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        status: Any = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────
def test_version(instar: Any) -> None:
    assert instar("--version").out == f"instar {__version__}\n"


@pytest.mark.parametrize("command", [["status"], ["status", "--json"], ["versions", "list"], ["chat"]])
def test_no_server_is_one_line_and_status_1(instar: Any, data_dir: Path, command: list[str]) -> None:
    ran = instar(*command)
    assert ran.status == 1
    assert ran.err.startswith("error: No server runs on the data folder")
    assert "instar serve" in ran.err
    assert ran.err.count("\n") == 1


def test_dead_server_is_told_with_its_address(instar: Any, data_dir: Path, server: FakeServer) -> None:
    server.shutdown()
    server.server_close()
    ran = instar("status")
    assert ran.status == 1
    assert f"No server answers at {server.url}" in ran.err


def test_wrong_key_is_told_with_the_option_to_use(instar: Any, server: FakeServer) -> None:
    ran = instar("status", "--api-key", "sk-instar-wrong")
    assert ran.status == 2
    assert "This API key is not known." in ran.err
    assert "--api-key" in ran.err


def test_wrong_setting_is_a_line_and_not_a_traceback(instar: Any, data_dir: Path) -> None:
    ran = instar("serve", "--set", "train.no_such_thing=1")
    assert ran.status == 2
    assert "train.no_such_thing" in ran.err
    assert "Traceback" not in ran.err


def test_debug_shows_the_traceback(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSTAR_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["instar", "serve", "--set", "nonsense"])
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        main()


def test_worker_without_a_state_is_a_clear_error(
    instar: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("instar.workers.lifeline.hold", lambda: None)
    ran = instar("worker", "judge", "--state", str(data_dir / "none.json"))
    assert ran.status == 2
    assert "instar serve" in ran.err


def test_worker_is_hidden(instar: Any) -> None:
    assert "worker" not in instar("--help").out


# ── chat ──────────────────────────────────────────────────────────────────────────────────────────────────
def test_chat_streams_keeps_history_and_one_session(instar: Any, server: FakeServer) -> None:
    ran = instar("chat", "--max-tokens", "9", typed="Hi\nShorter, please\n")
    assert ran.status == 0
    assert "Hello [b]\n[v3]" in ran.out
    first, second = server.bodies("/v1/chat/completions")
    assert first == {
        "model": "instar", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 9,
    }  # fmt: skip
    assert second["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello [b]"},
        {"role": "user", "content": "Shorter, please"},
    ]
    sessions = {
        headers["X-Session-Id"] for _, path, _, headers in server.asked if path.endswith("completions")
    }
    assert len(sessions) == 1


def test_chat_judgements_go_to_the_last_turn(instar: Any, server: FakeServer) -> None:
    server.answers["/v1/feedback"] = (200, {"ok": True})
    ran = instar("chat", typed="Hi\n/good\n/bad two sentences\n/fix Hello there.\n/quit\nnever sent\n")
    assert ran.status == 0
    turn = "turn_2"  # the second request: models came first
    assert server.bodies("/v1/feedback") == [
        {"turn": turn, "score": 1},
        {"turn": turn, "score": -1, "comment": "two sentences"},
        {"turn": turn, "score": -1, "correction": "Hello there."},
    ]
    assert len(server.bodies("/v1/chat/completions")) == 1
    assert ran.out.count("noted, thank you") == 3


def test_chat_says_when_a_judgement_comes_too_late_to_be_learned(instar: Any, server: FakeServer) -> None:
    why = "it was learned from before"
    server.answers["/v1/feedback"] = (200, {"recorded": True, "learnable": False, "why": why})
    out = instar("chat", typed="Hi\n/fix Hello there.\n").out
    assert f"noted as your verdict, but not learned from: {why}" in out
    assert "thank" not in out


def test_chat_new_forgets_the_history_and_the_session(instar: Any, server: FakeServer) -> None:
    instar("chat", typed="Hi\n/new\nHi again\n")
    assert server.bodies("/v1/chat/completions")[1]["messages"] == [{"role": "user", "content": "Hi again"}]
    sessions = {
        headers["X-Session-Id"] for _, path, _, headers in server.asked if path.endswith("completions")
    }
    assert len(sessions) == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("/good", "no answer to judge"), ("/fix", "/fix <text>"), ("/dance", "/help"), ("/bad", "no answer")],
)
def test_chat_says_what_a_command_lacks(instar: Any, server: FakeServer, line: str, complaint: str) -> None:
    ran = instar("chat", typed=f"{line}\n")
    assert ran.status == 2
    assert complaint in ran.err
    assert server.bodies("/v1/feedback") == []


def test_chat_shows_an_error_in_mid_answer_and_forgets_the_exchange(instar: Any, server: FakeServer) -> None:
    server.events = [server.events[1], json.dumps({"error": {"message": "The engine does not answer."}})]
    ran = instar("chat", typed="Hi\n")
    assert ran.status == 2
    assert "The engine does not answer." in ran.err


def test_chat_version_and_help(instar: Any, server: FakeServer) -> None:
    server.answers["/v1/status"] = (200, {"active_version": "v4"})
    ran = instar("chat", "--model", "instar@v3", typed="Hi\n/version\n/help\n")
    assert "the last answer came from v3; v4 is served now" in ran.out
    assert "/fix <text>" in ran.out
    assert server.bodies("/v1/chat/completions")[0]["model"] == "instar@v3"


# ── status and versions ───────────────────────────────────────────────────────────────────────────────────
FACTS = {
    "active_version": "v4",
    "served_version": "v3",
    "problem": "v4 is damaged",
    "model": "starter",
    "loops": {
        "gateway": {"alive": True, "pid": 11, "restarts": 0},
        "engine": {"alive": True, "pid": 12, "restarts": 1},
        "judge": {"alive": True, "pid": 13, "restarts": 0, "doing": "waiting", "since": 1.0},
        "trainer": {"alive": False, "pid": None, "restarts": 7, "log": "/data/run/logs/trainer.log"},
    },
    "training": {"enabled": True, "method": "combined", "batch_size": 8, "running": False, "updates": 4,
                 "last": {"status": "rejected", "version": None, "note": "too far from base"}},
    "counts": {"turns": {"done": 40, "failed": 2}, "judged": {"1": 5, "-1": 9, "none": 3, "0": 1}, "used": 32,
               "waiting": {"unjudged": 6, "trainable": 5}, "reasons": {"opted_out": 4, "brand_new_reason": 1}},
    "judge": {"agreement": {"heads": {"turns": 14, "agree": 12, "wrong_sign": 1, "share": 12 / 14}},
              "own_ratings": {"ann": {"ratings": 9, "in_use": True, "agree_before": 3, "agree_after": 8}}},
}  # fmt: skip


def test_status_tells_loops_batch_updates_and_reasons(instar: Any, server: FakeServer) -> None:
    server.answers["/v1/status"] = (200, FACTS)
    ran = instar("status")
    assert ran.status == 0
    lines = {line.split()[0]: line for line in ran.out.splitlines() if line.strip()}
    assert "v3 (v4 is being loaded) of starter" in lines["serving"]
    assert "v4 is damaged" in lines["problem:"]
    assert lines["engine"].split() == ["engine", "yes", "12", "1"]
    assert "waiting for" in lines["judge"]
    assert lines["trainer"].split() == ["trainer", "no", "–", "7", "see", "/data/run/logs/trainer.log"]
    assert "5 of 8" in lines["batch"]
    assert "4 published (combined)" in lines["updates"]
    assert "refused by the gate: too far from base" in lines["last"]
    assert "42 recorded, 6 waiting for the judge, 32 learned from" in ran.out
    assert "5 good, 9 bad, 4 neither" in lines["verdicts"]
    assert "heads: as you in 12 of 14 (86%), the opposite in 1" in lines["agreement"]
    assert "9 with words move the heads: as you in 3 → 8 of them, unseen" in lines["your"]
    assert "the client asked not to learn" in lines["4"]
    assert "brand_new_reason" in lines["1"]


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ({"status": "proposed", "version": "v7", "note": "All checks passed."}, "passed the gate as v7: All"),
        ({"status": "running", "version": None, "note": None}, "last update being computed\n"),
        ({"status": "unused", "version": None, "note": "No words."}, "nothing learned: No words."),
    ],
)
def test_status_says_in_words_how_the_last_update_ended(
    instar: Any, server: FakeServer, last: dict[str, Any], told: str
) -> None:
    server.answers["/v1/status"] = (200, {**FACTS, "training": {**FACTS["training"], "last": last}})  # type: ignore[dict-item]
    out = "\n".join(" ".join(line.split()) for line in instar("status").out.splitlines())
    assert told in out + "\n"


def test_status_says_what_is_wrong_with_the_judge_and_nothing_of_agreement_before_there_is_any(
    instar: Any, server: FakeServer
) -> None:
    judge = {**FACTS["loops"]["judge"], "problem": "m at http://h/v1 answers with status 500"}  # type: ignore[index]
    server.answers["/v1/status"] = (200, {**FACTS, "loops": {"judge": judge}, "judge": {"agreement": {}}})
    ran = instar("status")
    assert "judge: m at http://h/v1 answers with status 500\n" in ran.out
    assert "agreement" not in ran.out


def test_status_tells_whose_ratings_move_nothing_and_why(instar: Any, server: FakeServer) -> None:
    refused = {"ratings": 9, "in_use": False, "agree_before": 8, "agree_after": 5}
    few = {"ratings": 2, "in_use": False, "agree_before": None, "agree_after": None}
    told = {"agreement": {}, "own_ratings": {"ann": refused, "bob": few}}
    server.answers["/v1/status"] = (200, {**FACTS, "judge": told})
    ran = instar("status")
    assert "ann: 9 with words are not used: as you in 8 → 5 of them, unseen" in ran.out
    assert "bob: 2 with words, too few, or all of one kind, to move the heads" in ran.out


def test_status_tells_when_it_trains_and_what_it_waits_for(instar: Any, server: FakeServer) -> None:
    training = {**FACTS["training"], "mode": "between 02:00 and 06:00", "later": "waits for 02:00"}  # type: ignore[dict-item]
    server.answers["/v1/status"] = (200, {**FACTS, "training": training})
    assert "training between 02:00 and 06:00; waits for 02:00 updates" in in_one_line(instar("status").out)
    for idle in ({"later": None}, {"running": True}):  # an update that has begun waits for nothing
        server.answers["/v1/status"] = (200, {**FACTS, "training": {**training, **idle}})
        assert "training between 02:00 and 06:00 updates" in in_one_line(instar("status").out)


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def test_status_tells_how_far_engine_and_trainer_disagree(instar: Any, server: FakeServer) -> None:
    last = {"turns": 8, "mean": 0.0312, "largest": 0.4, "ratio": 1.002, "dtype": "bfloat16", "tolerance": 0.2,
            "set_aside": {"t": 0.5}}  # fmt: skip
    found = {"last": last, "turns": 30, "set_aside": 4, "alarm": "They disagree."}
    training = {**FACTS["training"], "fidelity": found}  # type: ignore[dict-item]
    server.answers["/v1/status"] = (200, {**FACTS, "training": training})
    told = in_one_line(instar("status").out)
    figures = (
        "0.0312 nats a token apart, 0.4 at most, ratio 1.002, over 8 turns (bfloat16: up to 0.2; 1 set aside)"
    )
    assert f"log-probs engine and trainer {figures}" in told
    assert "log-probs: They disagree." in told


def test_status_as_json_is_the_servers_own(instar: Any, server: FakeServer) -> None:
    server.answers["/v1/status"] = (200, FACTS)
    assert json.loads(instar("status", "--json").out) == FACTS


VERSIONS = [
    {"name": "v2", "parent": "v1", "created_at": 2.0, "turn_ids": ["t1", "t2"], "active": False, "state": "kept",
     "gate": {"passed": True}},
    {"name": "v1", "parent": "base", "created_at": 1.0, "active": True, "damaged": "sha256 differs"},
    {"name": "base", "parent": None, "created_at": None, "active": False},
]  # fmt: skip


def test_versions_list_marks_the_active_one_and_damage(instar: Any, server: FakeServer) -> None:
    server.answers["/v1/versions"] = (200, {"data": VERSIONS})
    lines = instar("versions", "list").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["v2", "▶", "base"]
    assert lines[1].split()[-3:] == ["2", "kept", "passed"]
    assert "damaged: sha256 differs" in lines[2]
    assert json.loads(instar("versions", "list", "--json").out) == {"data": VERSIONS}


V7 = {
    "name": "v7", "parent": "v6", "created_at": 2.0, "active": False, "state": "taken back", "children": ["v8", "v9"],
    "state_why": "v7 was taken back by itself: users were content with 3 of 20 of its answers.",
    "learned_from": {"turns": 8, "good": 2, "bad": 6, "sessions": 1, "hints": [f"hint {i}" for i in range(7)]},
    "gate": {"passed": True, "why": "All checks passed. On 34 turns that were held back it wins 55 %.", "checks": {
        "finite": True,
        "kl": {"value": 0.0111, "bound": 0.3, "passed": True},
        "sound": {"asked": 24, "value": 2, "of_base": 1, "faults": {"off": 2}, "passed": True},
        "held_back": {"turns": 34, "value": 0.55, "lower": 0.48, "upper": 0.61, "bound": 0.4, "passed": True},
        "examples": [{"kind": "held back", "question": "How do whales breathe?",
                      "before": "With lungs. " * 40, "after": "Through a blowhole."}],
    }},
    "metrics": {
        "revisions": {"asked": 5, "found": 2, "refused": {"a": "No answer was better.", "b": "No answer was better.",
                                                          "c": "The model came to no complete answer."}},
        "fidelity": {"turns": 0, "set_aside": {"d": 0.4}},
    },
    "history": [{"at": 3.0, "what": "serves", "why": "made by update 9"},
                {"at": 9.0, "what": "rolled_back", "why": "worse"}, {"at": 9.0, "what": "served", "why": "v6 serves"}],
}  # fmt: skip


def test_versions_show_tells_in_plain_words(instar: Any, server: FakeServer) -> None:
    server.answers["/v1/versions/v7"] = (200, V7)
    printed = instar("versions", "show", "v7").out
    for words in (
        "v7 was made 1970-01-01", "from v6.", "Now: taken back: v7 was taken back by itself",
        "Made from it: v8, v9", "8 turns of 1 conversation: 6 you did not like, 2 you liked",
        "you said: hint 4", "and 2 more", "How do whales breathe?", "Through a blowhole.",
        "canary questions: 22 of 24 answers sound, the untouched model 23",
        "on unrelated texts: 0.011 (at most 0.30)", "turns held back: 34, win share 0.55, between 0.48 and 0.61",
        "why it passed", "began to serve: made by update 9", "taken back: worse", "served no longer: v6 serves",
        "2 turns gave no better answer: No answer was better.",
        "1 turn gave no better answer: The model came to no complete answer.",
        "1 turn set aside: the log-probs of sampling and training did not agree",
    ):  # fmt: skip
        assert words in printed, words
    assert "hint 5" not in printed
    assert json.loads(instar("versions", "show", "v7", "--json").out) == V7


def test_versions_show_tells_of_a_refused_one_of_base_and_of_damage(instar: Any, server: FakeServer) -> None:
    why = "6 of 12 answers to canary questions are not sound: 6 off the subject."
    refused = {"name": "v8", "parent": "v7", "state": "refused by the gate", "state_why": why,
               "gate": {"passed": False, "why": why, "checks": {"finite": True}}}  # fmt: skip
    server.answers["/v1/versions/v8"] = (200, refused)
    printed = instar("versions", "show", "v8").out
    assert "Now: refused by the gate: 6 of 12" in printed
    assert "why it did not pass" in printed
    server.answers["/v1/versions/base"] = (200, VERSIONS[2])
    assert "base is the untouched model." in instar("versions", "show", "base").out
    server.answers["/v1/versions/v1"] = (200, VERSIONS[1])
    assert "v1 is damaged: sha256 differs" in instar("versions", "show", "v1").out


def test_versions_rollback_approve_and_reject(instar: Any, server: FakeServer) -> None:
    server.answers["/v1/versions/rollback"] = (200, {"active_version": "v1", "before": "v2", "reason": "no"})
    assert instar("versions", "rollback").out == "v2 was taken back; v1 is served from now on.\n"
    instar("versions", "rollback", "v1", "--because", "too terse")
    assert server.asked[-1][2] == {"to": "v1", "reason": "too terse"}
    server.answers["/v1/versions/v3/approve"] = (200, {"active_version": "v3", "before": "v1"})
    assert instar("versions", "approve", "v3").out == "v3 is served from now on.\n"
    server.answers["/v1/versions/v3/reject"] = (200, {"rejected": "v3", "active_version": "v1"})
    assert instar("versions", "reject", "v3").out == "v3 will not be served; v1 goes on.\n"


def test_status_tells_that_a_version_waits_and_that_nothing_was_learned(
    instar: Any, server: FakeServer
) -> None:
    last = {"status": "unused", "version": None, "note": "These corrections contradict each other."}
    facts = {**FACTS, "waiting_version": "v5", "training": {**FACTS["training"], "last": last}}  # type: ignore[dict-item]
    server.answers["/v1/status"] = (200, facts)
    printed = instar("status").out
    assert "v5 waits for you: instar versions show v5, then approve or reject it" in printed
    assert "nothing learned: These corrections contradict each other." in printed
    server.answers["/v1/status"] = (200, {**FACTS, "training": {**FACTS["training"], "last": None}})  # type: ignore[dict-item]
    assert "nothing was said of an answer that could be learned from" in instar("status").out


def test_versions_show_passes_on_what_the_server_says(instar: Any, server: FakeServer) -> None:
    server.answers["/v1/versions/v9"] = (404, {"error": {"message": "There is no version 'v9'."}})
    ran = instar("versions", "show", "v9")
    assert (ran.status, ran.err) == (2, "error: There is no version 'v9'.\n")


def test_versions_activate(instar: Any, server: FakeServer) -> None:
    server.answers["/v1/versions/v1/activate"] = (200, {"active_version": "v1", "before": "v2"})
    assert instar("versions", "activate", "v1").out == "v1 is served from now on.\n"
    assert json.loads(instar("versions", "activate", "v1", "--json").out)["before"] == "v2"


def test_names_cannot_leave_their_place_in_the_path(instar: Any, server: FakeServer) -> None:
    instar("versions", "activate", "../status?x=1")
    assert server.asked[-1][1] == "/v1/versions/..%2Fstatus%3Fx%3D1/activate"


# ── serve's small parts ───────────────────────────────────────────────────────────────────────────────────
def test_set_nests_names() -> None:
    pairs = ["train.lr=1e-4", "train.batch_size=4", "log_level=debug"]
    assert nested(pairs) == {"train": {"lr": "1e-4", "batch_size": "4"}, "log_level": "debug"}


@pytest.mark.parametrize("pair", ["train.lr", "=3", "train..lr=1", "a b=c"])
def test_set_that_is_no_setting_is_refused(pair: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        nested([pair])


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:5"),
        ("0.0.0.0", "http://127.0.0.1:5"),
        ("::1", "http://[::1]:5"),
        ("example.org", "http://example.org:5"),
    ],
)
def test_own_url(host: str, url: str) -> None:
    assert _own_url(host, 5) == url
    assert _own_url(host, 5, tls=True) == url.replace("http:", "https:")


@pytest.mark.parametrize(
    ("host", "others"),
    [
        ("127.0.0.1", None),
        ("localhost", None),
        ("0.0.0.0", "https://192.168.1.5:5"),
        ("::", "https://192.168.1.5:5"),
        ("nas.home", "https://nas.home:5"),
    ],
)
def test_address_for_other_devices(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, host: str, others: str | None
) -> None:
    monkeypatch.setattr("instar.cli.serve._network_address", lambda: "192.168.1.5")
    settings = load_settings(data_dir, {"host": host})
    assert _other_devices_url(settings, _own_url(host, 5, tls=True)) == others


def test_machine_without_a_network_names_no_address(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("instar.cli.serve._network_address", lambda: None)
    settings = load_settings(data_dir, {"host": "0.0.0.0"})
    assert _other_devices_url(settings, "http://127.0.0.1:5") is None


def test_greeting_names_the_address_for_other_devices(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load_settings(data_dir, {"host": "nas.home", "api_key": KEY})
    _greet(settings, "http://nas.home:30000", KEY, 2.0)
    assert "from another device   http://nas.home:30000/v1\n" in capsys.readouterr().out


def test_greeting_can_be_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _greet(load_settings(tmp_path), "http://127.0.0.1:30000", KEY, 2.0)
    printed = capsys.readouterr().out
    assert "http://localhost:30000/v1/chat/completions" in printed
    assert f'OpenAI(base_url="http://localhost:30000/v1", api_key="{KEY}")' in printed
    assert f'-H "Authorization: Bearer {KEY}" \\\n' in printed
    assert str(tmp_path / "run" / "logs") in printed
    assert f" connect --data-dir {tmp_path}" in printed


def test_sibling_commands_are_named_so_that_they_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/instar", "serve"])
    monkeypatch.setenv("INSTAR_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert _command("chat", load_settings()) == ".venv/bin/instar chat"
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/instar")
    assert _command("chat", load_settings(tmp_path / "a b")) == f"instar chat --data-dir '{tmp_path}/a b'"


def test_progress_is_silent_when_nothing_is_to_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as report:
        report("ready", 1.0)
    assert capsys.readouterr().err == ""


def test_progress_in_a_log_is_a_line_for_each_new_thing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as report:
        for fraction in (0.1, 0.2, 0.3):
            report("converting the model", fraction)
        report("done", 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == ["converting the model", "done"]


def test_progress_in_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr("instar.cli.terminal.err", lambda: terminal)
    with progress_bar() as report:
        report("converting the model", 0.5)
        report("converting the model", 1.0)
    assert "converting the model" in screen.getvalue()
    assert "100 %" in screen.getvalue()


def test_address_without_a_server_behind_it_is_not_left(data_dir: Path) -> None:
    path = data_dir / "run" / "address.json"
    with contextlib.suppress(KeyboardInterrupt), _address_written(path, "http://x"):
        written = json.loads(path.read_text())
        raise KeyboardInterrupt
    assert written == {"url": "http://x"}
    assert not path.exists()


# ── judge cases ───────────────────────────────────────────────────────────────────────────────────────────
CASES = [
    {
        "response": "Paris.",
        "next_role": "user",
        "next_text": "Perfect, thank you!",
        "label": 1,
        "language": "en",
    },
    {"response": "Done.", "next_role": "tool", "next_text": "exit code 1", "label": -1, "kind": "[tool]"},
    {"response": "Paris.", "next_role": "user", "next_text": "The train leaves at nine.", "label": -1},
]


@pytest.fixture
def cases(data_dir: Path) -> Path:
    path = data_dir / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in CASES), "utf-8")
    return path


def test_judge_cases_counts_by_judge_language_and_kind(instar: Any, cases: Path) -> None:
    ran = instar("judge", "cases", str(cases), "--set", "judge.chain=explicit,tools")
    assert ran.status == 0
    lines = {line.split()[0]: line.split() for line in ran.out.splitlines() if line.strip()}
    assert "explicit → tools" in ran.out
    assert lines["tools"][1:5] == ["3", "0.333", "0.000", "0.333"]
    assert lines["en"][1:5] == ["1", "0.000", "0.000", "0.000"]
    assert lines["[tool]"][1:5] == ["1", "1.000", "0.000", "1.000"]


def test_judge_cases_asks_the_configured_model(instar: Any, cases: Path) -> None:
    with judge_server(lambda prompt, n: verdict(prompt, -1)) as judge:
        given = (f"url={judge.url}", "model=m", "votes=1", "chain=tools,model")
        model = [word for pair in given for word in ("--set", f"judge.{pair}")]
        ran = instar("judge", "cases", str(cases), "--json", *model)
        found = json.loads(ran.out)
        assert found["chain"] == ["tools", "model"]
        assert found["links"]["tools"]["cases"] == 3
        assert found["links"]["model"]["cases"] == len(judge.asked) == 2
        found = json.loads(instar("judge", "cases", str(cases), "--json", "--each", *model).out)
        assert found["links"]["model"]["cases"] == 3
        assert found["links"]["model"]["wrong_sign"] == pytest.approx(1 / 3)


def test_judge_cases_says_when_the_model_cannot_be_asked(instar: Any, cases: Path) -> None:
    ran = instar("judge", "cases", str(cases), "--set", "judge.url=engine")
    assert ran.status == 0
    assert "while the server runs" in ran.out


def test_judge_cases_names_the_line_that_is_wrong(instar: Any, cases: Path) -> None:
    cases.write_text(cases.read_text("utf-8") + '{"label": 7}\n', "utf-8")
    ran = instar("judge", "cases", str(cases))
    assert ran.status == 2
    assert "line 4" in ran.err
    assert "Traceback" not in ran.err
    assert instar("judge", "cases", str(cases.parent / "none.jsonl")).status == 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"url": "localhost:11434", "model": "m"}, "judge.url: write an address"),
        ({"url": "http://localhost:11434"}, "`url` and `model` go together"),
        ({"model": "m"}, "`url` and `model` go together"),
        ({"url": "engine", "model": "m"}, "leave `model` out"),
        ({"url": "http://me:secret@h/v1", "model": "m"}, "belongs into judge.key"),
        ({"url": "http://localhost:30000/v1", "model": "m"}, "this server's own address"),
        ({"url": "http://127.0.0.1:30000", "model": "m"}, "this server's own address"),
        ({"chain": "heads,heads"}, "once"),
        ({"chain": "heads,cat"}, "judge.chain.1"),
        ({"chain": []}, "judge.chain"),
    ],
)
def test_settings_of_the_model_judge_that_cannot_be_meant(tmp_path: Path, wrong: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path, {"judge": wrong})
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)
