"""Hand-made raw cells of bench.learn, whose figures are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.learn.plan import Plan, make
from bench.prompts import HELDOUT

SHORT = "Put it in a sunny place. Water it twice a week."
LONG = "Put it in a sunny place. Water it twice. Turn it around. Cut it back."
CODE = {"commit": "abc", "src": "s1", "bench": "b1"}


def row(question: str, answer: str, **more: Any) -> dict[str, Any]:
    plain = {
        "question": question,
        "answer": answer,
        "turn": "t",
        "version": "v1",
        "cut": False,
        "error": None,
    }
    return {**plain, "mean_logp": -1.0, "relevant": True, "prompt_tokens": 40, "response_tokens": 12, **more}


def look(mark: int, kept: int, *, solved: int = 30, **more: Any) -> dict[str, Any]:
    """A look at 20 questions, 2 answers each: `kept` of the 40 keep the wish for two sentences."""
    asked = [q for _ in range(2) for q in HELDOUT[:20]]
    rows = [row(q, SHORT if i < kept else LONG) for i, q in enumerate(asked)]
    tasks = [{"kind": "facts" if i < 34 else "essay", "prompt": f"p{i}", "answer": "", "turn": "t",
              "solved": i < solved} for i in range(40)]  # fmt: skip
    plain = {"mark": mark, "version": f"v{mark // 8}", "compute_s": mark * 4.0, "kl": mark / 1000,
             "heldout": rows, "tasks": tasks, "settled": True, "look_s": 1.0, "remembered": 0}  # fmt: skip
    return {**plain, **more}


def base_rows() -> list[dict[str, Any]]:
    """The untouched model's answers: none keeps the wish, and one of 40 lies below the floor."""
    return [row(r["question"], LONG, mean_logp=-1.0 - i / 100) for i, r in enumerate(look(0, 0)["heldout"])]


def cell(
    arm: str,
    seed: int,
    kept: Mapping[int, int] | None = None,
    *,
    user: str = "two_sentences",
    path: str = "fast",
    judge: str = "oracle",
    **more: Any,
) -> dict[str, Any]:
    """`kept` gives, by mark, how many of 40 answers keep the wish. Without it: the untouched model."""
    marks = tuple(kept or (0,))
    plan: Plan = make(path, judge, arm, user, seed, **({"marks": marks} if kept else {}))
    looks = [look(m, k, **more) for m, k in (kept or {0: 0}).items()]
    if arm == "nothing":
        looks[0]["heldout"] = base_rows()
    said = {
        "question": "q",
        "meant": -1,
        "score": -1,
        "closing": None,
        "learned": True,
        "reaction": "Shorter.",
    }
    talk = [said] * 3 + [
        {**said, "meant": 1, "score": -1},
        {**said, "meant": 0, "score": None, "reaction": ""},
    ]
    return {"plan": plan.json(), "code": CODE, "machine": {}, "began": "now", "looks": looks,
            "talk": talk if kept else [], "versions": [], "updates": {}, "errors": 0, "wall_s": 60.0,
            "load_before": [1.0], "load_after": [2.0]}  # fmt: skip
