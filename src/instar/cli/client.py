"""Talks to the running server over HTTP, as any other client would."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from instar.config import default_data_dir, load_settings
from instar.errors import UserError


class NoServer(UserError):
    """Nobody listens. Apart from its siblings because scripts ask `instar status` whether a server runs."""


ADDRESS_FILE = "address.json"


@dataclass(frozen=True, slots=True)
class Server:
    """Where the server is and how to be let in. `run_dir` is None for a server on another machine.

    `certificate` is the file that our own server's must equal: it need not be made out to this machine's own address.
    """

    url: str
    key: str
    run_dir: Path | None = None
    certificate: Path | None = None

    @contextmanager
    def _client(self, timeout: httpx.Timeout) -> Iterator[httpx.Client]:
        headers = {"Authorization": f"Bearer {self.key}"}
        try:
            with httpx.Client(
                base_url=self.url, headers=headers, timeout=timeout, trust_env=False, verify=self._trust()
            ) as client:
                yield client
        except httpx.ConnectError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise UserError(
                    f"The certificate of {self.url} is not trusted ({error}). Use the name it was made for; for one "
                    "of an authority of your own, name that in SSL_CERT_FILE."
                ) from error
            raise NoServer(f"No server answers at {self.url}. Start one with `instar serve`.") from error
        except httpx.TimeoutException as error:
            raise UserError(f"The server at {self.url} did not answer in time.") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UserError(f"The connection to {self.url} broke: {error}") from error

    def _trust(self) -> ssl.SSLContext | bool:
        """Whose certificates are believed: our own one only, else those of the system and of public authorities."""
        if not self.url.startswith("https:"):
            return True
        if self.certificate is None:
            context = httpx.create_ssl_context(trust_env=False)
            context.load_default_certs()
            return context
        try:
            context = ssl.create_default_context(cafile=self.certificate)
        except OSError as error:
            raise UserError(f"The certificate {self.certificate} cannot be read ({error}).") from error
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        return self._json("GET", path, params=params)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._json("POST", path, json=body or {})

    def _json(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        with self._client(httpx.Timeout(30.0, connect=5.0)) as client:
            response = client.request(method, path, **more)
            _raise_for(response)
            value = response.json()
        if not isinstance(value, dict):
            raise UserError(f"{self.url} does not answer like Instar. Is --url right?")
        return value

    @contextmanager
    def stream(
        self, path: str, body: dict[str, Any], headers: dict[str, str], *, silence_s: float | None = None
    ) -> Iterator[Answer]:
        """Post and yield the streamed answer. Leaving the block aborts it; so does a longer silence than allowed."""
        timeout = httpx.Timeout(None, connect=5.0, read=silence_s)
        with (
            self._client(timeout) as client,
            client.stream("POST", path, json=body, headers=headers) as response,
        ):
            if response.is_error:
                response.read()
            _raise_for(response)
            yield Answer(response)


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed chat completion."""

    response: httpx.Response

    @property
    def turn_id(self) -> str:
        return str(self.response.headers.get("x-instar-turn", ""))

    @property
    def version(self) -> str:
        return str(self.response.headers.get("x-instar-version", ""))

    def texts(self) -> Iterator[str]:
        """Pieces of the answer as they come. Raises UserError when the server breaks off with an error."""
        for line in self.response.iter_lines():
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            chunk = json.loads(data)
            if "error" in chunk:
                raise UserError(_message(chunk) or "The answer broke off.")
            for choice in chunk.get("choices", []):
                text = (choice.get("delta") or {}).get("content")
                if text:
                    yield text


def _message(body: Any) -> str | None:
    """The message of an OpenAI error object, if it is one."""
    error = body.get("error") if isinstance(body, dict) else None
    return error.get("message") if isinstance(error, dict) else None


def _raise_for(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        message = _message(response.json())
    except ValueError:
        message = None
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise UserError(f"{message or 'The key was refused.'} Give the right one with --api-key.")
    raise UserError(message or f"The server answered with status {response.status_code}.")


def find_server(data_dir: Path | None, url: str | None, api_key: str | None) -> Server:
    """The server named by --url, else the one that runs on the data folder. Raises NoServer."""
    settings = load_settings(data_dir)
    address, certificate = (
        _recorded_address(settings.run_dir) if url is None else (url.rstrip("/").removesuffix("/v1"), None)
    )
    key = api_key or (
        settings.api_key.get_secret_value() if settings.api_key else _stored_key(settings.key_file)
    )
    return Server(address, key, None if url is not None else settings.run_dir, certificate)


def _recorded_address(run_dir: Path) -> tuple[str, Path | None]:
    try:
        found = json.loads((run_dir / ADDRESS_FILE).read_text("utf-8"))
        certificate = found.get("certificate")
        return str(found["url"]), Path(certificate) if certificate else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = "" if run_dir.parent == default_data_dir() else f" --data-dir {run_dir.parent}"
        raise NoServer(
            f"No server runs on the data folder {run_dir.parent}. Start one with `instar serve{hint}`."
        ) from error


def _stored_key(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise UserError(f"No key is kept in {path}. Give the server's key with --api-key.") from error
