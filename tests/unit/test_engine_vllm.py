"""vLLM as a child: what it is started with, how its log is read, and that it never stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from instar.config import EngineSettings, load_settings
from instar.engines import vllm_process as vllm
from instar.engines.memory_share import MOST_SHARE, cache_bytes, gpu_share, update_mib
from instar.errors import ConfigError, EngineError, ModelError
from instar.workers.state import load_state, save_state
from instar.workers.supervisor import build_supervisor, make_state, stage_of
from tests.kit.live_server import free_port
from tests.kit.tiny_model import weightless_model, write_chat_files

CPU = vllm.Machine(gpu_mib=None, cores=8)
GPU = vllm.Machine(gpu_mib=24_000, cores=8)


def made(**fields: Any) -> EngineSettings:
    return EngineSettings.model_validate({"kind": "vllm", **fields})


# ── its share of the memory ──────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("gpu", "update", "share"),
    [(24_000, 6_000, 0.75), (24_000, 6_001, 0.74), (80_000, 0, MOST_SHARE), (1000, 900, 0.1)],
)
def test_vllm_gets_what_an_update_leaves(gpu: int, update: int, share: float) -> None:
    assert gpu_share(gpu, update) == share
    assert gpu - gpu * share >= update


@pytest.mark.parametrize("update", [901, 1000, 5000])
def test_a_gpu_too_small_for_both_is_told_so(update: int) -> None:
    with pytest.raises(ConfigError, match=rf"{update} of the GPU's 1000 MiB.*train\.memory_mib"):
        gpu_share(1000, update)


def test_an_update_takes_the_model_once_more_and_its_bound(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"x" * (2**20 + 1))
    (tmp_path / "b.safetensors").write_bytes(b"x" * 2**20)
    assert update_mib(tmp_path, 3072, enabled=True) == 3 + 3072 + 1024
    assert update_mib(tmp_path, 3072, enabled=False) == 0


def test_keys_and_values_of_a_token_follow_the_models_shape(tmp_path: Path) -> None:
    folder = write_chat_files(
        tmp_path / "m"
    )  # 2 layers, 2 heads of 16 for keys and as many for values, in bf16
    assert cache_bytes(folder, 10) == 10 * 2 * 2 * (2 * 16) * 2
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="shape"):
        cache_bytes(folder, 10)


# ── what it is started with ──────────────────────────────────────────────────────────────────────────────
def started(tmp_path: Path, settings: EngineSettings, machine: vllm.Machine, update: int = 6000) -> list[str]:
    folder = write_chat_files(tmp_path / "m")
    return vllm.command("/bin/vllm", folder, "127.0.0.1", 8001, settings, machine, update)


def value(words: list[str], name: str) -> str:
    """The last one counts."""
    return words[len(words) - 1 - words[::-1].index(f"--{name}") + 1]


def test_the_command_follows_the_settings(tmp_path: Path) -> None:
    words = started(tmp_path, made(max_lora_rank=20, max_loras=3, max_streams=5, max_model_len=2048), CPU)
    assert words[:3] == ["/bin/vllm", "serve", str(tmp_path / "m")]
    told = {name: value(words, name) for name in ("host", "port", "served-model-name", "max-model-len")}
    assert told == {
        "host": "127.0.0.1", "port": "8001", "served-model-name": "base", "max-model-len": "2048"
    }  # fmt: skip
    assert (value(words, "max-lora-rank"), value(words, "max-loras"), value(words, "max-num-seqs")) == (
        "32", "3", "5"
    )  # fmt: skip
    assert value(words, "scheduling-policy") == "priority"
    assert value(words, "logprobs-mode") == "raw_logprobs"
    assert value(words, "structured-outputs-config.backend") == "guidance"
    assert "--enable-lora" in words
    assert value(started(tmp_path, made(), CPU), "max-model-len") == "auto"


def test_on_a_gpu_it_takes_its_share_and_on_a_cpu_so_many_tokens(tmp_path: Path) -> None:
    on_gpu = started(tmp_path, made(), GPU)
    assert value(on_gpu, "gpu-memory-utilization") == "0.75"
    assert "--kv-cache-memory-bytes" not in on_gpu
    assert value(started(tmp_path, made(gpu_share=0.4), GPU), "gpu-memory-utilization") == "0.4"
    on_cpu = started(tmp_path, made(max_cached_tokens=100), CPU)
    assert value(on_cpu, "kv-cache-memory-bytes") == str(100 * 256)
    assert "--gpu-memory-utilization" not in on_cpu


def test_own_arguments_come_last_so_that_they_win(tmp_path: Path) -> None:
    words = started(tmp_path, made(args="--dtype float16 --tensor-parallel-size 2"), CPU)
    assert words[-4:] == ["--dtype", "float16", "--tensor-parallel-size", "2"]
    assert value(words, "dtype") == "float16"


def test_ranks_beyond_all_bounds_are_refused() -> None:
    assert [vllm.rank_bound(rank) for rank in (1, 2, 16, 17, 512)] == [1, 8, 16, 32, 512]
    with pytest.raises(ConfigError, match="512"):
        vllm.rank_bound(513)


def test_the_environment_allows_adapters_holds_the_key_and_sends_nothing() -> None:
    found = vllm.environment(made(), CPU, "sk-x")
    assert found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert (found["VLLM_API_KEY"], found["OMP_NUM_THREADS"]) == ("sk-x", "7")
    assert (found["VLLM_NO_USAGE_STATS"], found["HF_HUB_OFFLINE"]) == ("1", "1")
    assert vllm.environment(made(threads=3), CPU, None)["OMP_NUM_THREADS"] == "3"
    on_gpu = vllm.environment(made(), GPU, None)
    assert not {"VLLM_API_KEY", "OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"} & set(on_gpu)


def test_a_missing_program_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no program 'no-such-vllm'.*pip install vllm.*engine\.program"):
        vllm.find_program("no-such-vllm")
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert vllm.find_program(str(program)) == str(program)


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("fields", "is_attached"),
    [
        ({"kind": "embedded"}, False),
        ({"kind": "vllm"}, False),
        ({"kind": "vllm", "url": "http://gpu:8000"}, True),
        ({"kind": "sglang", "url": "http://gpu:8000"}, True),
        ({"kind": "url", "url": "http://gpu:8000"}, True),
    ],
)
def test_what_runs_already_is_not_started(tmp_path: Path, fields: dict[str, Any], is_attached: bool) -> None:
    settings = load_settings(tmp_path, {"engine": {**fields, "api_key": "sk-theirs"}})
    state = make_state(settings, tmp_path, "sk-the-key", None)
    children = build_supervisor(settings, state, "http://127.0.0.1:1", print, lambda: None).children
    assert ("engine" not in children) is is_attached
    assert (state.engine_url == "http://gpu:8000") is is_attached
    assert (state.engine_key == "sk-theirs") is is_attached
    assert (stage_of(settings) is not None) is (fields["kind"] != "embedded")


def test_an_attached_engine_without_a_key_is_sent_none(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {"engine": {"kind": "url", "url": "http://gpu:8000/v1/"}})
    state = make_state(settings, tmp_path, "sk-the-key", None)
    assert (state.engine_url, state.engine_key) == ("http://gpu:8000", None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "sglang"}, r"engine\.url"),
        ({"kind": "url"}, r"engine\.url"),
        ({"kind": "vllm", "url": "gpu:8000"}, "http://localhost:8000"),
        ({"kind": "vllm", "url": "http://me:secret@gpu:8000"}, r"engine\.api_key"),
        ({"kind": "vllm", "gpu_share": 1.5}, "gpu_share"),
    ],
)
def test_settings_that_make_no_engine_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_settings(tmp_path, {"engine": fields})


def test_every_secret_reaches_the_workers(tmp_path: Path) -> None:
    engine = {"kind": "vllm", "url": "http://gpu:8000", "api_key": "sk-engine", "args": "--a 'b c'"}
    given = {"engine": engine, "api_key": "sk-the-key", "proxy_key": "sk-the-proxy"}
    settings = load_settings(tmp_path, given)
    save_state(tmp_path / "state.json", settings, make_state(settings, tmp_path, "sk-the-key", None))
    again, _ = load_state(tmp_path / "state.json")
    assert again == settings
    assert again.proxy_key is not None
    assert again.proxy_key.get_secret_value() == "sk-the-proxy"
    assert again.engine.args == ("--a", "b c")


# ── its log ──────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("(APIServer pid=7) INFO 12-01 16:46:05 [api_server.py:12] vLLM API server", "vLLM API server"),
        ("INFO 12-01 16:46:05 [model.py:3] Using max model len 2048", "Using max model len 2048"),
        ("\x1b[0;36m(EngineCore pid=9)\x1b[0;0m Loading safetensors: 50%", "Loading safetensors: 50%"),
        ("INFO 12-01 16:46:05 [a.py:3] " + "x" * 300, "x" * 100),
    ],
)
def test_its_log_tells_what_it_does(tmp_path: Path, line: str, told: str) -> None:
    log = tmp_path / "engine.log"
    assert vllm.stage(log) == "no word yet"
    log.write_text(f"INFO 12-01 16:46:01 [a.py:3] before\n{line}\n" + '{"event": "ours"}\n\n')
    assert vllm.stage(log) == told
    with log.open("a") as more:
        more.write('{"command": [], "event": "starting vLLM", "level": "info"}\n')
    assert vllm.stage(log) == "no word yet", "that was an earlier start"


def test_the_first_error_is_the_reason() -> None:
    text = (
        "(EngineCore pid=7) INFO 12-01 16:46:05 [core.py:1] loading\n"
        "(EngineCore pid=7) ERROR 12-01 16:46:06 [core.py:9] Traceback (most recent call last):\n"
        "(EngineCore pid=7) ERROR 12-01 16:46:06 [core.py:9] ValueError: To serve 8192 tokens 2 GiB are needed.\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert vllm.reason_in(text) == "ValueError: To serve 8192 tokens 2 GiB are needed."
    assert vllm.reason_in("vllm serve: error: unrecognized arguments: --x") == (
        "vllm serve: error: unrecognized arguments: --x."
    )
    assert vllm.reason_in("just this\n\n") == "just this."
    assert vllm.reason_in("") == "it said nothing."


# ── a child that stands in for it ────────────────────────────────────────────────────────────────────────
STAND_IN = """#!{python}
import http.server, os, subprocess, sys, threading, time
print("ValueError: out of luck") if {fails} else None
if {fails}: sys.exit(3)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({note!r}, "w").write(f"{{os.getpid()}} {{child.pid}} {{os.environ['VLLM_API_KEY']}}")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        if {dies}: threading.Timer(3.0, os._exit, [5]).start()
    def log_message(self, *args): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
