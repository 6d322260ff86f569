"""The native step's machine code: compiled once for this processor by the machine's own compiler, and kept.

Nothing here may stop the engine: whatever goes wrong is a `NativeUnavailable` that says why, and torch computes.

A kept file is the library followed by its sha256, written beside its place and renamed into it: one that was cut,
changed or written halfway is not loaded (that could crash the process) but made again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from instar.config import native_dir

log = structlog.get_logger("instar.engine")

SOURCE = Path(__file__).with_name("step.cpp")
COMPILERS = ("g++", "clang++", "c++")
_PROBE = Path(__file__).with_name("probe.py")
_TUNE = "-march=native" if platform.machine() in {"x86_64", "AMD64"} else "-mcpu=native"
_OPTIONS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-pthread",
    "-w",
)
_DIGEST_BYTES = 32
_COMPILE_S, _PROBE_S, _ASK_S = 300, 60, 20


class NativeUnavailable(Exception):
    """Why the native step is not used, as half a sentence."""


@dataclass(frozen=True, slots=True)
class Build:
    """What a library is made by. `tune`: the option that names the processor it is for."""

    compilers: Sequence[str] = COMPILERS
    tune: str = _TUNE

    def library(self, folder: Path | None = None) -> Path:
        """The library, kept in `folder` or made now. Raises NativeUnavailable."""
        compiler = self.compiler()
        home = folder or native_dir()
        try:
            _make_private(home)
            place = home / f"step-{self._key(compiler)}.so"
            if not _is_whole(place):
                _compile([compiler, *_OPTIONS, self.tune], place)
        except OSError as error:
            raise NativeUnavailable(f"{home} cannot be used ({error})") from error
        return place

    def compiler(self) -> str:
        """The first of them that is installed. Raises NativeUnavailable."""
        found = next((path for name in self.compilers if (path := shutil.which(name))), None)
        if found is None:
            raise NativeUnavailable(f"there is no C++ compiler ({', '.join(self.compilers)})")
        return found

    def _key(self, compiler: str) -> str:
        """Another source, compiler or processor: another library."""
        version = _run([compiler, "--version"], _ASK_S)
        parts = [SOURCE.read_text("utf-8"), version, self.tune, *_OPTIONS, processor()]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def processor() -> str:
    """What tells this processor's instructions from another's: a home folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = ("flags", "Features", "model name", "CPU part")
    facts = sorted({line for line in lines if line.startswith(names)})
    return "\n".join([platform.machine(), platform.processor(), *facts])


def _make_private(folder: Path) -> None:
    """What lies there is run: nobody else may put it there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if hasattr(os, "getuid") and (facts.st_uid != os.getuid() or facts.st_mode & 0o022):
        raise NativeUnavailable(f"others may write into {folder}")


def _is_whole(place: Path) -> bool:
    try:
        content = place.read_bytes()
    except OSError:
        return False
    library, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    is_whole = bool(library) and hashlib.sha256(library).digest() == digest
    if not is_whole:
        log.info("the kept native decode step is damaged; it is built again", file=str(place))
    return is_whole


def _compile(command: list[str], place: Path) -> None:
    log.info("building the native decode step, once for this machine", compiler=command[0])
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="building-") as work:
        made = Path(work) / place.name
        _run([*command, "-o", str(made), str(SOURCE)], _COMPILE_S)
        library = made.read_bytes()
        made.write_bytes(library + hashlib.sha256(library).digest())
        # in a process of its own: an instruction that is not there would end ours
        _run([sys.executable, "-I", str(_PROBE), str(made)], _PROBE_S)
        os.replace(made, place)


def _run(command: list[str], timeout_s: float) -> str:
    """A program's output. Raises NativeUnavailable with its last words."""
    name = f"{Path(command[0]).name} {command[1]}" if len(command) == 2 else Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailable(f"{name} took more than {timeout_s:.0f} s") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise NativeUnavailable(f"{name} failed with {done.returncode}: {words[-1][:200]}")
    return done.stdout
