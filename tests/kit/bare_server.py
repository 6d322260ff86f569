"""`instar serve` with the scripted engine and no learning: for what depends on processes and not on models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.live_server import Server, running_server
from tests.kit.tiny_model import weightless_model

ANSWER = [ord(letter) - 30 for letter in "one two three four five six seven eight nine ten " * 2]
"""About a hundred tokens: printable letters of the tiny tokenizer."""


def scripted_model(folder: Path, token_s: float = 0.0) -> Path:
    """A model folder that the scripted engine accepts, and what that engine answers."""
    weightless_model(folder)
    plan = {"answers": [ANSWER], "token_s": token_s}
    (folder / "scripted.json").write_text(json.dumps(plan), "utf-8")
    return folder


@contextmanager
def bare_server(
    folder: Path, *options: str, token_s: float = 0.0, files: int | None = None
) -> Iterator[Server]:
    model = scripted_model(folder / "model", token_s)
    quiet = ["--set", "engine.kind=scripted", "--set", "train.enabled=false", "--set", "judge.chain=explicit"]
    with running_server(folder / "data", "--model", str(model), *quiet, *options, files=files) as server:
        yield server
