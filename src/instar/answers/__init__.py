"""What a model's answer says: thinking, words, and calls of tools; read from its text, written back, and enforced.

One file per format of calls, all behind `parts.ToolFormat`. Knows no tokens, no template and no engine.
"""

from instar.answers.formats import FALLBACK, FORMATS, FormatName, spoken_by
from instar.answers.parts import Call, CallPart, Part, Shown, Thought, Tool, ToolFormat
from instar.answers.reader import AnswerReader
from instar.answers.reasoning import ReasoningSplitter, ThinkTags, tags_of

__all__ = [
    "FALLBACK",
    "FORMATS",
    "AnswerReader",
    "Call",
    "CallPart",
    "FormatName",
    "Part",
    "ReasoningSplitter",
    "Shown",
    "ThinkTags",
    "Thought",
    "Tool",
    "ToolFormat",
    "spoken_by",
    "tags_of",
]
