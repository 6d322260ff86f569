"""`vllm serve` as the engine's process: what it is started with, watched until it ends, and never left behind.

vLLM is not installed with Instar: it brings a torch of its own, and belongs into an environment of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import structlog

from instar.config import EngineSettings, environment_with
from instar.engines.memory_share import cache_bytes, gpu_share
from instar.errors import ConfigError, EngineError

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The bounds of an adapter's rank that vLLM knows."""
POLL_S = 0.2
ASK_EVERY_S = 2.0
SILENCE_S = 60.0
"""Without a sign of health after which a vLLM that was healthy is ended, so that it is started again."""
STOP_S = 4.0
"""Time for a clean end; less than the supervisor and the lifeline leave us."""
STARTING = "starting vLLM"
log = structlog.get_logger("instar.engine")

INSTALL = (
    "vLLM is not found: there is no program '{program}'. Install it into an environment of its own "
    '(python3 -m venv ~/vllm && ~/vllm/bin/pip install vllm) and name it: engine.program = "~/vllm/bin/vllm". '
    "Or name one that runs already: engine.url."
)


def find_program(program: str) -> str:
    """The whole path. Raises ConfigError that says what to install."""
    found = shutil.which(str(Path(program).expanduser()))
    if found is None:
        raise ConfigError(INSTALL.format(program=program))
    return found


def rank_bound(rank: int) -> int:
    """The smallest bound of vLLM's that lets adapters of this rank in. Raises ConfigError."""
    for bound in RANKS:
        if bound >= rank:
            return bound
    raise ConfigError(f"vLLM serves adapters up to rank {RANKS[-1]}; engine.max_lora_rank is {rank}.")


@dataclass(frozen=True, slots=True)
class Machine:
    """What of the machine decides how vLLM is started. `gpu_mib` is None where there is no GPU."""

    gpu_mib: int | None
    cores: int

    @classmethod
    def this(cls) -> Machine:
        return cls(
            _gpu_mib(), len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        )


