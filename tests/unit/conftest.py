"""Fixtures of more than one file."""

from __future__ import annotations

import pytest


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window so small that prompts of a test are long."""
    from instar.trainers import policy

    monkeypatch.setattr(policy, "WINDOW", 8)
    monkeypatch.setattr(policy, "LEAST_PREFIX", 4)
    monkeypatch.setattr(policy, "PREFILL_CHUNK", 16)
