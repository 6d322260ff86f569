"""Whether a model decodes natively: the setting, the reasons why not, and the check against torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from instar.config import Settings
from instar.engines.embedded.model import Model, load_model
from instar.engines.embedded.native import abi, attach, step
from instar.engines.embedded.native.abi import Library, Variant
from instar.engines.embedded.native.build import Build
from instar.engines.embedded.native.check import TOLERANCE, disagreement
from instar.engines.embedded.native.step import NativeStep
from instar.errors import ModelError
from tests.contract.conftest import lively
from tests.kit.native import needs_compiler, real_library
from tests.kit.tiny_model import write_tiny_model

CPU = torch.device("cpu")
NO_COMPILER = Build(compilers=("no-such-compiler",))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(
        lively(write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")), torch.bfloat16, CPU
    )


@pytest.fixture
def model(loaded: Model) -> Model:
    loaded.native = None
    return loaded


def attached(model: Model, mode: Any, **options: Any) -> list[Any]:
    """What was logged."""
    with capture_logs() as logs:
        attach.attach(model, mode, **options)
    return logs


def test_the_setting_is_auto_and_takes_three_values(tmp_path: Path) -> None:
    assert Settings(data_dir=tmp_path).engine.native == "auto"
    with pytest.raises(ValueError, match="native"):
        Settings(data_dir=tmp_path, engine={"native": "yes"})


@needs_compiler
@pytest.mark.parametrize("mode", ["auto", "on"])
def test_attached_with_the_fastest_instructions(model: Model, mode: str) -> None:
    logs = attached(model, mode)
    assert model.native is not None
    assert model.native.variant == max(Library(real_library()).variants)
    assert logs[-1]["event"] == "decode steps run natively"
    assert logs[-1]["instructions"] == model.native.variant.name.lower()


def test_off_neither_builds_nor_speaks(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Build, "library", lambda self: pytest.fail("built"))
    assert attached(model, "off") == []
    assert model.native is None


def test_auto_falls_back_with_one_line_and_on_refuses(model: Model) -> None:
    logs = attached(model, "auto", build=NO_COMPILER)
    assert model.native is None
    assert [log["event"] for log in logs] == ["decode steps run in torch"]
    assert "no C++ compiler" in logs[0]["because"]
    with pytest.raises(ModelError, match=r"engine.native = on, but there is no C\+\+ compiler"):
        attach.attach(model, "on", build=NO_COMPILER)
    assert model.native is None


def test_file_that_cannot_be_loaded_falls_back(
    model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "step.so").write_text("not a library")
    monkeypatch.setattr(Build, "library", lambda self: tmp_path / "step.so")
    assert "cannot be loaded" in attached(model, "auto")[0]["because"]


@needs_compiler
def test_instructions_that_are_not_there_fall_back(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "_variants", staticmethod(lambda found: 1))
    attached(model, "auto")
    assert model.native is not None
    assert model.native.variant == Variant.PORTABLE
    model.native = None
    assert "has no AMX" in attached(model, "auto", variant=Variant.AMX)[0]["because"]


def test_what_it_does_not_know_stays_in_torch(model: Model, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "wide")
    wide = load_model(folder, torch.float32, CPU)
    assert "float32" in attached(wide, "auto")[0]["because"]
    wide.lean = None
    assert "models like LlamaForCausalLM" in attached(wide, "auto")[0]["because"]


# ── the check against torch ─────────────────────────────────────────────────────────────────────────────


def _no_adapters(native: NativeStep, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(native, "prepare", lambda adapter: None)


def _other_norm(native: NativeStep, patch: pytest.MonkeyPatch) -> None:
    other = torch.linspace(0.5, 1.5, 64)
    native._keep.append(other)
    native._model.layer[1].norm_in = other.data_ptr()


def _other_angles(native: NativeStep, patch: pytest.MonkeyPatch) -> None:
    native._model.cos, native._model.sin = native._model.sin, native._model.cos


def _other_layer(native: NativeStep, patch: pytest.MonkeyPatch) -> None:
    native._model.layer[1].down = native._model.layer[0].down


def _not_a_number(native: NativeStep, patch: pytest.MonkeyPatch) -> None:
    native._model.eps = float("nan")


def _late(native: NativeStep, patch: pytest.MonkeyPatch) -> None:
    """Each row at the position of the one before."""
    decode = native._library.decode

    def late(of: Any, rows: Any, count: int, logits: int) -> None:
        for row in rows:
            row.position -= 1
        decode(of, rows, count, logits)

    patch.setattr(native._library, "decode", late)


FAULTS: list[Callable[[NativeStep, pytest.MonkeyPatch], None]] = [
    _no_adapters,
    _other_norm,
    _other_angles,
    _other_layer,
    _not_a_number,
    _late,
]


@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_step_that_computes_something_else_is_not_used(
    model: Model, monkeypatch: pytest.MonkeyPatch, fault: Callable[[NativeStep, pytest.MonkeyPatch], None]
) -> None:
    class Faulty(step.NativeStep):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            fault(self, monkeypatch)

    monkeypatch.setattr(attach, "NativeStep", Faulty)
    logs = attached(model, "auto")
    assert model.native is None
    assert "standard deviations off torch's" in logs[-1]["because"]


@needs_compiler
def test_agreement_leaves_room_to_the_bound(model: Model) -> None:
    assert model.lean is not None
    found = disagreement(model, NativeStep(model.lean, Library(real_library()), Variant.PORTABLE, 1))
    assert 0 < found < TOLERANCE / 2


# ── the structs ─────────────────────────────────────────────────────────────────────────────────────────


def test_structs_are_laid_out_as_the_compiler_does() -> None:
    """By the rules of C for these members, on every 64-bit machine."""
    sizes = {abi.Matrix: 32, abi.Layer: 160, abi.Model: 104, abi.Lora: 64, abi.Adapter: 16, abi.Row: 32}
    assert {struct: ctypes.sizeof(struct) for struct in sizes} == sizes


@needs_compiler
def test_adapters_are_laid_out_when_they_are_loaded(model: Model, tmp_path: Path) -> None:
    from tests.contract.conftest import write_adapter

    attached(model, "on")
    assert model.native is not None
    adapter = model.load_adapter("v1", write_adapter(tmp_path / "v1", 1), 16)
    assert adapter in model.native._adapters
