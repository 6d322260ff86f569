"""One cell of learning: an empty data folder, held-out questions, a user who talks, held-out questions again."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.prompts import HELDOUT, TRAIN
from bench.server import Server
from bench.talk import Client, Interaction, ServingWatch, evaluate, interact, shuffled_questions
from bench.text import first_sentences
from bench.users import WISHES, RandomReactions, User, WishUser


@dataclass(frozen=True, slots=True)
class LearnPlan:
    """Everything that decides a cell, so that a stored one can be told from another."""

    arm: str
    seed: int
    interactions: int
    think_s: float
    wish: str = "two_sentences"
    prompts: int = len(HELDOUT)
    repeats: int = 2
    max_tokens: int = 128
    temperature: float = 0.7
    note_tokens: int = 0
    shared_notes: bool = False
    """The same notes for every question, as a system message; otherwise each question has its own before it."""
    model: str = "starter"

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def user(self) -> User:
        return RandomReactions(self.seed) if self.arm == "random" else WishUser(WISHES[self.wish], self.seed)


def run_learning(plan: LearnPlan, folder: Path | None = None) -> dict[str, Any]:
    """Returns a raw cell. `folder`: where the data folder goes, else a temporary place."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="instar-bench-") as place:
        data_dir = (folder or Path(place)) / f"{plan.arm}-{plan.seed}"
        server = Server(data_dir, model=plan.model, extra={"INSTAR_TRAIN__SEED": str(plan.seed)})
        with server:
            cell = _talk_to(server, plan)
        score_answers(cell, cell.pop("model_dir"))
    cell["wall_s"] = round(time.monotonic() - began, 1)
    return cell


def _talk_to(server: Server, plan: LearnPlan) -> dict[str, Any]:
    client = Client(server.url, server.key, plan.max_tokens, plan.temperature)
    questions = HELDOUT[: plan.prompts]
    say(plan, "asking the held-out questions before")
    before = evaluate(client, questions, plan.repeats) if plan.repeats else []
    with ServingWatch(lambda: server.status().get("served_version")) as watch:
        talk = _interactions(client, plan)
        say(plan, "waiting for the last update")
        settled = server.settle()
        time.sleep(2.0)
    say(plan, f"asking them after, under {server.status().get('served_version')}")
    after = evaluate(client, questions, plan.repeats) if plan.repeats else []
    answers = [a for t in talk for a in (t.answer, t.reply)]
    return {
        "arm": plan.arm,
        "seed": plan.seed,
        "before": before,
        "after": after,
        "talk": with_verdicts(talk, server.turns()),
        "versions": [_kept(v) for v in server.versions() if v["name"] != "base"],
        "served_at": watch.first_seen,
        "settled": settled,
        "status": server.status(),
        "failed_requests": sum(a.error is not None for a in answers) + sum(bool(r["error"]) for r in before + after),
        "start_s": server.starts_s,
        "model_dir": server.model_dir(),
    }  # fmt: skip


def _interactions(client: Client, plan: LearnPlan) -> list[Interaction]:
    user, talk = plan.user(), list[Interaction]()
    for i, question in enumerate(shuffled_questions(TRAIN, plan.interactions, plan.seed)):
        own, shared = _notes(plan, i)
        talk.append(interact(client, user, question, plan.think_s, before=own, system=shared))
        if (i + 1) % 8 == 0:
            kept = sum(t.kept for t in talk[-8:])
            say(plan, f"{i + 1} interactions; {kept} of the last 8 kept the wish ({talk[-1].reply.version})")
        time.sleep(plan.think_s)
    return talk


def _notes(plan: LearnPlan, number: int) -> tuple[str, str]:
    """What stands before a question, and the system message."""
    if not plan.note_tokens:
        return "", ""
    if plan.shared_notes:
        return "", long_notes(plan.note_tokens, f"{plan.seed}")
    return long_notes(plan.note_tokens, f"{plan.seed}/{number}") + "\n\nMy question: ", ""


def say(plan: LearnPlan, text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {plan.arm} seed {plan.seed}: {text}", flush=True)


def with_verdicts(talk: list[Interaction], turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each interaction beside what the product made of it."""
    views = {view["id"]: view for view in turns}
    rows = []
    for interaction in talk:
        view = views.get(interaction.answer.turn or "", {})
        verdict = {name: view.get(name) for name in ("score", "link", "hint", "learned", "reason")}
        rows.append({**interaction.json(), **verdict, "prompt_tokens": view.get("prompt_tokens")})
    return rows


def _kept(version: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "parent", "created_at", "activated_at", "turn_ids", "metrics", "gate", "damaged")
    return {"turn_ids": [], **{name: version[name] for name in names if name in version}}


def score_answers(cell: dict[str, Any], model_dir: Path) -> None:
    """Write `mean_logp` (under the base model) and `relevant` into the rows, and as a yardstick
    `before_first_two`: the base's own answers, cut after two sentences by force."""
    from bench.measures import BaseScorer, relevant

    cut = [{**row, "answer": first_sentences(row["answer"])} for row in cell["before"]]
    cell["before_first_two"] = cut
    rows = [*cell["before"], *cell["after"], *cut]
    if not rows:
        return
    scorer = BaseScorer(model_dir)
    for row in rows:
        row["mean_logp"] = scorer.mean_logp(row["question"], row["answer"])
        row["relevant"] = relevant(row["question"], row["answer"], HELDOUT)


_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()  # noqa: SIM905
_EVENTS = (
    "the delivery of {n} boxes came before noon and was put into the cellar",
    "room {n} was painted, and the window there still sticks a little",
    "the meeting about the summer fair took {n} minutes longer than planned",
    "we counted {n} visitors, most of them from the neighbouring village",
    "the printer on floor {n} ran out of paper twice and was filled again",
    "invoice {n} was paid, and a copy went into the blue folder",
    "somebody left an umbrella with the number {n} on its handle at the door",
    "the garden group planted {n} tulips along the path to the gate",
)


def long_notes(tokens: int, seed: str) -> str:
    """Notes in plain English, about `tokens` tokens long, different for every seed."""
    import random

    rng = random.Random(seed)
    lines = ["Here are our office notes, for background only. The question comes after them."]
    while sum(len(line) for line in lines) < tokens * CHARACTERS_A_TOKEN:
        lines.append(f"{rng.choice(_DAYS)}: {rng.choice(_EVENTS).format(n=rng.randrange(2, 99))}.")
    return "\n".join(lines)


CHARACTERS_A_TOKEN = 3.85
"""Of the starter model on these notes; the recorded prompt length is in the results."""
