"""The generated parts of the documentation. `make docs` writes them; tests/unit/test_docs.py compares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.testing import CliRunner

from instar.cli import app
from instar.config import Settings
from instar.flow import kinds
from instar.gateway import session_hints

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
CLI_PAGE = ROOT / "docs" / "cli.md"
CLIENTS_PAGE = ROOT / "docs" / "clients.md"
COMMANDS: list[list[str]] = [
    [], ["serve"], ["chat"], ["connect"], ["status"], ["versions"], ["versions", "list"], ["versions", "show"],
    ["versions", "activate"], ["versions", "rollback"], ["versions", "approve"], ["versions", "reject"],
    ["judge"], ["judge", "cases"],
]  # fmt: skip


def settings_table() -> str:
    """One line per setting: name, default, meaning."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for path, field in _walk(Settings, ""):
        lines.append(f"| `{path}` | {_default(field)} | {field.description} |")
    return "\n".join(lines) + "\n"


def _walk(model: type[BaseModel], prefix: str) -> list[tuple[str, FieldInfo]]:
    found: list[tuple[str, FieldInfo]] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += _walk(field.annotation, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", field))
    return found


def _default(field: FieldInfo) -> str:
    value: Any = field.default
    if value is PydanticUndefined:
        return "`~/.instar`"
    if value is None or value == ():
        return "–"
    if isinstance(value, tuple):
        return f"`{', '.join(value)}`"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


def help_of(command: list[str]) -> str:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "100", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())


def cli_page() -> str:
    """The whole page about the command line."""
    parts = [
        "# The command line\n",
        "Written by `make docs` from the commands themselves.\n",
        "Exit status: 0 done, 1 no server runs, 2 something that you can mend (one line on stderr says how; "
        "`INSTAR_DEBUG=1` shows where it came from). `--json` prints facts for programs.\n",
    ]
    for command in COMMANDS:
        name = " ".join(["instar", *command])
        parts.append(f"## {name}\n\n```text\n{help_of(command)}\n```\n")
    return "\n".join(parts)


def with_settings(readme: str) -> str:
    """The README with a fresh settings table between its marks."""
    return _between("settings", settings_table(), readme)


def kinds_table() -> str:
    """One line for each text or name by which clients are recognised."""
    lines = [
        "| name | client | how it is told | what becomes of it | what it is | seen |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, client, evidence, becomes, why, seen in kinds.rows():
        cells = (f"`{name}`", client, evidence, becomes, why, seen)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n" + "\n".join(lines) + "\n\n"


def session_list() -> str:
    """Headers and fields that name a session, in the order in which they are looked for."""
    fields = [*session_hints.SESSION_FIELDS, *(f"metadata.{name}" for name in session_hints.METADATA_FIELDS)]
    last = session_hints.SHARED_FIELD
    headers = _code(session_hints.SESSION_HEADERS)
    return f"   the headers {headers};\n   the fields {_code(fields)}, and last `{last}`;\n"


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def clients_page(page: str) -> str:
    """The page about clients with fresh tables between their marks."""
    return _between("kinds", kinds_table(), _between("sessions", session_list(), page))


def _between(name: str, fresh: str, page: str) -> str:
    marks = re.compile(f"(?<=<!-- {name}: begin -->\n).*?(?=<!-- {name}: end -->)", re.DOTALL)
    page, count = marks.subn(lambda _: fresh, page)
    assert count == 1, f"the page needs the marks of {name}, once"
    return page


if __name__ == "__main__":
    README.write_text(with_settings(README.read_text("utf-8")), "utf-8")
    CLI_PAGE.write_text(cli_page(), "utf-8")
    CLIENTS_PAGE.write_text(clients_page(CLIENTS_PAGE.read_text("utf-8")), "utf-8")
