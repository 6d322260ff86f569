"""What this process opens and whom it talks to, told by the interpreter itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FILES = {
    "open",
    "os.listdir",
    "os.scandir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "sqlite3.connect",
}
_NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"}


@dataclass
class Audit:
    """Paths that were opened, addresses that were called, programs that were started while it was on."""

    paths: list[Path] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)

    def outside(self, folder: Path) -> list[Path]:
        return [path for path in self.paths if not path.is_relative_to(folder.resolve())]


_recording: list[Audit] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recording:
        return
    audit = _recording[-1]
    if event in _FILES and arguments and isinstance(arguments[0], str | bytes | os.PathLike):
        audit.paths.append(Path(os.path.realpath(os.fsdecode(arguments[0]))))
    elif event in _NETWORK:
        audit.addresses.append(str(arguments[1] if event == "socket.connect" else arguments[0]))
    elif event in _PROGRAMS:
        audit.programs.append(str(arguments))


@contextmanager
def audited() -> Iterator[Audit]:
    """The hook stays for the life of the process, as hooks do; it records inside the block alone."""
    if not getattr(sys, "_instar_audit", False):
        sys.addaudithook(_hook)
        sys._instar_audit = True  # type: ignore[attr-defined]
    audit = Audit()
    _recording.append(audit)
    try:
        yield audit
    finally:
        _recording.remove(audit)
