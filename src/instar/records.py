"""The vocabulary of the whole flow, in the order in which things happen.

    request ─► Turn ─► NextState ─► Judgement ─► Sample ─► WeightedSample ─► UpdateJob ─► UpdateResult ─► Manifest

Shapes: `_T` is the number of response tokens, `_P` of prompt tokens. Log-probs are natural logarithms of the
raw policy, before temperature, top-p or any grammar.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

BASE = "base"
"""Name of the untouched model as a version."""

EXPLICIT = "explicit"
"""Name of the judge's link that gives the user's own rating."""

Message = dict[str, Any]
"""One chat message as the client sent it: role, content, and what else came along."""


class Kind(StrEnum):
    """What a model step is within its conversation."""

    MAIN = "main"  # answers a user's message
    TOOL_STEP = "tool_step"  # goes on after tool results
    SIDE = "side"  # titles, summaries, heartbeats: never feedback, never learned from


class TurnStatus(StrEnum):
    OPEN = "open"  # being sampled
    DONE = "done"  # recorded and acknowledged
    CANCELLED = "cancelled"  # the client left before the end
    FAILED = "failed"  # the engine failed, or the server died in mid-answer


class NextKind(StrEnum):
    """What followed a model step."""

    USER_REPLY = "user_reply"
    TOOL_RESULT = "tool_result"
    REGENERATE = "regenerate"
    EDIT = "edit"
    FEEDBACK = "feedback"  # POST /v1/feedback


class Origin(StrEnum):
    SAMPLED = "sampled"  # our own policy wrote the response
    EDIT = "edit"  # the user wrote it
    ACCEPTED_RETRY = "accepted_retry"  # our later answer, accepted after a correction
    REVISION = "revision"  # our answer to the correction, or to the hinted request, that scored best


class Source(StrEnum):
    """Whose verdict it is. Tool verdicts never drown the user's."""

    USER = "user"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: found from the API key, never from a header."""

    key_id: str
    learner: str
    role: str = "user"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one answer. `temperature` 0 is greedy; `max_tokens` counts response tokens."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One model step: what was asked, what was sampled, under which version.

    `context_hash` identifies the conversation up to and including this answer; a later request whose history
    hashes to the same value continues it. `request_hash` identifies the conversation up to, without, it.
    """

    id: str
    session_id: str
    episode_id: str
    parent_id: str | None
    key_id: str
    learner: str
    kind: Kind
    version: str
    pinned: bool
    messages: list[Message]
    request_hash: str
    created_at: float
    learn: bool = True
    reason: str | None = None
    choice: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    status: TurnStatus = TurnStatus.OPEN
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    answer: Message | None = None
    context_hash: str | None = None
    finish_reason: str | None = None
    closed_at: float | None = None

    @property
    def was_cut(self) -> bool:
        """The token limit ended the answer: never a +1, trains no stop token."""
        return self.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """What is known of a turn once sampling ended; written in one commit before the client's last byte.

    `learn`/`reason` are given only when the ending itself decides against learning.
    """

    status: TurnStatus
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    answer: Message | None
    context_hash: str | None
    finish_reason: str | None
    closed_at: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NextState:
    """What followed a turn. `by_turn_id` is the turn whose request carried it, where there is one.

    `score`, `correction` are given for explicit feedback only; `text` is the user's or the tool's own words.
    """

    turn_id: str
    kind: NextKind
    text: str
    created_at: float
    by_turn_id: str | None = None
    score: int | None = None
    correction: str | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one turn: `score` +1, −1, 0, or None where every link of the chain abstained.

    `votes` are the single votes behind it, `link` names who spoke, `hint` is what to do instead, in words.
    `why` is a sentence for a reader. `others` are what other links made of a turn that the user rated: they decide
    nothing, and show how far a link can be trusted.
    """

    turn_id: str
    score: int | None
    source: Source
    link: str
    created_at: float
    votes: tuple[int, ...] = ()
    hint: str | None = None
    correction: str | None = None
    why: str = ""
    others: tuple[Judgement, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeItem:
    """A turn with its next states, as a judge sees it. `lease` is the token that proves who holds it."""

    turn: Turn
    next_states: list[NextState]
    lease: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one link of the judge's chain says. A link that cannot tell returns None or an Abstention."""

    score: int
    votes: tuple[int, ...] = ()
    hint: str | None = None
    correction: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Abstention:
    """A link that cannot tell, and has something to say about why. One without a reason returns None."""

    why: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A judged turn, ready for a method. Ids and log-probs are exactly those of sampling.

    `request_messages` end with the user's (or tool's) message that the response answers. `score` is +1, −1, 0
    or None. `correction` is the text that the user would have wanted; `accepted` the answer to a later retry
    that the user accepted; `retry_ids` the ids of the complete answer to the correction, whatever the user
    thought of it. `baseline_key` groups samples that share a running baseline.
    """

    turn_id: str
    learner: str
    version: str
    source: Source
    origin: Origin
    request_messages: list[Message]
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    score: int | None
    hint: str | None = None
    correction: str | None = None
    accepted: str | None = None
    retry_ids: list[int] = field(default_factory=list)
    was_cut: bool = False
    created_at: float = 0.0

    @property
    def baseline_key(self) -> str:
        return f"{self.learner}/{self.source}"


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """What a learner thought of an answer: `score` +1 or −1; `hint` are the words of a correction."""

    learner: str
    question: str
    answer: str
    score: int
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class WeightedSample:
    """What the trainer receives: tokens and, per response token, the weight of each loss component.

    All weight lists have the length of `response_ids`. The trainer knows no method, it adds up

        pg_T       PPO-clipped policy gradient; the weight is the advantage
        distill_T  reverse KL towards the teacher that saw `teacher_prompt_ids`
        nll_T      negative log-likelihood of the given token
        kl_T       pull towards the reference (base) model

    `revise` asks for one more thing that only the trainer can do, since it takes the model: choose the best of
    `revisions` (ids of complete answers) and of one more that base gives to `teacher_prompt_ids`, and learn its
    likelihood after `prompt_ids` with this weight.

    `logprobs` may be empty where no component needs them (nll on an edit). `abstained` names the
    components that abstained, each with its reason. `learner` and `question` (the user's last words in the request)
    are for the scorer of answers.
    """

    turn_id: str
    origin: Origin
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    pg_T: list[float]
    distill_T: list[float]
    nll_T: list[float]
    kl_T: list[float]
    teacher_prompt_ids: list[int] | None = None
    revise: float = 0.0
    revisions: list[list[int]] = field(default_factory=list)
    abstained: dict[str, str] = field(default_factory=dict)
    learner: str = ""
    question: str = ""

    @property
    def teaches(self) -> bool:
        """Whether any component has something to say; a pull to the reference alone teaches nothing."""
        return bool(self.revise) or any(map(any, (self.pg_T, self.distill_T, self.nll_T)))


@dataclass(frozen=True, slots=True)
class HeldBackTurn:
    """A judged turn that no update ever sees: a proposed version is held against the serving one on it.

    `hinted_ids` is the prompt with the user's words in it, `wanted_ids` the answer that the user wrote or accepted
    instead; both are empty where there is none. `question` is the user's message, for readers.
    """

    turn_id: str
    score: int
    question: str
    prompt_ids: list[int]
    response_ids: list[int]
    hinted_ids: list[int] = field(default_factory=list)
    wanted_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UpdateJob:
    """One update, complete in itself: the compute child needs nothing else.

    `parent` is the version to start from; `parent_dir` its folder, None for base. The same job gives the same
    adapter, byte for byte, on the same machine and thread count: `seed` fixes every choice. `history` are verdicts
    of the samples' learners, oldest first, theirs on these samples included.
    """

    update_id: str
    parent: str
    parent_dir: str | None
    model_dir: str
    out_dir: str
    seed: int
    samples: list[WeightedSample]
    history: list[JudgedAnswer] = field(default_factory=list)
    anchors: list[list[int]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    held_back: list[HeldBackTurn] = field(default_factory=list)


def job_lists(document: dict[str, Any]) -> dict[str, list[Any]]:
    """A job's samples, history and held-back turns from JSON. Raises KeyError, TypeError or ValueError."""
    return {
        "samples": [WeightedSample(**{**s, "origin": Origin(s["origin"])}) for s in document["samples"]],
        "history": [JudgedAnswer(**h) for h in document["history"]],
        "held_back": [HeldBackTurn(**t) for t in document["held_back"]],
    }


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What an update left in its `out_dir`: adapter, optimizer state, and these numbers.

    `taught` is False when the trainer found nothing to learn in it, and `why` says so in a sentence: then there are
    no files and no gate.
    """

    update_id: str
    ok: bool
    metrics: dict[str, Any]
    gate: GateReport | None = None
    error: str | None = None
    taught: bool = True
    why: str = ""


@dataclass(frozen=True, slots=True)
class GateReport:
    """Whether a proposed version may serve. `checks` holds every figure beside its bound."""

    passed: bool
    why: str
    checks: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a version on disk says about itself. `files` maps a file name to its sha256 in hex."""

    name: str
    parent: str
    created_at: float
    update_id: str
    base_model: str
    base_sha256: str
    files: dict[str, str]
    turn_ids: list[str]
    settings: dict[str, Any]
    metrics: dict[str, Any]
    gate: dict[str, Any]
    runtime: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Activation:
    """One line of the history of what was served. The last one is in force."""

    version: str
    reason: str
    created_at: float


class Fate(StrEnum):
    """What was decided about a version after its update. The newest decision is in force."""

    WAITS = "waits"  # passed the gate, and waits for a person
    APPROVED = "approved"  # a person let it serve
    REJECTED = "rejected"  # a person did not
    ROLLED_BACK = "rolled_back"  # served, and was taken back
    CHOSEN = "chosen"  # a person activated it by name


@dataclass(frozen=True, slots=True)
class Decision:
    """One line of what was decided about versions, with the reason in a sentence."""

    version: str
    fate: Fate
    reason: str
    created_at: float


@dataclass(frozen=True, slots=True)
class Update:
    """One update's life in the store."""

    id: str
    number: int
    parent: str
    status: str  # running, proposed, rejected, failed
    turn_ids: list[str]
    created_at: float
    version: str | None = None
    scale: float = 1.0
    note: str | None = None
    finished_at: float | None = None
