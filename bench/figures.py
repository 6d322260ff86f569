"""From raw cells to the figures of the report. Nothing here talks to a server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from bench.measures import coherent, logp_floor
from bench.stats import Groups, percentile, ratio, share, summary
from bench.text import sentences, words
from bench.users import WISHES

Cell = dict[str, Any]
Row = dict[str, Any]


# ── learning: the wish kept, and what it cost ─────────────────────────────────────────────────────────
def learning_figures(cells: Sequence[Cell], wish: str = "two_sentences") -> dict[str, Any]:
    """Pooled over seeds, with one line per seed. The coherence floor is taken from all base answers."""
    floor = logp_floor([r["mean_logp"] for c in cells for r in c["before"] if r["mean_logp"] is not None])
    check = WISHES[wish].check
    before = [r for c in cells for r in c["before"]]
    after = [r for c in cells for r in c["after"]]
    return {
        "seeds": [c["seed"] for c in cells],
        "coherence_floor_logp": round(floor, 4),
        "pooled": _compare(before, after, check, floor),
        "per_seed": {str(c["seed"]): _seed_line(c, check, floor) for c in cells},
        "base_cut_after_two_sentences": _yardstick([r for c in cells for r in c["before_first_two"]], floor),
        "judge": judge_figures([t for c in cells for t in c["talk"]]),
        "other_wishes": {
            name: {"before": share([other.check(r["answer"]) for r in before]).json(),
                   "after": share([other.check(r["answer"]) for r in after]).json()}
            for name, other in WISHES.items() if name != wish
        },
        "seconds_to_serve": {
            "full_batches": summary([s["seconds"] for c in cells for s in serving_times(c) if s["full"]]),
            "smaller_batches": summary([s["seconds"] for c in cells for s in serving_times(c) if not s["full"]]),
        },
        "failed_requests": sum(c["failed_requests"] for c in cells),
    }  # fmt: skip


def _compare(
    before: Sequence[Row], after: Sequence[Row], check: Callable[[str], bool], floor: float
) -> dict[str, Any]:
    flags = {
        "kept": lambda r: check(r["answer"]),
        "coherent": lambda r: coherent(r["answer"], r["mean_logp"], floor),
        "relevant": lambda r: bool(r["relevant"]),
        "kept_and_relevant": lambda r: check(r["answer"]) and bool(r["relevant"]),
        "cut": lambda r: r["finish_reason"] == "length",
    }
    found: dict[str, Any] = {}
    for name, flag in flags.items():
        found[name] = {
            "before": share([flag(r) for r in before]).json(),
            "after": share([flag(r) for r in after]).json(),
        }
        if name in {"coherent", "relevant"}:
            found[name]["of_base"] = ratio(_grouped(after, flag), _grouped(before, flag))
    for when, rows in (("before", before), ("after", after)):
        found[f"words_{when}"] = summary([float(len(words(r["answer"]))) for r in rows])
        found[f"sentences_{when}"] = summary([float(sentences(r["answer"])) for r in rows])
    return found


def _yardstick(rows: Sequence[Row], floor: float) -> dict[str, Any]:
    """What the untouched model's words are worth at that length: shortness alone costs relevance."""
    return {
        "coherent": share([coherent(r["answer"], r["mean_logp"], floor) for r in rows]).json(),
        "relevant": share([bool(r["relevant"]) for r in rows]).json(),
    }


def _grouped(rows: Sequence[Row], flag: Callable[[Row], bool]) -> Groups:
    groups: Groups = defaultdict(list)
    for row in rows:
        groups[row["question"]].append(flag(row))
    return dict(groups)


