from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from instar.answers.reasoning import KNOWN_TAGS
from instar.errors import RequestError
from instar.flow.conversation import prefix_hashes
from instar.records import Message


def called(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]


def test_arguments_are_compared_by_meaning() -> None:
    assert prefix_hashes(called('{"a": 1, "b": 2}')) == prefix_hashes(called('{"b":2,"a":1}'))
    assert prefix_hashes(called('{"a": 1}')) != prefix_hashes(called('{"a": 2}'))


@pytest.mark.parametrize(
    "arguments",
    ["{", "", "[" * 100_000, '{"a":' * 100_000, "9" * 10_000, '"\\ud800"', "NaN", None, 3, ["a"], {"a": 1}],
    ids=lambda arguments: str(arguments)[:12],
)
def test_arguments_that_are_no_json_are_compared_as_they_are(arguments: Any) -> None:
    assert prefix_hashes(called(arguments)) == prefix_hashes(called(arguments))
    assert prefix_hashes(called(arguments)) != prefix_hashes(called("{}"))


def test_no_depth_of_arguments_is_a_fault_of_ours() -> None:
    """Reading takes a little less of the stack than writing anew does; between the two it is refused."""
    for depth in range(50, 1_500, 7):
        with suppress(RequestError):
            assert len(prefix_hashes(called("[" * depth + "]" * depth))) == 2


@pytest.mark.parametrize(("opens", "closes"), KNOWN_TAGS)
def test_thinking_in_any_known_tags_is_left_out(opens: str, closes: str) -> None:
    said: list[Message] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    thought: Message = {"role": "assistant", "content": f"{opens}\nhm\n{closes}\n\na"}
    assert prefix_hashes([said[0], thought]) == prefix_hashes(said)
