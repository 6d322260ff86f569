"""Puts the chain together from the settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from instar.config import ENGINE_JUDGE, JudgeSettings
from instar.errors import ConfigError
from instar.judges.chain import Chain
from instar.judges.embedding import Remembered, load_embedding
from instar.judges.endpoint import Asker, HttpAsker
from instar.judges.explicit import ExplicitLink
from instar.judges.heads import HeadsLink, load_heads
from instar.judges.model import ModelLink
from instar.judges.personal import PersonalHeads
from instar.judges.tools import ToolLink
from instar.ports import JudgeLink, Ratings
from instar.runtime import Clock


def build_chain(
    settings: JudgeSettings,
    *,
    own_engine: Callable[[], Asker] | None = None,
    ratings: Ratings | None = None,
    clock: Clock | None = None,
) -> Chain:
    """The links of `judge.chain`, in its order: by default feedback, words, tool output, a model.

    The user's words come before the tool's: where both followed a step, the person is right. What cannot be had
    is left out and `Chain.notes` says why; the others go on. `own_engine` is how `judge.url = "engine"` asks;
    with `ratings`, learners move the heads.
    """
    builders: dict[str, Callable[[], JudgeLink | None]] = {
        "explicit": ExplicitLink,
        "heads": partial(_heads, settings, ratings),
        "tools": ToolLink,
        "model": partial(_model, settings, own_engine, clock),
    }
    links: list[JudgeLink] = []
    notes: list[str] = []
    for name in settings.chain:
        try:
            link = builders[name]()
        except ConfigError as error:
            notes.append(str(error))
        else:
            links += [link] if link is not None else []
    if settings.url is not None and "model" not in settings.chain:
        notes.append("judge.url is set, but judge.chain does not name 'model': it is not asked.")
    return Chain(links, notes)


def _heads(settings: JudgeSettings, ratings: Ratings | None) -> HeadsLink:
    embedding = Remembered(load_embedding(settings.embedding))
    heads = load_heads(embedding).first(settings.heads)
    own = PersonalHeads(heads, embedding, ratings, settings.min_agreement) if ratings else None
    return HeadsLink(heads, embedding, min_agreement=settings.min_agreement, own=own)


def _model(
    settings: JudgeSettings, own_engine: Callable[[], Asker] | None, clock: Clock | None
) -> ModelLink | None:
    if settings.url is None:
        return None
    return ModelLink(
        _asker(settings, own_engine),
        votes=settings.votes,
        deadline_s=settings.deadline_s,
        max_chars=settings.max_chars,
        max_tokens=settings.max_tokens,
        clock=clock,
    )


def _asker(settings: JudgeSettings, own_engine: Callable[[], Asker] | None) -> Asker:
    if settings.url == ENGINE_JUDGE:
        if own_engine is None:
            raise ConfigError(f"judge.url = '{ENGINE_JUDGE}' works only while the server runs.")
        return own_engine()
    key = settings.key.get_secret_value() if settings.key else None
    return HttpAsker(str(settings.url), str(settings.model), key)
