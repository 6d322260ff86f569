"""Caddy and nginx with the blocks that docs/home-network.md shows, as they stand there but for ports and paths."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.kit.certificates import certificate
from tests.kit.docs import ROOT
from tests.kit.live_server import free_port

NAME = "instar.home"
PAGE = ROOT / "docs" / "home-network.md"


def documented(proxy: str) -> str:
    """The page's only block for this proxy."""
    (block,) = re.findall(rf"^```{proxy}\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return str(block)


def replaced(text: str, changes: dict[str, str]) -> str:
    """Each of `changes` must be there once: what is tested is what is written."""
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} in\n{text}"
        text = text.replace(old, new)
    return text


class ByName(httpx.HTTPTransport):
    """Reaches `NAME` on this machine, as a resolver of the home network would; the certificate must be that name's."""

    def __init__(self, port: int, authority: Path) -> None:
        super().__init__(verify=ssl.create_default_context(cafile=str(authority)))
        self._port = port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions["sni_hostname"] = NAME
        request.url = request.url.copy_with(host="127.0.0.1", port=self._port)
        return super().handle_request(request)


@contextmanager
def behind_caddy(program: Path, folder: Path, target: str, changes: dict[str, str]) -> Iterator[httpx.Client]:
    """What stands before the block keeps this Caddy to itself: no other ports, nothing in the system's trust."""
    folder.mkdir()
    port = free_port()
    alone = f"{{\nadmin off\nskip_install_trust\nhttp_port {free_port()}\nhttps_port {port}\n}}\n"
    block = replaced(documented("caddy"), {"127.0.0.1:30000": urlsplit(target).netloc, **changes})
    (folder / "Caddyfile").write_text(alone + block)
    env = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    command = [str(program), "run", "--config", "Caddyfile"]
    authority = folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    with _running(command, folder, env, port, authority) as http:
        yield http


@contextmanager
def behind_nginx(program: Path, folder: Path, target: str, changes: dict[str, str]) -> Iterator[httpx.Client]:
    folder.mkdir()
    port, pair = free_port(), certificate(folder)
    given = {
        "443": str(port),
        "/home/me/tls/instar.pem": pair["tls_cert"],
        "/home/me/tls/instar.key": pair["tls_key"],
        "http://127.0.0.1:30000": target,
    }
    (folder / "instar.conf").write_text(replaced(documented("nginx"), {**given, **changes}))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"{'user root;' if os.geteuid() == 0 else ''}\ndaemon off;\npid {folder}/pid;\nworker_processes 1;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}include {folder}/instar.conf;\n}}\n"
    )
    command = [str(program), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    with _running(command, folder, dict(os.environ), port, folder / "authority.pem") as http:
        yield http


@contextmanager
def _running(
    command: list[str], folder: Path, env: dict[str, str], port: int, authority: Path
) -> Iterator[httpx.Client]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        _wait(process, port, authority, folder / "log")
        with _client(port, authority) as http:
            yield http
    finally:
        process.terminate()
        process.wait(30)


def _client(port: int, authority: Path) -> httpx.Client:
    return httpx.Client(base_url=f"https://{NAME}", transport=ByName(port, authority), timeout=20)


def _wait(process: subprocess.Popen[bytes], port: int, authority: Path, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with _client(port, authority) as http:
                http.get("/health")
            return
        except (httpx.TransportError, OSError):  # no certificate yet, or nobody listens
            time.sleep(0.1)
    raise AssertionError(log.read_text("utf-8", "replace")[-3000:])
