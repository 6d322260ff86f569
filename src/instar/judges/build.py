"""Puts the chain together from the settings."""

from __future__ import annotations

from instar.config import JudgeSettings
from instar.errors import ConfigError
from instar.judges.chain import Chain
from instar.judges.embedding import load_embedding
from instar.judges.explicit import ExplicitLink
from instar.judges.heads import HeadsLink, load_heads
from instar.judges.tools import ToolLink
from instar.ports import JudgeLink


def build_chain(settings: JudgeSettings) -> Chain:
    """Explicit feedback, then the user's words, then tool output.

    The user's words come before the tool's: where both followed a step, the person is right. Without an
    embedding their link is left out and `Chain.notes` says why; the others go on.
    """
    links: list[JudgeLink] = [ExplicitLink()]
    notes: list[str] = []
    try:
        links.append(_heads(settings))
    except ConfigError as error:
        notes.append(str(error))
    links.append(ToolLink())
    return Chain(links, notes)


def _heads(settings: JudgeSettings) -> HeadsLink:
    embedding = load_embedding(settings.embedding)
    return HeadsLink(
        load_heads(embedding),
        embedding,
        voters=settings.heads,
        min_agreement=settings.min_agreement,
    )
