"""From raw cells to figures, and from figures to the verdict: hand-made cells whose figures are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench.figures import judge_figures, kill_figures, latency_figures, learning_figures, serving_times
from bench.first_light import Results, options_of
from bench.learning_arm import long_notes
from bench.prompts import HELDOUT
from bench.report import goals, print_arm

SHORT = "Put it in a sunny place. Water it twice a week."
LONG = "Put it in a sunny place. Water it twice. Turn it around. Cut it back."


def _row(question: str, answer: str, **more: Any) -> dict[str, Any]:
    row = {"question": question, "answer": answer, "version": "v1", "finish_reason": "stop", "error": None}
    return {**row, "mean_logp": -1.2, "relevant": True, **more}


def _turn(number: int, meant: int, score: int | None) -> dict[str, Any]:
    return {
        "answer": {"turn": f"t{number}"},
        "reacted_at": 100.0 + number,
        "reaction": f"reaction {number}",
        "meant": meant,
        "score": score,
        "kept": meant == 1,
    }


def _cell(seed: int, after: str = SHORT, after_more: dict[str, Any] | None = None) -> dict[str, Any]:
    asked = [q for q in HELDOUT[:20] for _ in range(2)]
    before = [_row(q, LONG, mean_logp=-1.0 - i / 100, version="base") for i, q in enumerate(asked)]
    return {
        "seed": seed,
        "before": before,
        "before_first_two": before[:10],
        "after": [_row(q, after, **(after_more or {})) for q in asked],
        "talk": [_turn(i, 1 if i > 5 else -1, 1 if i > 5 else -1) for i in range(12)],
        "versions": [
            {"name": "v2", "turn_ids": ["t8", "t9", "t10"], "metrics": {}, "gate": {}},
            {"name": "v1", "turn_ids": [f"t{i}" for i in range(8)], "metrics": {"seconds": 21.0}, "gate": {}},
        ],
        "served_at": {"base": 90.0, "v1": 137.0, "v2": 190.0},
        "settled": True,
        "status": {"training": {"updates": 2, "batch_size": 8}, "counts": {"reasons": {}}},
        "failed_requests": 0,
        "wall_s": 600.0,
    }


def test_the_figures_pool_the_seeds() -> None:
    figures = learning_figures([_cell(0), _cell(1, after=LONG), _cell(2)])
    kept = figures["pooled"]["kept"]
    assert kept["before"] == {"k": 0, "n": 120, "share": 0.0, "lower95": 0.0, "upper95": 0.022}
    assert (kept["after"]["k"], kept["after"]["n"]) == (80, 120)
    assert [line["kept"]["after"]["share"] for line in figures["per_seed"].values()] == [1.0, 0.0, 1.0]


def test_coherence_is_relative_to_the_bases_own_answers() -> None:
    bad = learning_figures([_cell(0, after_more={"mean_logp": -2.0})])["pooled"]["coherent"]
    assert (bad["before"]["share"], bad["after"]["share"]) == (0.95, 0.0)
    good = learning_figures([_cell(0)])["pooled"]["coherent"]
    assert good["of_base"]["ratio"] == pytest.approx(1 / 0.95, abs=1e-3)


def test_serving_time_runs_from_the_last_reaction_of_the_batch() -> None:
    v2, v1 = serving_times(_cell(0))
    assert (v1["version"], v1["seconds"], v1["full"], v1["compute_s"]) == ("v1", 30.0, True, 21.0)
    assert (v2["seconds"], v2["full"], v2["turns"]) == (80.0, False, 3)


def test_a_wrong_sign_is_told_from_an_abstention() -> None:
    talk = [_turn(0, 1, 1), _turn(1, -1, 1), _turn(2, -1, None), _turn(3, 1, 0), _turn(4, -1, -1)]
    found = judge_figures(talk)
    assert (found["agree"]["k"], found["agree"]["n"]) == (2, 5)
    assert (found["agree_when_it_spoke"]["k"], found["agree_when_it_spoke"]["n"]) == (2, 3)
    assert (found["wrong_sign"], found["abstained"]) == (1, 2)
    assert found["wrong_texts"] == ["reaction 1"]


def test_the_verdict_is_missed_when_one_figure_is() -> None:
    reached = goals("learn", learning_figures([_cell(i) for i in range(3)]))
    assert all(reached.values())
    spoilt = goals("learn", learning_figures([_cell(0), _cell(1, after=LONG), _cell(2)]))
    assert [name for name, ok in spoilt.items() if not ok] == [
        "kept after at least .8, pooled",
        "kept after at least .8, every seed",
    ]
    off = goals("learn", learning_figures([_cell(i, after_more={"relevant": False}) for i in range(3)]))
    assert [name for name, ok in off.items() if not ok] == ["relevance at least .9 of base's (lower bound)"]


def test_the_control_is_missed_when_it_learned_the_wish() -> None:
    (reached,) = goals("random", learning_figures([_cell(0, after=LONG)])).values()
    (missed,) = goals("random", learning_figures([_cell(0)])).values()
    assert (reached, missed) == (True, False)


def _latency_cell(times: list[float], updates: int, error: str | None = None) -> dict[str, Any]:
    rows = [{"version": "v1", "first_s": 0.1, "total_s": t, "error": None} for t in times]
    rows += [{"version": None, "first_s": None, "total_s": 0.0, "error": error}] if error else []
    status = {"training": {"updates": updates}}
    return {"requests": rows, "talk_failures": [], "two_versions": 0, "status": status}


def test_slow_requests_are_counted_against_twice_the_median() -> None:
    trained = _latency_cell([1.0] * 96 + [2.5] * 4, 5, error="boom")
    quiet = _latency_cell([1.0] * 99 + [2.5], 0)
    found = latency_figures(trained, quiet)
    assert found["points_more_while_training"] == 3.0
    assert found["training"]["failures"] == 1
    assert found["training"]["requests"] == 101


def test_the_verdict_on_latency_wants_every_part() -> None:
    good = latency_figures(_latency_cell([1.0] * 1000, 5), _latency_cell([1.0] * 1000, 0))
    assert all(goals("latency", good).values())
    few = latency_figures(_latency_cell([1.0] * 999, 4), _latency_cell([1.0] * 999, 0))
    assert list(goals("latency", few).values()) == [False, False, True, True, True]
    failing = latency_figures(_latency_cell([1.0] * 999, 5, "boom"), _latency_cell([1.0] * 1000, 0))
    assert not goals("latency", failing)["no failures"]
    nothing = latency_figures(_latency_cell([], 5), _latency_cell([], 0))
    assert not goals("latency", nothing)["at most one point more slow requests"]


def test_the_verdict_on_kills_is_missed_when_nothing_was_trained_on() -> None:
    names = ("acknowledged", "lost", "doubled", "changed", "uses", "double_uses", "turns_in_two_updates")
    audit = {**dict.fromkeys(names, 0), "acknowledged": 9, "uses": 16, "database": "ok"}
    kills = [
        {"who": who, "update_running": True, "back_s": 1.0} for who in ("server", "trainer") for _ in range(5)
    ]
    cell = {"audit": audit, "kills": kills, "status": {"training": {"updates": 1}}}
    assert all(goals("kill", kill_figures([cell])).values())
    for name, value in (("lost", 1), ("uses", 0), ("double_uses", 1), ("database", "page 3 is broken")):
        spoilt = {**cell, "audit": {**audit, name: value}}
        assert sum(not ok for ok in goals("kill", kill_figures([spoilt])).values()) == 1, name


def test_a_uniform_slowdown_shows_in_the_strict_comparison() -> None:
    found = latency_figures(_latency_cell([2.5] * 100, 5), _latency_cell([1.0] * 100, 0))
    assert found["points_more_while_training"] == 0.0
    assert found["points_more_while_training_strict"] == 100.0
    assert found["median_ratio"] == 2.5


def test_kills_are_added_up() -> None:
    kill = {"who": "trainer", "update_running": True, "back_s": 2.0}
    names = ("acknowledged", "lost", "doubled", "changed", "uses", "double_uses", "turns_in_two_updates")
    cell = {
        "audit": {**dict.fromkeys(names, 1), "database": "ok"},
        "kills": [kill, {**kill, "who": "server", "update_running": False}],
        "status": {"training": {"updates": 3}},
    }
    found = kill_figures([cell, cell])
    assert (found["lost"], found["kills_of_trainer"], found["of_them_during_an_update_trainer"]) == (2, 2, 2)
    assert (found["kills_of_server"], found["of_them_during_an_update_server"]) == (2, 0)


def test_a_stored_cell_is_used_again_only_for_the_same_code_and_plan(tmp_path: Path) -> None:
    path, ran = tmp_path / "r.json", list[int]()

    def run() -> dict[str, Any]:
        ran.append(1)
        return {"wall_s": 1.0}

    Results(path, fresh=False).cell("learn-0", {"a": 1}, run)
    Results(path, fresh=False).cell("learn-0", {"a": 1}, run)
    assert len(ran) == 1
    Results(path, fresh=False).cell("learn-0", {"a": 2}, run)
    assert len(ran) == 2
    Results(path, fresh=True).cell("learn-0", {"a": 2}, run)
    assert len(ran) == 3
    stored = tmp_path / "raw" / "r-learn-0.json"
    cell = json.loads(stored.read_text("utf-8"))
    stored.write_text(json.dumps({**cell, "source": {"commit": "x", "src": "another"}}), "utf-8")
    Results(path, fresh=False).cell("learn-0", {"a": 2}, run)
    assert len(ran) == 4


def test_an_arm_leaves_the_figures_of_the_others(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.json", fresh=False)
    results.merge("kill", [{"plan": {}}], {"lost": 0})
    results.merge("learn", [{"plan": {}}], {"x": 1})
    arms = json.loads((tmp_path / "r.json").read_text("utf-8"))["arms"]
    assert {name: arm["figures"] for name, arm in arms.items()} == {"kill": {"lost": 0}, "learn": {"x": 1}}


def test_a_smoke_run_never_overwrites_the_real_results() -> None:
    assert options_of(["--quick"]).results.name == "quick.json"
    assert options_of([]).results.name == "first_light.json"
    assert options_of(["--seeds", "2"]).seed == [0, 1]
    assert options_of(["--seed", "4", "--seed", "7"]).seed == [4, 7]


def test_the_report_says_what_was_missed(capsys: pytest.CaptureFixture[str]) -> None:
    print_arm("learn", learning_figures([_cell(0, after=LONG)]))
    printed = capsys.readouterr().out
    assert "missed" in printed
    assert "kept after at least .8, pooled" in printed


def test_long_notes_are_as_long_as_asked_and_never_the_same() -> None:
    one, two = long_notes(2100, "a"), long_notes(2100, "b")
    assert one != two
    assert 2100 * 3.8 < len(one) < 2100 * 4.1
    assert one.endswith(".")
