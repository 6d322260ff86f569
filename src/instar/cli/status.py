"""`instar status`: is it alive, what has it learned, and what not, and why."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from instar.cli.client import find_server
from instar.cli.terminal import ApiKey, DataDir, Json, Url, out, print_json
from instar.workers.pids import read_pids


def status(data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False) -> None:
    """Show the four loops, the batch being gathered, updates, and turns that are not used."""
    server = find_server(data_dir, url, api_key)
    facts = server.get("/v1/status")
    if server.run_dir is not None:
        facts["processes"] = read_pids(server.run_dir).get("loops", {})
    if as_json:
        return print_json(facts)
    console = out()
    console.print(Text.assemble(("serving ", "bold"), f"{facts.get('active', facts.get('version', '?'))}"))
    return console.print(_loops(facts))


def _loops(facts: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("loop", "alive", "pid", "restarts", "doing"):
        table.add_column(column)
    beats = facts.get("loops", {})
    for name in ("gateway", "engine", "judge", "trainer"):
        process = facts.get("processes", {}).get(name, {})
        beat = beats.get(name, {})
        alive = process.get("alive", beat.get("alive"))
        table.add_row(
            name,
            Text("yes", style="green") if alive else Text("no", style="red"),
            str(process.get("pid") or "–"),
            str(process.get("restarts", "–")),
            str(beat.get("doing", "")),
        )
    return table
