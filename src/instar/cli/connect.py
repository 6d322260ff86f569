"""`instar connect`: set a client up for this server, and ask once through it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from instar.cli import openclaw
from instar.cli.client import NoServer, Server, find_server
from instar.cli.json5_file import Change, Json5File
from instar.cli.openclaw import Served
from instar.cli.probe import probe
from instar.cli.snippets import SNIPPETS
from instar.cli.terminal import ApiKey, DataDir, Json, Url, out, print_json
from instar.config import openclaw_config_file
from instar.errors import UserError

OPENCLAW = "openclaw"
CLIENTS = {OPENCLAW: "OpenClaw", **{name: snippet.title for name, snippet in SNIPPETS.items()}}


def connect(
    client: Annotated[str | None, typer.Argument(help="Which client; without it they are listed.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Change OpenClaw's configuration; the old one is kept beside it.")
    ] = False,
    small: Annotated[
        bool | None,
        typer.Option(
            "--small/--no-small", help="Give OpenClaw a prompt for short contexts, or not in any case."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Ask for one short answer, and tell what came and how fast.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="OpenClaw's configuration (default: where it looks itself)."),
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Set up a client for this server, or check that one gets answers."""
    if client is not None and client not in CLIENTS:
        raise UserError(f"There are no lines for {client[:40]!r}. There are for: {', '.join(CLIENTS)}.")
    if client != OPENCLAW and (write or small is not None or config is not None):
        raise UserError(f"--write, --small and --config are for `instar connect {OPENCLAW}` alone.")
    if client is None and not check:
        return _list(as_json)
    server = find_server(data_dir, url, api_key)
    if client == OPENCLAW:
        file = Json5File.read(config or openclaw_config_file())
        return (
            _check_openclaw(file, server, as_json) if check else _set_up(file, server, write, small, as_json)
        )
    return _check(server, as_json) if check or client is None else _snippet(client, served(server), as_json)


def served(server: Server) -> Served:
    """The current model, as the running server tells of it. Raises UserError."""
    rows = server.get("/v1/models").get("data") or [{}]
    name, length = rows[0].get("id"), rows[0].get("context_length")
    if not isinstance(name, str) or not isinstance(length, int):
        raise UserError(
            f"{server.url} does not tell its model and context length. Is it Instar, of this version?"
        )
    return Served(server.url, server.key, name, length)


def _list(as_json: bool) -> None:
    if as_json:
        return print_json(CLIENTS)
    for name, title in CLIENTS.items():
        out().print(Text(f"instar connect {name:<12}  {title}"))
    return None


def _snippet(name: str, model: Served, as_json: bool) -> None:
    snippet = SNIPPETS[name].filled(model)
    if as_json:
        return print_json({"client": name, "context_length": model.context_length, **asdict(snippet)})
    if snippet.first:
        out().print(Text(snippet.first + "\n", style="dim"))
    out().out(snippet.block)
    return out().print(Text(snippet.note, style="dim")) if snippet.note else None


# ── OpenClaw's configuration ──────────────────────────────────────────────────────────────────────────────
def _set_up(file: Json5File, server: Server, write: bool, small: bool | None, as_json: bool) -> None:
    model = served(server)
    patch = openclaw.patch(model, file.content, small=bool(small))
    changes, text = file.changes(patch), file.patched(patch)
    tokens = openclaw.prompt_tokens(file.merged(patch))
    facts: dict[str, Any] = {
        "client": OPENCLAW,
        "config": str(file.path),
        "exists": file.text is not None,
        "context_length": model.context_length,
        "prompt_tokens": tokens,
        "fits": openclaw.fits(tokens, model),
        "patch": patch,
        "changes": [{"path": c.path, "before": c.before, "after": c.after} for c in changes],
        "written": write and bool(changes),
        "backup": None,
    }
    if facts["written"]:
        if not facts["fits"] and small is None:
            raise UserError(_too_long(facts))
        facts["backup"] = _write(file, text)
    return print_json(facts) if as_json else _tell(out(), facts, changes)


