"""Give a loaded model its native decode step, where it can have one."""

from __future__ import annotations

from typing import Literal

import structlog
import torch

from instar.engines.embedded.model import Model
from instar.engines.embedded.native.abi import Library, Variant
from instar.engines.embedded.native.build import Build, NativeUnavailable
from instar.engines.embedded.native.check import TOLERANCE, disagreement
from instar.engines.embedded.native.step import NativeStep
from instar.errors import ModelError

log = structlog.get_logger("instar.engine")

Mode = Literal["auto", "on", "off"]
_LARGEST_HEAD = 1024  # what step.cpp has room for


def attach(model: Model, mode: Mode, *, variant: Variant | None = None, build: Build | None = None) -> None:
    """Set `model.native`, or leave it to torch and say why. Raises ModelError if it must be (`on`) and cannot.

    `variant` forces one set of instructions; None takes the fastest that the processor has.
    """
    if mode == "off":
        return
    try:
        model.native = _checked(model, variant, build or Build())
    except NativeUnavailable as why:
        if mode == "on":
            raise ModelError(f"engine.native = on, but {why}. 'auto' decodes in torch then.") from why
        log.info("decode steps run in torch", because=str(why))
        return
    step = model.native
    log.info(
        "decode steps run natively",
        instructions=step.variant.name.lower(),
        threads=step.threads,
        copied_mb=step.copied_bytes // 1_000_000,
    )


def _checked(model: Model, variant: Variant | None, build: Build) -> NativeStep:
    lean = model.lean
    if lean is None:
        raise NativeUnavailable(f"it does not know models like {type(model.network).__name__}")
    if model.device.type != "cpu" or lean.dtype != torch.bfloat16 or lean.dim > _LARGEST_HEAD:
        raise NativeUnavailable(f"it is for bf16 on a CPU, and this is {lean.dtype} on {model.device.type}")
    try:
        library = Library(build.library())
    except (OSError, AttributeError) as error:
        raise NativeUnavailable(f"what was built cannot be loaded ({error})") from error
    if variant is None:
        variant = max(library.variants)
    if variant not in library.variants:
        raise NativeUnavailable(f"this processor or compiler has no {variant.name}")
    step = NativeStep(lean, library, variant, torch.get_num_threads())
    off = disagreement(model, step)
    if not off <= TOLERANCE:
        raise NativeUnavailable(f"its numbers are {off:.2f} standard deviations off torch's")
    return step
