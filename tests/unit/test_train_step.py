"""A training step is done once, whatever kills it; with the real store and registry, and a trainer of no weight."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from instar.config import GateSettings, Settings, TrainSettings
from instar.errors import TrainingError
from instar.flow import train_step
from instar.flow.fidelity import FIDELITY
from instar.flow.lineage import line
from instar.flow.publish import BaseModelFacts, Publisher
from instar.flow.train_step import StepReport, TrainStep
from instar.methods.combined import Combined
from instar.records import Fate, GateReport, Origin, Sample, UpdateJob, UpdateResult, WeightedSample
from instar.registry import FolderRegistry
from tests.kit.samples import WordPrompts, judged
from tests.kit.store_scenes import Scene, session_that_is

NO_UPDATE = ("waiting", "looked ahead")


class Killed(BaseException):
    """Stands for kill -9: no handler of ours may catch it."""


@dataclass
class PaperTrainer:
    """Writes its job's seed as the adapter. `gate` and `error` are what it will say."""

    passed: bool = True
    error: str | None = None
    taught: bool = True
    longest: int = 1000
    killed: bool = False
    metrics: dict[str, Any] = field(default_factory=lambda: {"loss": 1.0})
    checks: dict[str, Any] = field(default_factory=dict)
    jobs: list[UpdateJob] = field(default_factory=list)
    ahead: list[UpdateJob] = field(default_factory=list)

    def look_ahead(self, job: UpdateJob) -> None:
        self.ahead.append(job)
        if self.error:
            raise TrainingError(self.error)

    def run(self, job: UpdateJob) -> UpdateResult:
        self.jobs.append(job)
        if self.killed:
            raise Killed
        if self.error:
            raise TrainingError(self.error)
        if not self.taught:
            refused = {s.turn_id: "No answer was better." for s in job.samples}
            return UpdateResult(job.update_id, True, {"revisions": {"refused": refused}}, taught=False)
        out = Path(job.out_dir)
        out.mkdir(parents=True, exist_ok=True)
        (out / "adapter_config.json").write_text(json.dumps({"seed": job.seed}))
        gate = GateReport(self.passed, "fine" if self.passed else "answers fell apart", self.checks)
        return UpdateResult(job.update_id, True, self.metrics, gate)

    def close(self) -> None:
        pass


class CountingMethod:
    """Weighs every corrected sample with 1 and counts calls in its state. `revise`: what it asks revisions with."""

    name = "counting"

    def __init__(self, revise: float = 0.0) -> None:
        self.revise = revise

    def weigh(
        self, samples: Sequence[Sample], prompts: Any, state: dict[str, Any]
    ) -> tuple[list[WeightedSample], dict[str, Any]]:
        ones = [1.0] * 2
        zeros = [0.0] * 2
        weighted = [
            WeightedSample(
                s.turn_id, Origin.SAMPLED, s.prompt_ids, s.response_ids, s.logprobs,
                pg_T=ones if s.score == -1 else zeros, distill_T=zeros, nll_T=zeros, kl_T=zeros,
                revise=self.revise if s.score == -1 else 0.0,
            )
            for s in samples
        ]  # fmt: skip
        return weighted, {"batches": state.get("batches", 0) + 1}