def _write(file: Json5File, text: str) -> str | None:
    """Returns where the old file is kept; None where there was none."""
    stem = f"{file.path.name}.before-instar-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (stem, *(f"{stem}-{n}" for n in range(2, 100)))
    backup = next(path for path in map(file.path.with_name, names) if not path.exists())
    file.write(text, backup)
    return str(backup) if file.text is not None else None


def _too_long(facts: dict[str, Any]) -> str:
    return (
        f"With this configuration OpenClaw's prompt takes about {facts['prompt_tokens']:,} tokens, and the model's "
        f"context is {facts['context_length']:,}: it would ask for answers of a single token. Add --small for a prompt "
        f"of about {openclaw.prompt_tokens(openclaw.SMALL):,} tokens (two tools, no workspace files, no skills, no "
        "heartbeat), serve a model with a longer context, or add --no-small to write it all the same."
    )


def _tell(console: Console, facts: dict[str, Any], changes: list[Change]) -> None:
    there = "" if facts["exists"] else " (not there yet)"
    console.print(Text.assemble(("OpenClaw's configuration ", "bold"), f"{facts['config']}{there}"))
    if not changes:
        console.print(Text("It says everything already.", style="green"))
    elif not facts["written"]:
        console.out(json.dumps(facts["patch"], indent=2, ensure_ascii=False))
    for change in changes:
        if change.before is not None and change.place[-1] != "apiKey":
            console.print(Text(f"  {change.path}: {_short(change.before)} → {_short(change.after)}"))
    if facts["written"]:
        kept = f" The old file is kept as {facts['backup']}." if facts["backup"] else ""
        console.print(Text(f"Written.{kept}", style="green"))
    if facts["fits"]:
        console.print(Text(
            f"Its prompt takes about {facts['prompt_tokens']:,} of {facts['context_length']:,} tokens.", style="dim"
        ))  # fmt: skip
    else:
        console.print(Text(_too_long(facts), style="yellow"))
    console.print(Text(_next_step(facts, changes), style="dim"))


def _next_step(facts: dict[str, Any], changes: list[Change]) -> str:
    if facts["written"] or not changes:
        return "Next: `instar connect openclaw --check`. Then talk to your agent as ever."
    small = "" if facts["fits"] else " --small"
    return f"Nothing is changed yet: `instar connect openclaw{small} --write` does it."


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 70 else f"{text[:67]}…"


# ── one answer ────────────────────────────────────────────────────────────────────────────────────────────
def _check(server: Server, as_json: bool, remarks: list[str] | None = None) -> None:
    model = served(server)
    found = asdict(probe(server, model.name)) | {
        "context_length": model.context_length,
        "remarks": remarks or [],
    }
    if as_json:
        return print_json(found)
    console = out()
    console.print(
        Text(f"{found['url']} answers as {found['model']}, version {found['version']}.", style="green")
    )
    console.print(Text(f"  {' '.join(found['text'].split())}"))
    console.print(Text(
        f"  first words after {found['first_s']:.2f} s, all {found['pieces']} pieces after {found['total_s']:.2f} s; "
        f"context {found['context_length']:,} tokens; {found['turn']}, not learned from", style="dim"
    ))  # fmt: skip
    for remark in found["remarks"]:
        console.print(Text(remark, style="yellow"))
    return None


def _check_openclaw(file: Json5File, running: Server, as_json: bool) -> None:
    """With the address and the key that stand in OpenClaw's configuration, since these are what it will use."""
    again = f"`instar connect {OPENCLAW} --write` sets it right."
    entry = openclaw.at(file.content, "models", "providers", openclaw.PROVIDER)
    if not isinstance(entry, dict):
        raise UserError(f"{file.path} does not know this server yet: {again}")
    address = str(entry.get("baseUrl") or "").rstrip("/").removesuffix("/v1")
    theirs = Server(address, str(entry.get("apiKey") or ""))
    try:
        model = served(theirs)
    except NoServer as error:
        raise NoServer(
            f"OpenClaw looks for the server at {address}, and nobody answers there. {again}"
        ) from error
    except UserError as error:
        raise UserError(f"With what stands in {file.path}: {error} {again}") from error
    remarks = openclaw.remarks(file.content, model)
    if address != running.url:
        remarks.append(f"It talks to {address}; the server of this data folder is {running.url}.")
    return _check(theirs, as_json, remarks)
