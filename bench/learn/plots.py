"""Plots of the pooled figures, as PNG and SVG: the wish kept over interactions, and what it did to everything else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from bench.learn.arms import ARMS

Figures = dict[str, Any]

COLOURS = dict(zip(ARMS, plt.get_cmap("tab10").colors, strict=True))  # type: ignore[attr-defined]
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "instar"}
DPI = 130


def draw(groups: Sequence[Figures], folder: Path) -> list[Path]:
    """One pair of pictures for each path and judge, two files each. Returns what was written."""
    plain = [g for g in groups if not g["settings"]]
    written = []
    for path, judge in dict.fromkeys((g["path"], g["judge"]) for g in plain if ARMS[g["arm"]].talks):
        here = [
            g for g in plain if g["path"] == path and g["judge"] in (judge, "none") and g["arm"] != "nothing"
        ]
        with plt.rc_context(STYLE):
            written += _save(_kept(here), folder / f"learn-kept-{path}-{judge}")
            written += _save(_price(here), folder / f"learn-price-{path}-{judge}")
    return written


def _save(figure: Any, stem: Path) -> list[Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path, metadata in zip(paths, ({"Software": None}, {"Date": None}), strict=True):
        figure.savefig(path, dpi=DPI, bbox_inches="tight", metadata=metadata)
    plt.close(figure)
    return paths


def _panels(count: int, height: float) -> tuple[Any, list[Any]]:
    columns = min(3, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, height * rows), squeeze=False)
    flat = [axis for row in axes for axis in row]
    for spare in flat[count:]:
        spare.axis("off")
    return figure, flat[:count]


def _kept(groups: Sequence[Figures]) -> Any:
    """One panel a user: share of held-out answers that keep the wish, with 95 % intervals."""
    users = list(dict.fromkeys(g["user"] for g in groups))
    figure, axes = _panels(len(users), 3.0)
    for axis, user in zip(axes, users, strict=True):
        mine = [g for g in groups if g["user"] == user]
        for group in mine:
            _curve(axis, group)
        axis.set(title=user, ylim=(-0.03, 1.03), xlabel="interactions", ylabel="wish kept, held out")
        axis.set_xticks(sorted({0, *(int(m) for g in mine for m in g["marks"])}))
    _legend(figure, axes)
    return figure


def _curve(axis: Any, group: Figures) -> None:
    colour, looks = COLOURS[group["arm"]], {int(m): look for m, look in group["marks"].items()}
    if list(looks) == [0]:  # an arm that is looked at once: a level
        axis.axhline(looks[0]["kept"]["share"], color=colour, linestyle=":", label=group["arm"])
        return
    points = [(m, look["kept"]) for m, look in sorted(looks.items())]
    base = next(iter(looks.values()))["kept_by_base"]
    if base["n"]:
        points.insert(0, (0, base))
    x, share = [m for m, _ in points], [p["share"] for _, p in points]
    bars = [[p["share"] - p["low"] for _, p in points], [p["high"] - p["share"] for _, p in points]]
    axis.errorbar(x, share, yerr=bars, color=colour, marker="o", markersize=3, capsize=2, label=group["arm"])


MEASURES = ("kept", "coherent", "relevant", "tasks")


def _price(groups: Sequence[Figures]) -> Any:
    """One panel a measure at the last mark: a group of bars a user, a bar an arm, base as a line."""
    users, arms = (list(dict.fromkeys(g[k] for g in groups)) for k in ("user", "arm"))
    figure, axes = plt.subplots(
        len(MEASURES), 1, figsize=(max(6.0, 1.3 * len(users) + 3), 2.1 * len(MEASURES)), sharex=True
    )
    width = 0.8 / len(arms)
    for axis, name in zip(axes, MEASURES, strict=True):
        for group in groups:
            share, base = _measure(list(group["marks"].values())[-1], name)
            if share and share["n"]:
                x = users.index(group["user"]) + (arms.index(group["arm"]) + 0.5) * width - 0.4
                bars = [[share["share"] - share["low"]], [share["high"] - share["share"]]]
                label = group["arm"] if group["user"] == users[0] else None
                axis.bar(x, share["share"], width * 0.9, yerr=bars, color=COLOURS[group["arm"]], label=label,
                         error_kw={"linewidth": 0.7})  # fmt: skip
            if base and base["n"]:
                centre = users.index(group["user"])
                axis.plot([centre - 0.42, centre + 0.42], [base["share"]] * 2, color="black", linewidth=0.8)
        axis.set(ylim=(0, 1.03), ylabel=name)
    axes[-1].set_xticks(range(len(users)), users, rotation=20, ha="right")
    _legend(figure, list(axes))
    return figure


def _measure(look: Figures, name: str) -> tuple[Figures | None, Figures | None]:
    """A share at a look, and base's."""
    if name == "kept":
        return look.get("kept"), look.get("kept_by_base")
    if name == "tasks":
        return (look["tasks"]["all"], look["tasks"]["base"]) if look["tasks"] else (None, None)
    found = look.get(name)
    return (found, found["base"]) if found else (None, None)


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    named = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.tight_layout()
    figure.legend(
        named.values(), named.keys(), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=5, frameon=False
    )
