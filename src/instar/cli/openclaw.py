"""What OpenClaw's configuration must say to talk to this server, and how large a prompt it makes.

Keys and their meaning are OpenClaw's own (its documentation: "Custom providers and base URLs"). Prompt sizes were
measured with OpenClaw 2026.9.6 and the starter model's tokenizer; other tokenizers make up to a quarter fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from instar.cli.json5_file import Document

PROVIDER = "instar"

SESSION_FLAGS = {"sendSessionAffinityHeaders": True, "supportsPromptCacheKey": True}
"""With these OpenClaw names the session in each request; without them it is recognised by its history."""

SMALL: Document = {
    "agents": {
        "defaults": {
            "skipBootstrap": True,
            "contextInjection": "never",
            "skills": [],
            "heartbeat": {"every": "0m"},
            "utilityModel": "",
        }
    },
    "tools": {"allow": ["read", "exec"], "toolSearch": False},
}
"""The smallest prompt that still has tools: no workspace files, no skills, no requests beside the conversation."""

_FRAME = 1_870  # tokens of the prompt that are always there, the line about the runtime included
_WORKSPACE = 4_900  # AGENTS.md and its kin as they are made for a new workspace
_SKILLS = 2_300  # the list of the skills that come with it
_ABOUT_TOOLS = 3_400  # what the prompt says of tools where none are named in `tools.allow`
_TOOLS = 2_700  # schemas of the twelve tools that are sent then
_TOOLS_UNSEARCHED = 20_000  # of all of them, where `tools.toolSearch` is off
_TOOL = 340  # of each one that is named
_TALK = 1_500  # what a conversation needs beside the prompt to be one


@dataclass(frozen=True, slots=True)
class Served:
    """The model as the server tells of it. `url` is without `/v1`; `context_length` counts tokens."""

    url: str
    key: str
    name: str
    context_length: int

    @property
    def answer_tokens(self) -> int:
        """The longest answer that is asked for: an eighth of the context, which leaves the rest to the prompt."""
        return min(8192, max(256, self.context_length // 8))


def patch(served: Served, have: Mapping[str, Any], *, small: bool) -> Document:
    """What has to be set, as an object that is laid over the configuration `have`."""
    provider = {
        "baseUrl": f"{served.url}/v1",
        "apiKey": served.key,
        "api": "openai-completions",
        "models": [_model(served), *_other_models(have, served.name)],
    }
    chosen = f"{PROVIDER}/{served.name}"
    model: Any = at(have, "agents", "defaults", "model")
    wanted: Document = {
        "models": {"providers": {PROVIDER: provider}},
        # A model may be named by a string alone; then there is no object to lay `primary` into.
        "agents": {"defaults": {"model": chosen if isinstance(model, str) else {"primary": chosen}}},
    }
    if "gateway" not in have:
        wanted["gateway"] = {"mode": "local"}  # without a mode OpenClaw's gateway does not start
    if small:
        wanted["agents"]["defaults"].update(SMALL["agents"]["defaults"])
        wanted["tools"] = SMALL["tools"]
    return wanted


def _model(served: Served) -> Document:
    return {
        "id": served.name,
        "name": "Instar",
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": served.context_length,
        "maxTokens": served.answer_tokens,
        "compat": {**SESSION_FLAGS, "requiresStringContent": True, "maxTokensField": "max_tokens"},
    }


def _other_models(have: Mapping[str, Any], name: str) -> list[Any]:
    """Entries that the person added to our provider, such as a pinned version."""
    models = at(have, "models", "providers", PROVIDER, "models")
    rows = models if isinstance(models, list) else []
    return [row for row in rows if not (isinstance(row, dict) and row.get("id") == name)]


def at(tree: Any, *path: str) -> Any:
    """The value at a path of keys; None where the path ends early."""
    for key in path:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(key)
    return tree


def prompt_tokens(config: Mapping[str, Any]) -> int:
    """About how many tokens the prompt of a new conversation takes with this configuration."""
    named = at(config, "tools", "allow")
    total = _FRAME
    if at(config, "agents", "defaults", "contextInjection") != "never":
        total += _WORKSPACE
    if at(config, "agents", "defaults", "skills") != []:
        total += _SKILLS
    if isinstance(named, list) and named and not any("*" in str(name) for name in named):
        return total + _TOOL * len(named)
    return (
        total + _ABOUT_TOOLS + (_TOOLS_UNSEARCHED if at(config, "tools", "toolSearch") is False else _TOOLS)
    )


def fits(prompt: int, served: Served) -> bool:
    """Whether a conversation has room beside the prompt: otherwise answers of a single token are asked for."""
    return prompt + served.answer_tokens + _TALK <= served.context_length


def remarks(config: Mapping[str, Any], served: Served) -> list[str]:
    """What keeps an existing configuration from working well with this server, in words."""
    provider = at(config, "models", "providers", PROVIDER)
    if not isinstance(provider, Mapping):
        return ["It does not know this server yet."]
    found: list[str] = []
    models = provider.get("models")
    rows = [row for row in models if isinstance(row, Mapping)] if isinstance(models, list) else []
    row = next((row for row in rows if row.get("id") == served.name), None)
    if row is None:
        return [f"Its provider {PROVIDER!r} has no model {served.name!r}."]
    if row.get("contextWindow") != served.context_length:
        found.append(
            f"It believes in a context of {row.get('contextWindow')} tokens; it is {served.context_length}."
        )
    if any(at(row, "compat", flag) is not True for flag in SESSION_FLAGS):
        found.append("It does not name its sessions; they are recognised by their history.")
    model = at(config, "agents", "defaults", "model")
    primary = model if isinstance(model, str) else at(model, "primary")
    if primary != f"{PROVIDER}/{served.name}":
        found.append(f"Its agents talk to {primary or 'another model'} unless told otherwise.")
    return found
