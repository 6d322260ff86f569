"""`instar status`: is it alive, what has it learned, and what not, and why."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from instar.cli.client import find_server
from instar.cli.terminal import ApiKey, DataDir, Json, Url, out, print_json
from instar.flow.fidelity import in_words
from instar.flow.reasons import REASONS


def status(data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False) -> None:
    """Show loops, batch, updates and turns not used."""
    server = find_server(data_dir, url, api_key)
    facts = server.get("/v1/status")
    if as_json:
        return print_json(facts)
    console = out()
    _versions(console, facts)
    console.print(_loops(facts.get("loops", {})))
    _learning(console, facts)
    return _reasons(console, facts.get("counts", {}).get("reasons", {}))


def _versions(console: Console, facts: dict[str, Any]) -> None:
    active, served = facts.get("active_version"), facts.get("served_version")
    swapping = f" ({active} is being loaded)" if served != active else ""
    line = Text.assemble(("serving ", "bold"), f"{served or 'nothing yet'}{swapping} of {facts.get('model')}")
    console.print(line)
    if waiting := facts.get("waiting_version"):
        text = f"{waiting} waits for you: instar versions show {waiting}, then approve or reject it"
        console.print(Text(text, style="yellow"))
    if facts.get("problem"):
        console.print(Text(f"problem: {facts['problem']}", style="red"))
    if unwell := facts.get("loops", {}).get("judge", {}).get("problem"):
        console.print(Text(f"judge: {unwell}", style="yellow"))
    if alarm := (facts.get("training", {}).get("fidelity") or {}).get("alarm"):
        console.print(Text(f"log-probs: {alarm}", style="yellow"))
    console.print()


def _loops(loops: dict[str, dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("loop", "alive", "pid", "restarts", "doing"):
        table.add_column(column)
    for name, loop in loops.items():
        table.add_row(
            name,
            Text("yes", style="green") if loop.get("alive") else Text("no", style="red"),
            str(loop.get("pid") or "–"),
            str(loop.get("restarts", "–")),
            _doing(loop),
        )
    return table


def _doing(loop: dict[str, Any]) -> str:
    if not loop.get("alive"):
        return f"see {loop['log']}" if loop.get("log") else ""
    words = str(loop.get("doing") or "")
    if loop.get("since") and words:
        words += f" for {_span(time.time() - loop['since'])}"
    return f"{words}: {loop['why']}" if loop.get("why") and words else words


def _span(seconds: float) -> str:
    """A rough length of time: 12 s, 3 min, 2 h."""
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{round(seconds / 3600)} h"


def _learning(console: Console, facts: dict[str, Any]) -> None:
    training, counts = facts.get("training", {}), facts.get("counts", {})
    waiting = counts.get("waiting", {})
    gathered = min(waiting.get("trainable", 0), training.get("batch_size", 0))
    state = "learning is off" if not training.get("enabled") else (
        "computing an update" if training.get("running") else f"{gathered} of {training.get('batch_size')}"
    )  # fmt: skip
    judged = counts.get("judged", {})
    turns = sum(counts.get("turns", {}).values())
    rows = {
        "batch": state,
        **_mode(training),
        "updates": f"{training.get('updates', 0)} published ({training.get('method')})",
        "last update": _last(training.get("last")),
        **_fidelity(training.get("fidelity")),
        "turns": f"{turns} recorded, {waiting.get('unjudged', 0)} waiting for the judge, "
        f"{counts.get('used', 0)} learned from",
        "verdicts": f"{judged.get('1', 0)} good, {judged.get('-1', 0)} bad, "
        f"{judged.get('0', 0) + judged.get('none', 0)} neither",
        **_agreement(facts.get("judge", {}).get("agreement", {})),
        **_own_ratings(facts.get("judge", {}).get("own_ratings", {})),
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in rows.items():
        table.add_row(Text(name, style="bold"), Text(text))
    console.print()
    console.print(table)


def _mode(training: dict[str, Any]) -> dict[str, str]:
    """When it trains, and what that makes it wait for now."""
    if not training.get("enabled") or "mode" not in training:
        return {}
    later = None if training.get("running") else training.get("later")
    return {"training": f"{training['mode']}; {later}" if later else str(training["mode"])}


def _fidelity(found: dict[str, Any] | None) -> dict[str, str]:
    return {"log-probs": f"engine and trainer {in_words(found['last'])}"} if found else {}


ENDINGS = {
    "running": "being computed",
    "proposed": "passed the gate",
    "unused": "nothing learned",
    "rejected": "refused by the gate",
}
"""How an update ended, in words where the store's own word does not say it."""


def _agreement(links: dict[str, dict[str, Any]]) -> dict[str, str]:
    """One row, once there are turns that both you and a judge have judged."""
    told = [
        f"{name}: as you in {found['agree']} of {found['turns']} ({found['share']:.0%}), "
        f"the opposite in {found['wrong_sign']}"
        for name, found in links.items()
    ]
    return {"agreement": "\n".join(told)} if told else {}


def _own_ratings(learners: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Whether the heads are moved by what you rated; by name where there is more than one learner."""
    told = [
        (f"{name}: " if len(learners) > 1 else "") + _use_of_ratings(found)
        for name, found in learners.items()
    ]
    return {"your ratings": "\n".join(told)} if told else {}


def _use_of_ratings(found: dict[str, Any]) -> str:
    number, before, after = found["ratings"], found["agree_before"], found["agree_after"]
    if before is None:
        return f"{number} with words, too few, or all of one kind, to move the heads"
    use = "move the heads" if found["in_use"] else "are not used"
    return f"{number} with words {use}: as you in {before} → {after} of them, unseen"


def _last(update: dict[str, Any] | None) -> str:
    if update is None:
        return "none yet: nothing was said of an answer that could be learned from"
    result = f" as {update['version']}" if update.get("version") else ""
    note = f": {update['note']}" if update.get("note") else ""
    return f"{ENDINGS.get(update['status'], update['status'])}{result}{note}"


def _reasons(console: Console, reasons: dict[str, int]) -> None:
    if not reasons:
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1]):
        table.add_row(str(count), Text(REASONS.get(reason, reason)))
    console.print(Text("\nturns not learned from", style="bold"))
    console.print(table)
