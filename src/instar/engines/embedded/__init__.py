"""The engine in a box: torch and transformers behind the wire contract, for machines without a GPU server."""

from __future__ import annotations

from pathlib import Path

from instar.config import EngineSettings


def run(
    model_dir: Path,
    host: str,
    port: int,
    settings: EngineSettings,
    api_key: str | None,
    *,
    dtype: str = "bfloat16",
) -> None:
    """Serve until SIGTERM. Raises ModelError if the model cannot be served.

    Importing this package loads no torch; calling this does.
    """
    from instar.engines.embedded.server import serve

    serve(model_dir, host, port, settings, api_key, dtype)
