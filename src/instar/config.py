"""All settings, in one place. The only module that reads the environment.

Sources, the later wins: defaults, `instar.toml` in the data folder, environment (`INSTAR_TRAIN__LR=1e-4`),
command line.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from instar.errors import ConfigError
from instar.records import BASE


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _shell_words(value: Any) -> Any:
    """A text, as an environment variable or the command line has it, is split as a shell would."""
    return shlex.split(value) if isinstance(value, str) else value


def _check_address(url: str, example: str, key: str) -> None:
    parts = urlsplit(url)
    _ = parts.port  # raises where it is no port
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"write an address such as {example}")
    if parts.username or parts.password:
        raise ValueError(f"leave the name and password out of the address; a key belongs into {key}")


class EngineSettings(Group):
    """Where tokens come from."""

    kind: Literal["embedded", "vllm", "sglang", "url", "scripted"] = Field(
        "embedded",
        description="'embedded', 'vllm' (started, or running at `engine.url`), 'sglang' (running), 'url' (another "
        "that speaks vLLM's API), or 'scripted' (for tests)",
    )
    url: str | None = Field(
        None, description="address of a running engine; for kind = vllm none means that one is started"
    )
    api_key: SecretStr | None = Field(None, description="the running engine's API key, if it wants one")
    base: str = Field(BASE, min_length=1, description="name of the untouched model at the running engine")
    program: str = Field(
        "vllm", min_length=1, description="what kind = vllm starts: a program's name or path"
    )
    args: Annotated[tuple[str, ...], BeforeValidator(_shell_words)] = Field(
        (), description="more arguments for it, such as `--tensor-parallel-size 2`"
    )
    max_model_len: int | None = Field(
        None,
        ge=64,
        description="tokens of prompt and answer together that kind = vllm takes; none: as many as fit",
    )
    gpu_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the GPU's memory for kind = vllm; none: what an update leaves of it",
    )
    threads: int = Field(0, ge=0, description="compute threads; 0 leaves one core to training")
    max_streams: int = Field(8, ge=1, le=256, description="answers sampled at the same time")
    max_waiting: int = Field(256, ge=1, description="requests that may queue before 429")
    max_loras: int = Field(4, ge=2, description="versions held in memory at the same time")
    max_lora_rank: int = Field(64, ge=1, description="largest adapter rank that can be served")
    prefill_chunk: int = Field(128, ge=16, description="prompt tokens computed between two decode steps")
    max_cached_tokens: int = Field(
        32_768, ge=64, description="tokens of all answers together that the embedded engine holds in memory"
    )
    prewarm_s: float = Field(
        60.0,
        ge=0,
        description="longest that a new version waits until the conversations in use are computed under it, in the "
        "time that answers leave; 0: it serves at once, and their next turns start slowly",
    )
    native: Literal["auto", "on", "off"] = Field(
        "auto",
        description="decode steps in C++, built at the first start: 'auto' (where it can be), 'on' (or refuse to "
        "start), 'off' (torch)",
    )

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        """Without the `/v1` that clients write behind it."""
        if url is None:
            return None
        _check_address(url, "http://localhost:8000", "engine.api_key")
        return url.rstrip("/").removesuffix("/v1").rstrip("/")

    @model_validator(mode="after")
    def _what_is_not_started_has_an_address(self) -> Self:
        if self.kind in ("sglang", "url") and self.url is None:
            raise ValueError(f"with kind = {self.kind} write the running engine's address into engine.url")
        return self

    @property
    def is_attached(self) -> bool:
        """Whether the engine is somebody else's to start."""
        return self.kind in ("sglang", "url") or (self.kind == "vllm" and self.url is not None)


ENGINE_JUDGE = "engine"
"""Value of `judge.url` that means our own engine's untouched model."""

LinkName = Literal["explicit", "heads", "tools", "model"]


