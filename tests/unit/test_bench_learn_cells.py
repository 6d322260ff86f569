"""Cells are run once: for the same plan, the same code, by one process at a time. And which ones are asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench.learn.__main__ import chosen, main, options_of
from bench.learn.arms import ARMS
from bench.learn.cells import MISSING, RUNNING, STALE, THERE, Cells, fingerprint
from bench.learn.plan import MARKS, Plan, make
from bench.learn.running import run_cells, run_one
from bench.users import NAMES
from filelock import FileLock

from tests.kit.learn_cells import CODE, cell

PLAN = make("fast", "oracle", "combined", "plain", 0)


class Runner:
    """Counts what was run; the cell says which plan it is of."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, plan: Plan) -> dict[str, Any]:
        self.ran.append(plan.name)
        return {"looks": [], "talk": [], "wall_s": 1.0, "errors": 0, "updates": {}}


@pytest.fixture
def cells(tmp_path: Path) -> Cells:
    return Cells(tmp_path, CODE)


def test_a_cell_is_run_once(cells: Cells) -> None:
    run = Runner()
    first, second = cells.ensure(PLAN, run), cells.ensure(PLAN, run)
    assert run.ran == [PLAN.name]
    assert first is not None
    assert json.loads(json.dumps(first)) == second
    assert first["code"] == CODE
    assert Plan.of(first["plan"]) == PLAN


@pytest.mark.parametrize("changed", ["src", "bench"])
def test_a_cell_of_other_code_is_run_again(cells: Cells, changed: str) -> None:
    run = Runner()
    cells.ensure(PLAN, run)
    later = replace(cells, code={**CODE, changed: "other"})
    assert (cells.state(PLAN), later.state(PLAN)) == (THERE, STALE)
    later.ensure(PLAN, run)
    assert len(run.ran) == 2
    assert later.state(PLAN) == THERE


def test_another_commit_alone_changes_nothing(cells: Cells) -> None:
    run = Runner()
    cells.ensure(PLAN, run)
    replace(cells, code={**CODE, "commit": "other"}).ensure(PLAN, run)
    assert len(run.ran) == 1


def test_fresh_runs_again(cells: Cells) -> None:
    run = Runner()
    cells.ensure(PLAN, run)
    replace(cells, fresh=True).ensure(PLAN, run)
    assert len(run.ran) == 2


def test_a_cell_that_is_being_run_is_left_alone(cells: Cells) -> None:
    run = Runner()
    assert cells.state(PLAN) == MISSING
    with FileLock(cells.path(PLAN).with_suffix(".gz.lock")):
        assert cells.state(PLAN) == RUNNING
        assert cells.ensure(PLAN, run) is None
    assert cells.state(PLAN) == MISSING
    assert run.ran == []


def test_a_run_that_fails_leaves_no_cell_and_no_claim(cells: Cells) -> None:
    def fail(plan: Plan) -> dict[str, Any]:
        raise RuntimeError(plan.name)

    with pytest.raises(RuntimeError):
        cells.ensure(PLAN, fail)
    assert cells.state(PLAN) == MISSING
    assert cells.ensure(PLAN, Runner()) is not None


def test_one_failing_cell_does_not_stop_the_others(cells: Cells, capsys: pytest.CaptureFixture[str]) -> None:
    run, plans = Runner(), [replace(PLAN, seed=seed) for seed in range(3)]

    def work(plan: Plan) -> bool:
        if plan.seed == 1:
            raise RuntimeError("boom")
        return cells.ensure(plan, run) is not None

    run_cells(cells, plans, 1, work)
    assert [cells.state(p) for p in plans] == [THERE, MISSING, THERE]
    assert "RuntimeError: boom" in capsys.readouterr().out
    run_cells(cells, plans, 1, work)
    assert len(run.ran) == 2  # what was there was not run again


