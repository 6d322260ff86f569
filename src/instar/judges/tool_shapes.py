"""The shapes of tool output that need no reading: an exit status, and the forms of what was asked for."""

from __future__ import annotations

import re

EXIT = re.compile(
    r"^\W{0,3}(?:(?:process|command|script|program|task|shell) )?(?:(?:finished|failed|completed|terminated) )?"
    r"(?:with )?(?:exit(?:ed|ing)?(?: with)?(?: non-zero)?(?:[ _-]?(?:code|status))?|return[ _]?code|rc)"
    r"\s{0,3}[:=>]?\s{0,3}(-?\d{1,5})"
    r"(?:\W{0,3}|</\w{1,20}>|\s?[(\[,;].{0,60}| (?:in|after) [\d.]+.{0,20})$",
    re.I,
)
"""A line that is an exit status: `exit code 1`, `[exit: 0]`, `<returncode>2</returncode>`, `rc=0, 1.2 s`."""

ODD_ESCAPE = re.compile(r"\\(?![\\'\"abfnrtvx0-7uUN\n])")
"""An escape that no Python literal has; reading it as one would draw a warning."""

RECORD_HEAD = re.compile(r"^(?:diff --git |commit [0-9a-f]{40}\b|%PDF-|● \S+\.(?:service|timer|socket) - )")
"""The first line of a patch, a log of commits, a document, or the state of a unit."""

CONTENT_FORMS = [
    re.compile(form)
    for form in (
        r"^\s{0,8}\d{1,6}(?:\t|→|\| )",  # a file with numbered lines
        r"^(?:--$|[\w./+@-]{1,200}(?::\d+:(?! \S|\d+: |in )|-\d+-))",  # file:12:what was searched for
        r"^[*|\\/ ]{0,12}[0-9a-f]{7,12} (?!\.\.)\S",  # one commit a line
        r"^(?!.─+ ?(?:Error|Traceback)\b)(?:[┌┐├┤└╭╰╔╚│║|]|\+[-=+]+\+\s*$)",  # a table in a frame
        r"^[A-Z][A-Z0-9_]{0,60}=",  # an environment
        r"^\^?[0-9a-f]{7,12} \(.{1,80}\d{4}-\d\d-\d\d ",  # who wrote which line
    )
]
"""An output of which every line has one of these forms is content."""

RESULT_HEAD = re.compile(r"^\s{0,4}(?:\[?\d{1,3}[.)\]] |Title: |- |\*\*|#{1,4} )")
RESULT_LINK = re.compile(r"^\s{0,8}(?:(?:URL|Link|Source): ?)?<?https?://\S+\s*$", re.I)
"""Found pages: a title, and an address on a line of its own."""

TABLE_RULE = re.compile(r"^\s?[-=]{2,}(?:[ +|]{1,4}[-=]{2,}){1,40}\s*$")
TABLE_HEAD = re.compile(
    r"^(?=.{0,200}\S\s{2,}\S)\s{0,20}(?:[A-Z#][\w%/().:-]{0,30}\s{1,60}){2,20}[A-Z][\w%/().:-]{0,40}(?: on)?\s*$"
)
COLUMNS = re.compile(r"\S(?:\s{2,}|\t)\S")

QUOTED = re.compile(
    r"^(?: {4}|\t|[+>#|] |- |\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:|\[?\d\d:\d\d:\d\d\b"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |[\w./+-]{1,200}:\d+:(?! \S|\d+:? |in )|\d{1,6}[\t→]"
    r"|(?i:\S{0,30} ?warn(?:ing)?\b|note: |hint: ))"
)
"""The beginning of a line that shows something else (indented, of a log, a patch, a search) or only warns."""

LISTING_LINE = re.compile(
    r"^(?:total [1-9]\d*"
    r"|[-dlbcps][-rwxsStT]{9}[.+@]? .{1,260}"
    r"|(?:\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?|[\d.,]+[KMGT]?)(?:\s+[\d.,]+[KMGT]?){0,4}"
    r"\s+(?:\S{0,200}[./]\S{0,200}|total)"
    r"|https?://\S+|[\w.-]{1,80}==\S{1,60}"
    r"|(?:\.{0,2}/)?[\w.@+~-]{1,80}(?:/[\w.@+~-]{1,80}){0,20}/?)$"
)
"""A line of a directory listing: a long-format entry, a size and a name, an address, or a path."""

BARE_WORD = re.compile(r"^\s*(?:[\w@+~-]+|[\d.]+)$")
"""A name without a suffix or a slash, which any word could be."""
