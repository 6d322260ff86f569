"""What must hold before a server starts, each with an error that says what to do."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import socket
import ssl
from pathlib import Path

from filelock import FileLock, Timeout

from instar.config import Settings
from instar.errors import ConfigError
from instar.workers.state import write_private


def make_folders(settings: Settings) -> None:
    """Create the data folder, private to its owner: it holds conversations and keys."""
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (settings.run_dir / "logs", settings.versions_dir, settings.work_dir):
            folder.mkdir(parents=True, exist_ok=True)
        probe = settings.run_dir / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"The data folder {settings.data_dir} cannot be written ({error.strerror}). "
            "Choose another with --data-dir, or mend its permissions."
        ) from error


class DataFolderLock:
    """Held while a server works on a data folder. The kernel lets go of it when the holder dies."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "lock"
        self._note = run_dir / "lock.pid"
        self._lock = FileLock(self._path, timeout=0)

    def __enter__(self) -> DataFolderLock:
        try:
            self._lock.acquire()
        except Timeout as error:
            raise ConfigError(
                f"Another server (process {self._holder()}) works on the data folder "
                f"{self._path.parent.parent}. "
                "Stop it first, or choose another folder with --data-dir and another port with --port."
            ) from error
        write_private(self._note, f"{os.getpid()}\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._note.unlink(missing_ok=True)
        self._lock.release()

    def _holder(self) -> str:
        try:
            return self._note.read_text("utf-8").strip() or "unknown"
        except OSError:
            return "unknown"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open_house(settings: Settings) -> None:
    """Beyond loopback only with a key that somebody chose. Raises ConfigError."""
    if not is_loopback(settings.host) and settings.api_key is None:
        raise ConfigError(
            f"Listening on {settings.host} lets other machines in, so choose the key yourself: "
            "give --api-key or set INSTAR_API_KEY, or stay on 127.0.0.1."
        )


def check_certificate(settings: Settings) -> None:
    """A certificate that cannot be served is found before anything starts. Raises ConfigError."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"The certificate {settings.tls_cert} with the key {settings.tls_key} cannot be used ({error}). "
            "Both must be PEM files that this user can read, the key without a password, and belong together."
        ) from error


def _no_password() -> str:
    """Else OpenSSL would ask the terminal for one."""
    raise ValueError("the key is protected by a password")


def listen(host: str, port: int) -> socket.socket:
    """Bind and listen. Raises ConfigError naming the port that is taken, or the address that is not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"The host {host!r} cannot be resolved ({error}). Choose another --host."
        ) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(_why_not_bound(host, port, error)) from error
    return listener


def _why_not_bound(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is in use by another program. Stop it, or choose another port: --port {port + 1}"
    if error.errno == errno.EACCES:
        return f"Port {port} needs rights that this user lacks. Choose one above 1023 with --port."
    return f"Cannot listen on {host}:{port} ({error.strerror}). Choose another --host or --port."


def free_loopback_port() -> int:
    """A port that is free now; the engine binds it a moment later."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ensure_api_key(settings: Settings) -> str:
    """The key that clients must send: the one given, else the data folder's own, made once.

    Raises ConfigError when the key file cannot be read or is empty.
    """
    if settings.api_key is not None:
        return _checked(settings.api_key.get_secret_value(), "The API key that was given")
    path = settings.key_file
    try:
        if not path.exists():
            write_private(path, f"sk-instar-{secrets.token_urlsafe(24)}\n")
        elif path.stat().st_mode & 0o077:
            path.chmod(0o600)  # a copied or restored data folder must not leave its key open
        return _checked(path.read_text("utf-8").strip(), f"The API key in {path}")
    except OSError as error:
        raise ConfigError(
            f"The API key in {path} cannot be read ({error.strerror}). Mend or remove it."
        ) from error


def _checked(key: str, what: str) -> str:
    if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{what} must be at least 8 printable ASCII characters without spaces.")
    return key