RUN = """
import sys
from pathlib import Path
from instar.config import EngineSettings
from instar.engines import vllm_process
from instar.errors import InstarError
try:
    vllm_process.run(Path(sys.argv[2]), "127.0.0.1", int(sys.argv[3]),
                     EngineSettings(kind="vllm", program=sys.argv[1]), "sk-x", update_mib=0, log_path=Path(sys.argv[4]))
except InstarError as error:
    print(type(error).__name__, error, flush=True)
"""


def launch(
    tmp_path: Path, *, fails: bool = False, dies: bool = False
) -> tuple[subprocess.Popen[bytes], Path]:
    program, note, log = tmp_path / "vllm", tmp_path / "note", tmp_path / "engine.log"
    program.write_text(STAND_IN.format(python=sys.executable, note=str(note), fails=fails, dies=dies))
    program.chmod(0o755)
    log.write_text("ValueError: of an earlier start\n")
    model = weightless_model(tmp_path / "m")
    with log.open("ab") as out:
        words = [str(program), str(model), str(free_port()), str(log)]
        process = subprocess.Popen([sys.executable, "-c", RUN, *words], stdout=out, stderr=out)
    return process, note


def pids_in(note: Path) -> list[int]:
    while not note.exists() or len(note.read_text().split()) < 3:
        time.sleep(0.05)
    *pids, key = note.read_text().split()
    assert key == "sk-x"
    return [int(pid) for pid in pids]


