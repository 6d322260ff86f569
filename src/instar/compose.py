"""The only place that picks concrete parts. Each `run_*` is one process, and blocks until SIGTERM."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from instar.chat_format import ChatFormat
from instar.config import Settings, models_dir
from instar.errors import ConfigError
from instar.flow.prompts import ChatTeacherPrompts
from instar.flow.publish import BaseModelFacts, Publisher
from instar.flow.train_step import TrainStep
from instar.methods import get_method
from instar.ports import Engine, Ratings, Store
from instar.records import BASE
from instar.registry import FolderRegistry
from instar.runtime import SystemClock, error_places
from instar.store import open_store
from instar.workers.state import RunState

if TYPE_CHECKING:
    from instar.judges import Chain


def configure_logging(settings: Settings) -> None:
    """One JSON object a line on stderr, for the libraries' lines too: nothing in a message can forge a line.

    Texts are never logged. Since an error's message may quote one, libraries' errors are named by type and place.
    """
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    render = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            stamp,
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(settings.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, stamp],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _name_error, render],
        )
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


def _name_error(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """In the place of a traceback, whose last line is the error's message."""
    info = event.pop("exc_info", None)
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event.update(error=type(error).__name__, where=error_places(error))
    return event


def prepare_model(settings: Settings, progress: Callable[[str, float], None] | None = None) -> Path:
    """The folder of the model that is to be served, converted or fetched if need be. Raises ModelError."""
    from instar.engines.starter import ensure_model

    return ensure_model(settings.model, models_dir(), progress)


def base_facts(settings: Settings, model_dir: Path) -> BaseModelFacts:
    from instar.engines.starter import model_facts

    return BaseModelFacts(name=settings.model, sha256=model_facts(model_dir).sha256)


def build_store(settings: Settings) -> Store:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    return open_store(settings.database_url)


def chat_format(settings: Settings, state: RunState) -> ChatFormat:
    """As the engine serves it: the embedded one holds fewer tokens than some models were made for."""
    form, engine = settings.tool_format, settings.engine
    most = engine.max_cached_tokens if engine.kind == "embedded" else None
    return ChatFormat(state.model_dir, None if form == "auto" else form, most)


def build_engine(settings: Settings, state: RunState, chat: ChatFormat) -> Engine:
    from instar.engines.client import HttpEngine
    from instar.engines.dialects import dialect_of

    engine = settings.engine
    return HttpEngine(
        state.engine_url,
        engine.base if engine.kind != "embedded" else BASE,
        chat.stop_ids,
        state.engine_key,
        dialect=dialect_of(engine.kind),
        shared=engine.is_attached,
    )


def run_engine(settings: Settings, state: RunState) -> None:
    """The engine's process. torch is imported here, and in no other serving process."""
    if settings.engine.kind == "scripted":
        from instar.engines import scripted

        scripted.run(state.model_dir, state.engine_host, state.engine_port, settings.engine, state.engine_key)
        return
    if settings.engine.kind == "vllm":
        _run_vllm(settings, state)
        return
    from instar.engines import embedded

    embedded.run(state.model_dir, state.engine_host, state.engine_port, settings.engine, state.engine_key)


def _run_vllm(settings: Settings, state: RunState) -> None:
    from instar.engines import memory_share, vllm_process

    train = settings.train
    vllm_process.run(
        state.model_dir,
        state.engine_host,
        state.engine_port,
        settings.engine,
        state.engine_key,
        update_mib=memory_share.update_mib(state.model_dir, train.memory_mib, enabled=train.enabled),
        log_path=settings.run_dir / "logs" / "engine.log",
    )


def run_gateway(settings: Settings, state: RunState) -> None:
    from instar.gateway.app import build_app
    from instar.gateway.server import make_server
    from instar.workers.pids import read_pids

    if settings.api_key is None:
        raise ConfigError("The gateway needs an API key.")
    store = build_store(settings)
    store.sweep_open("interrupted")
    chat = chat_format(settings, state)

    def processes() -> dict[str, dict[str, Any]]:
        loops: dict[str, dict[str, Any]] = read_pids(settings.run_dir).get("loops", {})
        return loops

    app = build_app(
        settings,
        store,
        FolderRegistry(settings.versions_dir),
        build_engine(settings, state, chat),
        chat,
        SystemClock(),
        settings.api_key.get_secret_value(),
        base_facts(settings, state.model_dir).sha256,
        processes,
    )
    listener = state.listener() or socket.create_server((settings.host, settings.port))
    with closing(store):
        server = make_server(app, tls_cert=settings.tls_cert, tls_key=settings.tls_key)
        server.run(sockets=[listener])


def run_judge(settings: Settings, state: RunState) -> None:
    from instar.workers.judge import run_judge_loop

    with closing(build_store(settings)) as store, closing(build_judges(settings, state, store)) as chain:
        run_judge_loop(store, chain, lease_s=settings.judge.lease_s, poll_s=settings.judge.poll_s)


def build_judges(settings: Settings, state: RunState | None, ratings: Ratings | None = None) -> Chain:
    """The configured chain. Without the state of a running server, our own engine cannot be asked; without
    ratings, the heads read as they were shipped."""
    from instar.judges import build_chain
    from instar.judges.endpoint import EngineAsker

    def own_engine(state: RunState) -> EngineAsker:
        chat = chat_format(settings, state)
        return EngineAsker(build_engine(settings, state, chat), chat)

    asker = partial(own_engine, state) if state else None
    return build_chain(settings.judge, own_engine=asker, ratings=ratings)


def run_trainer(settings: Settings, state: RunState) -> None:
    from instar.workers.trainer import run_trainer_loop

    clock = SystemClock()
    with closing(build_store(settings)) as store, closing(build_trainer(settings, state)) as trainer:
        run_trainer_loop(
            store,
            build_train_step(settings, state, store, trainer),
            poll_s=settings.train.poll_s,
            clock=clock,
        )


def build_trainer(settings: Settings, state: RunState) -> Any:
    from instar.trainers.process import ProcessTrainer

    train = settings.train
    return ProcessTrainer(
        state.model_dir, train.threads, min_share=train.min_share, memory_mib=train.memory_mib
    )


def build_train_step(settings: Settings, state: RunState, store: Store, trainer: Any) -> TrainStep:
    registry = FolderRegistry(settings.versions_dir)
    clock = SystemClock()
    return TrainStep(
        store=store,
        registry=registry,
        trainer=trainer,
        method=get_method(settings.train.method),
        prompts=ChatTeacherPrompts(chat_format(settings, state)),
        settings=settings,
        model_dir=state.model_dir,
        publisher=Publisher(
            store, registry, base_facts(settings, state.model_dir), clock, approve=settings.gate.approve
        ),
        clock=clock,
    )