@dataclass
class Bench:
    folder: Path
    trainer: PaperTrainer = field(default_factory=PaperTrainer)
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(batch_size=4, min_batch=2, quiet_s=30.0, passes=2)  # type: ignore[call-arg]
    )

    method: CountingMethod = field(default_factory=CountingMethod)
    gate: GateSettings = field(default_factory=lambda: GateSettings(held_back=0.0))  # type: ignore[call-arg]

    def __post_init__(self) -> None:
        self.scene = Scene(self.folder / "instar.db")
        self.scene.clock.wall = 260.0  # just after the last reaction of a scene
        self.registry = FolderRegistry(self.folder / "versions")

    @property
    def store(self) -> Any:
        return self.scene.store

    def step(self) -> StepReport:
        return self.make()()

    def make(self) -> TrainStep:
        settings = Settings(data_dir=self.folder, train=self.train, gate=self.gate)  # type: ignore[call-arg]
        base = BaseModelFacts("tiny", "0" * 64)
        publisher = Publisher(self.store, self.registry, base, self.scene.clock, approve=self.gate.approve)
        return TrainStep(
            self.store, self.registry, self.trainer, self.method, WordPrompts(),
            settings, self.folder, publisher, self.scene.clock,
        )  # fmt: skip

    def correct(self, *turn_ids: str, score: int = -1) -> None:
        for turn_id in turn_ids:
            self.scene.corrected(turn_id, score)

    def learned(self) -> dict[str, list[str]]:
        return {t["id"]: t["updates"] for t in self.store.turn_views() if t["learned"]}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_full_batch_becomes_a_version_in_force(bench: Bench) -> None:
    bench.correct("a", "b", "c")
    assert bench.step().did in NO_UPDATE
    bench.correct("d")
    report = bench.step()
    assert (report.did, report.version) == ("proposed", "v1")
    assert bench.store.active_version() == "v1"
    assert bench.registry.manifest("v1").turn_ids == ["a", "b", "c", "d"]
    assert set(bench.learned()) == {"a", "b", "c", "d"}
    assert bench.store.get_state("method") == {"batches": 1}
    assert bench.step().did in NO_UPDATE


def test_revisions_are_looked_for_while_the_batch_fills_each_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, method=CountingMethod(revise=1.0))
    bench.correct("a", "b")
    bench.correct("c", score=1)
    step = bench.make()
    assert [step().did for _ in range(5)] == ["looked ahead", "looked ahead", "waiting", "waiting", "waiting"]
    assert [[s.turn_id for s in job.samples] for job in bench.trainer.ahead] == [["a"], ["b"]]
    assert {(job.parent, job.parent_dir) for job in bench.trainer.ahead} == {("base", None)}
    assert bench.store.get_state("method") is None
    bench.correct("d")
    assert step().version == "v1"
    assert len(bench.trainer.ahead) == 2
    bench.correct("e")
    assert step().did == "looked ahead"
    assert bench.trainer.ahead[-1].parent == "v1"
    assert Path(bench.trainer.ahead[-1].parent_dir or "") == bench.registry.root / "v1"


def test_the_answer_to_the_correction_is_looked_at_when_it_comes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, method=CountingMethod(revise=1.0))
    bench.correct("a")
    step = bench.make()
    assert [step().did, step().did] == ["looked ahead", "waiting"]
    bench.scene.answered("a2", parent_id="a")
    assert [step().did, step().did] == ["looked ahead", "waiting"]


def test_a_turn_that_breaks_the_look_ahead_is_left_to_the_update(tmp_path: Path) -> None:
    bench = Bench(tmp_path, method=CountingMethod(revise=1.0))
    bench.correct("a")
    step = bench.make()
    bench.trainer.error = "no memory"
    with pytest.raises(TrainingError):
        step()
    assert step().did == "waiting"


def test_the_learners_verdicts_go_with_the_job_and_survive_a_kill(bench: Bench) -> None:
    bench.correct("a", "b", "c")
    bench.correct("d", score=1)
    bench.trainer.killed = True
    with pytest.raises(Killed):
        bench.step()
    bench.trainer.killed = False
    bench.correct("e")
    bench.step()
    first, again = bench.trainer.jobs
    assert [(h.learner, h.answer, h.score) for h in first.history] == [
        ("ann", "answer a", -1),
        ("ann", "answer b", -1),
        ("ann", "answer c", -1),
        ("ann", "answer d", 1),
    ]
    assert again.history == first.history


