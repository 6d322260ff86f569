"""When an update may start: always, after a while without requests, or within some hours of the day.

It is about beginning. An update that has begun is finished, also when requests come back, the hours end, or the server
is started again: half an update is worth nothing, and it takes only the time that answers leave.
"""

from __future__ import annotations

import time

from instar.config import TrainSettings


def why_later(train: TrainSettings, now: float, served_at: float | None) -> str | None:
    """What it waits for, in words; None if an update may start now.

    `now` and `served_at`, the end of the last answer, in wall seconds; the latter counts in the mode `idle` alone, and
    is None if there was none. A date that was set back must not wait for the old one to come again: what lies ahead of
    now counts as if it lay as far behind.
    """
    if train.mode == "idle" and served_at is not None:
        return _until_quiet(abs(now - served_at), train.idle_s)
    if train.mode == "hours":
        return _until_hours(now, train.hours)
    return None


def _until_quiet(quiet_s: float, wanted_s: float) -> str | None:
    if quiet_s >= wanted_s:
        return None
    if quiet_s < 1:
        return "waits for quiet: a request is being answered"
    return f"waits for quiet: last request {quiet_s:.0f} s ago"


def _until_hours(now: float, hours: str) -> str | None:
    """`hours` as in the settings, in local time; they may pass midnight."""
    begin, end = hours.split("-")
    clock = time.strftime("%H:%M", time.localtime(now))
    within = begin <= clock < end if begin < end else clock >= begin or clock < end
    return None if within else f"waits for {begin}"


def in_words(train: TrainSettings) -> str:
    """The mode, as a person reads it."""
    return {
        "always": "always",
        "idle": f"after {train.idle_s:g} s without a request",
        "hours": f"between {train.hours.replace('-', ' and ')}",
    }[train.mode]
