"""What is printed: the figures of one arm beside the figures to reach."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

Figures = dict[str, Any]


def print_arm(arm: str, figures: Figures) -> None:
    console = Console(width=110)
    console.rule(arm)
    kind = arm.split("-")[0]
    show = {"learn": _learn, "random": _learn, "latency": _latency, "longprompt": _longprompt,
            "agentprompt": _longprompt, "kill": _kill}  # fmt: skip
    show[kind](console, figures)
    for goal, reached in goals(kind, figures).items():
        console.print(f"{'reached' if reached else '[red]missed[/red] '}  {goal}")


def _learn(console: Console, figures: Figures) -> None:
    pooled = figures["pooled"]
    table = Table(box=None, header_style="bold")
    for column in ("share", "before", "after", "after, 95 % bounds", "of base's (lower 95 %)"):
        table.add_column(column)
    for name in ("kept", "coherent", "relevant", "kept_and_relevant", "cut"):
        row = pooled[name]
        after, of_base = row["after"], row.get("of_base")
        bounds = f"{_two(after['lower95'])} to {_two(after['upper95'])}"
        relative = f"{_two(of_base['ratio'])} ({_two(of_base['lower95'])})" if of_base else ""
        table.add_row(name, _two(row["before"]["share"]), _two(after["share"]), bounds, relative)
    console.print(table)
    for seed, line in figures["per_seed"].items():
        served = ", ".join(line["served_after"])
        console.print(
            f"seed {seed}: kept {_two(line['kept']['before']['share'])} → {_two(line['kept']['after']['share'])}"
            f" under {served}; {line['updates']} updates; {_two(line['words_after'])} words an answer;"
            f" KL to base {_kl(line['gate'])}; {line['wall_s']} s"
        )
    judge = figures["judge"]
    console.print(
        f"judge: agrees with the user {_two(judge['agree']['share'])}, wrong sign {judge['wrong_sign']},"
        f" abstained {judge['abstained']} of {judge['agree']['n']}"
    )
    console.print(f"from the filling reaction to serving, s: {figures['seconds_to_serve']['full_batches']}")


def goals(kind: str, figures: Figures) -> dict[str, bool]:
    """The figures to reach in an arm, each with whether it was. A figure that is missing was not reached."""
    of_arm = {"learn": _learn_goals, "random": _random_goals, "latency": _latency_goals,
              "longprompt": _longprompt_goals, "agentprompt": _longprompt_goals, "kill": _kill_goals}  # fmt: skip
    return of_arm[kind](figures)


def _learn_goals(figures: Figures) -> dict[str, bool]:
    pooled, lines = figures["pooled"], figures["per_seed"].values()
    slowest = figures["seconds_to_serve"]["full_batches"]["max"]
    return {
        "kept before at most .1": pooled["kept"]["before"]["share"] <= 0.1,
        "kept after at least .8, pooled": pooled["kept"]["after"]["share"] >= 0.8,
        "kept after at least .8, every seed": all(ln["kept"]["after"]["share"] >= 0.8 for ln in lines),
        "at least 3 seeds": len(figures["seeds"]) >= 3,
        "coherence at least .9 of base's (lower bound)": _at_least(pooled["coherent"], 0.9),
        "relevance at least .9 of base's (lower bound)": _at_least(pooled["relevant"], 0.9),
        "no failed request": figures["failed_requests"] == 0,
        "slowest full batch served within 60 s": _within(slowest, 60),
    }


def _random_goals(figures: Figures) -> dict[str, bool]:
    kept = figures["pooled"]["kept"]
    return {"upper 95 % bound at most base + .15": kept["after"]["upper95"] <= kept["before"]["share"] + 0.15}


def _latency_goals(figures: Figures) -> dict[str, bool]:
    run = figures["training"]
    return {
        "at least 1,000 requests": run["requests"] >= 1000,
        "during at least 5 updates": run["updates"] >= 5,
        "no failures": run["failures"] == 0 and run["talk_failures"] == 0,
        "no responses of two versions": run["two_versions"] == 0,
        "at most one point more slow requests": _within(figures.get("points_more_while_training"), 1.0),
    }


def _longprompt_goals(figures: Figures) -> dict[str, bool]:
    prompts, times = figures["prompt_tokens"]["median"], figures["full_batches"]["max"]
    return {
        "prompts of about 2,100 tokens": prompts is not None and 2000 <= prompts <= 2300,
        "slowest full batch served within 180 s": _within(times, 180),
        "no failed request": figures["failed_requests"] == 0,
    }


def _kill_goals(figures: Figures) -> dict[str, bool]:
    return {
        "five kills of each": min(figures["kills_of_server"], figures["kills_of_trainer"]) >= 5,
        "nothing acknowledged was lost, doubled or changed":
            figures["lost"] == figures["doubled"] == figures["changed"] == 0 < figures["acknowledged"],
        "updates were made, no use was committed twice":
            figures["double_uses"] == figures["turns_in_two_updates"] == 0 < figures["uses"],
        "the database is whole": figures["database"] == ["ok"],
    }  # fmt: skip


def _at_least(measure: Figures, bound: float) -> bool:
    lower = measure["of_base"]["lower95"]
    return lower is not None and lower >= bound


def _within(value: float | None, bound: float) -> bool:
    return value is not None and value <= bound


def _latency(console: Console, figures: Figures) -> None:
    for name in ("training", "no_training"):
        run = figures[name]
        console.print(
            f"{name}: {run['requests']} requests, {run['failures']} failed, {run['two_versions']} of two versions,"
            f" {run['updates']} updates, median {run['total_s']['median']} s, p95 {run['total_s']['p95']} s"
        )
    for name in ("share_slower_than_twice_own_median", "points_more_while_training",
                 "points_more_while_training_strict", "median_ratio"):  # fmt: skip
        console.print(f"{name}: {figures.get(name)}")


def _longprompt(console: Console, figures: Figures) -> None:
    console.print(f"prompt tokens: {figures['prompt_tokens']}")
    console.print(f"full batches, s: {figures['full_batches']} (to reach: at most 180)")


def _kill(console: Console, figures: Figures) -> None:
    for name, value in figures.items():
        console.print(f"{name}: {value}")


def _kl(checks: Figures | None) -> str:
    """Nats a token on unrelated prompts, as the product's own gate measured it for the last version."""
    value = ((checks or {}).get("kl") or {}).get("value")
    return "–" if value is None else f"{value:.3f}"


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
