"""The documentation says what the code does. `make docs` writes the generated parts anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from instar.answers import FORMATS, json_calls, lark, reasoning
from instar.cli.chat import HELP
from instar.config import Settings
from instar.flow import kinds
from instar.gateway import fields
from tests.kit import docs

PAGES = [docs.README, docs.ROOT / "CHANGELOG.md", *sorted((docs.ROOT / "docs").rglob("*.md"))]
README = docs.README.read_text("utf-8")
JUDGE_PAGE = (docs.ROOT / "docs" / "judge.md").read_text("utf-8")
MAKEFILE = (docs.ROOT / "Makefile").read_text("utf-8")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def test_settings_table_is_that_of_the_code() -> None:
    assert docs.with_settings(README) == README, "run `make docs`"


def test_tables_about_clients_are_those_of_the_code() -> None:
    page = docs.CLIENTS_PAGE.read_text("utf-8")
    assert docs.clients_page(page) == page, "run `make docs`"
    assert docs.kinds_table().count("\n| `") == len(list(kinds.rows()))


def test_headers_named_for_clients_are_read() -> None:
    page = docs.CLIENTS_PAGE.read_text("utf-8")
    table = page.partition("## What you can send")[2].partition("##")[0]
    read = (docs.ROOT / "src/instar/gateway/session_hints.py").read_text("utf-8")
    read += (docs.ROOT / "src/instar/gateway/asking.py").read_text("utf-8")
    named = re.findall(r"^\| `([A-Za-z-]+)", table, re.MULTILINE)
    assert len(named) == 5
    assert [name for name in named if f'"{name.lower()}"' not in read] == []


def test_every_setting_is_described() -> None:
    undescribed = [name for name, field in docs._walk(Settings, "") if not field.description]
    assert undescribed == []


def test_cli_page_is_the_commands_own_help() -> None:
    assert docs.CLI_PAGE.read_text("utf-8") == docs.cli_page(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(docs.ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    local = [
        link.split("#")[0] for link in links if not re.match(r"[a-z]+:", link) and not link.startswith("#")
    ]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_make_commands_of_the_readme_exist() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", README, re.MULTILINE))
    assert {"serve", "test"} <= named
    assert named <= targets()


def test_make_targets_are_phony() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == targets()


def test_instar_commands_of_the_readme_exist() -> None:
    known = {" ".join(command) for command in docs.COMMANDS}
    named = set(
        re.findall(
            r"(?:^|[`$ ])instar ((?:serve|chat|connect|status|judge cases|versions(?: [a-z]+)?)\b)",
            README,
            re.MULTILINE,
        )
    )
    assert {"serve", "chat", "status", "versions list"} <= named
    assert named <= known


def test_options_of_the_readme_exist() -> None:
    page = docs.cli_page()
    ours = set(re.findall(r"instar [a-z ]*(--[a-z-]+)", README)) | {"--data-dir", "--port"}
    assert [option for option in ours if option not in page] == []


def test_chat_commands_of_the_readme_exist() -> None:
    for command in ("/good", "/bad", "/fix", "/new", "/version", "/help"):
        assert command in README
        assert command in HELP


def test_settings_named_in_the_text_exist() -> None:
    known = {name for name, _ in docs._walk(Settings, "")}
    named = set(re.findall(r"--set ([a-z_.]+)=", README + JUDGE_PAGE)) | set(
        re.findall(r"`(judge\.[a-z_]+)`", JUDGE_PAGE)
    )
    assert named
    assert named <= known


def test_ci_runs_what_the_readme_tells() -> None:
    assert "make test" in (docs.ROOT / ".ci" / "run").read_text("utf-8")


def test_constraints_pin_everything_exactly() -> None:
    lines = (docs.ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert len(pins) > 50
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9A-Za-z.]*", pin)] == []


def test_the_page_about_tools_names_what_there_is() -> None:
    page = (docs.ROOT / "docs" / "tools.md").read_text("utf-8")
    known = {path for path, _ in docs._walk(Settings, "")}
    assert "tool_format" in known
    assert set(re.findall(r"^\| `(\w+)` \| .*(?:<|\{|\[)", page, re.MULTILINE)) == set(FORMATS)
    for tag, _ in reasoning.KNOWN_TAGS:
        assert f"`{tag}" in page
    for what, most in (
        ("tools", fields.MAX_TOOLS),
        ("characters of a schema", fields.MAX_SCHEMA_CHARS),
        ("characters of all tools together", fields.MAX_TOOLS_CHARS),
    ):
        assert f"| {what} | {most:,} |" in page
    assert f"after {json_calls.HELD_CHARS} characters of arguments" in page
    assert lark.MORE_CALLS == "{0,15}", "at most sixteen calls"
