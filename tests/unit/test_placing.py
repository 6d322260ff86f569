"""Which turn a request continues and what it says about earlier ones, over the whole pipeline without HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from instar.flow.kinds import Hints
from instar.records import Caller, Kind, Message, Turn
from tests.kit.desk import Desk, assistant, tool, user
from tests.kit.openclaw import calls

AGAIN = "Continue the current task from the existing transcript, preserving completed work."
QUEUED = "[Queued user message from a previous active turn; preserved as context only.]"
SUMMARY = (
    "The conversation history before this point was compacted into the following summary:\n\n"
    "<summary>\n{}\n</summary>"
)
NOTE = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnone\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
CHAT = {"session_id": "chat", "hints": Hints(chat_id=True)}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def stamped(text: str, at: str = "10:08") -> str:
    return f"[Mon 2026-11-30 {at} UTC] {text}"


def echoed(answer: Message) -> Message:
    """An answer with tool calls as clients send it back: ids without signs, arguments written anew."""
    plain = []
    for call in answer["tool_calls"]:
        named = json.loads(call["function"]["arguments"])
        written = json.dumps(dict(reversed(named.items())), separators=(",", ":"))
        function = {"name": call["function"]["name"], "arguments": written}
        plain.append({"id": call["id"].replace("_", ""), "type": "function", "function": function})
    return {"role": "assistant", "content": None, "tool_calls": plain}


# ── tool calls ───────────────────────────────────────────────────────────────────────────────────────────
TWO_CALLS = calls(("read", {"path": "a", "limit": 3}), ("exec", {"command": "ls -l"}))


async def test_each_of_parallel_calls_brings_its_result_even_if_they_are_alike(desk: Desk) -> None:
    first = await desk.ask([user("look")], TWO_CALLS)
    history = [user("look"), echoed(TWO_CALLS), tool("callab13", "ok"), tool("callab12", "ok")]
    second = await desk.ask(history, "done")
    assert (second.kind, second.parent_id, second.episode_id) == (Kind.TOOL_STEP, first.id, first.id)
    assert desk.heard() == {first.id: [("tool_result", "ok"), ("tool_result", "ok")]}
    await desk.ask([*history, assistant("done"), user("thanks")])
    assert desk.heard() == {
        first.id: [("tool_result", "ok"), ("tool_result", "ok"), ("user_reply", "thanks")],
        second.id: [("user_reply", "thanks")],
    }


async def test_a_result_of_another_call_is_not_the_steps(desk: Desk) -> None:
    first = await desk.ask([user("look")], TWO_CALLS)
    results = [tool("callab12", "mine"), tool("other", "not mine"), tool("call_ab13", "mine too")]
    await desk.ask([user("look"), echoed(TWO_CALLS), *results])
    assert desk.heard() == {first.id: [("tool_result", "mine"), ("tool_result", "mine too")]}


async def test_results_without_ids_belong_to_the_answer_before_them(desk: Desk) -> None:
    first = await desk.ask([user("look")], TWO_CALLS)
    named = {"role": "function", "name": "read", "content": "text"}
    await desk.ask([user("look"), echoed(TWO_CALLS), named])
    assert desk.heard() == {first.id: [("tool_result", "text")]}


async def test_a_chain_of_steps_hears_the_reply_in_every_step(desk: Desk) -> None:
    history, steps = [user("fix it")], []
    for n in range(3):
        answer = calls(("exec", {"command": f"step {n}"}))
        steps.append(await desk.ask(history, answer, session_id="s"))
        history += [echoed(answer), tool("callab12", f"result {n}")]
    steps.append(await desk.ask(history, "done", session_id="s"))
    await desk.ask([*history, assistant("done"), user("check the file first")], session_id="s")
    assert [step.episode_id for step in steps] == [steps[0].id] * 4
    reply = ("user_reply", "check the file first")
    assert desk.heard() == {
        **{step.id: [("tool_result", f"result {n}"), reply] for n, step in enumerate(steps[:3])},
        steps[3].id: [reply],
    }


# ── retries ──────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_tool_step_tried_again_stays_in_its_episode_and_says_nothing_new(desk: Desk) -> None:
    first = await desk.ask([user("look")], TWO_CALLS, session_id="s")
    history = [user("look"), echoed(TWO_CALLS), tool("callab12", "a"), tool("callab13", "b")]
    await desk.ask(history, fault=True, session_id="s")
    again = await desk.ask([*history, user(stamped(AGAIN))], "done", session_id="s")
    assert (again.kind, again.episode_id, again.parent_id) == (Kind.RETRY, first.id, first.id)
    thanks = await desk.ask([*history, assistant("done"), user("thanks")], session_id="s")
    assert thanks.parent_id == again.id
    results = [("tool_result", "a"), ("tool_result", "b")]
    assert desk.heard() == {
        first.id: [*results, ("user_reply", "thanks")],
        again.id: [("user_reply", "thanks")],
    }


async def test_notes_behind_tool_results_do_not_make_a_user_speak(desk: Desk) -> None:
    first = await desk.ask([user("look"), user(NOTE)], TWO_CALLS, session_id="s")
    step = await desk.ask(
        [user("look"), echoed(TWO_CALLS), tool("callab12", "a"), user(NOTE)], session_id="s"
    )
    assert (step.kind, step.parent_id) == (Kind.TOOL_STEP, first.id)
    assert desk.heard() == {first.id: [("tool_result", "a")]}


async def test_a_library_that_sends_a_request_again_regenerates_nothing(desk: Desk) -> None:
    lost = await desk.ask([user("q")], "lost", session_id="s")
    again = await desk.ask([user("q")], "got", session_id="s", hints=Hints(again=True))
    assert (again.kind, desk.heard()) == (Kind.RETRY, {})
    asked = await desk.ask([user("q"), assistant("got"), user("shorter")], session_id="s")
    assert asked.parent_id == again.id
    assert desk.heard() == {again.id: [("user_reply", "shorter")]}
    assert lost.params.get("recognised") is None
    assert again.params["why"].startswith("the client's HTTP library")


async def test_what_is_said_when_a_try_failed_is_no_reply_to_the_answer_before(desk: Desk) -> None:
    first = await desk.ask([user("q")], "a", session_id="s")
    history = [user("q"), assistant("a"), user("shorter")]
    await desk.ask(history, fault=True, session_id="s")
    await desk.ask([*history, user("hello? are you there?")], session_id="s")
    assert desk.heard() == {first.id: [("user_reply", "shorter")]}


async def test_a_wrapper_around_a_new_message_is_no_retry(desk: Desk) -> None:
    """The client puts what was never answered before the next thing that the user says."""
    await desk.ask([user(stamped("first"))], fault=True, session_id="s:0")
    turn = await desk.ask([user(stamped(f"{QUEUED}\nfirst\n\nsecond", "10:09"))], session_id="s:0")
    assert (turn.kind, turn.params.get("recognised")) == (Kind.MAIN, None)


@pytest.mark.parametrize("reached_us", [True, False])
async def test_a_message_that_was_never_answered_is_heard_once_when_the_next_is_joined_to_it(
    desk: Desk, reached_us: bool
) -> None:
    first = await desk.ask([user(stamped("q"))], "a", session_id="s:0")
    history = [user(stamped("q")), assistant("a")]
    if reached_us:
        await desk.ask([*history, user(stamped("shorter", "10:09"))], fault=True, session_id="s:0")
    joined = user(stamped(f"{QUEUED}\nshorter\n\nare you there?", "10:10"))
    second = await desk.ask([*history, joined], "yes", session_id="s:0")
    assert (second.kind, second.parent_id) == (Kind.MAIN, first.id)
    heard = "shorter" if reached_us else "shorter\n\nare you there?"
    assert desk.heard() == {first.id: [("user_reply", heard)]}
    later = [
        *history,
        user(stamped("are you there?", "10:10")),
        assistant("yes"),
        user(stamped("good", "10:11")),
    ]
    third = await desk.ask(later, session_id="s:0")
    assert third.parent_id == second.id
    assert desk.heard()[second.id] == [("user_reply", "good")]
    assert desk.heard()[first.id] == [("user_reply", heard)]


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────
async def test_hello_on_two_days_is_no_regenerate(desk: Desk) -> None:
    """Where `/new` leaves the id as it is, only the stamp tells the two apart."""
    await desk.ask([user(stamped("hi", "10:00"))], "hello", session_id="s")
    await desk.ask([user(stamped("hi", "12:00"))], "hello", session_id="s")
    assert desk.heard() == {}
    await desk.ask([user(stamped("hi", "12:00"))], "hello", session_id="s")
    assert len(desk.heard()) == 1


async def test_one_id_for_many_conversations_makes_no_regenerates(desk: Desk) -> None:
    shared: dict[str, Any] = {"session_id": "app", "hints": Hints(shared_id=True)}
    first = await desk.ask([user("hi")], "one", **shared)
    await desk.ask([user("hi")], "two", **shared)
    assert desk.heard() == {}
    follow = await desk.ask([user("hi"), assistant("one"), user("longer")], **shared)
    assert follow.parent_id == first.id
    await desk.ask([user("hi"), assistant("one"), user("longer")], **shared)
    assert desk.heard() == {
        first.id: [("user_reply", "longer")],
        follow.id: [("regenerate", "")],
    }


async def test_after_compaction_the_reply_still_finds_the_last_answer(desk: Desk) -> None:
    runtime = "\n\nRuntime: agent=main | session=agent:main:main | sessionId=s | host=machine"
    await desk.ask([user(stamped("one") + runtime)], "first", session_id="s:0")
    history = [user(stamped("one") + runtime), assistant("first"), user(stamped("two", "10:09"))]
    last = await desk.ask(history, "second", session_id="s:0")
    summed = user(SUMMARY.format("They spoke of one.") + runtime)
    kept = [summed, user(stamped("two", "10:09")), assistant("second")]
    new = await desk.ask([*kept, user(stamped("too long", "10:10"))], "third", session_id="s:1")
    assert (new.session_id, new.parent_id) == ("s:1", last.id)
    assert desk.heard()[last.id] == [("user_reply", "too long")]
    more = [*kept, user(stamped("too long", "10:10")), assistant("third"), user(stamped("good", "10:11"))]
    assert (await desk.ask(more, session_id="s:1")).parent_id == new.id
    assert desk.heard()[new.id] == [("user_reply", "good")]


async def test_a_new_conversation_under_the_next_number_judges_nothing(desk: Desk) -> None:
    await desk.ask([user("one")], "first", session_id="s:0")
    fresh = await desk.ask([user("no, wrong")], "other", session_id="s:1")
    assert (fresh.parent_id, desk.heard()) == (None, {})


async def test_a_history_that_lost_its_beginning_is_found_by_its_end(desk: Desk) -> None:
    await desk.ask([user("one")], "first", session_id="s")
    last = await desk.ask([user("one"), assistant("first"), user("two")], "second", session_id="s")
    await desk.ask([user("two"), assistant("second"), user("shorter")], session_id="s")
    assert desk.heard()[last.id] == [("user_reply", "shorter")]


@pytest.mark.parametrize("shared", [False, True], ids=["numbered ids", "one key for all"])
async def test_an_example_that_ends_like_another_conversation_is_no_answer_of_it(
    desk: Desk, shared: bool
) -> None:
    """Applications put examples before what is said; "Yes." is no rare answer."""
    more: dict[str, Any] = {"session_id": "app", "hints": Hints(shared_id=True)} if shared else {}
    await desk.ask([user("Is 7 odd?")], "Yes.", **{"session_id": "ticket:41", **more})
    asked = [user("Is 9 odd?"), assistant("Yes."), user("No, wrong")]
    fresh = await desk.ask(asked, "Oh.", **{"session_id": "ticket:42", **more})
    assert (fresh.parent_id, desk.heard()) == (None, {})


async def test_an_example_after_a_line_about_the_session_is_no_answer_of_it(desk: Desk) -> None:
    runtime = "\n\nRuntime: agent=main | session=agent:main:main | sessionId=s | host=machine"
    await desk.ask([user("Is 7 odd?" + runtime)], "Yes.")
    fresh = await desk.ask([user("Is 9 odd?" + runtime), assistant("Yes."), user("No, wrong")])
    assert (fresh.parent_id, desk.heard()) == (None, {})


@pytest.mark.parametrize("shared", [False, True])
async def test_a_known_conversation_whose_middle_was_written_anew_is_followed(
    desk: Desk, shared: bool
) -> None:
    """OpenClaw sends notes or what a stopped answer was asked along with a message, once, and leaves them out later."""
    runtime = "\n\nRuntime: agent=main | session=agent:main:main | sessionId=s | host=machine"
    more: dict[str, Any] = {"session_id": "app", "hints": Hints(shared_id=True)} if shared else {}
    begins = [user("Is 7 odd?" + runtime), assistant("Yes.")]
    await desk.ask(begins[:1], "Yes.", **more)
    second = await desk.ask([*begins, user("(stopped) Why?\n\nAnd is 8?" + runtime)], "No.", **more)
    asked = [*begins, user("And is 8?" + runtime), assistant("No."), user("thanks" + runtime)]
    third = await desk.ask(asked, "Bye.", **more)
    assert third.parent_id == second.id
    assert desk.heard()[second.id] == [("user_reply", "thanks")]


async def test_an_older_answer_at_the_end_of_an_unknown_history_is_not_guessed(desk: Desk) -> None:
    await desk.ask([user("one")], "first", session_id="s")
    await desk.ask([user("one"), assistant("first"), user("two")], "second", session_id="s")
    turn = await desk.ask([user("?"), assistant("first"), user("shorter")], session_id="s")
    assert (turn.parent_id, len(desk.heard())) == (None, 1)


async def test_a_conversation_that_gets_its_id_with_the_second_request(desk: Desk) -> None:
    first = await desk.ask([user("q")], "a")
    second = await desk.ask([user("q"), assistant("a"), user("shorter")], "b", session_id="chat-7")
    assert (second.session_id, second.parent_id) == ("chat-7", first.id)
    assert desk.heard() == {first.id: [("user_reply", "shorter")]}


async def test_another_sessions_answer_is_not_taken_for_ones_own(desk: Desk) -> None:
    await desk.ask([user("q")], "a", session_id="one")
    turn = await desk.ask([user("q"), assistant("a"), user("shorter")], session_id="two")
    assert (turn.parent_id, desk.heard()) == (None, {})


async def test_after_the_end_of_a_session_nothing_is_said_of_it(desk: Desk) -> None:
    last = await desk.ask([user("q")], "a", session_id="s", hints=Hints(done=True))
    turn = await desk.ask([user("q"), assistant("a"), user("shorter")], session_id="s")
    await desk.ask([user("q")], "b", session_id="s")
    assert (turn.session_id, desk.heard(), last.params["session_done"]) == ("s", {}, True)


async def test_people_behind_one_key_do_not_answer_for_each_other(desk: Desk) -> None:
    bob, eve = Caller("key", "proxy/bob", "proxy"), Caller("key", "proxy/eve", "proxy")
    first = await desk.ask([user("q")], "a", caller=bob, session_id="s")
    other = await desk.ask([user("q"), assistant("a"), user("bad")], caller=eve, session_id="s")
    await desk.ask([user("q")], "b", caller=eve, session_id="s")
    assert (other.parent_id, desk.heard()) == (None, {})
    await desk.ask([user("q"), assistant("a"), user("good")], caller=bob, session_id="s")
    assert desk.heard() == {first.id: [("user_reply", "good")]}


# ── edits and branches ───────────────────────────────────────────────────────────────────────────────────
async def conversation(desk: Desk, **more: Any) -> tuple[list[Turn], list[Message]]:
    """Three questions with their answers, and the messages of it all."""
    history: list[Message] = []
    turns = []
    for n in range(3):
        history.append(user(f"question {n}"))
        turns.append(await desk.ask(history, f"answer {n}", **more))
        history.append(assistant(f"answer {n}"))
    return turns, history


@pytest.mark.parametrize("more", [{}, {"session_id": "s"}, CHAT])
async def test_an_edited_message_is_noted_with_the_answer_to_its_old_text(
    desk: Desk, more: dict[str, Any]
) -> None:
    turns, history = await conversation(desk, **more)
    before = desk.heard()
    changed = await desk.ask([*history[:2], user("question 1, please")], "another", **more)
    assert (changed.session_id, changed.parent_id) == (turns[0].session_id, turns[0].id)
    after = desk.heard()
    assert after.pop(turns[1].id) == [*before.pop(turns[1].id), ("edit", "question 1, please")]
    assert after.pop(turns[0].id) == [*before.pop(turns[0].id), ("user_reply", "question 1, please")]
    assert after == before


async def test_an_edited_first_message_is_known_in_a_chat_window_only(desk: Desk) -> None:
    first = await desk.ask([user("hi")], "one", **CHAT)
    await desk.ask([user("### Task:\nTitle\n### Chat History:\n<chat_history>\nhi\n</chat_history>")], **CHAT)
    await desk.ask([user("hi there")], "two", **CHAT)
    assert desk.heard() == {first.id: [("edit", "hi there")]}
    for text in ("hi", "hi there"):
        await desk.ask([user(text)], "x", session_id="app")
    assert len(desk.heard()) == 1


async def test_asking_the_same_again_is_a_regenerate_and_no_edit(desk: Desk) -> None:
    turns, history = await conversation(desk)
    again = await desk.ask(history[:5], "better")
    assert desk.heard()[turns[2].id] == [("regenerate", "")]
    await desk.ask([*history[:5], assistant("better"), user("yes")])
    assert desk.heard()[again.id] == [("user_reply", "yes")]


async def test_a_step_that_is_taken_twice_is_no_regenerate(desk: Desk) -> None:
    await desk.ask([user("look")], TWO_CALLS, session_id="s")
    history = [user("look"), echoed(TWO_CALLS), tool("callab12", "a"), tool("callab13", "b")]
    first = await desk.ask(history, "done", session_id="s")
    second = await desk.ask(history, "done", session_id="s")
    assert (first.kind, second.kind) == (Kind.TOOL_STEP, Kind.TOOL_STEP)
    assert {kind for states in desk.heard().values() for kind, _ in states} == {"tool_result"}


async def test_the_same_words_under_other_instructions_are_no_regenerate(desk: Desk) -> None:
    french, german = ({"role": "system", "content": f"Translate to {x}"} for x in ("French", "German"))
    ls = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
    first = await desk.ask([french, user("Hello")], "Bonjour", session_id="s")
    await desk.ask([german, user("Hello")], "Hallo", session_id="s")
    await desk.ask([german, user("Hello")], "Hallo", session_id="s", tools=[ls])
    assert desk.heard() == {}
    other = await desk.ask([french, user("Hello")], "Salut", session_id="t")
    await desk.ask([french, user("Hello")], "Salut", session_id="t")
    assert desk.heard() == {other.id: [("regenerate", "")]}
    assert first.id not in desk.heard()


async def test_an_edit_is_not_noted_where_another_answer_was_put_between(desk: Desk) -> None:
    await desk.ask([user("q")], "a", **CHAT)
    await desk.ask([user("q"), assistant("rewritten"), user("r")], "b", **CHAT)
    await desk.ask([user("q, please")], "c", **CHAT)
    assert desk.heard() == {}


async def test_an_edit_after_a_fault_is_about_no_answer(desk: Desk) -> None:
    await desk.ask([user("q")], "a", **CHAT)
    await desk.ask([user("q"), assistant("a"), user("shrter")], fault=True, **CHAT)
    before = desk.heard()
    await desk.ask([user("q"), assistant("a"), user("shorter")], **CHAT)
    kinds = {kind for states in desk.heard().values() for kind, _ in states}
    assert kinds == {"user_reply"}
    assert before != desk.heard()


async def test_who_says_more_has_edited_nothing(desk: Desk) -> None:
    """The first answer got lost on its way; what it answered still stands in the history."""
    first = await desk.ask([user("q")], "a", session_id="s")
    history = [user("q"), assistant("a"), user("shorter")]
    await desk.ask(history, "lost", session_id="s")
    await desk.ask([*history, user("hello?")], session_id="s")
    joined = user(f"{QUEUED}\nshorter\n\nhello?")
    await desk.ask([*history[:2], joined], session_id="s")
    kinds = {kind for states in desk.heard().values() for kind, _ in states}
    assert (kinds, first.id in desk.heard()) == ({"user_reply"}, True)


async def test_branches_hear_their_own_replies(desk: Desk) -> None:
    turns, history = await conversation(desk, **CHAT)
    other = await desk.ask(history[:5], "answer of the other branch", **CHAT)
    left = [*history, user("left")]
    right = [*history[:5], assistant("answer of the other branch"), user("right")]
    assert (await desk.ask(right, **CHAT)).parent_id == other.id
    assert (await desk.ask(left, **CHAT)).parent_id == turns[2].id
    heard = desk.heard()
    assert heard[turns[2].id] == [("regenerate", ""), ("user_reply", "left")]
    assert heard[other.id] == [("user_reply", "right")]


async def test_after_an_answer_that_is_not_ours_nothing_is_said_of_ours(desk: Desk) -> None:
    """Chat windows let people rewrite answers; what is said then is about their own text."""
    turns, history = await conversation(desk)
    before = desk.heard()
    rewritten = [*history[:3], assistant("what I wrote"), user("go on")]
    turn = await desk.ask(rewritten, "on")
    assert (turn.session_id, turn.parent_id, desk.heard()) == (turns[0].session_id, None, before)
    more = await desk.ask([*rewritten, assistant("on"), user("shorter")])
    assert more.parent_id == turn.id
    assert desk.heard() == {**before, turn.id: [("user_reply", "shorter")]}


# ── what never is feedback ───────────────────────────────────────────────────────────────────────────────
async def test_a_wake_up_in_the_history_judges_nothing_and_is_not_judged(desk: Desk) -> None:
    first = await desk.ask([user("q")], "a", session_id="s")
    beat = user("Follow the heartbeat monitor scratch context when provided.")
    woken = [user("q"), assistant("a"), beat]
    side = await desk.ask([*woken, user(NOTE)], "Check the oven!", session_id="s")
    assert (side.kind, side.reason, side.learn) == (Kind.SIDE, "heartbeat", False)
    await desk.ask([*woken, assistant("Check the oven!"), user("thanks")], session_id="s")
    assert desk.heard() == {}
    shown = [user("q"), assistant("a"), user("[OpenClaw heartbeat poll]"), assistant("NO_REPLY")]
    await desk.ask([*shown, user("thanks")], session_id="s")
    assert desk.heard() == {}
    await desk.ask([user("q"), assistant("a"), user("shorter")], session_id="s")
    assert desk.heard() == {first.id: [("user_reply", "shorter")]}


async def test_a_silent_wake_up_that_is_written_into_the_next_message_changes_nothing(desk: Desk) -> None:
    await desk.ask([user("q")], "a", session_id="s")
    history = [user("q"), assistant("a"), user(stamped("too long"))]
    second = await desk.ask(history, "b", session_id="s")
    poll = {"type": "text", "text": stamped("[OpenClaw heartbeat poll]")}
    merged = [*history[:2], {"role": "user", "content": [poll, {"type": "text", "text": "too long"}]}]
    third = await desk.ask([*merged, assistant("b"), user(stamped("thanks", "10:09"))], session_id="s")
    assert third.parent_id == second.id
    assert desk.heard()[second.id] == [("user_reply", "thanks")]


async def test_a_history_that_was_written_anew_in_its_middle_is_found_by_its_end(desk: Desk) -> None:
    turns, history = await conversation(desk)
    changed = [*history[:2], user("question 1, as the client sums it up"), *history[3:]]
    turn = await desk.ask([*changed, user("shorter")])
    assert (turn.session_id, turn.parent_id) == (turns[2].session_id, turns[2].id)
    assert desk.heard()[turns[2].id] == [("user_reply", "shorter")]


async def test_a_step_of_a_wake_up_is_part_of_it(desk: Desk) -> None:
    beat = user("Follow the heartbeat monitor scratch context when provided.")
    await desk.ask([beat], TWO_CALLS, session_id="s")
    step = await desk.ask(
        [beat, echoed(TWO_CALLS), tool("callab12", "error: no"), user(NOTE)], session_id="s"
    )
    assert (step.kind, step.reason, desk.heard()) == (Kind.SIDE, "heartbeat", {})


async def test_what_its_client_calls_conversation_is_taken_for_it(desk: Desk) -> None:
    text = "Provide a concise, 5-word-or-less title for the conversation, in the style of a newspaper"
    assert (await desk.ask([user(text)])).kind is Kind.SIDE
    assert (await desk.ask([user(text)], hints=Hints(main=True))).kind is Kind.MAIN
    assert (await desk.ask([user("hi")], side=True, hints=Hints(main=False))).reason == "side"


async def test_opting_out_of_a_side_request_leaves_it_a_side_request(desk: Desk) -> None:
    assert (await desk.ask([user("hi")], side=True, learn=False)).reason == "side"
    assert (await desk.ask([user("hi")], learn=False)).reason == "opted_out"
