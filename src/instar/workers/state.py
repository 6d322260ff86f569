"""What the supervisor tells its children: one file that only its owner can read."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from instar.config import Settings
from instar.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunState:
    """Facts that are decided once per `instar serve`.

    `listen_fd` is the file descriptor of the gateway's listening socket, inherited from the supervisor. It
    outlives the gateway, so while a dead gateway is started again new connections wait in the kernel's queue
    instead of being refused. `None` (a gateway run by hand) means: bind `settings.host:port` yourself.
    """

    model_dir: Path
    engine_host: str
    engine_port: int
    engine_key: str | None
    api_key: str
    engine_url: str
    listen_fd: int | None = None

    def listener(self) -> socket.socket | None:
        """The inherited listening socket, for `uvicorn.Server.serve(sockets=[...])`."""
        return None if self.listen_fd is None else socket.socket(fileno=self.listen_fd)


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically; the new one can be read by its owner alone, from its first byte on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(draft, path)


def save_state(path: Path, settings: Settings, state: RunState) -> None:
    """Write settings and run state, mode 0600: it holds all keys."""
    run: dict[str, Any] = {**asdict(state), "model_dir": str(state.model_dir)}
    dump = settings.model_dump(mode="json", exclude={"api_key"})
    _tell_secrets(settings, dump)
    write_private(path, json.dumps({"settings": dump, "run": run}, indent=1))


def _tell_secrets(group: BaseModel, dump: dict[str, Any]) -> None:
    """Dumped, a secret is a row of asterisks: put each one into its place, but those that were left out."""
    for name in dump:
        value = getattr(group, name)
        if isinstance(value, SecretStr):
            dump[name] = value.get_secret_value()
        elif isinstance(value, BaseModel):
            _tell_secrets(value, dump[name])


def load_state(path: Path) -> tuple[Settings, RunState]:
    """Read what `save_state` wrote. Raises ConfigError when the file is missing or damaged."""
    try:
        document = json.loads(path.read_text("utf-8"))
        run = document["run"]
        settings = Settings.model_validate({**document["settings"], "api_key": run["api_key"]})
        return settings, RunState(**{**run, "model_dir": Path(run["model_dir"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no run state ({error}). Workers are started by `instar serve`, not by hand."
        ) from error