def all_gone(pids: list[int]) -> bool:
    found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(found, timeout=60)[1]


def test_told_to_end_it_ends_vllm_with_all_that_vllm_started(tmp_path: Path) -> None:
    process, note = launch(tmp_path)
    pids = pids_in(note)
    process.terminate()
    assert process.wait(60) == 0
    assert all_gone(pids)
    assert "Error" not in (tmp_path / "engine.log").read_text().split("earlier start")[1]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked")
def test_killed_outright_it_leaves_no_vllm_behind(tmp_path: Path) -> None:
    process, note = launch(tmp_path)
    leader, helper = pids_in(note)
    process.kill()
    process.wait(60)
    assert all_gone([leader])
    os.kill(helper, signal.SIGKILL)  # the real one ends what it started


def test_a_start_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    process, _ = launch(tmp_path, fails=True)
    assert process.wait(60) == 0
    told = (tmp_path / "engine.log").read_text().splitlines()[-1]
    assert told.startswith("ConfigError vLLM ended while it started (status 3): ValueError: out of luck. All")
    assert str(tmp_path / "engine.log") in told


def test_an_end_after_it_was_well_is_no_wrong_setting(tmp_path: Path) -> None:
    process, note = launch(tmp_path, dies=True)
    pids = pids_in(note)
    assert process.wait(60) == 0
    assert (tmp_path / "engine.log").read_text().splitlines()[-1] == "EngineError vLLM ended (status 5)."
    assert all_gone(pids)


def test_a_silent_vllm_is_ended_but_not_one_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Alive:
        def poll(self) -> None:
            return None

    answers = iter([False, True, False, False])
    monkeypatch.setattr(vllm, "is_well", lambda url: next(answers))
    watch = vllm.Watch(Alive(), "http://x/health", tmp_path / "log")  # type: ignore[arg-type]
    watch.look(1000.0)
    watch.look(2000.0)  # starting may take however long
    watch.look(2000.0 + vllm.SILENCE_S)
    watch.look(2000.5 + vllm.SILENCE_S)  # not asked again so soon
    with pytest.raises(EngineError, match="no sign of health"):
        watch.look(2003.0 + vllm.SILENCE_S)