def _words(value: Any) -> Any:
    """`"explicit, heads"`, as an environment variable or the command line has it, is a list too."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


class JudgeSettings(Group):
    """Who reads reactions."""

    chain: Annotated[tuple[LinkName, ...], BeforeValidator(_words)] = Field(
        ("explicit", "heads", "tools", "model"),
        min_length=1,
        description="who is asked, in this order; 'model' only where `judge.url` names one",
    )
    embedding: str = Field(
        "bundled", description="'bundled' (multilingual-e5-small); no other is supported yet"
    )
    heads: int = Field(9, ge=1, description="small classifiers that vote")
    min_agreement: float = Field(
        0.75, ge=0.5, le=1.0, description="share of equal votes below which it abstains"
    )
    url: str | None = Field(
        None,
        description="OpenAI-compatible server whose model judges, such as `http://localhost:11434/v1`, "
        "or 'engine': our own untouched model",
    )
    model: str | None = Field(None, description="the judging model's name on that server")
    key: SecretStr | None = Field(None, description="that server's API key, if it wants one")
    votes: int = Field(3, ge=1, le=15, description="votes of the model on one turn; more than half decide")
    deadline_s: float = Field(30.0, gt=0, description="seconds for all votes of a turn together")
    max_chars: int = Field(
        6000, ge=400, description="characters of a turn that the model is shown; long texts lose their middle"
    )
    max_tokens: int = Field(512, ge=32, description="longest reply of the model, its thinking included")
    lease_s: float = Field(60.0, gt=0, description="seconds until another judge may take a turn over")
    poll_s: float = Field(0.25, gt=0, description="seconds between two looks for work")

    @field_validator("chain")
    @classmethod
    def _each_once(cls, chain: tuple[LinkName, ...]) -> tuple[LinkName, ...]:
        if len(set(chain)) < len(chain):
            raise ValueError("each judge can stand in the chain once")
        return chain

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is None or url == ENGINE_JUDGE:
            return url
        _check_address(url, f"http://localhost:11434/v1, or '{ENGINE_JUDGE}'", "judge.key")
        return url

    @model_validator(mode="after")
    def _model_and_url_go_together(self) -> Self:
        if self.url == ENGINE_JUDGE:
            if self.model is not None:
                raise ValueError(f"with url = '{ENGINE_JUDGE}' the served model judges; leave `model` out")
        elif (self.url is None) != (self.model is None):
            raise ValueError("`url` and `model` go together; set both or neither")
        return self


_TIME = r"([01]\d|2[0-3]):[0-5]\d"
_HOURS = re.compile(f"{_TIME}-{_TIME}", re.ASCII)


class TrainSettings(Group):
    """How the model learns."""

    enabled: bool = Field(True, description="whether it learns at all")
    mode: Literal["always", "idle", "hours"] = Field(
        "always",
        description="when an update may start: 'always', 'idle' (after `idle_s` without a request) or 'hours' "
        "(within `hours`)",
    )
    idle_s: float = Field(60.0, gt=0, description="seconds without a request, for mode = idle")
    hours: str = Field(
        "02:00-06:00", description="local time of day, for mode = hours; may pass midnight: `22:00-06:00`"
    )
    min_share: float = Field(
        0.1,
        ge=0,
        le=0.5,
        description="share of a core that an update gets even while answers keep all cores busy",
    )
    method: Literal["binary_rl", "opd", "combined"] = Field(
        "combined", description="verdicts (binary_rl), the user's words (opd), or both (combined)"
    )
    batch_size: int = Field(8, ge=1, description="judged turns that make an update")
    min_batch: int = Field(3, ge=1, description="fewer will do after `quiet_s` without a reaction")
    quiet_s: float = Field(
        30.0, ge=0, description="seconds without a reaction after which `min_batch` will do"
    )
    micro_batch: int = Field(4, ge=1, description="turns per optimizer step")
    passes: int = Field(2, ge=1, description="times that an update goes over its batch")
    lr: float = Field(3e-4, gt=0, description="learning rate of the adapter")
    rank: int = Field(16, ge=1, description="rank of the adapter")
    alpha: int = Field(32, ge=1, description="scale of the adapter: alpha / rank")
    top_k: int = Field(20, ge=1, description="teacher tokens per position in distillation")
    teacher: Literal["base", "policy"] = Field("base", description="who is shown the hint in distillation")
    guidance: float = Field(
        1.0, gt=0, description="how strongly the teacher heeds the hint; 1 as it does itself"
    )
    revision_tokens: int = Field(128, ge=8, description="longest revision that is looked for")
    clip_low: float = Field(
        0.2, gt=0, lt=1, description="how far a token's ratio may fall before it is clipped"
    )
    clip_high: float = Field(0.28, gt=0, description="how far a token's ratio may rise before it is clipped")
    anchor_kl: float = Field(0.3, ge=0, description="weight of the pull to base on unrelated requests")
    max_staleness: int = Field(
        4,
        ge=0,
        description="updates between a sample's version and the serving one after which it is too old for pg and "
        "distill",
    )
    max_tokens: int = Field(
        32_768,
        ge=64,
        description="longest prompt plus response that is trained on, if `memory_mib` can hold it",
    )
    gradient_tokens: int = Field(
        256,
        ge=0,
        description="last tokens of a long prompt through which gradients flow; 0: through all, exactly, and several "
        "times slower where prompts share nothing",
    )
    memory_mib: int = Field(
        3072,
        ge=256,
        description="MiB that an update may take beside the model; never more than half of the machine's",
    )
    threads: int = Field(1, ge=1, description="compute threads of an update")
    poll_s: float = Field(0.5, gt=0, description="seconds between two looks for work")
    seed: int = Field(0, description="fixes every random choice of an update")

    @field_validator("hours")
    @classmethod
    def _is_a_stretch_of_the_day(cls, hours: str) -> str:
        if not _HOURS.fullmatch(hours) or hours[:5] == hours[6:]:
            raise ValueError("write a beginning and another end on the 24-hour clock, such as 02:00-06:00")
        return hours


class GateSettings(Group):
    """What a version must show before it serves."""

    max_kl: float = Field(0.3, gt=0, description="KL to base on unrelated prompts, nats a token")
    min_sound: float = Field(
        0.75, gt=0, lt=1, description="share of canary answers that must be sound, relative to base"
    )
    held_back: float = Field(
        0.1, ge=0, lt=1, description="share of all hours never trained on, which new versions are tried on"
    )
    approve: bool = Field(
        False, description="whether a version that passed waits for `instar versions approve`"
    )
    auto_rollback: bool = Field(
        True,
        description="whether a version that users like less than those before it is taken back by itself",
    )


FilePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
"""As seen from where the command was started, or by its whole name."""


class Settings(Group):
    data_dir: Path = Field(description="where everything is kept")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(30000, ge=0, le=65535, description="port to listen on")
    api_key: SecretStr | None = Field(
        None, description="key that clients must send; made once when none is given"
    )
    proxy_key: SecretStr | None = Field(
        None, description="key of a client that serves several people, told apart by its field `user`"
    )
    model: str = Field("starter", description="'starter', or a Hugging Face causal LM's name or folder")
    served_name: str = Field(
        "instar", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="the model's name for clients"
    )
    store_url: str | None = Field(None, description="database; SQLite in the data folder when none is given")
    tool_format: Literal["auto", "hermes", "qwen3_coder", "llama3", "mistral", "json"] = Field(
        "auto", description="how the model writes tool calls; 'auto': as its chat template does"
    )
    max_tokens: int = Field(1024, ge=1, description="answer length when the client names none")
    temperature: float = Field(0.7, ge=0, le=2, description="sampling temperature when the client names none")
    max_body_bytes: int = Field(16 * 2**20, ge=1024, description="largest request that is read")
    ping_s: float = Field(
        10.0, gt=0, description="seconds of silence in a streamed answer after which an empty piece is sent"
    )
    cors_origins: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        (),
        description="web pages that may call this server from a browser, such as `https://chat.home`; '*' for all",
    )
    tls_cert: FilePath | None = Field(None, description="certificate file (PEM, whole chain): serves HTTPS")
    tls_key: FilePath | None = Field(None, description="its private key file (PEM)")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="how much the logs tell"
    )
    engine: EngineSettings = EngineSettings()  # type: ignore[call-arg]
    judge: JudgeSettings = JudgeSettings()  # type: ignore[call-arg]
    train: TrainSettings = TrainSettings()  # type: ignore[call-arg]
    gate: GateSettings = GateSettings()  # type: ignore[call-arg]

    @model_validator(mode="after")
    def _certificate_and_key_go_together(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("`tls_cert` and `tls_key` go together; set both or neither")
        return self

    @model_validator(mode="after")
    def _not_its_own_judge(self) -> Self:
        """Verdicts asked of our own gateway would be recorded as turns, and given by what is being trained."""
        if self.judge.url not in {None, ENGINE_JUDGE}:
            judge = urlsplit(str(self.judge.url))
            own = {self.host, "localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104  only compared
            if self.port and judge.port == self.port and judge.hostname in own:
                raise ValueError(
                    f"judge.url is this server's own address; write judge.url = '{ENGINE_JUDGE}' instead"
                )
        return self

    @model_validator(mode="after")
    def _two_keys(self) -> Self:
        if self.proxy_key is not None and self.proxy_key == self.api_key:
            raise ValueError("proxy_key must be another key than api_key")
        return self

    @property
    def database_url(self) -> str:
        return self.store_url or f"sqlite:///{self.data_dir / 'instar.db'}"

    @property
    def versions_dir(self) -> Path:
        return self.data_dir / "versions"

    @property
    def run_dir(self) -> Path:
        """Process state: sockets, logs, the lock. Nothing in it must survive a reboot."""
        return self.data_dir / "run"

    @property
    def work_dir(self) -> Path:
        """Updates being computed."""
        return self.data_dir / "work"

    @property
    def key_file(self) -> Path:
        return self.data_dir / "api_key"


def default_data_dir() -> Path:
    """`$INSTAR_DATA_DIR`, else `~/.instar`."""
    return Path(os.environ.get("INSTAR_DATA_DIR") or Path.home() / ".instar")


def models_dir() -> Path:
    """Converted models, shared by all data folders: `$INSTAR_MODELS_DIR`, else `~/.cache/instar/models`."""
    return Path(os.environ.get("INSTAR_MODELS_DIR") or Path.home() / ".cache" / "instar" / "models")


def native_dir() -> Path:
    """What was compiled for this machine: `$INSTAR_NATIVE_DIR`, else `~/.cache/instar/native`."""
    return Path(os.environ.get("INSTAR_NATIVE_DIR") or Path.home() / ".cache" / "instar" / "native")


def openclaw_config_file() -> Path:
    """Where OpenClaw looks for its configuration, by its own environment variables, else `~/.openclaw`."""
    if path := os.environ.get("OPENCLAW_CONFIG_PATH"):
        return Path(path).expanduser()
    if state := os.environ.get("OPENCLAW_STATE_DIR"):
        return Path(state).expanduser() / "openclaw.json"
    home = os.environ.get("OPENCLAW_HOME")
    return (Path(home).expanduser() if home else Path.home()) / ".openclaw" / "openclaw.json"


_NOT_SETTINGS = {"INSTAR_DATA_DIR", "INSTAR_MODELS_DIR", "INSTAR_NATIVE_DIR", "INSTAR_DEBUG"}
"""Variables that are read on their own and name no field of Settings."""


def environment_with(more: dict[str, str]) -> dict[str, str]:
    """The environment of a program that is started, with some variables set."""
    return {**os.environ, **more}


def debug_wanted() -> bool:
    """`INSTAR_DEBUG=1`: show tracebacks where the command line would print one line."""
    return os.environ.get("INSTAR_DEBUG", "") not in {"", "0"}


def _merge(into: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            into[key] = _merge(dict(into[key]), value)
        else:
            into[key] = value
    return into


def _from_environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in os.environ.items():
        if not name.startswith("INSTAR_") or name in _NOT_SETTINGS:
            continue
        here = found
        *groups, leaf = name.removeprefix("INSTAR_").lower().split("__")
        for group in groups:
            here = here.setdefault(group, {})
        here[leaf] = value
    return found


def _from_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}. Mend or remove the file.") from error


def load_settings(data_dir: Path | None = None, overrides: dict[str, Any] | None = None) -> Settings:
    """Gather settings from all sources. Raises ConfigError with one line per wrong setting."""
    root = (data_dir or default_data_dir()).expanduser().absolute()
    values = _merge(_from_file(root / "instar.toml"), _from_environment())
    values = _merge(values, overrides or {})
    values["data_dir"] = root
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = [": ".join(filter(None, (_place(e["loc"]), _message(e["msg"])))) for e in error.errors()]
        raise ConfigError("\n  ".join(["These settings cannot be used:", *lines])) from error


def _place(loc: tuple[int | str, ...]) -> str:
    return ".".join(map(str, loc))


def _message(text: str) -> str:
    return text.removeprefix("Value error, ")
