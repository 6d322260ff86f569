"""Run a small function that a model wrote, and see whether it does what was asked.

What a model wrote is not trusted: only plain expressions and statements get as far as being run, without imports,
attributes that begin with an underscore, or any name that opens a door; and then in a process of its own, with
few builtins and little time and memory.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

TIMEOUT_S = 5.0
_ALLOWED = [
    "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "int",
    "isinstance", "len", "list", "map", "max", "min", "pow", "range", "reversed", "round", "set",
    "slice", "sorted", "str", "sum", "tuple", "zip", "ValueError", "TypeError", "IndexError",
]  # fmt: skip
_FORBIDDEN = (
    ast.Import,
    ast.ImportFrom,
    ast.Global,
    ast.Nonlocal,
    ast.With,
    ast.AsyncWith,
    ast.ClassDef,
    ast.Try,
)
_BLOCK = re.compile(r"```(?:[a-zA-Z0-9]*)\s*\n(.*?)(?:```|\Z)", re.DOTALL)

_RUNNER = """
import builtins, json, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29))
job = json.load(sys.stdin)
space = {"__builtins__": {name: getattr(builtins, name) for name in job["allowed"]}}
exec(job["source"], space)
for arguments, expected in job["cases"]:
    got = space[job["name"]](*arguments)
    if type(got) is not type(expected) or got != expected:
        sys.exit(1)
print("passed")
"""


def source_of(answer: str, name: str) -> str | None:
    """The definition of the function `name` in an answer, from a fenced block or from the bare text.

    Text behind the definition is dropped, also when it was cut off in the middle. None where there is no such
    function, or it holds what must not be run.
    """
    block = _BLOCK.search(answer)
    text = block.group(1) if block else answer
    start = re.search(rf"^(\s*)def {name}\(", text, re.MULTILINE)
    if start is None:
        return None
    lines = text[start.start(1) :].lstrip("\n").splitlines()
    for end in range(len(lines), 0, -1):
        tree = _parsed("\n".join(lines[:end]))
        if tree is not None:
            found = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
            return ast.unparse(found) if found is not None and _is_harmless(found) else None
    return None


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _is_harmless(function: ast.FunctionDef) -> bool:
    if function.decorator_list:
        return False
    for node in ast.walk(function):
        if isinstance(node, _FORBIDDEN):
            return False
        if isinstance(node, ast.Attribute) and (
            node.attr.startswith("_") or node.attr in {"format", "format_map"}
        ):
            return False
        if isinstance(node, ast.Name) and node.id.startswith("_"):
            return False
    return True


def passes(name: str, cases: Sequence[tuple[tuple[Any, ...], Any]], answer: str) -> bool:
    """Whether the answer's function returns what it should in every case, by value and by type."""
    source = source_of(answer, name)
    if source is None:
        return False
    job = {"source": source, "name": name, "cases": cases, "allowed": _ALLOWED}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _RUNNER],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and done.stdout.strip() == "passed"
