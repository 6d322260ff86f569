"""`instar connect`: a client's configuration is changed where it must be, and nowhere else."""

from __future__ import annotations

import ast
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import json5
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from instar.cli import app, openclaw
from instar.cli.json5_file import Json5File
from instar.cli.openclaw import SMALL, Served, fits, prompt_tokens, remarks
from instar.cli.snippets import SNIPPETS
from instar.config import openclaw_config_file
from instar.errors import InstarError, UserError
from tests.unit.test_cli import KEY, FakeServer

STARTER = 8192


class Ran:
    """One run of the command: what it printed, and what it complained of."""

    def __init__(self, out: str, error: str | None) -> None:
        self.out, self.error = out, error

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Connect = Callable[..., Ran]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    told = {"id": "instar", "context_length": STARTER}
    fake.answers["/v1/models"] = (200, {"data": [told, {**told, "id": "instar@base"}]})
    thread = threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield fake
    fake.shutdown()
    fake.server_close()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where OpenClaw's configuration is looked for."""
    for name in ("OPENCLAW_CONFIG_PATH", "OPENCLAW_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("INSTAR_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "openclaw.json"


@pytest.fixture
def connect(server: FakeServer, file: Path) -> Connect:
    def run(*arguments: str) -> Ran:
        given = ["connect", *arguments]
        if "--url" not in arguments:
            given += ["--url", server.url, "--api-key", KEY]
        result = CliRunner().invoke(app, given)
        error = result.exception
        assert error is None or isinstance(error, InstarError | SystemExit), result.exc_info
        return Ran(result.stdout, str(error) if isinstance(error, InstarError) else None)

    return run


def backups(file: Path) -> list[Path]:
    return sorted(file.parent.glob("openclaw.json.before-instar-*"))


# ── showing and writing ───────────────────────────────────────────────────────────────────────────────────
def test_nothing_is_written_unasked(connect: Connect, file: Path) -> None:
    ran = connect("openclaw")
    assert '"baseUrl"' in ran.out
    assert "Nothing is changed yet" in ran.out
    assert not file.exists()


def test_a_new_file_has_all_that_the_client_needs(connect: Connect, server: FakeServer, file: Path) -> None:
    found = connect("openclaw", "--small", "--write", "--json").json
    assert (found["written"], found["backup"], found["exists"], found["fits"]) == (True, None, False, True)
    config = json.loads(file.read_text("utf-8"))
    provider = config["models"]["providers"]["instar"]
    assert (provider["baseUrl"], provider["apiKey"]) == (f"{server.url}/v1", KEY)
    (model,) = provider["models"]
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("instar", STARTER, 1024)
    assert model["compat"]["sendSessionAffinityHeaders"] is model["compat"]["supportsPromptCacheKey"] is True
    assert config["agents"]["defaults"]["model"] == {"primary": "instar/instar"}
    assert config["gateway"] == {"mode": "local"}
    assert (file.stat().st_mode & 0o777) == 0o600
    assert backups(file) == []


THEIRS = """\
// mine
{
  gateway: { port: 18789, auth: { mode: 'token', token: "t" }, },  // keep
  models: {
    /* others */
    providers: { openai: { apiKey: "${KEY}" } },
  },
  agents: { defaults: { model: { primary: "openai/gpt", fallbacks: ["openai/mini"] }, skills: ["a"] /* two */ } },
  channels: { telegram: { enabled: true } },
}
"""


def test_comments_and_everything_else_survive(connect: Connect, file: Path) -> None:
    file.write_text(THEIRS, "utf-8")
    ran = connect("openclaw", "--small", "--write")
    text = file.read_text("utf-8")
    for kept in (
        "// mine",
        "// keep",
        "/* others */",
        "skills: [] /* two */",
        "mode: 'token'",
        "'token', token: \"t\"",
        "telegram",
    ):
        assert kept in text
    before, after = json5.loads(THEIRS), json5.loads(text)
    assert after["models"]["providers"]["openai"] == before["models"]["providers"]["openai"]
    assert after["gateway"] == before["gateway"]
    assert after["agents"]["defaults"]["model"] == {"primary": "instar/instar", "fallbacks": ["openai/mini"]}
    assert '"openai/gpt" → "instar/instar"' in ran.out
    (backup,) = backups(file)
    assert backup.read_text("utf-8") == THEIRS
    assert (backup.stat().st_mode & 0o777) == 0o600


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{\n  a: 1, // of a\n}\n", '{\n  a: 1, // of a\n  "b": 2,\n}\n'),
        ("{\n  a: 1,\n  // of none\n}\n", '{\n  a: 1,\n  // of none\n  "b": 2,\n}\n'),
        ("{\n  a: 1, /* x */ // y\n\n}\n", '{\n  a: 1, /* x */ // y\n  "b": 2,\n\n}\n'),
    ],
)
def test_a_comment_stays_with_its_entry_when_another_comes_behind(
    file: Path, before: str, after: str
) -> None:
    file.write_text(before, "utf-8")
    assert Json5File.read(file).patched({"b": 2}).strip() == after.strip()


