"""What clients send must come back exactly: half surrogates, NUL, control characters, large numbers."""

from __future__ import annotations

import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from instar.store.columns import AnyText, JsonText, dumps, pack_floats, pack_ids, unpack_floats, unpack_ids

DIALECT = sqlite.dialect()
any_text = st.text(alphabet=st.characters(), max_size=30)  # surrogates included
odd_text = st.sampled_from(
    ["\ud800", "a\x00b", "\x01json:", '\x01json:"x"', "한국어 \U0001f600", "\udfff\ud800"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text | odd_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=10,
)


@given(any_text | odd_text)
def test_any_text_comes_back_and_is_storable(text: str) -> None:
    column = AnyText()
    stored = column.process_bind_param(text, DIALECT)
    assert stored is not None
    stored.encode("utf-8")
    assert "\x00" not in stored
    assert column.process_result_value(stored, DIALECT) == text


@given(any_text | odd_text, any_text | odd_text)
def test_texts_are_stored_equal_only_if_they_are_equal(one: str, other: str) -> None:
    column = AnyText()
    same = column.process_bind_param(one, DIALECT) == column.process_bind_param(other, DIALECT)
    assert same == (one == other)


def test_ordinary_text_is_stored_readable() -> None:
    assert AnyText().process_bind_param("두 문장만 써 줘", DIALECT) == "두 문장만 써 줘"
    assert dumps({"a": "é"}) == '{"a":"é"}'


@given(json_values)
def test_json_comes_back_and_is_storable(value: object) -> None:
    column = JsonText()
    stored = column.process_bind_param(value, DIALECT)
    if value is None:
        assert stored is None
        return
    assert stored is not None
    stored.encode("utf-8")
    assert "\x00" not in stored
    assert column.process_result_value(stored, DIALECT) == value
    assert json.loads(stored) == value


@given(st.lists(st.integers(min_value=0, max_value=2**31 - 1)))
def test_ids_come_back(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)) == ids


def test_ids_are_little_endian_int32() -> None:
    assert pack_ids([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    with pytest.raises(OverflowError):
        pack_ids([2**31])


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_float32_comes_back(values: list[float]) -> None:
    assert unpack_floats(pack_floats(values)) == values


def test_logprobs_keep_the_precision_of_float32() -> None:
    assert unpack_floats(pack_floats([-0.1])) == array("f", [-0.1]).tolist()
    assert unpack_floats(pack_floats([-math.inf])) == [-math.inf]
    assert unpack_floats(None) == []