def _gpu_mib() -> int | None:
    """Memory of the smallest NVIDIA GPU, MiB, asked of the driver's own tool: no library of theirs is loaded here."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        return min(int(line) for line in told.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def command(
    program: str,
    model_dir: Path,
    host: str,
    port: int,
    settings: EngineSettings,
    machine: Machine,
    update_mib: int,
) -> list[str]:
    """`vllm serve …`. `update_mib`: what an update takes of the GPU beside it; the model's weights among it.

    Raises ConfigError where both do not fit.
    """
    words: dict[str, Any] = {
        "host": host,
        "port": port,
        "served-model-name": settings.base,
        "dtype": "bfloat16",
        "max-model-len": settings.max_model_len or "auto",
        "max-num-seqs": settings.max_streams,
        "max-loras": settings.max_loras,
        "max-lora-rank": rank_bound(settings.max_lora_rank),
        # chat before judging, log-probs before temperature and grammar, the grammars that we write
        "scheduling-policy": "priority",
        "logprobs-mode": "raw_logprobs",
        "structured-outputs-config.backend": "guidance",
        "generation-config": "vllm",
    }
    if machine.gpu_mib is None:
        words["kv-cache-memory-bytes"] = cache_bytes(model_dir, settings.max_cached_tokens)
    else:
        words["gpu-memory-utilization"] = settings.gpu_share or gpu_share(machine.gpu_mib, update_mib)
    named = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    flags = ["--enable-lora", "--disable-uvicorn-access-log"]
    return [program, "serve", str(model_dir), *named, *flags, *settings.args]


def environment(settings: EngineSettings, machine: Machine, api_key: str | None) -> dict[str, str]:
    """What is set for it. The key stands here, and not in the command, which every user of the machine can read."""
    found = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",  # nothing is sent anywhere
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a folder on this machine
    }
    if api_key:
        found["VLLM_API_KEY"] = api_key
    if machine.gpu_mib is None:
        threads = settings.threads or max(1, machine.cores - 1)
        found |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    return found


def run(
    model_dir: Path,
    host: str,
    port: int,
    settings: EngineSettings,
    api_key: str | None,
    *,
    update_mib: int,
    log_path: Path,
) -> None:
    """Start it and watch it until SIGTERM or SIGINT.

    Raises ConfigError if it cannot be started, or ends before it was healthy once; EngineError if it ends, or falls
    silent, later.
    """
    machine = Machine.this()
    program = find_program(settings.program)
    words = command(program, model_dir, host, port, settings, machine, update_mib)
    log.info(STARTING, command=words)
    told = _Told()
    before = log_path.stat().st_size if log_path.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-m", "instar.engines.tied", *words],
        env=environment_with(environment(settings, machine, api_key)),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # so that it can be ended with all that it starts
    )
    try:
        Watch(process, f"http://{host}:{port}/health", log_path, before).until(told)
    finally:
        end(process)


class _Told:
    """Whether SIGTERM or SIGINT came."""

    def __init__(self) -> None:
        self.yes = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self.yes = True


@dataclass(slots=True)
class Watch:
    """`log_path` holds what the process says, from byte `log_from` on. Times are monotonic seconds."""

    process: subprocess.Popen[bytes]
    health_url: str
    log_path: Path
    log_from: int = 0
    well_at: float | None = None
    asked_at: float = 0.0

    def until(self, told: _Told) -> None:
        while not told.yes:
            self.look(time.monotonic())
            time.sleep(POLL_S)

    def look(self, now: float) -> None:
        status = self.process.poll()
        if status is not None:
            raise self._ended(status)
        if now - self.asked_at < ASK_EVERY_S:
            return
        self.asked_at = now
        if is_well(self.health_url):
            self.well_at = now
        elif self.well_at is not None and now - self.well_at > SILENCE_S:
            raise EngineError(f"vLLM gave no sign of health for {SILENCE_S:.0f} s; it is ended.")

    def _ended(self, status: int) -> ConfigError | EngineError:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        if self.well_at is not None:
            return EngineError(f"vLLM ended ({how}).")
        why = reason_in(_since(self.log_path, self.log_from))
        return ConfigError(f"vLLM ended while it started ({how}): {why} All of it: {self.log_path}")


def is_well(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM; after a while SIGKILL for it and for all that it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            log.warning("vLLM did not end in time; killing it")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # the group outlives its leader while anybody is in it
    process.wait()


# ── what its log tells ────────────────────────────────────────────────────────────────────────────────────
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = re.compile(r"^(\([^)]*\) )?(DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:.]+ (\[[^\]]*\] )?")
_REASON = re.compile(r"^(\w+\.)*\w*(Error|Exception)\b.*: .|^vllm serve: error: |error: ")


def plain(line: str) -> str:
    """A line of vLLM's log without colours, process, level, time and place."""
    line = _COLOUR.sub("", line)
    found = _HEAD.sub("", line)
    return found if found != line else re.sub(r"^\([^)]*pid=\d+\) ", "", line)


def reason_in(text: str, width: int = 300) -> str:
    """The line that most likely says why it ended: of the first error told, since others follow from it."""
    lines = [plain(line).strip() for line in text.splitlines()]
    told = [line for line in lines if _REASON.search(line)]
    why = (told or [line for line in lines if line] or ["it said nothing"])[0 if told else -1]
    return why[:width].rstrip(".") + "."


def stage(log_path: Path, width: int = 100, window_bytes: int = 8192) -> str:
    """What it is doing as it starts, as its last line tells."""
    size = log_path.stat().st_size if log_path.exists() else 0
    *_, text = _since(log_path, max(0, size - window_bytes)).rpartition(STARTING)  # not of an earlier start
    lines = [plain(line).strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("{", '"', "─", "█", "▄"))]
    return told[-1][:width] if told else "no word yet"


def _since(path: Path, start: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
