"""Fixtures of more than one file."""

from __future__ import annotations

import pytest


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds so small that prompts of a test are long."""
    from instar.trainers import policy

    monkeypatch.setattr(policy, "LONG", 12)
    monkeypatch.setattr(policy, "PREFILL_CHUNK", 16)
