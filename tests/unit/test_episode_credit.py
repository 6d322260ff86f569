"""A reply to an episode changes its *first* step: from the store to the adapter, on a policy made for the purpose.

The policy edits a file at once more often than it reads it first, and reads it when it is told to. The user says so
only after the edit has failed, two steps later. What is real here: where a request belongs, the judge's chain, the
samples, the method, the training step and the trainer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from instar.chat_format import ChatFormat
from instar.config import GateSettings, JudgeSettings, Settings, TrainSettings
from instar.flow.conversation import prefix_hashes
from instar.flow.prompts import ChatTeacherPrompts
from instar.flow.publish import BaseModelFacts, Publisher
from instar.flow.sessions import place
from instar.flow.train_step import TrainStep
from instar.judges import build_chain
from instar.methods import get_method
from instar.records import Caller, GateReport, Kind, Message, Turn, UpdateJob, UpdateResult
from instar.registry import FolderRegistry
from instar.trainers.canaries import canaries, token_logp
from instar.trainers.local import run_update
from instar.trainers.policy import Policy
from instar.trainers.revise import OTHERS
from tests.kit.store_scenes import Scene, make_outcome
from tests.kit.tiny_model import write_tiny_model

ASK: Message = {"role": "user", "content": "fix a.txt"}
REPLY = "That is wrong. You should have read the file first."
EDIT, READ, DONE = "edit a.txt", "read a.txt", "gave up"
CALL = {"id": "call_1", "type": "function", "function": {"name": "edit", "arguments": "{}"}}
STEP: list[Message] = [
    {"role": "assistant", "content": EDIT, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "the file has 120 lines"},
]
ANN = Caller(key_id="key", learner="ann")


def hinted(messages: list[Message]) -> list[Message]:
    return [{**messages[0], "content": f"{REPLY}\n\n{messages[0]['content']}"}, *messages[1:]]


def teach_policy(folder: Path) -> None:
    """Give the tiny model the habits named above: cross entropy on each answer, weighted by its share."""
    chat = ChatFormat(folder)
    asked = [(chat.encode_prompt(m), answer, share) for m, answer, share in (
        ([ASK], EDIT, 0.7), ([ASK], READ, 0.3), (hinted([ASK]), READ, 1.0),
        ([ASK, *STEP], DONE, 1.0), (hinted([ASK, *STEP]), DONE, 1.0),
    )]  # fmt: skip
    others = canaries(folder).others[:OTHERS]
    asked += [(prompt, answer, 0.5) for prompt in others for answer in (EDIT, "hello there")]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rows = [(p, chat.encode_answer(a), share) for p, a, share in asked]
    longest = max(len(p) + len(a) for p, a, _ in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    weight = torch.zeros((len(rows), longest))
    for row, (prompt, answer, share) in enumerate(rows):
        ids[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        weight[row, len(prompt) : len(prompt) + len(answer)] = share
    for _ in range(250):
        logp = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        loss = -(logp * weight[:, 1:]).sum() / len(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.to(torch.bfloat16).save_pretrained(folder)


@dataclass
class HereTrainer:
    """The real trainer in this process. Its gate would ask questions that this policy has never heard of."""

    policy: Policy
    longest: int = 1000

    def run(self, job: UpdateJob) -> UpdateResult:
        return replace(run_update(job, self.policy, None), gate=GateReport(True, "not asked", {}))

    def look_ahead(self, job: UpdateJob) -> None: ...

    def close(self) -> None: ...


@dataclass
class Session:
    """A client whose requests are placed, answered and stored as the gateway does it."""

    scene: Scene
    chat: ChatFormat
    policy: Policy

    def ask(self, turn_id: str, messages: list[Message], answer: str, tool_calls: list[Any]) -> None:
        where = place(self.scene.store, ANN, messages, turn_id=turn_id, now=100.0)
        turn = Turn(
            id=turn_id, session_id=where.session_id, episode_id=where.episode_id or turn_id,
            parent_id=where.parent.id if where.parent else None, key_id="key", learner="ann",
            kind=where.kind, version="base", pinned=False, messages=messages,
            request_hash=where.request_hash, created_at=100.0,
        )  # fmt: skip
        self.scene.store.open_turns([turn], where.says)
        said: Message = {"role": "assistant", "content": answer}
        if tool_calls:
            said["tool_calls"] = tool_calls
        prompt, response = self.chat.encode_prompt(messages), self.chat.encode_answer(answer)
        outcome = make_outcome(
            turn_id, prompt_ids=prompt, response_ids=response, answer=said,
            logprobs=token_logp(self.policy, [prompt], [response])[0].tolist(),
            context_hash=prefix_hashes([*messages, said])[-1],
        )  # fmt: skip
        self.scene.store.close_turn(turn_id, outcome)


def judge_all(scene: Scene) -> None:
    chain = build_chain(JudgeSettings())  # type: ignore[call-arg]
    for item in scene.store.lease_unjudged("judge", 100, 60.0):
        scene.store.record_judgement(chain.judge(item, now=300.0), item.lease)


def share_of(policy: Policy, prompt: list[int], chat: ChatFormat, *answers: str) -> list[float]:
    """Probabilities of whole answers after a prompt."""
    ids = [chat.encode_answer(a) for a in answers]
    return [float(logp_T.sum().exp()) for logp_T in token_logp(policy, [prompt] * len(ids), ids)]


@pytest.mark.timeout(180)
def test_a_reply_two_steps_later_changes_the_first_step(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    teach_policy(folder)
    chat, policy = ChatFormat(folder), Policy(folder, rank=16, alpha=32)
    policy.reset(0)
    first, second = chat.encode_prompt([ASK]), chat.encode_prompt([ASK, *STEP])
    edits, reads = share_of(policy, first, chat, EDIT, READ)
    assert edits > 0.55
    assert reads < 0.4

    session = Session(Scene(tmp_path / "instar.db"), chat, policy)
    session.ask("first", [ASK], EDIT, [CALL])
    session.ask("second", [ASK, *STEP], DONE, [])
    ended: list[Message] = [ASK, *STEP, {"role": "assistant", "content": DONE}]
    session.ask("reply", [*ended, {"role": "user", "content": REPLY}], "sorry", [])
    judge_all(session.scene)

    store = session.scene.store
    samples = {s.turn_id: s for s in store.trainable(8, current=0, max_staleness=4)}
    assert {name: (s.score, s.hint) for name, s in samples.items()} == {
        "first": (-1, REPLY),
        "second": (-1, REPLY),
    }
    kinds = {view["id"]: view["kind"] for view in store.turn_views()}
    assert kinds == {"first": Kind.MAIN, "second": Kind.TOOL_STEP, "reply": Kind.MAIN}

    train = TrainSettings(batch_size=2, lr=3e-3, anchor_kl=0.0, revision_tokens=32)  # type: ignore[call-arg]
    gate = GateSettings(held_back=0.0)  # type: ignore[call-arg]  # a tenth by lot, and there is one session
    registry = FolderRegistry(tmp_path / "versions")
    step = TrainStep(
        store, registry, HereTrainer(policy), get_method("combined"), ChatTeacherPrompts(chat),
        Settings(data_dir=tmp_path, train=train, gate=gate), folder,  # type: ignore[call-arg]
        Publisher(store, registry, BaseModelFacts("tiny", "0" * 64), session.scene.clock), session.scene.clock,
    )  # fmt: skip
    assert step().version == "v1"

    policy.load(registry.verify("v1"))
    edits_now, reads_now = share_of(policy, first, chat, EDIT, READ)
    assert reads_now > 0.6 > edits_now
    (done_now,) = share_of(policy, second, chat, DONE)
    assert done_now > 0.5
    assert json.loads((registry.verify("v1") / "manifest.json").read_text())["turn_ids"] == [
        "first",
        "second",
    ]
