"""The seams: what each part of the flow asks of the parts it does not know.

Everything here is a Protocol. `compose.py` alone decides which concrete part stands behind it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from instar.records import (
    Abstention,
    Activation,
    Decision,
    Fate,
    JudgedAnswer,
    JudgeItem,
    Judgement,
    Manifest,
    NextState,
    RatedTurn,
    Sample,
    Sampling,
    Turn,
    TurnOutcome,
    Update,
    UpdateJob,
    UpdateResult,
    Verdict,
    WeightedSample,
)


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Some sampled tokens. `finish_reason` stands on the last chunk: "stop" or "length".

    A stop token that ended the answer is part of `ids`. `top` holds, per token, the likeliest alternatives
    as (id, log-prob), where they were asked for. `forced` says of each token whether a grammar decided it: the model
    drew another one that is not allowed, or had no choice. None: there was no grammar, or the engine does not tell.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: str | None = None
    top: list[list[tuple[int, float]]] | None = None
    forced: list[bool] | None = None


class Engine(Protocol):
    """The one client for every engine; speaks the wire contract of docs/engine-contract.md."""

    def sample(
        self, version: str, prompt_ids: Sequence[int], sampling: Sampling, *, priority: int = 0
    ) -> AsyncIterator[TokenChunk]:
        """Sample one answer under an adapter that is loaded (or BASE). Closing the iterator aborts it.

        Raises EngineError (status 400: the prompt does not fit; 404: the version is not loaded; 429: full) or
        EngineUnavailable.
        """
        ...

    async def load(self, version: str, adapter_dir: Path) -> None:
        """Make an adapter servable under the name of its version. Loading it twice is not an error."""
        ...

    async def unload(self, version: str) -> None:
        """Forget an adapter. Unloading an unknown one is not an error."""
        ...

    async def loaded(self) -> set[str]:
        """Versions that can be served now, BASE included."""
        ...

    @property
    def context_length(self) -> int | None:
        """Tokens of prompt and answer together, as told with the last `loaded`; None where nothing was told."""
        ...

    async def healthy(self) -> bool: ...

    async def close(self) -> None: ...


class Ratings(Protocol):
    """The part of the store that knows how learners rated answers outright. Raises StoreError."""

    def newest_rating(self) -> int:
        """A number that grows with every rating, whoever made it; 0 before the first. Costs next to nothing."""
        ...

    def rated_turns(self, learner: str, limit: int) -> list[RatedTurn]:
        """The `limit` turns that this learner rated last and said something after, newest rating first; without
        those that are never learned from. Of what followed, only replies and feedback."""
        ...


class Store(Ratings, Protocol):
    """The durable truth. Every method is one transaction: it happened wholly, or not at all.

    Methods are synchronous and safe to call from several threads and processes. Raises StoreError.
    """

    # ── the gateway's side ────────────────────────────────────────────────────────────────────────────
    def open_turns(self, turns: Sequence[Turn], next_states: Sequence[NextState]) -> None:
        """Record that answering began, and what the request says about earlier turns.

        A next state that is already known (same turn, kind and text) is ignored: clients send their history
        again and again.
        """
        ...

    def close_turn(self, turn_id: str, outcome: TurnOutcome) -> None:
        """Durable on return. Closing a turn that is not open raises StoreError."""
        ...

    def find_by_context(
        self, key_id: str, context_hashes: Sequence[str], session_id: str | None = None
    ) -> list[Turn]:
        """Done turns of this key whose `context_hash` is among those given, newest first.

        Like those of the next four methods, they come without `messages` and `prompt_ids`, which in a long session
        take a hundred times longer to read than all the rest; `turn` brings a whole one.
        """
        ...

    def find_by_request(self, key_id: str, session_id: str, request_hash: str) -> list[Turn]:
        """Turns of one session that answered exactly the same conversation, newest first."""
        ...

    def newest_of(self, key_id: str, session_ids: Sequence[str], limit: int) -> list[Turn]:
        """The newest turns of these sessions, whatever became of them, newest first."""
        ...

    def ids_in_use(self, since: float, limit: int) -> list[list[int]]:
        """Prompt and answer ids of the newest turn of each session whose last turn ended at `since` or later (seconds
        of the epoch), newest first, for at most `limit` sessions. Side turns and those that named their version do
        not count: neither tells what the next turn under the active version begins with."""
        ...

    def children(self, turn_id: str) -> list[Turn]:
        """Turns that continue this one's answer, newest first."""
        ...

    def episode(self, episode_id: str) -> list[Turn]:
        """Model steps between two user messages, oldest first."""
        ...

    def add_feedback(self, state: NextState) -> str | None:
        """Record explicit feedback. An earlier judgement of the turn makes place for it.

        Returns why nothing will be learned from it, in a word: the turn's reason, `learned` if it was learned from
        before, `in_update` if an update has it in hand; None where nothing stands against it. Raises StoreError for an
        unknown turn.
        """
        ...

    def turn(self, turn_id: str) -> Turn | None: ...

    def turn_views(
        self,
        *,
        session_id: str | None = None,
        limit: int = 100,
        before: str | None = None,
        turn_ids: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Turns with their next states, judgement, uses and reason as plain JSON values, newest first; only those
        of `turn_ids`, if given.

        Keys: id, session_id, episode_id, parent_id, kind, version, status, finish_reason, created_at,
        prompt_tokens, response_tokens, question (last user text), answer (text), next_states (list of
        {kind, text}), score, votes, link, hint, why, learned (true once used), updates (list of update ids),
        reason (why it is not learned from, None while it may be), recognised and kind_why (what told the kind of a
        request that is not plainly conversation, and in words why).
        """
        ...

    # ── the judge's side ──────────────────────────────────────────────────────────────────────────────
    def lease_unjudged(self, worker: str, limit: int, ttl_s: float) -> list[JudgeItem]:
        """Take turns that have a next state and no judgement. A lease that ran out may be taken by another.

        A turn whose lease ran out three times is set aside with a reason (poison) and not returned again.
        """
        ...

    def record_judgement(self, judgement: Judgement, lease: str) -> None:
        """Raises LeaseLost when the lease is not held any more."""
        ...

    def renew_leases(self, held: Sequence[str], ttl_s: float) -> None:
        """Let these leases run for `ttl_s` from now on; those that were lost meanwhile stay lost."""
        ...

    def return_leases(self, held: Sequence[str]) -> None:
        """Give turns back that were not judged, as if they had never been taken."""
        ...

    # ── the trainer's side ────────────────────────────────────────────────────────────────────────────
    def trainable(
        self,
        limit: int,
        *,
        current: int,
        max_staleness: int,
        held_back: float = 0.0,
        longest: int | None = None,
    ) -> list[Sample]:
        """Judged, unused, learnable samples (score ±1), oldest first.

        A sample is stale when more than `max_staleness` updates lie between its version and `current` (a number, 0 for
        BASE), counted along the parents; stale samples and those of pinned versions are returned only if words say
        what to do instead (a hint, a correction, an accepted retry), with logprobs emptied; the rest is marked with
        the reason `stale` and left out. So are turns that are held back, of this share of all hours, with the reason
        `held_back`; these are still judged anew, and their answers are nobody's accepted retry. Those of more than
        `longest` tokens of prompt and response get the reason `too_long`.
        """
        ...

    def leave_out_long(self, turn_ids: Sequence[str]) -> None:
        """Mark turns with the reason `too_long`, since what is to be learned from them is."""
        ...

    def held_back(self, learner: str, limit: int, *, longest: int | None = None) -> list[Sample]:
        """Turns of this learner that are never trained on, newest first: those whose verdict is the user's own and says
        what is better, of at most `longest` tokens of prompt and response."""
        ...

    def last_activity_at(self) -> float | None:
        """Wall time of the newest answer's end, next state or judgement, of these the one that is nearest to now: the
        date may have been set back meanwhile. How long has it been quiet?

        While an answer is being sampled, for an hour at most, that is now: somebody waits for it, and may react.
        """
        ...

    def last_served_at(self) -> float | None:
        """Wall time at which one of the newest answers ended, the one that is nearest to now; now, while one is being
        sampled, for an hour at most; None before the first."""
        ...

    def verdicts(self, learner: str, limit: int, *, held_back: float = 0.0) -> list[JudgedAnswer]:
        """The newest `limit` answers in plain text that the learner's own words accepted or rejected, oldest first;
        without those that are held back, of this share of all hours."""
        ...

    def begin_update(
        self, turn_ids: Sequence[str], parent: str, job: str, *, scale: float = 1.0, passes: int = 1
    ) -> Update:
        """Reserve samples for one update, before any compute. `job` is kept for resuming (JSON).

        `passes` is how often the update goes over its samples: so many uses each of them will have.
        Raises StoreError if one of them is reserved or used already, or while another update runs.
        """
        ...

    def running_update(self) -> tuple[Update, str] | None:
        """The update that was begun and not finished, with its job, for the one who resumes it."""
        ...

    def finish_update(
        self,
        update_id: str,
        *,
        status: str,
        version: str | None,
        note: str | None,
        activate: bool,
        waits: bool = False,
        if_active: str | None = None,
        documents: dict[str, dict[str, Any]] | None = None,
    ) -> str:
        """End an update in one commit: uses, version, activation, and the documents given (see put_state). Gives the
        status that it ended with.

        "proposed": every (turn, update, pass) is a use, exactly once; with `activate` the version is active
        from this commit on, with `waits` it is noted that it waits for a person. "rejected" (`version` names what
        is kept to be looked at): the samples are free for one more update, with a smaller step; after
        two rejections they carry the reason `rejected_by_gate`. "unused": nothing was computed since nothing in
        the samples says how to change the model; they carry the reason `nothing_to_learn`. "failed":
        the samples are free again; after three failures they carry the reason `poison`.

        A proposal ends as "superseded" if another version than `if_active` is in force by then: someone decided so
        while it was computed. The version is kept and neither activated nor offered; the samples are free again, and
        no document is written.
        """
        ...

    def updates(self, limit: int = 100) -> list[Update]:
        """Newest first."""
        ...

    def parents(self) -> dict[str, str]:
        """Version → the one that it was computed from, of every version that an update made."""
        ...

    def rejected_before(self, turn_ids: Sequence[str]) -> bool:
        """True if one of these samples was in an update that the gate rejected (train at half the rate)."""
        ...

    def next_version_number(self) -> int: ...

    # ── versions and status ───────────────────────────────────────────────────────────────────────────
    def active_version(self) -> str: ...

    def activate(self, version: str, reason: str) -> None: ...

    def activations(self, limit: int = 100) -> list[Activation]:
        """Newest first: the first one is in force."""
        ...

    def decide(
        self,
        version: str,
        fate: Fate,
        reason: str,
        *,
        activate: str | None = None,
        documents: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Record what was decided about a version and, in the same commit, activate that or another one, and write
        the documents given (see put_state)."""
        ...

    def decisions(self, limit: int = 1000) -> list[Decision]:
        """Newest first: the first one about a version is in force."""
        ...

    def live_scores(self, version: str) -> list[int]:
        """What users said (+1, −1) of answers that this version gave unpinned, one per episode, oldest first."""
        ...

    def counts(self) -> dict[str, Any]:
        """{"turns": {status: n}, "judged": {"1" | "0" | "-1" | "none": n}, "waiting": {"unjudged": n,
        "trainable": n}, "used": n, "published": n, "reasons": {reason: n}}; `published` counts the updates
        whose version has served."""
        ...

    def agreement(self) -> dict[str, dict[str, int]]:
        """How the links that read reactions agree with the user's own ratings of the same turns.

        Link → {"turns": n, "agree": same score, "wrong_sign": the opposite sign}. A corrected text without a
        rating is a −1, of several ratings the newest counts; tools' verdicts and abstentions are left out.
        """
        ...

    def heartbeat(self, loop: str, state: dict[str, Any]) -> None:
        """A loop says that it lives and what it does."""
        ...

    def heartbeats(self) -> dict[str, dict[str, Any]]:
        """Loop name → its last state, with `at` (wall seconds)."""
        ...

    def get_state(self, name: str) -> dict[str, Any] | None:
        """A small named document (running baselines and the like), written by put_state."""
        ...

    def put_state(self, name: str, value: dict[str, Any]) -> None: ...

    def sweep_open(self, reason: str) -> int:
        """Mark turns left open by a dead server as failed. Returns how many there were."""
        ...

    def close(self) -> None: ...


class Registry(Protocol):
    """Versions on disk. A version is there wholly or not at all."""

    def publish(self, work_dir: Path, manifest: Manifest) -> Path:
        """Move a finished update into the registry, atomically and durably. The same update twice is fine."""
        ...

    def verify(self, version: str) -> Path:
        """The version's folder, after checking every sha256. Raises ArtifactError."""
        ...

    def manifest(self, version: str) -> Manifest:
        """Raises ArtifactError."""
        ...

    def versions(self) -> list[str]:
        """Published versions, oldest first, without BASE."""
        ...


class JudgeLink(Protocol):
    """One link of the chain. It speaks, or abstains: by returning None, or a reason."""

    name: str

    def judge(self, item: JudgeItem) -> Verdict | Abstention | None: ...


class Method(Protocol):
    """A small file that turns samples into per-token weights. Knows no torch and no model.

    `state` is its memory (running baselines), returned changed; it must be JSON.
    """

    name: str

    def weigh(
        self, samples: Sequence[Sample], prompts: TeacherPrompts, state: dict[str, Any]
    ) -> tuple[list[WeightedSample], dict[str, Any]]: ...


class TeacherPrompts(Protocol):
    """Builds token ids for a method: the only way in which a method touches text."""

    def hinted(self, sample: Sample, hint: str) -> list[int]:
        """The prompt of the sample's request with the user's words before the last user message."""
        ...

    def encode_answer(self, text: str) -> list[int]:
        """Ids of an answer as the model would have sampled it, stop token included."""
        ...


class Trainer(Protocol):
    """Computes an update from a job, somewhere else than in this process."""

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt plus response that its memory can hold."""
        ...

    def run(self, job: UpdateJob) -> UpdateResult:
        """Blocks until the update is computed. Raises TrainingError; may be called again with the same job."""
        ...

    def look_ahead(self, job: UpdateJob) -> None:
        """Blocks while it does what an update with these samples will need anyway, so that `run` is shorter.

        Changes no result. Raises TrainingError.
        """
        ...

    def close(self) -> None: ...
