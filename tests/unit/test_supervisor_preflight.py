"""Before a server starts: folders, the lock, the port, the key, the state file."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from instar.config import Settings, load_settings
from instar.errors import ConfigError
from instar.workers import preflight
from instar.workers.state import RunState, load_state, save_state, write_private
from instar.workers.supervisor import make_state
from tests.kit.certificates import certificate


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = load_settings(tmp_path / "data", {"port": 0})
    preflight.make_folders(made)
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_data_folder_is_private(settings: Settings) -> None:
    assert mode(settings.data_dir) == 0o700


def test_data_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(ConfigError, match="--data-dir"):
        preflight.make_folders(load_settings(tmp_path / "data"))


def test_second_server_on_the_folder_is_told_who_the_first_is(settings: Settings) -> None:
    program = (
        "import sys; from pathlib import Path; from instar.workers.preflight import DataFolderLock\n"
        "with DataFolderLock(Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(settings.run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(ConfigError, match=f"process {other.pid}"), preflight.DataFolderLock(settings.run_dir):
        pass
    other.kill()
    other.communicate()
    with preflight.DataFolderLock(settings.run_dir):  # a killed server leaves no lock behind
        assert (settings.run_dir / "lock.pid").read_text().strip() == str(os.getpid())


def test_taken_port_is_named_with_the_way_out() -> None:
    with preflight.listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Port {port} is in use.*--port {port + 1}"):
            preflight.listen("127.0.0.1", port)


def test_foreign_host_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(ConfigError, match="--host"):
        preflight.listen("192.0.2.1", 0)  # TEST-NET-1: never an address of this machine
    with pytest.raises(ConfigError, match="--host"):
        preflight.listen("no.such.host.invalid", 0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_beyond_loopback_needs_a_chosen_key(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        preflight.refuse_open_house(load_settings(tmp_path, {"host": host}))
    preflight.refuse_open_house(load_settings(tmp_path, {"host": host, "api_key": "a-chosen-key"}))


def test_certificate_that_can_be_served_is_let_pass(tmp_path: Path) -> None:
    pair = certificate(tmp_path)
    preflight.check_certificate(load_settings(tmp_path, pair))
    preflight.check_certificate(load_settings(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        lambda pair: {**pair, "tls_cert": "/nowhere.pem"},
        lambda pair: {**pair, "tls_cert": pair["tls_key"]},
        lambda pair: {**pair, "tls_key": str(certificate(Path(pair["tls_key"]).parent / "other")["tls_key"])},
    ],
    ids=["missing", "no certificate", "another's key"],
)
def test_certificate_that_cannot_be_served_is_told_at_once(tmp_path: Path, change: Any) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        preflight.check_certificate(load_settings(tmp_path, change(certificate(tmp_path))))


def test_key_with_a_password_is_refused_instead_of_asking_the_terminal(tmp_path: Path) -> None:
    pair = certificate(tmp_path)
    key = serialization.load_pem_private_key(Path(pair["tls_key"]).read_bytes(), None)
    Path(pair["tls_key"]).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="password"):
        preflight.check_certificate(load_settings(tmp_path, pair))


def test_certificate_and_key_go_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="go together"):
        load_settings(tmp_path, {"tls_cert": "cert.pem"})


def test_certificate_files_are_found_from_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(tmp_path, {"tls_cert": "cert.pem", "tls_key": "~/key.pem"})
    assert settings.tls_cert == tmp_path / "cert.pem"
    assert settings.tls_key == Path.home() / "key.pem"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(tmp_path: Path, host: str) -> None:
    settings = load_settings(tmp_path, {"host": host})
    preflight.refuse_open_house(settings)
    assert settings.api_key is None


def test_key_is_made_once_and_private(settings: Settings) -> None:
    key = preflight.ensure_api_key(settings)
    assert key.startswith("sk-instar-")
    assert len(key) == len("sk-instar-") + 32
    assert mode(settings.key_file) == 0o600
    assert preflight.ensure_api_key(settings) == key


def test_open_key_file_is_closed_again(settings: Settings) -> None:
    key = preflight.ensure_api_key(settings)
    settings.key_file.chmod(0o644)
    assert preflight.ensure_api_key(settings) == key
    assert mode(settings.key_file) == 0o600


def test_given_key_is_used_and_not_stored(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {"api_key": "my-own-key-123"})
    assert preflight.ensure_api_key(settings) == "my-own-key-123"
    assert not settings.key_file.exists()


@pytest.mark.parametrize("key", ["", "short", "with a space in it", "ключ-ключ-ключ"])
def test_unusable_keys_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        preflight.ensure_api_key(load_settings(tmp_path, {"api_key": key}))


def test_state_survives_the_file_with_its_keys_and_is_private(settings: Settings, tmp_path: Path) -> None:
    with preflight.listen("127.0.0.1", 0) as listener:
        state = make_state(settings, tmp_path / "model", "sk-the-key", listener)
    path = tmp_path / "state.json"
    save_state(path, settings, state)
    assert mode(path) == 0o600
    again, run = load_state(path)
    assert run == state
    assert again.api_key is not None
    assert again.api_key.get_secret_value() == "sk-the-key"
    assert again.model_dump(exclude={"api_key"}) == settings.model_dump(exclude={"api_key"})


def test_the_judges_key_reaches_the_workers(tmp_path: Path) -> None:
    judge = {"url": "http://localhost:11434/v1", "model": "m", "key": "sk-judge", "chain": "explicit,model"}
    settings = load_settings(tmp_path, {"judge": judge, "api_key": "sk-the-key"})
    save_state(tmp_path / "state.json", settings, make_state(settings, tmp_path, "sk-the-key", None))
    again, _ = load_state(tmp_path / "state.json")
    assert again == settings
    assert again.judge.key is not None
    assert again.judge.key.get_secret_value() == "sk-judge"
    assert "sk-judge" not in repr(again)


def test_damaged_state_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"settings": {}}')
    with pytest.raises(ConfigError, match="instar serve"):
        load_state(tmp_path / "state.json")


def test_remote_engine_is_named_in_the_state(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {"engine": {"kind": "url", "url": "http://gpu:8000"}})
    assert make_state(settings, tmp_path, "sk-the-key", None).engine_url == "http://gpu:8000"


def test_inherited_listener_is_the_same_socket(tmp_path: Path) -> None:
    with preflight.listen("127.0.0.1", 0) as listener:
        state = RunState(tmp_path, "127.0.0.1", 1, "k", "k", "u", os.dup(listener.fileno()))
        inherited = state.listener()
        assert isinstance(inherited, socket.socket)
        with inherited:
            assert inherited.getsockname() == listener.getsockname()


def test_private_write_replaces_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "f"
    write_private(path, "one")
    write_private(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["f"]
