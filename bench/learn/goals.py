"""The figures to reach, each beside what was measured. What was not run is told apart from what was missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.learn.arms import FAST, OURS
from bench.learn.plan import FOLLOWABLE, ORACLE, PRODUCT
from bench.stats import difference

Figures = dict[str, Any]

LEAST_POINTS = -2.0
"""Of a hundred tasks, beside base."""
STANDARD_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class Goal:
    """`reached` is None where the cells that would tell were not run."""

    text: str
    measured: str
    reached: bool | None

    def json(self) -> Figures:
        return {"goal": self.text, "measured": self.measured, "reached": self.reached}


class Found:
    """Figures by what they are of."""

    def __init__(self, groups: Sequence[Figures]) -> None:
        self._groups = {(g["path"], g["judge"], g["user"], g["arm"]): g for g in groups if not g["settings"]}

    def ours(self) -> list[Figures]:
        """Every group of our own recipe under reactions that mean something."""
        return [g for g in self._groups.values() if g["arm"] == OURS]

    def look(self, path: str, judge: str, user: str, arm: str, mark: int) -> Figures | None:
        found = self._groups.get((path, judge, user, arm))
        return found["marks"].get(str(mark)) if found else None

    def marks(self, path: str, judge: str, user: str, arm: str) -> list[int]:
        found = self._groups.get((path, judge, user, arm))
        return sorted(map(int, found["marks"])) if found else []

    def places(self, arm: str, user: str) -> list[tuple[str, str]]:
        """(path, judge) where this arm was run with this user."""
        return [(path, judge) for path, judge, u, a in self._groups if (u, a) == (user, arm)]


def goals(groups: Sequence[Figures]) -> list[Goal]:
    found = Found(groups)
    return [
        *_kept(found),
        *_against_the_prompt(found),
        *_against_full_weights(found),
        *_unharmed(found),
        *_control(found),
    ]


def _kept(found: Found) -> Iterator[Goal]:
    wanted = [
        (user, judge, 32, least) for user in FOLLOWABLE for judge, least in ((ORACLE, 0.9), (PRODUCT, 0.85))
    ]
    wanted += [(user, judge, 16, 0.5) for user in FOLLOWABLE for judge in (ORACLE, PRODUCT)]
    wanted += [(user, ORACLE, 32, 0.8) for user in ("name_first+shows", "sign_off+shows")]
    wanted += [("opposite", ORACLE, 48, 0.8), ("korean", PRODUCT, 48, 0.6)]
    for user, judge, mark, least in wanted:
        text = f"{user}, {judge}: kept at {mark} at least {least}"
        yield from _each(
            found, text, user, judge, mark, lambda look, least=least: look["kept"]["share"] >= least
        )
    for user in FOLLOWABLE:
        for judge in (ORACLE, PRODUCT):
            for path, who in found.places(OURS, user):
                look = found.look(path, who, user, OURS, 32)
                if who == judge and look:
                    text = f"{user}, {judge}, {path}: KL on unrelated prompts at 32 at most .15"
                    yield Goal(text, f"{look['kl_most']:.3f}", look["kl_most"] <= 0.15)


def _each(found: Found, text: str, user: str, judge: str, mark: int, fine: Any) -> Iterator[Goal]:
    """The goal on every path on which it was run; once as not run where it was on none."""
    looks = [
        (path, found.look(path, who, user, OURS, mark))
        for path, who in found.places(OURS, user)
        if who == judge
    ]
    looks = [(path, look) for path, look in looks if look]
    if not looks:
        yield Goal(text, "not run", None)
    for path, look in looks:
        if look:
            yield Goal(f"{text} ({path})", span(look["kept"]), fine(look))


def _against_the_prompt(found: Found) -> Iterator[Goal]:
    for user in FOLLOWABLE:
        for path, judge in found.places(OURS, user):
            ours = found.look(path, judge, user, OURS, 64)
            theirs = found.look(path, judge, user, "system_prompt", 64)
            if ours and theirs:
                gap, low, high = difference(_k_n(ours["kept"]), _k_n(theirs["kept"]))
                text = (
                    f"{user}, {judge}, {path}: kept at 64 more than with the corrections in the system prompt"
                )
                yield Goal(text, f"{gap:+.2f} ({low:+.2f} to {high:+.2f})", gap > 0)


def _against_full_weights(found: Found) -> Iterator[Goal]:
    """To the level that the published recipe has when it ends, we need at most half of its interactions."""
    for user in FOLLOWABLE:
        theirs = found.marks(FAST, ORACLE, user, "published_full")
        ours = found.marks(FAST, ORACLE, user, OURS)
        if not (theirs and ours):
            continue
        last = found.look(FAST, ORACLE, user, "published_full", theirs[-1]) or {}
        level = last["kept"]["share"]
        reached = [
            m
            for m in ours
            if ((found.look(FAST, ORACLE, user, OURS, m) or {}).get("kept") or {}).get("share", -1) >= level
        ]
        text = f"{user}: at most half of the interactions of the published recipe as full weights"
        measured = (
            f"its {level:.2f} at {theirs[-1]}; ours at {reached[0] if reached else 'none of its marks'}"
        )
        yield Goal(text, measured, bool(reached) and reached[0] <= theirs[-1] / 2)


def _unharmed(found: Found) -> Iterator[Goal]:
    for group in found.ours():
        where = f"{group['user']}, {group['judge']}, {group['path']}"
        for mark, look in group["marks"].items():
            for name in ("coherent", "relevant"):
                if look.get(name) and look[name]["base"]["n"]:
                    yield Goal(
                        f"{where}: {name} at {mark}: lower bound at least .9 of base, at most"
                        f" {STANDARD_ERRORS:.0f} standard errors below",
                        f"{look[name]['share']:.2f}, base {look[name]['base']['share']:.2f}, lower bound of"
                        f" the ratio {look[name]['of_base']['lower95']}",
                        _is_unharmed(look[name]),
                    )
            tasks = look["tasks"]
            if tasks and "points" in tasks:
                text = f"{where}: tasks at {mark} at most {-LEAST_POINTS:.0f} points below base"
                yield Goal(text, f"{tasks['points']:+.1f}", tasks["points"] >= LEAST_POINTS)


def _is_unharmed(measure: Figures) -> bool:
    lower = measure["of_base"]["lower95"]
    p, n, base, m = measure["share"], measure["n"], measure["base"]["share"], measure["base"]["n"]
    error = (p * (1 - p) / n + base * (1 - base) / m) ** 0.5
    return lower is not None and lower >= 0.9 and p >= base - STANDARD_ERRORS * error


def _control(found: Found) -> Iterator[Goal]:
    for user in FOLLOWABLE:
        for path, judge in found.places("random", user):
            last = found.marks(path, judge, user, "random")[-1]
            look = found.look(path, judge, user, "random", last) or {}
            bound = (look["kept_by_base"]["share"] or 0.0) + 0.15
            text = f"{user}, {judge}, {path}: random reactions, upper bound at {last} at most base + .15"
            yield Goal(text, f"{look['kept']['high']:.2f}, bound {bound:.2f}", look["kept"]["high"] <= bound)


def _k_n(share: Figures) -> tuple[int, int]:
    return share["k"], share["n"]


def span(share: Figures | None) -> str:
    """`.94 (.85–.97)`; a dash where nothing was measured."""
    if not share or share["share"] is None:
        return "–"
    return f"{short(share['share'])} ({short(share['low'])}–{short(share['high'])})"


def short(value: float | None) -> str:
    """Two digits, without the zero in front."""
    return "–" if value is None else f"{value:.2f}".removeprefix("0")
