"""Ordinary SDKs without any special header: a correction in the second turn judges the first, a praise the second."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.test_openclaw_talks import CORRECTION, PRAISE
from tests.kit import client_cache
from tests.kit.scripted_house import House, scripted_house
from tests.kit.told import check, talk

pytestmark = [pytest.mark.clients, pytest.mark.soak, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = (
    "openai_whole", "openai_stream", "openai_responses", "litellm", "litellm_stream", "langchain",
    "langchain_stream", "anthropic", "anthropic_stream",
)  # fmt: skip


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with scripted_house(tmp_path_factory.mktemp("sdks")) as house:
        yield house


def run(command: list[str], folder: Path, **more: str) -> str:
    """What a program prints. It starts with an environment in which nobody has set up anything."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    environment = {**kept, "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True", **more}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def talked(house: House, mark: int, printed: str, question: str) -> None:
    """Two judged turns in one session, and the client saw the answers that are stored."""
    wanted = talk(question, CORRECTION, PRAISE)
    assert json.loads(printed.splitlines()[-1])["answers"] == [turn.answer for turn in wanted]
    check(house.judged()[mark:], wanted, "AAA")


@pytest.mark.parametrize("client", PYTHON)
def test_python(house: House, tmp_path: Path, client: str) -> None:
    question, mark = f"What do you think of {client}?", len(house.turns())
    program = [str(client_cache.python_clients()), str(PROGRAMS / "three_turns.py"), client]
    printed = run([*program, f"{house.url}/v1", house.server.key, question, CORRECTION, PRAISE], tmp_path)
    talked(house, mark, printed, question)
    assert not any(name.lower().startswith("x-instar") for seen in house.proxy.seen for name in seen.headers)


@pytest.mark.parametrize("how", ["whole", "stream"])
def test_node(house: House, tmp_path: Path, how: str) -> None:
    question, mark = f"What do you think of Node, {how}?", len(house.turns())
    program = client_cache.openai_node() / f"three_turns_{os.getpid()}.mjs"  # it is found from where it lies
    shutil.copyfile(PROGRAMS / "three_turns.mjs", program)
    try:
        command = [str(client_cache.node_bin() / "node"), str(program), how, f"{house.url}/v1"]
        printed = run([*command, house.server.key, question, CORRECTION, PRAISE], tmp_path)
    finally:
        program.unlink()
    talked(house, mark, printed, question)


@pytest.mark.parametrize("name", ["openai", "litellm", "langchain", "anthropic", "openai-node"])
def test_the_lines_of_instar_connect_run_as_they_are(house: House, tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "instar", "connect", name, "--json", "--url", house.url]
    told = subprocess.run(
        [*command, "--api-key", house.server.key, "--data-dir", str(tmp_path / "none")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    block = json.loads(told.stdout)["block"]
    if name == "openai-node":
        program = client_cache.openai_node() / f"block_{os.getpid()}.mjs"
        interpreter = client_cache.node_bin() / "node"
    else:
        program, interpreter = tmp_path / "block.py", client_cache.python_clients()
    program.write_text(block, "utf-8")
    try:
        assert run([str(interpreter), str(program)], tmp_path).strip() == "Answer 1 of base."
    finally:
        program.unlink()


def test_the_variables_of_instar_connect_are_those_that_the_sdk_reads(house: House, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "instar", "connect", "env", "--json", "--url", house.url]
    told = subprocess.run(
        [*command, "--api-key", house.server.key, "--data-dir", str(tmp_path / "none")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = json.loads(told.stdout)["block"].splitlines()
    variables = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    program = tmp_path / "env.py"
    program.write_text(
        'from openai import OpenAI\nm = [{"role": "user", "content": "Hi"}]\n'
        'print(OpenAI().chat.completions.create(model="instar", messages=m).choices[0].message.content)\n'
    )
    printed = run([str(client_cache.python_clients()), str(program)], tmp_path, **variables)
    assert printed.strip() == "Answer 1 of base."
