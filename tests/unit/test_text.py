from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from instar.chat_format import ChatFormat
from instar.flow.text import TextAssembler
from tests.kit.tiny_model import write_chat_files

_chat: list[ChatFormat] = []


def chat() -> ChatFormat:
    if not _chat:
        import tempfile

        _chat.append(ChatFormat(write_chat_files(Path(tempfile.mkdtemp()))))
    return _chat[0]


def assemble(text: str, stop: list[str], size: int) -> tuple[str, bool]:
    assembler = TextAssembler(chat().decoder(), stop)
    ids = chat().encode(text)
    shown = ""
    for start in range(0, len(ids), size):
        shown += assembler.push(ids[start : start + size])
        if assembler.stopped:
            break
    shown += assembler.finish()
    assert shown == assembler.text
    return shown, assembler.stopped


@given(
    st.text(alphabet="abAB \n", max_size=30),
    st.lists(st.text(alphabet="abAB", min_size=1, max_size=4), max_size=3),
    st.integers(1, 7),
)
def test_text_ends_before_the_first_stop_string(text: str, stop: list[str], size: int) -> None:
    shown, stopped = assemble(text, stop, size)
    hit = any(s in text for s in stop)
    assert stopped == hit
    if not hit:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert not any(s in shown for s in stop)
        assert any(text[len(shown) :].startswith(s) for s in stop)


def test_nothing_that_may_become_a_stop_string_is_shown() -> None:
    assembler = TextAssembler(chat().decoder(), ["END"])
    assert assembler.push(chat().encode("xEN")) == "x"
    assert assembler.push(chat().encode("d")) == "ENd"


def test_stop_string_that_comes_first_is_named() -> None:
    for size in (1, 8):
        assembler = TextAssembler(chat().decoder(), ["b", "zz", "a"])
        ids = chat().encode("xaybzz")
        for start in range(0, len(ids), size):
            if not assembler.stopped:
                assembler.push(ids[start : start + size])
        assert (assembler.text, assembler.stop_string) == ("x", "a")
    assembler = TextAssembler(chat().decoder(), ["b"])
    assembler.push(chat().encode("xay"))
    assert assembler.stop_string is None
