"""The update itself on a tiny model: deterministic, masked, resumable, and refusing what it cannot train on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from instar.errors import TrainingError
from instar.records import UpdateJob, WeightedSample
from instar.trainers import local
from instar.trainers.gate import Gate
from instar.trainers.local import components, learning_rate, run_update, step
from instar.trainers.memory import memory_for
from instar.trainers.policy import ADAPTER_FILE, CONFIG_FILE, Policy, PrefixCache
from instar.trainers.prepare import Preparer
from tests.kit.samples import SETTINGS, job, weighted
from tests.kit.tiny_model import write_tiny_model

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def policy(model_dir: Path) -> Policy:
    return Policy(model_dir, rank=4, alpha=8)


def taught(turn_id: str = "t1") -> dict[str, object]:
    return {"turn_id": turn_id, "distill_T": [0.25] * 4, "teacher_prompt_ids": [30, 40, 50, 90, 91]}


def run(policy: Policy, update: UpdateJob) -> dict[str, torch.Tensor]:
    run_update(update, policy, None)
    return load_file(Path(update.out_dir) / ADAPTER_FILE)


def sha(folder: Path, name: str = ADAPTER_FILE) -> str:
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


def logp_of(policy: Policy, prompt: list[int], response: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logp_TV = policy.logp_NV(policy.hidden_ND([[*prompt, *response]], [len(prompt)]))
    return logp_TV.gather(-1, torch.tensor(response)[:, None])[:, 0]


# ── what it leaves ────────────────────────────────────────────────────────────────────────────────────────
def test_the_same_job_gives_the_same_bytes(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    samples = [weighted(**taught("a")), weighted("b", pg_T=[0.25] * 4), weighted("c", nll_T=[0.25] * 4)]
    first, second = job(model_dir, tmp_path / "1", samples), job(model_dir, tmp_path / "2", samples)
    run(policy, first)
    run(policy, second)
    other = replace(first, seed=4, out_dir=str(tmp_path / "3"))
    run(policy, other)
    assert sha(tmp_path / "1") == sha(tmp_path / "2")
    assert sha(tmp_path / "1", local.OPTIMIZER_FILE) == sha(tmp_path / "2", local.OPTIMIZER_FILE)
    assert sha(tmp_path / "1") != sha(tmp_path / "3")


def test_the_adapter_is_pefts_own_format_in_fp32(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    tensors = run(policy, job(model_dir, tmp_path / "v1", [weighted(**taught())]))
    assert {t.dtype for t in tensors.values()} == {torch.float32}
    config = json.loads((tmp_path / "v1" / CONFIG_FILE).read_text("utf-8"))
    assert (config["r"], config["lora_alpha"], len(config["target_modules"])) == (4, 8, 7)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "v1"))
    for (name, ours), (_, theirs) in zip(
        policy.named_parameters(),
        sorted((n, p) for n, p in loaded.named_parameters() if "lora_" in n),
        strict=True,
    ):
        assert torch.equal(ours, theirs), name


def test_training_goes_on_from_the_parent_and_its_optimizer(
    policy: Policy, model_dir: Path, tmp_path: Path
) -> None:
    run(policy, job(model_dir, tmp_path / "v1", [weighted(**taught())]))
    child = replace(
        job(model_dir, tmp_path / "v2", [weighted(**taught())]), parent="v1", parent_dir=str(tmp_path / "v1")
    )
    run(policy, child)
    steps = [t for n, t in load_file(tmp_path / "v2" / local.OPTIMIZER_FILE).items() if n.endswith(".step")]
    assert {float(t) for t in steps} == {4.0}  # two passes of one step each, twice
    fresh = replace(child, out_dir=str(tmp_path / "v2b"))
    (tmp_path / "v1" / local.OPTIMIZER_FILE).unlink()
    run(policy, fresh)
    assert sha(tmp_path / "v2") != sha(tmp_path / "v2b")


def test_the_metrics_say_how_far_engine_and_trainer_disagree(
    policy: Policy, model_dir: Path, tmp_path: Path
) -> None:
    policy.reset(3)
    exact = logp_of(policy, [30, 40, 50], [60, 70, 80, 2])
    sample = weighted(pg_T=[0.25] * 4, logprobs=(exact - 0.1).tolist())
    result = run_update(job(model_dir, tmp_path / "v1", [sample]), policy, None)
    assert result.metrics["mismatch"] == pytest.approx(0.1, abs=1e-4)
    edit = weighted(nll_T=[0.25] * 4, logprobs=[])
    assert run_update(job(model_dir, tmp_path / "v2", [edit]), policy, None).metrics["mismatch"] is None


# ── each component does what its name says ────────────────────────────────────────────────────────────────
def test_likelihood_makes_the_given_answer_likelier(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    policy.reset(3)
    before = logp_of(policy, [30, 40, 50], [60, 70, 80, 2]).sum()
    run(policy, job(model_dir, tmp_path / "v1", [weighted(nll_T=[0.25] * 4, logprobs=[])]))
    assert logp_of(policy, [30, 40, 50], [60, 70, 80, 2]).sum() > before + 0.5


@pytest.mark.parametrize("advantage", [0.25, -0.25])
def test_policy_gradient_moves_the_answer_by_the_sign(
    policy: Policy, model_dir: Path, tmp_path: Path, advantage: float
) -> None:
    policy.reset(3)
    before = logp_of(policy, [30, 40, 50], [60, 70, 80, 2]).sum()
    run(policy, job(model_dir, tmp_path / "v1", [weighted(pg_T=[advantage] * 4)]))
    after = logp_of(policy, [30, 40, 50], [60, 70, 80, 2]).sum()
    assert (after - before) * advantage > 0


def test_distillation_comes_closer_to_the_hinted_model(
    policy: Policy, model_dir: Path, tmp_path: Path
) -> None:
    update = job(model_dir, tmp_path / "v1", [weighted(**taught())], passes=8, top_k=32)
    steps = run_update(update, policy, None).metrics["steps"]
    assert steps[-1]["distill"] < 0.7 * steps[0]["distill"]


def test_the_pull_to_base_shrinks_what_was_learned(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    lesson = job(model_dir, tmp_path / "v1", [weighted(nll_T=[0.25] * 4, logprobs=[])], passes=4)
    run(policy, lesson)
    away = policy_distance(policy)
    pulled = weighted(kl_T=[0.25] * 4)
    parent = {"parent": "v1", "parent_dir": str(tmp_path / "v1")}
    (tmp_path / "v1" / local.OPTIMIZER_FILE).unlink()
    run(policy, replace(job(model_dir, tmp_path / "v2", [pulled], passes=8, top_k=64), **parent))
    assert policy_distance(policy) < 0.8 * away


def policy_distance(policy: Policy) -> float:
    now = logp_of(policy, [30, 40, 50], [60, 70, 80, 2])
    with policy.as_base():
        base = logp_of(policy, [30, 40, 50], [60, 70, 80, 2])
    return float((now - base).abs().mean())


# ── what has no weight has no influence ───────────────────────────────────────────────────────────────────
def gradient(policy: Policy, samples: list[object]) -> torch.Tensor:
    policy.reset(3)
    prefixes = PrefixCache(policy)
    prepared = [Preparer(policy, SETTINGS, prefixes)(s) for s in samples]  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(policy.parameters, lr=0.0)
    step(policy, optimizer, prepared, [], SETTINGS)
    return torch.cat([p.grad.flatten() for p in policy.parameters if p.grad is not None])


def test_tokens_without_weight_have_no_influence_on_the_gradient(policy: Policy) -> None:
    """Prompt and tool tokens carry no loss: what the last ones predict cannot matter."""
    masked = [0.5, 0.5, 0.0, 0.0]
    for component in ("pg_T", "nll_T"):
        one = gradient(policy, [weighted(**{component: masked})])
        two = gradient(policy, [weighted(**{component: masked, "response_ids": [60, 70, 111, 112]})])
        assert torch.equal(one, two), component
        assert one.abs().max() > 0


def test_a_sample_that_abstains_adds_exactly_zero(policy: Policy) -> None:
    assert gradient(policy, [weighted()]).abs().max() == 0.0
    assert gradient(policy, [weighted(logprobs=[])]).abs().max() == 0.0


def test_components_without_weight_do_not_show_up(policy: Policy) -> None:
    policy.reset(3)
    item = Preparer(policy, SETTINGS, PrefixCache(policy))(weighted(nll_T=[0.25] * 4))
    logp_TV = torch.log_softmax(torch.randn(4, 259, generator=torch.Generator().manual_seed(1)), -1)
    terms = components(item, slice(0, 4), logp_TV, SETTINGS)
    assert set(terms) == {"zero", "nll"}
    assert float(terms["zero"]) == 0.0
    expected = -logp_TV.gather(-1, torch.tensor([[60], [70], [80], [2]])).mean()
    assert float(terms["nll"]) == pytest.approx(float(expected), rel=1e-5)


def test_long_responses_are_summed_over_chunks(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = weighted(response_ids=list(range(60, 80)), nll_T=[0.05] * 20, distill_T=[0.05] * 20)
    sample = replace(sample, teacher_prompt_ids=[30, 40, 91])
    whole = gradient(policy, [sample])
    monkeypatch.setattr(local, "LOGITS_CHUNK", 7)
    assert torch.allclose(gradient(policy, [sample]), whole, atol=2e-2, rtol=2e-2)


def test_passes_are_cut_to_the_memory_without_a_change_of_the_gradient(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = Policy(model_dir, rank=4, alpha=8, dtype=torch.float32)
    samples = [weighted(str(i), nll_T=[0.01] * 4, prompt_ids=[30, 40 + i, 50]) for i in range(3)]
    passes: list[tuple[int, bool]] = []
    plain = exact.hidden_ND

    def noting(rows: Any, *given: Any, **more: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            passes.append((len(rows), more["recompute"]))
        return plain(rows, *given, **more)

    monkeypatch.setattr(exact, "hidden_ND", noting)
    whole = gradient(exact, samples)  # type: ignore[arg-type]
    monkeypatch.setattr(local, "memory_for", lambda *given: replace(memory_for(*given), bound=0))
    cut = gradient(exact, samples)  # type: ignore[arg-type]
    assert passes == [(3, False), (1, True), (1, True), (1, True)]
    assert whole.norm() > 0
    assert (whole - cut).norm() < 1e-5 * whole.norm()


@pytest.mark.usefixtures("narrow")
def test_the_teacher_reads_the_prompt_again_only_from_the_hint_on(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    prefill = policy.prefill
    monkeypatch.setattr(policy, "prefill", lambda ids, past: (read.append(len(ids)), prefill(ids, past))[1])
    prompt = list(range(30, 75))
    hinted = [*prompt[:35], 200, 201, 202, 203, *prompt[35:]]
    sample = weighted(prompt_ids=prompt, teacher_prompt_ids=hinted, distill_T=[0.25] * 4)
    policy.reset(3)
    Preparer(policy, SETTINGS, PrefixCache(policy))(sample)
    assert read == [44, 16]  # of the hinted 48, the two whole chunks before the hint are there


def test_padding_does_not_change_a_sample(policy: Policy) -> None:
    long = weighted(response_ids=list(range(60, 100)))
    alone = gradient(policy, [weighted(nll_T=[0.01] * 4)])  # small enough not to be clipped
    padded = gradient(policy, [weighted(nll_T=[0.01] * 4), long])
    assert torch.cosine_similarity(alone, padded, 0) > 0.999
    assert float(padded.norm() / alone.norm()) == pytest.approx(0.5, rel=0.02)


# ── the size of a step ────────────────────────────────────────────────────────────────────────────────────
def rate(*samples: WeightedSample, **settings: Any) -> float:
    return learning_rate(job("m", "o", list(samples), **settings), samples)


def test_a_batch_that_says_little_moves_little() -> None:
    full, quiet = weighted("t1", distill_T=[0.25] * 4), weighted("t2")
    assert rate(full, weighted("t2", distill_T=[0.25] * 4)) == pytest.approx(1e-2)
    assert rate(full, quiet) == pytest.approx(1e-2 * 0.5**0.5)
    assert rate(full, scale=0.5) == pytest.approx(5e-3)


def test_a_turn_has_one_say_however_many_samples_it_made() -> None:
    pushed, revised = weighted("t1", pg_T=[-0.25] * 4), weighted("t1", nll_T=[0.25] * 4)
    assert rate(pushed, revised, weighted("t2")) == pytest.approx(1e-2 * 0.5**0.5)


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (weighted(prompt_ids=[5] * 600), "more than max_tokens = 512"),
        (weighted(prompt_ids=[]), "no prompt or no response"),
        (weighted(pg_T=[1.0]), "pg_T has another length"),
        (weighted(pg_T=[0.25] * 4, logprobs=[]), "needs the log-probs of sampling"),
        (weighted(distill_T=[0.25] * 4), "needs a teacher prompt"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    policy: Policy, model_dir: Path, tmp_path: Path, sample: object, why: str
) -> None:
    with pytest.raises(TrainingError, match=why):
        run_update(job(model_dir, tmp_path / "out", [sample]), policy, None)  # type: ignore[list-item]
    assert not (tmp_path / "out").exists()


def test_an_empty_job_is_refused(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no samples"):
        run_update(job(model_dir, tmp_path / "out", []), policy, None)


def test_a_gradient_that_is_not_finite_ends_the_update(
    policy: Policy, model_dir: Path, tmp_path: Path
) -> None:
    broken = weighted(nll_T=[float("inf")] * 4)
    with pytest.raises(TrainingError, match="not finite"):
        run_update(job(model_dir, tmp_path / "out", [broken]), policy, None)
    assert not (tmp_path / "out" / ADAPTER_FILE).exists()


@pytest.mark.usefixtures("narrow")
def test_looking_ahead_reads_long_prompts_and_changes_no_byte(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    prefill = Policy.prefill

    def counting(self: Policy, ids: list[int], past: object) -> object:
        read.append(len(ids))
        return prefill(self, ids, past)  # type: ignore[arg-type]

    monkeypatch.setattr(Policy, "prefill", counting)
    samples = [
        weighted(turn_id=name, prompt_ids=[*range(40, 80), *own], nll_T=[0.25] * 4)
        for name, own in (("t1", [30, 31, 32, 33]), ("t2", [34, 35]))
    ]
    local._parts.cache_clear()
    parent = job(model_dir, tmp_path / "v1", samples)
    local.compute(parent)
    update = replace(job(model_dir, tmp_path / "v2", samples), parent="v1", parent_dir=str(tmp_path / "v1"))
    read.clear()
    local.compute(update)
    assert 43 in read  # the first prompt whole, under the version that is trained further
    expected = (tmp_path / "v2" / ADAPTER_FILE).read_bytes()
    local.compute(parent)
    for sample in samples:
        local.look_ahead(replace(update, samples=[sample]))
    read.clear()
    local.compute(update)
    assert 43 not in read
    assert (tmp_path / "v2" / ADAPTER_FILE).read_bytes() == expected
    local._parts.cache_clear()


@pytest.mark.usefixtures("narrow")
def test_prompts_are_never_kept_as_half_trained_weights_read_them(model_dir: Path, tmp_path: Path) -> None:
    """Edits were not sampled, so that nothing reads their prompts before the first step."""
    prompts = [[*range(40, 70 + i), *range(40, 50)] for i in range(6)]
    edits = [
        weighted(turn_id=f"t{i}", prompt_ids=prompt, logprobs=[], nll_T=[0.25] * 4)
        for i, prompt in enumerate(prompts)
    ]
    update = job(model_dir, tmp_path / "fresh", edits)
    update = replace(update, settings={**update.settings, "gradient_tokens": 8, "micro_batch": 2})
    local._parts.cache_clear()
    local.compute(update)
    parts = local.parts_of(update)
    kept, anew = parts.reviser.prefixes, PrefixCache(parts.policy)
    with parts.policy.as_base():
        for prompt in prompts:
            for held, wanted in zip(
                kept.read(prompt[:-1]).layers, anew.read(prompt[:-1]).layers, strict=True
            ):
                assert torch.equal(held.keys, wanted.keys)
    local.compute(replace(update, out_dir=str(tmp_path / "warm")))
    assert sha(tmp_path / "warm") == sha(tmp_path / "fresh")
    local._parts.cache_clear()


@pytest.mark.usefixtures("narrow")
def test_what_is_pinned_is_bounded_and_does_not_depend_on_what_was_read_before(policy: Policy) -> None:
    first, second = [*range(40, 80)], [*range(40, 79), 20]
    small = PrefixCache(policy, room=bytes_of(policy, first))

    def keys(cache: PrefixCache, prompt: list[int]) -> torch.Tensor:
        return cache.read(prompt).layers[1].keys

    policy.reset(0)
    before = keys(PrefixCache(policy), first)
    with small.pinned([first, second]):
        disturb(policy)
        assert torch.equal(keys(small, first), before)
        fresh = PrefixCache(policy)
        assert torch.equal(keys(small, second), keys(fresh, second))
        assert not torch.equal(keys(small, second)[:, :, :39], before[:, :, :39])
    policy.reset(0)


def bytes_of(policy: Policy, prompt: list[int]) -> int:
    layers = PrefixCache(policy).read(prompt).layers
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


def disturb(policy: Policy) -> None:
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter.add_(0.1)


@pytest.mark.parametrize("damage", ["config", "tensors", "rank"])
def test_a_parent_that_does_not_fit_is_refused(
    policy: Policy, model_dir: Path, tmp_path: Path, damage: str
) -> None:
    run(policy, job(model_dir, tmp_path / "v1", [weighted(**taught())]))
    config = tmp_path / "v1" / CONFIG_FILE
    if damage == "config":
        config.write_text("{", "utf-8")
    elif damage == "tensors":
        (tmp_path / "v1" / ADAPTER_FILE).write_bytes(b"not safetensors")
    else:
        config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), "r": 8}), "utf-8")
    child = replace(
        job(model_dir, tmp_path / "v2", [weighted(**taught())]), parent="v1", parent_dir=str(tmp_path / "v1")
    )
    with pytest.raises(TrainingError, match="the parent's adapter"):
        run_update(child, policy, None)


def test_the_gate_judges_what_was_trained(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    gate = Gate(policy)
    result = run_update(job(model_dir, tmp_path / "v1", [weighted(**taught())]), policy, gate)
    assert result.gate is not None
    assert result.gate.checks["kl"]["value"] > 0
    strict = {"max_kl": 0.0, "min_sound": 0.01}
    rejected = run_update(job(model_dir, tmp_path / "v2", [weighted(**taught())], gate=strict), policy, gate)
    assert rejected.gate is not None
    assert not rejected.gate.passed
    assert "kl is" in rejected.gate.why
