"""An adapter after a few updates: what is served keeps its effect, in torch and in the native step."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from bench.young_adapters import kept_effect, slope, train_adapters

from instar.engines.embedded.model import Model, load_model
from instar.engines.embedded.native.attach import attach
from tests.contract.conftest import lively
from tests.kit.native import needs_compiler
from tests.kit.tiny_model import write_tiny_model

CPU = torch.device("cpu")
AGES = (4, 16)
PROMPT = 8


def texts(seed: int, count: int, length: int) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(3, 259) for _ in range(length)] for _ in range(count)]


class Young:
    """A model in bf16 and in fp32, of weights that are exactly bf16, and adapters that were trained on it."""

    def __init__(self, folder: Path) -> None:
        tiny = lively(write_tiny_model(folder / "model"))
        self.served, self.truth = (load_model(tiny, dtype, CPU) for dtype in (torch.bfloat16, torch.float32))
        folders = train_adapters(tiny, folder, texts(0, 8, 32), AGES)
        self.adapters = dict(zip(AGES, folders, strict=True))
        self.texts = texts(1, 32, PROMPT + 8)


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> Young:
    torch.set_num_threads(1)
    return Young(tmp_path_factory.mktemp("young"))


def kept(young: Young, age: int, *, native: bool) -> float:
    model: Model = young.served
    if native:
        attach(model, "on")
        assert model.native is not None
    decode = model.native.decode if native and model.native else model.decode_in_torch
    return kept_effect(model, decode, young.truth, young.adapters[age], young.texts, PROMPT)


@pytest.mark.parametrize("age", AGES)
def test_torch_keeps_the_effect(young: Young, age: int) -> None:
    assert kept(young, age, native=False) == pytest.approx(1, abs=0.05)


@needs_compiler
@pytest.mark.parametrize("age", AGES)
def test_native_step_keeps_the_effect(young: Young, age: int) -> None:
    assert kept(young, age, native=True) == pytest.approx(1, abs=0.05)


def test_slope_is_of_the_effect() -> None:
    wanted = torch.tensor([1.0, -2.0, 0.5])
    assert slope(0.6 * wanted, wanted) == pytest.approx(0.6)
