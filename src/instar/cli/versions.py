"""`instar versions`: what was learned, step by step, and the way back."""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table
from rich.text import Text

from instar.cli.client import find_server
from instar.cli.terminal import ApiKey, DataDir, Json, Url, out, print_json

app = typer.Typer(no_args_is_help=True, help="List, show and activate versions.", rich_markup_mode=None)
Name = Annotated[str, typer.Argument(help="A version, such as v3, or base.")]


def _when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "–"


@app.command("list")
def list_versions(
    data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False
) -> None:
    """List all versions, the one being served marked."""
    found = find_server(data_dir, url, api_key).get("/v1/versions")
    if as_json:
        return print_json(found)
    table = Table(box=None, header_style="bold")
    for column in ("", "version", "parent", "made", "turns", "gate"):
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
        _when(version.get("created_at")),
        str(len(turns)) if turns is not None else "–",
        f"damaged: {version['damaged']}" if version.get("damaged") else verdict,
    ]


@app.command("show")
def show_version(
    name: Name, data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False
) -> None:
    """Show what made a version: its parent, its turns, its figures."""
    version = find_server(data_dir, url, api_key).get(f"/v1/versions/{quote(name, safe='')}")
    if as_json:
        return print_json(version)
    table = Table(box=None, show_header=False)
    for key, value in version.items():
        shown = (
            _when(value)
            if key.endswith("_at")
            else "\n".join(map(str, value))
            if isinstance(value, list)
            else value
        )
        table.add_row(Text(key, style="bold"), str(shown))
    return out().print(table)


@app.command("activate")
def activate_version(
    name: Name, data_dir: DataDir = None, url: Url = None, api_key: ApiKey = None, as_json: Json = False
) -> None:
    """Serve another version from now on; requests under way end under the old one."""
    answer = find_server(data_dir, url, api_key).post(f"/v1/versions/{quote(name, safe='')}/activate")
    if as_json:
        return print_json(answer)
    return out().print(f"{name} is served from now on.")
