"""`instar serve`: from a data folder to a running server."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from instar.cli.client import ADDRESS_FILE
from instar.cli.terminal import DataDir, event, out, progress_bar
from instar.config import Settings, default_data_dir, load_settings
from instar.errors import ConfigError
from instar.workers import preflight
from instar.workers.state import write_private
from instar.workers.supervisor import build_supervisor, clear_the_ground, make_state


def serve(
    data_dir: DataDir = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on (default: 127.0.0.1).")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on (default: 30000).")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="'starter', a folder, or a Hugging Face causal LM's name.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", help="Key that clients must send (default: made once and kept)."),
    ] = None,
    approve: Annotated[
        bool, typer.Option("--approve", help="Let no version serve before `instar versions approve`.")
    ] = False,
    settings_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, such as train.batch_size=4."),
    ] = None,
) -> None:
    """Serve the model and learn from its use, until Ctrl-C."""
    begun = time.monotonic()
    given = {"host": host, "port": port, "model": model, "api_key": api_key}
    overrides = nested([*(settings_ or []), *(["gate.approve=true"] if approve else [])])
    overrides.update({name: value for name, value in given.items() if value is not None})
    settings = load_settings(data_dir, overrides)
    preflight.refuse_open_house(settings)
    preflight.check_certificate(settings)
    preflight.make_folders(settings)
    with preflight.DataFolderLock(settings.run_dir):
        clear_the_ground(settings, event)
        raise typer.Exit(_serve_locked(settings, begun))


def _serve_locked(settings: Settings, begun: float) -> int:
    from instar import compose  # loads the store and the web server, which the other commands do not need

    key = preflight.ensure_api_key(settings)
    with preflight.listen(settings.host, settings.port) as listener:
        url = _own_url(settings.host, listener.getsockname()[1], tls=settings.tls_cert is not None)
        with progress_bar() as report:
            model_dir = compose.prepare_model(settings, report)
        state = make_state(settings, model_dir, key, listener)
        supervisor = build_supervisor(
            settings, state, url, event, lambda: _greet(settings, url, key, time.monotonic() - begun)
        )
        with _address_written(settings.run_dir / ADDRESS_FILE, url, settings.tls_cert):
            return supervisor.run()


WILDCARDS = {"0.0.0.0", "::"}  # noqa: S104  only compared


def _own_url(host: str, port: int, *, tls: bool = False) -> str:
    """How a client on this machine reaches the server, wildcard addresses included."""
    scheme = "https" if tls else "http"
    if host in {*WILDCARDS, "localhost"}:
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _other_devices_url(settings: Settings, url: str) -> str | None:
    """How other machines reach it: by this machine's address in the network. None: they cannot."""
    if settings.host not in WILDCARDS:
        return None if preflight.is_loopback(settings.host) else url
    address = _network_address()
    return url.replace("//127.0.0.1:", f"//{address}:") if address else None


def _network_address() -> str | None:
    """The address from which this machine would speak to others. Asking the kernel for a route sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # TEST-NET-1: nobody's address, so the usual way out is taken
        return str(probe.getsockname()[0])
    return None


def nested(pairs: list[str]) -> dict[str, Any]:
    """`["train.lr=1e-4"]` → `{"train": {"lr": "1e-4"}}`; types are the settings' own business."""
    found: dict[str, Any] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not all(part.isidentifier() for part in path.split(".")):
            raise ConfigError(f"--set {pair} is not NAME=VALUE. Write for example --set train.batch_size=4.")
        here = found
        *groups, leaf = path.split(".")
        for group in groups:
            here = here.setdefault(group, {})
        here[leaf] = value
    return found


@contextmanager
def _address_written(path: Path, url: str, certificate: Path | None = None) -> Iterator[None]:
    """While the server runs, the other commands find it here."""
    pinned = {"certificate": str(certificate)} if certificate else {}
    write_private(path, json.dumps({"url": url, **pinned}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _command(name: str, settings: Settings) -> str:
    """How to call a sibling command from the shell that started this one."""
    program = "instar" if shutil.which("instar") else sys.argv[0]
    folder = (
        ""
        if settings.data_dir == default_data_dir()
        else f" --data-dir {shlex.quote(str(settings.data_dir))}"
    )
    return f"{program} {name}{folder}"


def _greet(settings: Settings, url: str, key: str, took_s: float) -> None:
    """Everything that a first client needs, ready to be copied."""
    name = settings.served_name
    others = _other_devices_url(settings, url)
    named = " (or by the name in its certificate)" if settings.tls_cert else ""
    elsewhere = f"\n  from another device   {others}/v1{named}" if others else ""
    url = url.replace("//127.0.0.1:", "//localhost:")
    text = f"""
Instar is ready in {took_s:.1f} s.

  base URL   {url}/v1
  API key    {key}
  model      {name}{elsewhere}

  curl {url}/v1/chat/completions -H "Authorization: Bearer {key}" \\
    -H "Content-Type: application/json" \\
    -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'

  # pip install openai
  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="{key}")

  talk here        {_command("chat", settings)}
  set up a client  {_command("connect", settings)}
  what it learns   {_command("status", settings)}
  logs             {settings.run_dir / "logs"}
"""
    out().out(text)
    sys.stdout.flush()
