"""From hand-made cells to tables and goals: every figure here can be counted by hand."""

from __future__ import annotations

import io
from typing import Any

import pytest
from bench.learn import table
from bench.learn.figures import all_figures, base_plans
from bench.learn.goals import Goal, goals, span
from bench.learn.plan import make
from bench.learn.plots import draw
from bench.learn.table import print_all, print_comparison
from bench.stats import bootstrap_share, difference, interval
from rich.console import Console

from tests.kit.learn_cells import CODE, LONG, cell, look, row

BASE = [cell("nothing", seed) for seed in range(3)]


def _group(cells: list[dict[str, Any]], arm: str) -> dict[str, Any]:
    (found,) = [g for g in all_figures(cells) if g["arm"] == arm]
    return found


def test_seeds_are_pooled() -> None:
    cells = [*BASE, *(cell("combined", seed, {8: 10, 16: kept}) for seed, kept in enumerate((40, 30, 20)))]
    group = _group(cells, "combined")
    last = group["marks"]["16"]
    assert (last["kept"]["k"], last["kept"]["n"]) == (90, 120)
    assert last["kept"]["low"] < 0.75 < last["kept"]["high"]
    assert last["kept_by_seed"] == {"0": 1.0, "1": 0.75, "2": 0.5}
    assert (last["kept_by_base"]["k"], last["kept_by_base"]["n"]) == (0, 120)
    assert group["marks"]["8"]["kept"]["k"] == 30
    assert (group["seeds"], group["base_seeds"]) == ([0, 1, 2], [0, 1, 2])
    assert last["compute_s"] == 64.0
    assert (last["kl"], last["kl_most"]) == (0.016, 0.016)
    assert (last["prompt_tokens"], last["words"]) == (40, pytest.approx(10 * 0.75 + 14 * 0.25, abs=1))


def test_each_cell_is_named_with_its_code_and_settings() -> None:
    mine = cell("combined", 0, {8: 10})
    (about,) = _group([mine], "combined")["cells"]
    assert {name: about[name] for name in CODE} == CODE
    assert about["plan"] == mine["plan"]
    assert about["load"] == [1.0, 2.0]


def test_coherence_goes_by_the_floor_of_the_untouched_model() -> None:
    """Base's 120 answers have mean log-probs of −1.00 to −1.39, three of each: 5 % of them lie below −1.37."""
    mine = cell("combined", 0, {8: 40})
    for i, r in enumerate(mine["looks"][0]["heldout"]):
        r["mean_logp"] = -1.3 if i < 30 else -1.5
    last = _group([*BASE, mine], "combined")["marks"]["8"]
    assert (last["coherent"]["k"], last["coherent"]["n"]) == (30, 40)
    assert last["coherent"]["base"]["share"] == 0.95
    assert last["coherent"]["of_base"]["ratio"] == pytest.approx(0.75 / 0.95, abs=1e-3)


def test_without_the_untouched_model_nothing_is_made_up() -> None:
    last = _group([cell("combined", 0, {8: 40})], "combined")["marks"]["8"]
    assert "coherent" not in last
    assert last["kept_by_base"]["share"] is None
    assert last["relevant"]["of_base"]["lower95"] is None
    assert "points" not in last["tasks"]


def test_a_cell_is_held_against_base_on_its_own_path_and_questions() -> None:
    mine = cell("combined", 0, {8: 40}, path="api")
    stories = cell("combined", 0, {8: 40}, user="conditional")
    assert _group([*BASE, mine], "combined")["base_seeds"] == []
    assert _group([*BASE, stories], "combined")["base_seeds"] == []
    assert _group([cell("nothing", 0, path="api"), mine], "combined")["base_seeds"] == [0]
    assert [
        p.name
        for p in base_plans([make("fast", "oracle", "combined", u, 1) for u in ("conditional", "plain")])
    ] == [
        "fast-none-nothing-facts_and_stories-1",
        "fast-none-nothing-everyday-1",
    ]


def test_tasks_are_points_beside_base_and_essays_by_themselves() -> None:
    mine = cell("combined", 0, {8: 40}, solved=36)
    tasks = _group([BASE[0], mine], "combined")["marks"]["8"]["tasks"]
    assert (tasks["all"]["k"], tasks["base"]["k"], tasks["points"]) == (36, 30, 15.0)
    assert (tasks["essay"]["k"], tasks["essay"]["n"], tasks["essay"]["base"]) == (2, 6, 0.0)


def test_after_the_change_the_opposite_wish_is_what_counts() -> None:
    mine = cell("combined", 0, {8: 40, 16: 40}, user="opposite")
    assert [look["mark"] for look in mine["looks"]] == [8, 16]
    marks = _group([mine], "combined")["marks"]
    assert (marks["8"]["kept"]["k"], marks["16"]["kept"]["k"]) == (40, 0)


def test_verdicts_are_held_against_what_was_meant() -> None:
    judged = _group([cell("combined", 0, {8: 40})], "combined")["judge_figures"]
    assert (judged["reactions"], judged["silent"], judged["judged"], judged["wrong_sign"]) == (4, 1, 4, 1)


# ── intervals ─────────────────────────────────────────────────────────────────────────────────────────────
def test_an_interval_is_the_wider_of_two() -> None:
    alike = {f"q{i}": [i < 10] * 6 for i in range(20)}
    found = interval(alike)
    assert (found["k"], found["n"], found["share"]) == (60, 120, 0.5)
    low, high = bootstrap_share(alike)
    assert (found["low"], found["high"]) == (
        round(low, 4),
        round(high, 4),
    )  # one question's answers are one fact
    apart = {f"q{i}": [i < 60] for i in range(120)}
    assert found["high"] - found["low"] > 1.8 * (interval(apart)["high"] - interval(apart)["low"])  # type: ignore[operator]
    assert interval({})["share"] is None


