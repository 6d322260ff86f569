"""Methods: small files that turn judged samples into per-token weights. None of them knows torch or a model."""

from __future__ import annotations

from instar.errors import ConfigError
from instar.methods.binary_rl import BinaryRL
from instar.methods.combined import Combined
from instar.methods.opd import OnPolicyDistillation
from instar.ports import Method

_METHODS: dict[str, type[Method]] = {m.name: m for m in (BinaryRL, OnPolicyDistillation, Combined)}


def get_method(name: str) -> Method:
    """The method of that name. Raises ConfigError."""
    if name not in _METHODS:
        raise ConfigError(f"There is no method {name!r}; choose one of {', '.join(sorted(_METHODS))}.")
    return _METHODS[name]()
