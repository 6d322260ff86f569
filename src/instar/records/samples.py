"""Judged turns as methods and trainers see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from instar.records.conversation import Message
from instar.records.verdicts import Source
from instar.records.versions import BASE


class Origin(StrEnum):
    SAMPLED = "sampled"  # our own policy wrote the response
    EDIT = "edit"  # the user wrote it
    ACCEPTED_RETRY = "accepted_retry"  # our later answer, accepted after a correction
    REVISION = "revision"  # our answer to the correction, or to the hinted request, that scored best


@dataclass(frozen=True, slots=True)
class Sample:
    """A judged turn, ready for a method. Ids and log-probs are exactly those of sampling.

    `request_messages` end with the user's (or tool's) message that the response answers. `score` is +1, −1, 0
    or None. `correction` is the text that the user would have wanted; `accepted` the answer to a later retry
    that the user accepted; `retry_ids` the ids of the complete answer to the correction, whatever the user
    thought of it. `baseline_key` groups samples that share a running baseline.

    `tools` are those that the model was told of. `forced` says of each response token whether a grammar decided it,
    and is empty where the answer was free: a forced token carries no weight, whatever the method.
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
    tools: list[Any] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)

    @property
    def baseline_key(self) -> str:
        return f"{self.learner}/{self.source}"


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """What a learner thought of an answer of `version`: `score` +1 or −1; `hint` are the words of a correction."""

    learner: str
    question: str
    answer: str
    score: int
    hint: str | None = None
    version: str = BASE


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
    are for the scorer of answers. `version` sampled the response; "" if that is not known.
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
    version: str = ""

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