def test_the_interval_of_a_difference_is_newcombes() -> None:
    """His example (d): 56 of 70 against 48 of 80, .2 with .0524 to .3339."""
    gap, low, high = difference((56, 70), (48, 80))
    assert (round(gap, 4), round(low, 4), round(high, 4)) == (0.2, 0.0524, 0.3339)


# ── goals ─────────────────────────────────────────────────────────────────────────────────────────────────
def _goals(cells: list[dict[str, Any]]) -> dict[str, Goal]:
    return {g.text: g for g in goals(all_figures(cells))}


def _ours(at_32: int = 38, **more: Any) -> list[dict[str, Any]]:
    return [cell("combined", s, {16: 30, 32: at_32, 64: 40}, **more) for s in range(3)]


def test_a_goal_is_reached_missed_or_not_run() -> None:
    text = "two_sentences, oracle: kept at 32 at least 0.9"
    assert _goals([*BASE, *_ours()])[f"{text} (fast)"].reached is True
    assert _goals([*BASE, *_ours(30)])[f"{text} (fast)"].reached is False
    assert _goals(BASE)[text].reached is None
    assert _goals([*BASE, *_ours()])["plain, oracle: kept at 32 at least 0.9"].reached is None


def test_we_are_held_against_the_system_prompt() -> None:
    text = "two_sentences, oracle, fast: kept at 64 more than with the corrections in the system prompt"
    theirs = [cell("system_prompt", s, {64: 12}) for s in range(3)]
    assert _goals([*_ours(), *theirs])[text].reached is True
    assert _goals([*_ours(), *[cell("system_prompt", s, {64: 40}) for s in range(3)]])[text].reached is False


def test_half_of_the_published_interactions() -> None:
    text = "two_sentences: at most half of the interactions of the published recipe as full weights"
    full = [cell("published_full", s, {16: 0, 64: 35}) for s in range(3)]
    assert _goals([*_ours(), *full])[text].reached is True
    better = [cell("published_full", s, {16: 0, 64: 39}) for s in range(3)]
    assert _goals([*_ours(), *better])[text].reached is False


def test_harm_is_a_miss_at_whatever_mark() -> None:
    hurt = _ours()
    for c in hurt:
        for r in c["looks"][0]["heldout"]:
            r["relevant"] = False
    missed = {text for text, goal in _goals([*BASE, *hurt]).items() if goal.reached is False}
    assert len([t for t in missed if ": relevant at 16:" in t]) == 1
    assert not [t for t in missed if ": relevant at 32:" in t]
    dull = _goals([*BASE, *_ours(solved=28)])
    assert all(g.reached is False for t, g in dull.items() if ": tasks at" in t)
    assert all(g.reached for t, g in _goals([*BASE, *_ours(solved=30)]).items() if ": tasks at" in t)


def test_the_control_may_hardly_rise() -> None:
    text = "two_sentences, oracle, fast: random reactions, upper bound at 64 at most base + .15"
    still, risen = ([cell("random", s, {64: kept}) for s in range(3)] for kept in (1, 10))
    assert _goals([*BASE, *still])[text].reached is True
    assert _goals([*BASE, *risen])[text].reached is False


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(table, "console", lambda: Console(file=text, width=200))
    return text


def _all() -> list[dict[str, Any]]:
    hinted = cell("hinted", 0)
    hinted["looks"][0] = look(0, 30)
    return [*BASE, hinted, *_ours(), *[cell("system_prompt", s, {16: 4, 32: 8, 64: 12}) for s in range(3)]]


def test_the_table_shows_every_arm_with_its_intervals(shown: io.StringIO) -> None:
    groups = all_figures(_all())
    print_all(groups, goals(groups))
    text = shown.getvalue()
    ours = groups[-2]["marks"]["32"]["kept"]
    for part in (
        "two_sentences · fast path",
        "(untouched)",
        "hinted",
        "system_prompt",
        span(ours),
        "not run",
        "reached",
    ):
        assert part in text
    assert span(ours).startswith(".95 (")


def test_a_comparison_needs_both_paths_and_tells_what_differs(shown: io.StringIO) -> None:
    print_comparison(all_figures(_all()))
    assert "nothing to compare" in shown.getvalue()
    print_comparison(all_figures([*_ours(), *_ours(10, path="api")]))
    lines = [line for line in shown.getvalue().splitlines() if ", 32" in line and " kept " in line]
    assert ["NO" in line for line in lines] == [True]
    lines = [line for line in shown.getvalue().splitlines() if ", 16" in line and " kept " in line]
    assert ["yes" in line for line in lines] == [True]


def test_plots_are_written_as_png_and_svg_and_are_the_same_every_time(tmp_path: Any) -> None:
    written = draw(all_figures(_all()), tmp_path / "a")
    assert sorted(p.name for p in written) == [
        "learn-kept-fast-oracle.png",
        "learn-kept-fast-oracle.svg",
        "learn-price-fast-oracle.png",
        "learn-price-fast-oracle.svg",
    ]
    again = draw(all_figures(_all()), tmp_path / "b")
    assert [p.read_bytes() for p in written] == [p.read_bytes() for p in again]


def test_a_row_of_the_kit_breaks_the_wish_as_it_says() -> None:
    assert row("q", LONG)["answer"].count(".") == 4
