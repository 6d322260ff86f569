"""A model's own chat template: foreign code, compiled in a sandbox."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, meta
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from instar.errors import ModelError

REFUSALS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template, which is foreign code, may raise at messages that it was not written for."""


def template_text(model_dir: Path, config: dict[str, Any]) -> str:
    """The source of the model's template. Raises ModelError."""
    file = model_dir / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named templates: the default one
        template = next((t.get("template") for t in template if t.get("name") == "default"), None)
    if not isinstance(template, str):
        raise ModelError(
            f"{model_dir} has no chat template, so it is probably a base model. "
            "Choose an instruct/chat variant, or put a chat_template.jinja beside the weights."
        )
    return template


def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])


def speaks_of_tools(text: str) -> bool:
    return "tools" in meta.find_undeclared_variables(_environment().parse(text))


def compile_template(text: str) -> Template:
    """Compile in a sandbox: a template comes with the model, and is code. Raises ModelError."""
    environment = _environment()
    environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    try:
        return environment.from_string(text)
    except TemplateError as error:
        raise ModelError(f"The model's chat template is not valid: {error}") from error


def _refuse(message: str) -> None:
    raise TemplateError(message)