@pytest.mark.parametrize(
    "odd", [{"tools": ["read"]}, {"agents": {"defaults": ["x"]}}, {"agents": 3, "tools": 3}]
)
def test_a_configuration_of_another_shape_is_no_crash(odd: dict[str, Any]) -> None:
    assert prompt_tokens(odd) == prompt_tokens({})


def test_a_second_time_changes_nothing(connect: Connect, file: Path) -> None:
    file.write_text(THEIRS, "utf-8")
    connect("openclaw", "--small", "--write")
    text = file.read_text("utf-8")
    ran = connect("openclaw", "--small", "--write")
    assert "says everything already" in ran.out
    assert file.read_text("utf-8") == text
    assert len(backups(file)) == 1


def test_no_copy_overwrites_another(connect: Connect, server: FakeServer, file: Path) -> None:
    texts = [THEIRS]
    for length in (8192, 16_384, 32_768):
        file.write_text(texts[-1], "utf-8")
        server.answers["/v1/models"] = (200, {"data": [{"id": "instar", "context_length": length}]})
        connect("openclaw", "--small", "--write")
        texts.append(file.read_text("utf-8"))
    assert sorted(path.read_text("utf-8") for path in backups(file)) == sorted(texts[:-1])


def test_a_model_named_by_a_string_stays_a_string(connect: Connect, file: Path) -> None:
    file.write_text('{"agents": {"defaults": {"model": "openai/gpt"}}}', "utf-8")
    connect("openclaw", "--small", "--write")
    assert json.loads(file.read_text("utf-8"))["agents"]["defaults"]["model"] == "instar/instar"


def test_own_model_entries_are_kept(connect: Connect, file: Path) -> None:
    pinned = {"id": "instar@base", "name": "untouched"}
    old = {"id": "instar", "contextWindow": 1}
    file.write_text(json.dumps({"models": {"providers": {"instar": {"models": [pinned, old]}}}}), "utf-8")
    connect("openclaw", "--small", "--write")
    models = json.loads(file.read_text("utf-8"))["models"]["providers"]["instar"]["models"]
    assert [m["id"] for m in models] == ["instar", "instar@base"]
    assert models[0]["contextWindow"] == STARTER


def test_the_file_behind_a_link_is_changed(connect: Connect, file: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "mine.json"
    real.parent.mkdir()
    real.write_text("{}", "utf-8")
    file.symlink_to(real)
    connect("openclaw", "--small", "--write")
    assert file.is_symlink()
    assert "instar" in real.read_text("utf-8")


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "text",
    ["{a: 1", "[1, 2]", "nonsense", '{"models": 7}', '{"agents": {"defaults": []}}', "{a: 1}}", "\x00"],
)
def test_what_cannot_be_understood_is_left_alone(connect: Connect, file: Path, text: str) -> None:
    file.write_text(text, "utf-8")
    ran = connect("openclaw", "--small", "--write")
    assert ran.error is not None
    assert str(file) in ran.error
    assert "Nothing was changed" in ran.error
    assert file.read_text("utf-8") == text
    assert backups(file) == []


def test_bytes_that_are_no_text_are_left_alone(connect: Connect, file: Path) -> None:
    file.write_bytes(b'{"a": "\xff\xfe"}')
    ran = connect("openclaw", "--small", "--write")
    assert ran.error is not None
    assert "cannot be read" in ran.error
    assert file.read_bytes() == b'{"a": "\xff\xfe"}'