def _seed_line(cell: Cell, check: Callable[[str], bool], floor: float) -> dict[str, Any]:
    line = _compare(cell["before"], cell["after"], check, floor)
    halves = [t["kept"] for t in cell["talk"]]
    last = cell["versions"][0] if cell["versions"] else {}
    return {
        **{name: line[name] for name in ("kept", "coherent", "relevant", "cut")},
        "words_after": line["words_after"]["mean"],
        "kept_while_talking": {"first_half": _mean(halves[: len(halves) // 2]),
                               "second_half": _mean(halves[len(halves) // 2 :])},
        "interactions": len(cell["talk"]),
        "versions": len(cell["versions"]),
        "updates": cell["status"]["training"]["updates"],
        "not_learned": cell["status"]["counts"].get("reasons", {}),
        "served_after": sorted({r["version"] for r in cell["after"] if r["version"]}),
        "gate": (last.get("gate") or {}).get("checks"),
        "seconds_to_serve": serving_times(cell),
        "settled": cell["settled"],
        "wall_s": cell["wall_s"],
    }  # fmt: skip


def _mean(flags: Sequence[bool]) -> float | None:
    return round(sum(flags) / len(flags), 3) if flags else None


def serving_times(cell: Cell) -> list[dict[str, Any]]:
    """Per version: seconds from the reaction that filled its batch to the version being served.

    `full` batches are those of the configured size; smaller ones waited for quiet first.
    """
    reacted = {t["answer"]["turn"]: t["reacted_at"] for t in cell["talk"]}
    size = cell["status"]["training"]["batch_size"]
    found = []
    for version in cell["versions"]:
        times = [reacted[turn] for turn in version["turn_ids"] if turn in reacted]
        seen = cell["served_at"].get(version["name"])
        if times and seen is not None:
            full = len(version["turn_ids"]) >= size
            found.append(
                {"version": version["name"], "seconds": round(seen - max(times), 2), "full": full,
                 "turns": len(version["turn_ids"]), "compute_s": _compute_seconds(version)}
            )  # fmt: skip
    return found


def _compute_seconds(version: Row) -> float | None:
    seconds = version.get("metrics", {}).get("seconds")
    return round(float(seconds), 2) if isinstance(seconds, int | float) else None


# ── the judge against what the user meant ─────────────────────────────────────────────────────────────
def judge_figures(talk: Sequence[Row]) -> dict[str, Any]:
    """`score` +1/−1 is a verdict; 0 and None abstain. A wrong sign is worse than an abstention."""
    verdicts = [(t["meant"], t["score"]) for t in talk if t["answer"]["turn"]]
    spoke = [(meant, score) for meant, score in verdicts if score in (1, -1)]
    wrong = [t["reaction"] for t in talk if t["score"] in (1, -1) and t["score"] != t["meant"]]
    abstained = [t["reaction"] for t in talk if t["answer"]["turn"] and t["score"] not in (1, -1)]
    return {
        "agree": share([score == meant for meant, score in verdicts]).json(),
        "agree_when_it_spoke": share([score == meant for meant, score in spoke]).json(),
        "wrong_sign": len(wrong),
        "abstained": len(abstained),
        "wrong_texts": sorted(set(wrong))[:20],
        "abstained_texts": sorted(set(abstained))[:20],
    }


# ── latency: does serving feel the training? ──────────────────────────────────────────────────────────
def latency_figures(trained: Cell, quiet: Cell) -> dict[str, Any]:
    """`trained` with updates, `quiet` with train.enabled = false; the same clients in both.

    Slow is: more than twice the median, once of its own run, once (stricter) of the quiet run.
    """
    runs = {"training": trained, "no_training": quiet}
    times = {name: [r["total_s"] for r in cell["requests"] if not r["error"]] for name, cell in runs.items()}
    found: dict[str, Any] = {name: _one_run(cell) for name, cell in runs.items()}
    if not all(times.values()):
        return found
    median = {name: percentile(values, 50) for name, values in times.items()}
    own = {name: _slow(values, 2 * median[name]) for name, values in times.items()}
    strict = {name: _slow(values, 2 * median["no_training"]) for name, values in times.items()}
    found["share_slower_than_twice_own_median"] = own
    found["points_more_while_training"] = round(100 * (own["training"] - own["no_training"]), 2)
    found["share_slower_than_twice_quiet_median"] = strict
    found["points_more_while_training_strict"] = round(100 * (strict["training"] - strict["no_training"]), 2)
    found["median_ratio"] = round(median["training"] / median["no_training"], 3)
    return found


def _slow(times: Sequence[float], bound: float) -> float:
    return round(sum(t > bound for t in times) / len(times), 4)


def _one_run(cell: Cell) -> dict[str, Any]:
    good = [r for r in cell["requests"] if not r["error"]]
    return {
        "requests": len(cell["requests"]),
        "failures": len(cell["requests"]) - len(good),
        "errors": sorted({r["error"] for r in cell["requests"] if r["error"]})[:10],
        "talk_failures": len(cell["talk_failures"]),
        "two_versions": cell["two_versions"],
        "versions_served": sorted({r["version"] for r in good}),
        "updates": cell["status"]["training"]["updates"],
        "total_s": summary([r["total_s"] for r in good]),
        "first_token_s": summary([r["first_s"] for r in good if r["first_s"] is not None]),
    }


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────
def kill_figures(cells: Sequence[Cell]) -> dict[str, Any]:
    names = ("acknowledged", "lost", "doubled", "changed", "uses", "double_uses", "turns_in_two_updates")
    found: dict[str, Any] = {name: sum(c["audit"][name] for c in cells) for name in names}
    for who in ("server", "trainer"):
        mine = [k for c in cells for k in c["kills"] if k["who"] == who]
        found[f"kills_of_{who}"] = len(mine)
        found[f"of_them_during_an_update_{who}"] = sum(k["update_running"] for k in mine)
        found[f"ready_again_s_{who}"] = summary([k["back_s"] for k in mine if k["back_s"] is not None])
    found["database"] = sorted({c["audit"]["database"] for c in cells})
    found["updates_after_all"] = [c["status"]["training"]["updates"] for c in cells]
    return found