def test_cells_run_in_processes_of_their_own(cells: Cells, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that no model can serve fails in the worker, and the failure comes back by name."""
    plan = make("fast", "oracle", "nothing", "plain", 0, model="/nowhere/at/all")
    run_cells(cells, [plan], 2, partial(run_one, cells, None))
    assert f"{plan.name} FAILED: ModelError" in capsys.readouterr().out


# ── names and plans ───────────────────────────────────────────────────────────────────────────────────────
def test_plans_of_different_outcome_have_different_names() -> None:
    plans = [PLAN, *(replace(PLAN, **{k: v}) for k, v in (
        ("path", "api"), ("judge", "product"), ("arm", "random"), ("user", "bullets"), ("seed", 1), ("marks", (8,)),
        ("repeats", 1), ("max_tokens", 64), ("temperature", 1.0), ("tasks", False), ("model", "other"),
        ("settings", {"lr": 1e-4}), ("settings", {"lr": 2e-4}),
    ))]  # fmt: skip
    assert len({p.name for p in plans}) == len(plans)
    assert PLAN.name == "fast-oracle-combined-plain-0"
    assert Plan.of(json.loads(json.dumps(PLAN.json()))) == PLAN


def test_the_untouched_model_is_looked_at_once_for_all_users_of_its_questions() -> None:
    names = [
        make("fast", judge, "nothing", user, 0).name for judge in ("oracle", "product") for user in NAMES
    ]
    assert set(names) == {"fast-none-nothing-everyday-0", "fast-none-nothing-facts_and_stories-0"}
    assert make("fast", "oracle", "nothing", "plain", 0, marks=(8, 16)).marks == (0,)
    assert make("fast", "oracle", "hinted", "plain", 0).marks == (0,)


def test_users_who_change_or_speak_korean_are_looked_at_at_48_too() -> None:
    assert make("fast", "oracle", "combined", "opposite", 0).marks == (8, 16, 32, 40, 48, 64)
    assert make("fast", "oracle", "combined", "korean", 0).marks == (8, 16, 32, 48, 64)
    assert PLAN.marks == MARKS == (8, 16, 32, 64)


def test_settings_come_from_the_arm_and_from_the_plan() -> None:
    published = make("fast", "oracle", "published_lora", "plain", 3, settings={"lr": 1e-3})
    assert (published.train["lr"], published.train["batch_size"], published.train["seed"]) == (1e-3, 16, 3)
    assert make("api", "product", "system_prompt", "plain", 0).train["enabled"] is False


def test_the_full_form_asks_every_arm_and_every_user_with_three_seeds() -> None:
    plans = chosen(options_of(["--full"]))
    assert {p.arm for p in plans} == set(ARMS)
    assert {p.user for p in plans if p.how.talks} == set(NAMES)
    for name in {p.name.rsplit("-", 1)[0] for p in plans}:
        assert {f"{name}-{seed}" for seed in range(3)} <= {p.name for p in plans}
    assert not [p for p in plans if p.path == "api" and p.how.paths == ("fast",)]


def test_every_cell_brings_the_untouched_model_along() -> None:
    plans = chosen(
        options_of(["--arms", "combined", "--wishes", "conditional", "--seeds", "4", "--interactions", "12"])
    )
    assert [(p.arm, p.user, p.seed, p.marks) for p in plans] == [
        ("nothing", "facts_and_stories", 4, (0,)),
        ("combined", "conditional", 4, (8, 12)),
    ]


def test_the_short_form_is_small() -> None:
    plans = chosen(options_of(["--short"]))
    assert {p.path for p in plans} == {"fast"}
    assert max(p.interactions for p in plans) == 16
    assert len(plans) == 9


def test_only_the_full_form_writes_the_documents() -> None:
    assert options_of(["--full"]).results.name == "learn.json"
    assert options_of(["--short"]).results.parent.name == "raw"
    assert options_of(["--short"]).img.parent.name == "raw"


@pytest.mark.parametrize(
    "wrong", [["--arms", "magic"], ["--wishes", "nobody"], ["--path", "slow"], ["--short", "--full"]]
)
def test_unknown_names_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        options_of(wrong)


def test_what_is_stored_is_listed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = Cells.here(tmp_path)
    for made in (cell("nothing", 0), cell("combined", 0, {8: 30})):
        plan = Plan.of(made["plan"])
        assert here.ensure(
            plan, lambda _, made=made: {k: v for k, v in made.items() if k not in {"plan", "code"}}
        )
    asked = ["--arms", "combined", "--marks", "8", "--seeds", "0,1", "--cells", str(tmp_path)]
    assert main([*asked, "--list"]) == 0
    assert "2 there, 2 missing" in capsys.readouterr().out
    assert main([*asked, "--no-run"]) == 0
    assert "2 of 4 cells; not run: fast-none-nothing-everyday-1" in capsys.readouterr().out
    document = json.loads((tmp_path / "learn-figures.json").read_text("utf-8"))
    assert [g["arm"] for g in document["figures"]] == ["nothing", "combined"]
    assert len(document["not_run"]) == 2
    assert document["goals"]
    assert (tmp_path / "img" / "learn-kept-fast-oracle.svg").is_file()


def test_a_fingerprint_sees_names_and_bytes_of_all_files_but_caches(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.py").write_text("1")
    first = fingerprint("a", root=tmp_path)
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "x.pyc").write_text("2")
    assert fingerprint("a", root=tmp_path) == first
    (tmp_path / "a" / "x.py").write_text("2")
    second = fingerprint("a", root=tmp_path)
    (tmp_path / "a" / "x.py").rename(tmp_path / "a" / "y.py")
    assert len({first, second, fingerprint("a", root=tmp_path)}) == 3
