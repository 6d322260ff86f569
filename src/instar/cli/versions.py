"""`instar versions`: what was learned, step by step, and the way back."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from instar.cli.client import find_server
from instar.cli.story import tell, when
from instar.cli.terminal import ApiKey, DataDir, Json, Url, out, print_json

app = typer.Typer(
    no_args_is_help=True,
    help="List, show, activate, take back, approve and reject versions.",
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(help="A version, such as v3, or base.")]


@app.command("list")
def list_versions(
    data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False
) -> None:
    """List all versions, the one being served marked."""
    found = find_server(data_dir, url, api_key).get("/v1/versions")
    if as_json:
        return print_json(found)
    table = Table(box=None, header_style="bold")
    for column in ("", "version", "parent", "made", "turns", "state", "gate"):
        table.add_column(column)
    for version in found.get("data", []):
        table.add_row(*_row(version))
    return out().print(table)


def _row(version: dict[str, Any]) -> list[str]:
    gate = version.get("gate") or {}
    verdict = (
        "–" if "passed" not in gate else "passed" if gate["passed"] else f"failed: {gate.get('why', '')}"
    )
    turns = version.get("turn_ids")
    return [
        "▶" if version.get("active") else "",
        str(version["name"]),
        str(version.get("parent") or "–"),
        when(version.get("created_at")),
        str(len(turns)) if turns is not None else "–",
        str(version.get("state") or "–"),
        f"damaged: {version['damaged']}" if version.get("damaged") else verdict,
    ]


@app.command("show")
def show_version(
    name: Name, data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False
) -> None:
    """Tell what a version learned from, what changed, and why it passed or not."""
    version = find_server(data_dir, url, api_key).get(f"/v1/versions/{quote(name, safe='')}")
    return print_json(version) if as_json else tell(out(), version)


@app.command("activate")
def activate_version(
    name: Name, data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False
) -> None:
    """Serve another version from now on; requests under way end under the old one."""
    answer = find_server(data_dir, url, api_key).post(f"/v1/versions/{quote(name, safe='')}/activate")
    if as_json:
        return print_json(answer)
    return out().print(f"{name} is served from now on.")


@app.command("rollback")
def roll_back(
    to: Annotated[str | None, typer.Argument(help="The version to go back to (default: the parent).")] = None,
    because: Annotated[str | None, typer.Option("--because", help="Why, in a sentence that is kept.")] = None,
    data_dir: DataDir = None,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Take the version in force back, at once; learning goes on from the one before."""
    body = {name: value for name, value in (("to", to), ("reason", because)) if value is not None}
    answer = find_server(data_dir, url, api_key).post("/v1/versions/rollback", body)
    if as_json:
        return print_json(answer)
    return out().print(
        f"{answer['before']} was taken back; {answer['active_version']} is served from now on."
    )


@app.command("approve")
def approve_version(
    name: Name, data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False
) -> None:
    """Let a version serve that passed the gate and waits for you (instar serve --approve)."""
    answer = find_server(data_dir, url, api_key).post(f"/v1/versions/{quote(name, safe='')}/approve")
    if as_json:
        return print_json(answer)
    return out().print(f"{name} is served from now on.")


@app.command("reject")
def reject_version(
    name: Name, data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False
) -> None:
    """Never let a version serve that waits for you; learning goes on from the one in force."""
    answer = find_server(data_dir, url, api_key).post(f"/v1/versions/{quote(name, safe='')}/reject")
    if as_json:
        return print_json(answer)
    return out().print(f"{name} will not be served; {answer['active_version']} goes on.")
