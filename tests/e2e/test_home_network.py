"""Beyond loopback, with a key and a certificate, as on a home network. The engine is the scripted one."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import httpx
import pytest

from instar.cli.client import Server, find_server
from instar.errors import UserError
from tests.kit.certificates import certificate
from tests.kit.live_server import launch
from tests.kit.tiny_model import weightless_model

KEY = "a-key-of-my-own"


@pytest.mark.timeout(120)
def test_serves_https_on_all_addresses_and_its_own_commands_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = certificate(tmp_path / "tls")
    options = [f"{name}={value}" for name, value in pair.items()]
    options += ["engine.kind=scripted", "train.enabled=false"]
    model = str(weightless_model(tmp_path / "model"))
    server = launch(
        tmp_path / "data",
        *("--model", model, "--host", "0.0.0.0", "--api-key", KEY),
        *(word for option in options for word in ("--set", option)),
    )
    try:
        ours = until_greeted(tmp_path / "data")
        assert ours.url.startswith("https://127.0.0.1:")
        assert ours.get("/v1/status")["active_version"] == "base"

        port = int(ours.url.rpartition(":")[2])
        authority = ssl.create_default_context(cafile=str(tmp_path / "tls" / "authority.pem"))
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            authority.wrap_socket(plain, server_hostname="instar.home") as secure,
        ):
            assert secure.version() in {"TLSv1.2", "TLSv1.3"}
        elsewhere = Server(f"https://localhost:{port}", KEY)
        with pytest.raises(UserError, match="is not trusted"):
            elsewhere.get("/v1/status")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "tls" / "authority.pem"))
        assert elsewhere.get("/v1/status")["active_version"] == "base"
        with pytest.raises(UserError, match="is not trusted"):
            Server(ours.url, KEY).get("/v1/status")  # 127.0.0.1 is not its name
        certificate(tmp_path / "tls")  # another one: whoever serves the old one is not us
        with pytest.raises(UserError, match="is not trusted"):
            ours.get("/v1/status")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)
        greeting = (tmp_path / "data" / "serve.out").read_text()
        assert "by the name in its certificate" in greeting
        assert server.stop() == 0
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(10)


def until_greeted(data_dir: Path) -> Server:
    """The server as the command line finds it, once it has said that it is ready."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if "is ready in" in (data_dir / "serve.out").read_text():
            return find_server(data_dir, None, KEY)
        time.sleep(0.1)
    raise AssertionError((data_dir / "serve.out").read_text())
