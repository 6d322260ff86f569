"""What a run of the whole suite adds to pytest's own summary."""

from __future__ import annotations

from collections import Counter

import pytest

CHECKED_TURNS = "checked turns"
"""The property under which a test says how many stored turns it compared, one by one."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Turns that real clients had and that were stored exactly as wanted, and in how many scenarios."""
    turns: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == CHECKED_TURNS:
                turns[report.nodeid.partition("[")[0]] += value
    if turns:
        terminalreporter.write_line(
            f"{turns.total()} turns of real clients stored exactly, in {len(turns)} scenarios"
        )
