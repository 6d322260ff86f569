"""An update stays within its memory: what fits is told beforehand, and passes are cut and computed again for it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from instar.config import TrainSettings
from instar.errors import TrainingError
from instar.trainers import packing
from instar.trainers.memory import DEFAULT_MIB, MIB, Memory, Shape, memory_for
from instar.trainers.packing import pack
from tests.kit.tiny_model import write_chat_files

STARTER = Shape(layers=30, hidden=576, inner=1536, heads=9, key_heads=3, head_dim=64, vocabulary=49_152)


def test_the_shape_is_read_from_the_models_own_file(tmp_path: Path) -> None:
    assert Shape.of(write_chat_files(tmp_path)) == Shape(2, 64, 128, 4, 2, 16, 259)
    inner = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"text_config": inner, "vision_config": {}}))
    assert Shape.of(tmp_path) == Shape(2, 64, 128, 4, 2, 16, 259)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TrainingError, match="does not tell the model's shape"):
        Shape.of(tmp_path)


def test_a_turn_of_17000_tokens_fits_the_starter_model_by_default() -> None:
    memory = Memory(STARTER, DEFAULT_MIB * MIB)
    assert memory.longest() >= 17_000
    assert TrainSettings().memory_mib == DEFAULT_MIB
    row = list(range(17_000))
    assert memory.recomputed(pack([row])) <= memory.bound < memory.plain(pack([row]))
    assert memory.must_recompute(pack([row]))
    short = [list(range(i * 250, (i + 1) * 250)) for i in range(4)]
    assert not memory.must_recompute(pack(short)), "a batch of short turns keeps everything"
    assert memory.recomputed(pack([list(range(memory.longest() + 2))])) > memory.bound


def test_a_bound_that_holds_nothing_has_no_longest_row() -> None:
    assert Memory(STARTER, 1 * MIB).longest() == 0


def test_the_bound_is_never_more_than_half_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from instar.trainers import memory

    class Small:
        total = 1024 * MIB

    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: Small)
    folder = write_chat_files(tmp_path)
    assert memory_for(folder, 2048).bound == 512 * MIB
    assert memory_for(folder, 256).bound == 256 * MIB


def test_rows_go_together_as_far_as_they_fit_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST_SHARED", 4)
    shared = list(range(100))
    rows = [[*shared, 1, 2], [900] * 100, [*shared, 3, 4], [800] * 100, [*shared, 5, 6]]
    memory = Memory(replace(STARTER, vocabulary=0), 0)

    def groups(tokens: int) -> list[list[int]]:
        return replace(memory, bound=memory.recomputed(pack([list(range(tokens))]))).groups(rows)

    assert groups(1000) == [[0, 2, 4, 3, 1]]
    assert groups(210) == [[0, 2, 4, 3], [1]]
    assert groups(120) == [[0, 2, 4], [3], [1]]
    assert groups(10) == [[0], [2], [4], [3], [1]]


PROBE = """
import json, sys, torch
from pathlib import Path
from instar.trainers.heap import handing_back, keep_freed
from instar.trainers.memory import Memory, Shape
from instar.trainers.packing import pack
from instar.trainers.policy import Policy

keep_freed()
torch.set_num_threads(1)
folder, tokens, recompute = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "again"
policy = Policy(folder, rank=4, alpha=8)
policy.reset(1)

def resident():
    lines = [line.split() for line in open("/proc/self/status") if line.startswith("Vm")]
    return {line[0][:-1]: int(line[1]) * 1024 for line in lines}

def once(count):
    row = [3 + i * 7919 % 250 for i in range(count + 1)]
    with handing_back(recompute):
        hidden = policy.hidden_ND([row], [count - 8], recompute=recompute)
        hidden.float().square().sum().backward()

once(64)
before = resident()["VmRSS"]
once(tokens)
memory, tree = Memory(Shape.of(folder), 0), pack([list(range(tokens))])
print(json.dumps({"took": resident()["VmHWM"] - before, "plain": memory.plain(tree), "again": memory.recomputed(tree),
                  "gradient": float(sum(p.grad.norm() for p in policy.parameters))}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is Linux's to tell")
def test_what_a_pass_takes_is_what_was_reckoned(tmp_path: Path) -> None:
    """Peak of the resident memory of a process of its own, where layers are computed again, and where all is kept."""
    from tests.kit.tiny_kinds import write_tiny_kind

    size = {"num_hidden_layers": 24, "hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    folder = write_tiny_kind(tmp_path, "llama", **size, max_position_embeddings=4096)
    found = {}
    for how in ("again", "plain"):
        told = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROBE, str(folder), "2500", how],
            stdout=subprocess.PIPE,
            check=True,
        )
        found[how] = json.loads(told.stdout)
        print(f"{how}: reckoned {found[how][how] / MIB:.0f} MiB, took {found[how]['took'] / MIB:.0f}")
    assert 0.3 * found["again"]["again"] < found["again"]["took"] <= found["again"]["again"]
    assert found["again"]["took"] < 0.5 * found["plain"]["took"]
    assert found["again"]["gradient"] == pytest.approx(found["plain"]["gradient"], rel=1e-5)