def test_a_file_that_changes_meanwhile_is_not_overwritten(file: Path) -> None:
    file.write_text('{"a": 1}', "utf-8")
    read = Json5File.read(file)
    text = read.patched({"b": 2})
    file.write_text('{"a": 3}', "utf-8")
    with pytest.raises(UserError, match="changed by somebody else"):
        read.write(text, file.with_name("backup"))
    assert file.read_text("utf-8") == '{"a": 3}'


def test_a_write_that_fails_leaves_the_old_file(
    connect: Connect, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(THEIRS, "utf-8")
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        if Path(target) == file:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr("os.replace", replace)
    ran = connect("openclaw", "--small", "--write")
    assert ran.error is not None
    assert "No space left" in ran.error
    assert file.read_text("utf-8") == THEIRS


def test_text_that_would_not_say_what_is_wanted_is_never_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('{"a": 1}', "utf-8")
    monkeypatch.setattr("instar.cli.json5_file._patched_text", lambda text, patch: '{"b": 2}')
    with pytest.raises(UserError, match="cannot be changed safely"):
        Json5File.read(file).patched({"b": 2})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c d", "é"]), JSON, max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(have=DOCUMENTS, patch=DOCUMENTS, indent=st.sampled_from([None, 1, 4, "\t"]))
def test_any_patch_on_any_document(
    tmp_path: Path, have: dict[str, Any], patch: dict[str, Any], indent: Any
) -> None:
    path = tmp_path / "any.json"
    path.write_text(json.dumps(have, indent=indent, ensure_ascii=False), "utf-8")
    read = Json5File.read(path)
    assert json5.loads(read.patched(patch)) == read.merged(patch)


# ── does it fit? ──────────────────────────────────────────────────────────────────────────────────────────
def test_a_prompt_that_does_not_fit_is_noticed_and_the_small_one_offered(
    connect: Connect, file: Path
) -> None:
    shown = connect("openclaw")
    assert "--small" in shown.out
    assert "single token" in shown.out
    refused = connect("openclaw", "--write")
    assert refused.error is not None
    assert "--small" in refused.error
    assert not file.exists()
    found = connect("openclaw", "--write", "--no-small", "--json").json
    assert (found["written"], found["fits"]) == (True, False)


def test_a_long_context_takes_the_full_prompt(connect: Connect, server: FakeServer, file: Path) -> None:
    server.answers["/v1/models"] = (200, {"data": [{"id": "instar", "context_length": 32768}]})
    assert connect("openclaw", "--write", "--json").json["fits"] is True
    config = json.loads(file.read_text("utf-8"))
    assert "tools" not in config
    assert config["models"]["providers"]["instar"]["models"][0]["maxTokens"] == 4096


MEASURED = [
    ({}, 15_146),
    ({"agents": {"defaults": {"contextInjection": "never"}}}, 10_230),
    ({"agents": {"defaults": {"skills": []}}}, 12_853),
    ({"tools": {"allow": ["read", "exec"], "toolSearch": False}}, 9_756),
    (SMALL, 2_547),
]
"""Tokens of real prompts, by settings that differ from the stock ones; see openclaw.py."""


@pytest.mark.parametrize(("config", "tokens"), MEASURED)
def test_the_estimate_is_near_what_was_measured(config: dict[str, Any], tokens: int) -> None:
    assert prompt_tokens(config) == pytest.approx(tokens, rel=0.05)


def test_the_small_prompt_fits_the_starter_model_and_the_stock_one_does_not() -> None:
    starter = Served("http://x", "k", "instar", STARTER)
    assert fits(prompt_tokens(SMALL), starter)
    assert not fits(prompt_tokens({}), starter)
    assert not fits(11_300, starter)


def test_a_prompt_that_leaves_no_room_to_talk_does_not_fit() -> None:
    wide = Served("http://x", "k", "instar", 16_384)
    assert prompt_tokens({}) < wide.context_length
    assert not fits(prompt_tokens({}), wide)
    assert fits(prompt_tokens({}), Served("http://x", "k", "instar", 32_768))


# ── one answer ────────────────────────────────────────────────────────────────────────────────────────────
def test_check_tells_what_came(connect: Connect, server: FakeServer) -> None:
    ran = connect("--check")
    assert "version v3" in ran.out
    assert "Hello [b]" in ran.out
    found = connect("--check", "--json").json
    assert (found["text"], found["version"], found["pieces"]) == ("Hello [b]", "v3", 2)
    assert 0 <= found["first_s"] <= found["total_s"]
    asked = [headers for _, path, _, headers in server.asked if path == "/v1/chat/completions"]
    assert {(h["X-Turn-Type"], h["X-Instar-Learn"]) for h in asked} == {("side", "off")}


def test_check_of_openclaw_uses_its_own_address_and_key(
    connect: Connect, server: FakeServer, file: Path
) -> None:
    connect("openclaw", "--small", "--write")
    assert connect("openclaw", "--check", "--json").json["remarks"] == []
    config = json.loads(file.read_text("utf-8"))
    config["models"]["providers"]["instar"]["apiKey"] = "sk-old"
    file.write_text(json.dumps(config), "utf-8")
    ran = connect("openclaw", "--check")
    assert ran.error is not None
    assert "not known" in ran.error
    assert "instar connect openclaw --write" in ran.error


def test_check_of_openclaw_before_it_is_set_up(connect: Connect) -> None:
    ran = connect("openclaw", "--check")
    assert ran.error is not None
    assert "does not know this server yet" in ran.error


def test_check_of_openclaw_that_looks_elsewhere(connect: Connect, file: Path) -> None:
    connect("openclaw", "--small", "--write")
    config = json.loads(file.read_text("utf-8"))
    config["models"]["providers"]["instar"]["baseUrl"] = "http://127.0.0.1:9/v1"
    file.write_text(json.dumps(config), "utf-8")
    ran = connect("openclaw", "--check")
    assert ran.error is not None
    assert "http://127.0.0.1:9" in ran.error
    assert "--write" in ran.error


def test_an_answer_without_words_is_no_success(connect: Connect, server: FakeServer) -> None:
    server.events = [json.dumps({"choices": [{"delta": {"role": "assistant"}}]}), "[DONE]"]
    ran = connect("--check")
    assert ran.error is not None
    assert "rollback" in ran.error


def test_no_server_is_told(connect: Connect) -> None:
    ran = connect("openai", "--url", "http://127.0.0.1:9", "--api-key", "k")
    assert ran.error is not None
    assert "No server answers" in ran.error


def test_remarks_on_a_configuration_that_works_badly() -> None:
    model = Served("http://x", "k", "instar", STARTER)
    good = openclaw.patch(model, {}, small=True)
    assert remarks(good, model) == []
    assert "8192" in remarks(good, Served("http://x", "k", "instar", 4096))[0]
    assert "no model" in remarks(good, Served("http://x", "k", "other", STARTER))[0]
    good["agents"]["defaults"]["model"] = "openai/gpt"
    assert "openai/gpt" in remarks(good, model)[0]
    del good["models"]["providers"]["instar"]["models"][0]["compat"]
    assert "history" in remarks(good, model)[0]


# ── other clients ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", SNIPPETS)
def test_blocks_are_complete(connect: Connect, server: FakeServer, name: str) -> None:
    ran = connect(name)
    assert server.url in ran.out
    assert KEY in ran.out
    for place in ("{url}", "{root}", "{key}", "{name}"):
        assert place not in ran.out
    block = connect(name, "--json").json["block"]
    assert block in ran.out
    if name in {"openai", "litellm", "langchain", "anthropic"}:
        ast.parse(block)


def test_clients_are_listed_and_unknown_ones_named(connect: Connect) -> None:
    assert {line.split()[2] for line in connect().out.splitlines()} == {"openclaw", *SNIPPETS}
    ran = connect("emacs")
    assert ran.error is not None
    assert "openwebui" in ran.error


def test_options_of_openclaw_are_refused_elsewhere(connect: Connect) -> None:
    assert "alone" in (connect("openai", "--write").error or "")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "home/.openclaw/openclaw.json"),
        ({"OPENCLAW_HOME": "hh"}, "hh/.openclaw/openclaw.json"),
        ({"OPENCLAW_HOME": "hh", "OPENCLAW_STATE_DIR": "st"}, "st/openclaw.json"),
        ({"OPENCLAW_STATE_DIR": "st", "OPENCLAW_CONFIG_PATH": "x.json"}, "x.json"),
    ],
)
def test_it_looks_where_openclaw_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("OPENCLAW_CONFIG_PATH", "OPENCLAW_HOME", "OPENCLAW_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in environment.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    assert openclaw_config_file() == tmp_path / expected
