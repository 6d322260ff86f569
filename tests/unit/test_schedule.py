"""When an update may start, and what is said while it may not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from instar.config import TrainSettings
from instar.flow.schedule import in_words, why_later

BERLIN = ZoneInfo("Europe/Berlin")


def train(**settings: Any) -> TrainSettings:
    return TrainSettings(**settings)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(clock: str, day: int = 15, month: int = 1) -> float:
    hour, minute = map(int, clock.split(":"))
    return datetime(2026, month, day, hour, minute, tzinfo=BERLIN).timestamp()


def test_always_is_always() -> None:
    assert why_later(train(), now=100.0, served_at=100.0) is None


@pytest.mark.parametrize(
    ("served_at", "why"),
    [
        (None, None),
        (39.9, None),
        (40.0, None),
        (41.0, "waits for quiet: last request 59 s ago"),
        (97.0, "waits for quiet: last request 3 s ago"),
        (100.0, "waits for quiet: a request is being answered"),
        (100.5, "waits for quiet: a request is being answered"),
        (103.0, "waits for quiet: last request 3 s ago"),
        (100.0 + 86400.0, None),
    ],
)
def test_idle_waits_for_quiet(served_at: float | None, why: str | None) -> None:
    assert why_later(train(mode="idle", idle_s=60), now=100.0, served_at=served_at) == why


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("hours", "clock", "why"),
    [
        ("02:00-06:00", "01:59", "waits for 02:00"),
        ("02:00-06:00", "02:00", None),
        ("02:00-06:00", "05:59", None),
        ("02:00-06:00", "06:00", "waits for 02:00"),
        ("22:30-06:00", "22:29", "waits for 22:30"),
        ("22:30-06:00", "22:30", None),
        ("22:30-06:00", "00:00", None),
        ("22:30-06:00", "05:59", None),
        ("22:30-06:00", "06:00", "waits for 22:30"),
    ],
)
def test_hours_are_local_and_may_pass_midnight(hours: str, clock: str, why: str | None) -> None:
    for month in (1, 7):  # with and without summer time
        assert why_later(train(mode="hours", hours=hours), at(clock, month=month), None) == why


@pytest.mark.parametrize(
    "hours", ["2:00-6:00", "02:00", "02:00-02:00", "24:00-06:00", "02:60-03:00", "", "02:00-06:00 "]
)
def test_hours_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(ValidationError, match="24-hour clock"):
        train(mode="hours", hours=hours)


def test_each_mode_in_words() -> None:
    assert in_words(train()) == "always"
    assert in_words(train(mode="idle", idle_s=90)) == "after 90 s without a request"
    assert in_words(train(mode="hours", hours="22:00-06:00")) == "between 22:00 and 06:00"