def test_the_next_update_starts_from_the_version_in_force(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.step()
    bench.correct("e", "f", "g", "h")
    bench.step()
    assert bench.trainer.jobs[1].parent == "v1"
    assert bench.trainer.jobs[1].parent_dir == str(bench.registry.verify("v1"))
    bench.store.activate("base", "rolled back")
    bench.correct("i", "j", "k", "l")
    report = bench.step()
    assert (bench.trainer.jobs[2].parent, report.version) == ("base", "v3")


def serving_another_model(bench: Bench) -> TrainStep:
    step = bench.make()
    step.publisher = Publisher(
        bench.store, bench.registry, BaseModelFacts("big", "1" * 64), bench.scene.clock
    )
    return step


def test_a_version_of_another_model_is_no_parent(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.step()
    step = serving_another_model(bench)
    bench.correct("e", "f", "g", "h")
    assert step().version == "v2"
    assert bench.trainer.jobs[1].parent == "base"


def test_fewer_will_do_after_some_quiet(bench: Bench) -> None:
    bench.correct("a", "b")
    last = bench.store.last_activity_at()
    assert last is not None
    bench.scene.clock.wall = last + 29.0
    assert bench.step().did in NO_UPDATE
    bench.scene.clock.wall = last + 31.0
    assert bench.step().did == "proposed"


@pytest.mark.parametrize(("mode", "turn_ids"), [("always", "ab"), ("idle", "abcd")])
def test_a_date_that_is_set_back_by_a_day_delays_nothing(bench: Bench, mode: str, turn_ids: str) -> None:
    with_mode(bench, mode=mode, idle_s=60.0)
    bench.correct(*turn_ids)
    bench.scene.clock.wall -= 86400.0
    assert bench.step().did == "proposed"


def with_mode(bench: Bench, **settings: Any) -> None:
    bench.train = bench.train.model_copy(update=settings)


def test_a_full_batch_waits_for_quiet_in_the_mode_idle(bench: Bench) -> None:
    with_mode(bench, mode="idle", idle_s=60.0)
    bench.correct("a", "b", "c", "d")
    served = bench.store.last_served_at()
    assert served is not None
    bench.scene.clock.wall = served + 3.0
    report = bench.step()
    assert report.did == "waiting"
    assert report.why == "4 judged turns; waits for quiet: last request 3 s ago"
    assert report.facts["later"] == "waits for quiet: last request 3 s ago"
    assert bench.trainer.ahead == [], "looking ahead computes too"
    bench.scene.clock.wall = served + 61.0
    assert bench.step().did == "proposed"


def test_a_batch_that_fills_says_both_what_is_missing_and_what_the_mode_waits_for(bench: Bench) -> None:
    with_mode(bench, mode="idle", idle_s=60.0)
    bench.correct("a")
    served = bench.store.last_served_at()
    assert served is not None
    bench.scene.clock.wall = served + 3.0
    report = bench.step()
    assert (report.did, report.why) == ("waiting", "1 of 4 judged turns")
    assert report.later == "waits for quiet: last request 3 s ago"
    bench.scene.clock.wall = served + 61.0
    assert bench.step().did == "looked ahead"


def test_an_update_that_has_begun_is_finished_whatever_the_mode(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.trainer.killed = True
    with pytest.raises(Killed):
        bench.step()
    bench.trainer.killed = False
    with_mode(bench, mode="idle", idle_s=1e9)
    assert bench.step().did == "proposed"
    bench.correct("e", "f", "g", "h")
    assert bench.step().did == "waiting"


def test_what_the_memory_cannot_hold_is_left_out_with_its_reason(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.trainer.longest = 4  # a turn of a scene has three prompt tokens and two of the answer
    assert bench.step().did == "waiting"
    assert bench.store.counts()["reasons"] == {"too_long": 4}
    bench.trainer.longest = 5
    bench.correct("e", "f", "g", "h")
    assert bench.step().did == "proposed"


def test_a_correction_that_is_too_long_is_left_out_alone(bench: Bench) -> None:
    """The turn itself would fit: three prompt tokens and two of the answer. The user's own text does not."""
    bench.scene.answered("essay")
    bench.scene.feedback("essay", correction="5 6 7 8 9")
    bench.scene.judge("essay", -1, correction="5 6 7 8 9")
    bench.correct("a", "b", "c")
    bench.method, bench.trainer.longest = Combined(), 7  # type: ignore[assignment]
    assert bench.step().did == "left out"
    assert bench.trainer.jobs == []
    assert bench.store.counts()["reasons"] == {"too_long": 1}
    bench.correct("d")
    assert bench.step().did == "proposed"
    assert [s.turn_id for s in bench.trainer.jobs[0].samples] == ["a", "b", "c", "d"]


def test_comparisons_of_engine_and_trainer_are_kept_with_the_update(bench: Bench) -> None:
    facts = {"dtype": "bfloat16", "tolerance": 0.2, "turns": 4, "tokens": 8, "mean": 0.03, "ratio": 1.0,
             "largest": 0.2, "set_aside": {}}  # fmt: skip
    bench.trainer.metrics["fidelity"] = facts
    bench.correct("a", "b", "c", "d")
    bench.step()
    assert bench.store.get_state(FIDELITY) == {"updates": [{"number": 1, **facts}]}
    assert bench.registry.manifest("v1").metrics["fidelity"] == facts
    bench.trainer.passed = False
    bench.correct("e", "f", "g", "h")
    bench.step()
    assert [u["number"] for u in bench.store.get_state(FIDELITY)["updates"]] == [1, 2]


def test_one_alone_never_does(bench: Bench) -> None:
    bench.correct("a")
    bench.scene.clock.wall += 10_000.0
    assert bench.step().did in NO_UPDATE


def test_rejected_samples_get_one_more_try_at_half_the_rate(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.trainer.passed = False
    report = bench.step()
    assert (report.did, report.why) == ("rejected", "answers fell apart")
    assert bench.store.active_version() == "base"
    assert bench.learned() == {}
    refused = bench.registry.manifest("v1")
    assert (refused.gate["passed"], refused.gate["why"]) == (False, "answers fell apart"), (
        "kept, to be looked at"
    )
    bench.trainer.passed = True
    assert bench.step().version == "v2"
    assert bench.trainer.jobs[1].parent == "base", "training goes on from the last good one"
    rates = [job.settings["lr"] for job in bench.trainer.jobs]
    assert rates[1] == rates[0] / 2


def test_samples_rejected_twice_are_left_alone_with_a_reason(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.trainer.passed = False
    bench.step()
    bench.step()
    assert bench.step().did == "waiting"
    assert {t["reason"] for t in bench.store.turn_views()} == {"rejected_by_gate"}


def scales(bench: Bench) -> list[float]:
    full = bench.make().settings.train.lr
    return [job.settings["lr"] / full for job in bench.trainer.jobs]


def test_refusals_in_a_row_shrink_the_step_also_for_new_turns_and_the_note_says_so(bench: Bench) -> None:
    bench.trainer.passed = False
    for batch in ("abcd", "efgh", "ijkl"):
        bench.correct(*batch)
        bench.step(), bench.step()
    assert scales(bench) == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 8, 1 / 8]
    notes = [update.note for update in reversed(bench.store.updates())]
    assert notes[0] == "answers fell apart"
    assert notes[1] == (
        "answers fell apart 2 updates in a row were refused; the next one takes a smaller step."
    )
    assert "6 updates in a row were refused" in str(notes[5])
    assert "`instar versions rollback` gives room" in str(notes[5])
    assert bench.registry.manifest("v6").gate["why"] == "answers fell apart"
    bench.trainer.passed = True
    for batch in ("mnop", "qrst"):
        bench.correct(*batch)
        bench.step()
    assert scales(bench)[6:] == [1 / 8, 1], "one that passed ends it"


@pytest.mark.parametrize(("kl", "scale"), [(0.1, 1.0), (0.15, 1.0), (0.225, 0.5), (0.299, 1 / 8)])
def test_steps_shrink_with_the_room_that_is_left_to_base(bench: Bench, kl: float, scale: float) -> None:
    bench.trainer.checks = {"kl": {"value": kl, "bound": 0.3, "passed": True}}
    for batch in ("abcd", "efgh"):
        bench.correct(*batch)
        bench.step()
    assert scales(bench) == [1.0, pytest.approx(scale)]


def test_after_a_rollback_the_same_parent_takes_smaller_steps(bench: Bench) -> None:
    for number, batch in enumerate(("abcd", "efgh", "ijkl"), start=1):
        bench.correct(*batch)
        assert bench.step().version == f"v{number}"
        if number < 3:
            bench.store.decide(f"v{number}", Fate.ROLLED_BACK, "no", activate="base")
    bench.correct("m", "n", "o", "p")
    bench.step()
    assert scales(bench) == [1, 1 / 2, 1 / 4, 1]
    assert [job.parent for job in bench.trainer.jobs] == ["base", "base", "base", "v3"]


def test_failures_are_tried_three_times_then_set_aside_and_training_goes_on(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.trainer.error = "out of memory"
    assert [bench.step().did for _ in range(3)] == ["failed"] * 3
    assert bench.step().did == "waiting"
    bench.trainer.error = None
    bench.correct("e", "f", "g", "h")
    assert bench.step().version == "v1"


def test_praise_alone_is_used_up_without_an_update(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d", score=1)
    assert bench.step().did == "unused"
    assert bench.trainer.jobs == []
    assert {t["reason"] for t in bench.store.turn_views()} == {"nothing_to_learn"}
    assert bench.store.get_state("method") == {"batches": 1}


def test_corrections_without_a_better_answer_are_used_up_and_say_so(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.trainer.taught = False
    report = bench.step()
    assert report.did == "unused"
    assert report.why == "Nothing was learned. No answer was better."
    assert bench.store.active_version() == "base"
    assert {t["reason"] for t in bench.store.turn_views()} == {"nothing_to_learn"}
    assert bench.step().did == "waiting"


def test_switched_off_it_waits_and_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, train=TrainSettings(batch_size=1, enabled=False))  # type: ignore[call-arg]
    bench.correct("a")
    report = bench.step()
    assert report.did == "waiting"
    assert "switched off" in report.why


@pytest.mark.parametrize(
    "where", ["in compute", "before publish", "after publish", "before commit", "after commit"]
)
def test_killed_anywhere_it_ends_with_the_same_version_and_each_use_once(
    bench: Bench, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.correct("a", "b", "c", "d")
    whole = bench.store.finish_update
    publish = bench.registry.publish

    def killed_publish(*args: Any, **kwargs: Any) -> Path:
        if where == "after publish":
            publish(*args, **kwargs)
        raise Killed

    def killed_finish(*args: Any, **kwargs: Any) -> None:
        if where == "after commit":
            whole(*args, **kwargs)
        raise Killed

    bench.trainer.killed = where == "in compute"
    if "publish" in where:
        monkeypatch.setattr(bench.registry, "publish", killed_publish)
    if "commit" in where:
        monkeypatch.setattr(bench.store, "finish_update", killed_finish)
    with pytest.raises(Killed):
        bench.step()
    monkeypatch.undo()
    bench.trainer.killed = False

    again = bench.step()
    assert again.did == ("waiting" if where == "after commit" else "proposed")
    assert bench.store.active_version() == "v1"
    assert bench.registry.versions() == ["v1"]
    updates = bench.learned()
    assert set(updates) == {"a", "b", "c", "d"}
    assert all(len(of_turn) == 1 for of_turn in updates.values())
    assert bench.store.get_state("method") == {"batches": 1}
    first, *others = bench.trainer.jobs
    for other in others:
        assert replace(other, parent_dir=first.parent_dir) == first, "the resumed job is the same job"


def test_number_on_disk_is_never_given_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published, killed before the commit, and then the resumed compute fails: v1 is on disk, but nobody's."""
    bench.correct("a", "b", "c", "d")
    monkeypatch.setattr(bench.store, "finish_update", lambda *_, **__: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        bench.step()
    monkeypatch.undo()
    bench.trainer.error = "no memory"
    assert bench.step().did == "failed"
    bench.trainer.error = None
    assert bench.step().version == "v2"


# ── decided while an update is computed ────────────────────────────────────────────────────────────────────
def meanwhile(bench: Bench, decide: Callable[[], None]) -> StepReport:
    """A step during whose computation somebody decides."""

    @dataclass
    class Interrupted(PaperTrainer):
        def run(self, job: UpdateJob) -> UpdateResult:
            decide()
            return PaperTrainer.run(self, job)

    bench.trainer = Interrupted()
    report = bench.step()
    bench.trainer = PaperTrainer()
    return report


def take_back(bench: Bench) -> None:
    bench.store.decide("v1", Fate.ROLLED_BACK, "too terse", activate="base")  # as `versions rollback` does


@pytest.mark.parametrize("approve", [False, True])
def test_a_rollback_is_not_undone_by_the_update_that_was_being_computed(
    tmp_path: Path, approve: bool
) -> None:
    bench = Bench(tmp_path)
    bench.correct("a", "b", "c", "d")
    assert bench.step().version == "v1"
    bench.gate = GateSettings(held_back=0.0, approve=approve)  # type: ignore[call-arg]
    bench.correct("e", "f", "g", "h")
    report = meanwhile(bench, lambda: take_back(bench))
    assert (report.did, report.version) == ("superseded", None)
    assert bench.store.active_version() == "base"
    newest = bench.store.decisions()[0]
    assert (newest.version, newest.fate) == ("v2", Fate.SUPERSEDED)
    assert newest.reason == "base was put in force while it was computed from v1."
    assert bench.registry.manifest("v2").parent == "v1", "kept, to be looked at"
    assert set(bench.learned()) == {"a", "b", "c", "d"}
    assert bench.store.get_state("method") == {"batches": 1}
    again = bench.step()
    assert bench.trainer.jobs[0].parent == "base"
    assert [s.turn_id for s in bench.trainer.jobs[0].samples] == ["e", "f", "g", "h"]
    assert again.did == ("waits" if approve else "proposed")
    assert bench.store.updates()[0].version == "v3"


def test_an_update_of_the_version_that_serves_again_is_no_surprise(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.step()
    bench.correct("e", "f", "g", "h")

    def there_and_back() -> None:
        take_back(bench)
        bench.store.decide("v1", Fate.CHOSEN, "asked for by hand", activate="v1")

    assert meanwhile(bench, there_and_back).version == "v2"
    assert bench.store.active_version() == "v2"


def test_an_update_from_base_beside_a_version_of_another_model_ends_as_ever(bench: Bench) -> None:
    bench.correct("a", "b", "c", "d")
    bench.step()
    step = serving_another_model(bench)
    bench.correct("e", "f", "g", "h")
    assert (step().version, bench.store.active_version()) == ("v2", "v2")


# ── held-back turns, approval, taking back ────────────────────────────────────────────────────────────────
def test_held_back_turns_are_never_trained_on_and_go_along_to_be_tried_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gate=GateSettings())  # type: ignore[call-arg]
    kept, free = session_that_is(True), session_that_is(False)
    for turn_id in "abcdef":
        bench.scene.corrected(turn_id, -1 if turn_id < "c" else 1, session_id=kept if turn_id < "d" else free)
    assert bench.step().did == "waiting"
    bench.scene.corrected("g", session_id=free)
    assert bench.step().version == "v1"
    (job,) = bench.trainer.jobs
    assert [s.turn_id for s in job.samples] == ["d", "e", "f", "g"]
    assert [(t.turn_id, t.score, t.question) for t in job.held_back] == [
        ("c", 1, "question c"), ("b", -1, "question b"), ("a", -1, "question a"),
    ]  # fmt: skip
    assert [bool(t.hinted_ids) for t in job.held_back] == [False, True, True]
    reasons = {t["id"]: t["reason"] for t in bench.store.turn_views()}
    assert {k for k, reason in reasons.items() if reason == "held_back"} == {"a", "b", "c"}


def test_each_learner_of_a_batch_has_as_many_turns_that_a_version_is_tried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_step, "LIMIT", 2)
    bench = Bench(tmp_path, gate=GateSettings(held_back=0.99))  # type: ignore[call-arg]
    free = session_that_is(False, 0.99)
    for learner in ("ann", "bob"):
        for number in range(3):
            bench.scene.corrected(f"{learner} {number}", learner=learner, session_id=session_that_is(True))
    for number in range(4):
        bench.scene.corrected(f"free {number}", learner="ann", session_id=free)
    bench.scene.store.trainable(9, current=0, max_staleness=4, held_back=0.99)
    samples = [replace(judged(name), learner=name) for name in ("ann", "bob")]
    found = [t.turn_id for t in bench.make()._held_back(samples)]
    assert found == ["ann 2", "ann 1", "bob 2", "bob 1"]


def test_another_learners_turns_are_not_what_a_version_is_tried_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gate=GateSettings())  # type: ignore[call-arg]
    bench.scene.corrected("x", session_id=session_that_is(True), learner="bob")
    for turn_id in "abcd":
        bench.scene.corrected(turn_id, session_id=session_that_is(False), learner="ann")
    bench.step()
    assert bench.trainer.jobs[0].held_back == []


def test_a_version_that_passed_waits_for_a_person_if_asked_to(tmp_path: Path) -> None:
    bench = Bench(tmp_path, gate=GateSettings(held_back=0.0, approve=True))  # type: ignore[call-arg]
    bench.correct("a", "b", "c", "d")
    report = bench.step()
    assert (report.did, report.version, report.doing) == ("waits", "v1", "waits")
    assert bench.store.active_version() == "base"
    assert set(bench.learned()) == {"a", "b", "c", "d"}
    bench.correct("e", "f", "g", "h")
    waiting = bench.step()
    assert waiting.did == "waiting"
    assert "v1 waits" in waiting.why
    bench.store.decide("v1", Fate.REJECTED, "no")
    assert bench.step().version == "v2"
    assert bench.trainer.jobs[1].parent == "base"
    bench.store.decide("v2", Fate.APPROVED, "yes", activate="v2")
    assert bench.store.active_version() == "v2"
    assert "judged turns" in bench.step().why


def live(bench: Bench, version: str, good: int, bad: int) -> None:
    """Users judge answers of this version, in conversations that opted out of nothing but are not trained on."""
    for number in range(good + bad):
        turn_id = f"{version}-{number}"
        liked = (number + 1) * good // (good + bad) > number * good // (good + bad)  # evenly mixed
        bench.scene.corrected(turn_id, 1 if liked else -1, version=version)


def two_versions(folder: Path, **gate: Any) -> Bench:
    bench = Bench(
        folder, train=TrainSettings(batch_size=1, passes=1), gate=GateSettings(held_back=0.0, **gate)
    )  # type: ignore[call-arg]
    bench.correct("a")
    assert bench.step().version == "v1"
    bench.correct("b")
    assert bench.step().version == "v2"
    bench.train = TrainSettings(enabled=False)  # type: ignore[call-arg]
    return bench


def test_a_version_that_users_like_less_than_its_parent_is_taken_back(tmp_path: Path) -> None:
    bench = two_versions(tmp_path)
    live(bench, "v1", 18, 4)
    live(bench, "v2", 5, 14)
    assert bench.step().did == "waiting", "19 are too few"
    live(bench, "v2x", 0, 1)
    bench.scene.corrected("v2-last", -1, version="v2")
    report = bench.step()
    assert report.did == "taken back"
    assert report.why.startswith(
        "v2 was taken back by itself, to v1: users were content with 5 of 20 answers since v2, and with 18 of 24 before"
    )
    assert bench.store.active_version() == "v1"
    assert bench.store.activations()[0].reason == report.why
    (decision,) = bench.store.decisions()
    assert (decision.version, decision.fate, decision.reason) == ("v2", Fate.ROLLED_BACK, report.why)
    bench.store.decide("v2", Fate.CHOSEN, "I want it", activate="v2")
    assert bench.step().did == "waiting", "what a person chose stays"
    assert bench.store.active_version() == "v2"


@pytest.mark.parametrize(("gate", "bad"), [({"auto_rollback": False}, 16), ({}, 6)])
def test_it_stays_where_it_is_not_worse_or_where_nobody_wants_that(
    tmp_path: Path, gate: dict[str, Any], bad: int
) -> None:
    bench = two_versions(tmp_path, **gate)
    live(bench, "v1", 18, 4)
    live(bench, "v2", 20 - bad, bad)
    assert bench.step().did == "waiting"
    assert bench.store.active_version() == "v2"


def test_it_is_looked_at_now_and_then_not_always(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = two_versions(tmp_path)
    step, looks = bench.make(), []
    monkeypatch.setattr(bench.store, "live_scores", lambda version: looks.append(version) or [])
    step(), step()
    assert looks == ["v2", "v1", "base"]
    bench.scene.clock.wall += 11.0
    step()
    assert len(looks) == 6


# ── taking back while it learns, at the default batch size ────────────────────────────────────────────────
def learning(folder: Path) -> Bench:
    """The clock runs fast here: no short batch may come of quiet."""
    return Bench(folder, train=TrainSettings(passes=1, quiet_s=1e9))  # type: ignore[call-arg]


def talk(bench: Bench, turns: int, likes: Callable[[str, int], bool], name: str) -> list[StepReport]:
    """Users judge what the version in force answers, and it learns from that. Gives the steps that did something."""
    step, done = bench.make(), []
    for number in range(turns):
        version = bench.store.active_version()
        bench.scene.corrected(f"{name}-{number}", 1 if likes(version, number) else -1, version=version)
        for _ in range(2):
            bench.scene.clock.wall += 11.0
            done.append(step())
    return [report for report in done if report.did not in NO_UPDATE]


def mostly(_: str, number: int) -> bool:
    return number % 5 != 0


def good_until_v2(version: str, number: int) -> bool:
    return mostly(version, number) == (version in ("base", "v1", "v2"))


def test_while_it_learns_a_slide_goes_back_to_the_last_that_was_liked(tmp_path: Path) -> None:
    bench = learning(tmp_path)
    reports = talk(bench, 44, good_until_v2, "t")
    assert [r.did for r in reports] == ["proposed"] * 5 + ["taken back"]
    assert reports[-1].why.startswith(
        "v5 was taken back by itself, to v2: users were content with 4 of 20 answers since v3, and with 19 of 24 before"
    )
    assert bench.store.active_version() == "v2"
    back = talk(bench, 8, mostly, "u")
    assert [(r.did, r.version) for r in back] == [("proposed", "v6")]
    assert bench.trainer.jobs[-1].parent == "v2"
    assert bench.trainer.jobs[-1].settings["lr"] == bench.trainer.jobs[0].settings["lr"] / 2, (
        "not the same again"
    )


def test_when_nothing_pleases_any_more_it_does_not_walk_back_from_version_to_version(tmp_path: Path) -> None:
    bench = learning(tmp_path)
    talk(bench, 44, good_until_v2, "t")
    assert bench.store.active_version() == "v2"
    reports = talk(bench, 80, lambda _, number: number % 5 == 0, "u")
    assert {r.did for r in reports} == {"proposed"}
    assert "v2" in line(bench.store.active_version(), bench.store.parents())


def test_after_such_a_rollback_older_praise_counts_no_more(tmp_path: Path) -> None:
    """Else what is learned from there on would be held against the praise of older days, for ever."""
    bench = learning(tmp_path)
    talk(bench, 44, good_until_v2, "t")
    reports = talk(bench, 28, lambda version, number: mostly(version, number) == (version == "v2"), "u")
    assert [(r.did, r.version) for r in reports] == [("proposed", f"v{n}") for n in (6, 7, 8, 9)]


def test_a_version_that_a_person_wanted_and_what_it_came_from_is_left_alone(tmp_path: Path) -> None:
    bench = learning(tmp_path)
    talk(bench, 40, good_until_v2, "t")
    bench.store.decide("v5", Fate.CHOSEN, "I want it", activate="v5")
    reports = talk(bench, 40, good_until_v2, "u")
    assert {r.did for r in reports} == {"proposed"}
