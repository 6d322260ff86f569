"""The sentences of a short output, which a tool says itself: what it did, what it refuses, what it waits for."""

from __future__ import annotations

import re

DONE = (
    r"created|added|updated|edited|modified|deleted|removed|saved|stored|written|sent|set|scheduled|moved|copied|renamed"
    r"|uploaded|downloaded|installed|uninstalled|applied|posted|published|merged|deployed|started|stopped|restarted"
    r"|enabled|disabled|configured|patched|scaled|replaced|archived|booked|completed|built|opened|imported"
    r"|exported|formatted|reformatted|registered|dismissed|rolled out|turned (?:on|off)"
)

# A commit's subject or a field of a document begins like a program's name.
NOT_A_SUBJECT = (
    r"^(?!(?:fix(?:e[sd])?|feat|chore|docs?|refactor|tests?|handle|improve|description|summary"
    r"|title|subject|message|reason|comment|text|label)\b)"
)

REFUSAL = re.compile(
    NOT_A_SUBJECT
    # a sentence that only supposes refuses nothing
    + r"(?!.{0,300}\b(?:if|whenever|may|might|should|would|can(?!['’]| ?not))\b)"
    r"(?:[A-Za-z][^|;=$<>]{0,120}\b(?:failed|failure)(?:[.:!]|$| with\b| because\b| after\b| due to\b)"
    r"|\w{1,30} (?:could not|couldn['’]t|cannot|can['’]t|was unable to|failed to) \w"
    r"|(?!(?:no|0|pattern|query) ).{1,120}\b(?:not found|do(?:es)? not exist|did not (?:appear|complete|match the))\b"
    r"|.{1,120}\b(?:(?:could|can)(?:not| not) be \w{2,20}ed\b|(?:was|were|has|have) not (?:been )?(?:"
    + DONE
    + r")(?:$|[.:,;]))"
    r"|.{0,200}(?<![\"'“‘`])\b(?:"
    r"(?:was|were|been|is|are) (?:rejected|refused|invalid|offline|unavailable|unreachable"
    r"|not (?:valid|allowed|permitted"
    r"|supported|available|authorized|authenticated|writable|responding|in the sudoers))"
    r"|(?:was|were) denied(?=$|[.:])|timed out|(?:limit|quota) (?:was )?exceeded"
    r"|(?:no|not have|n['’]t have) (?:permission|access)"
    r"|not authori[sz]ed|not authenticated|unauthorized"
    r"|(?:access|permission|authorization) (?:was )?denied|already exists|does not have (?:authorization|permission)"
    r"|has not been read yet|is false|log ?in (?:first|again)|not logged in|not a valid|not found in"
    r"|invalid (?:\w{1,20} )?(?:data|value|token|key|credentials|json|syntax|format)"
    r"|no (?:replacement|changes?) (?:was|were) performed)\b)",
    re.I,
)
"""What refuses, in the first or last line of an output so short that it is the tool's own message."""

DOCUMENT_HEAD = re.compile(r"^(?:#{1,6} |[\w-]{1,40}:\s*$|---\s*$)")
"""The first line of a text that was read, so short it may be: a heading, a key."""

REPORT = re.compile(
    # `Created the event`, `Turned off the lamp`
    r"^(?:[a-z]\w{1,20}: )?(?:(?:turned|switched) (?:on|off)|(?:navigated|moved|switched|subscribed|connected) to"
    r"|clicked|overwrote|wrote|marked|cancelled|canceled|" + DONE + r")\b(?! (?:by|at|in)\b)"
    # `Email sent to …`, `Todo "x" added.`, `deployment.apps/web created`
    r"|^(?:[\w#./-]{1,60} ){1,4}?(?:(?:has|have) been |was |were |is )?(?:"
    + DONE
    + r")(?:[.:!,]|$| (?:to|for|in|at|as|from|on)\b| ?[(\[])"
    r"|^(?:\S{1,60} ){0,2}[\"'“‘«].{1,160}[\"'”’»] (?:has been |was )?(?:" + DONE + r")\b"
    r"|^.{1,80} (?:is|are) now "
    r"(?:on|off|set|open|closed|(?:un)?locked|enabled|disabled|active|running|live)\b"
    r"|^patching file |^Hunk #\d+ succeeded",
    re.I,
)
"""What reports a deed, in the same place."""

DENIAL = re.compile(
    r"\b(?:not|no|0|nothing|none|never|cannot|can't|couldn't|unable|would|will|should|must|if|dry[ -]run"
    r"|in progress|check back)\b|\?$",
    re.I,
)
"""Words that take a report back."""

PROMPT = re.compile(
    r"(?:[\[(]y(?:es)?/n(?:o)?(?:/\S{1,20})?[\])]|\b(?:password|passphrase|username)\b.{0,60}:|enter a value:|\?)\s*$",
    re.I,
)
"""The last line of a program that waits for an answer."""

NOTHING = re.compile(
    r"^(?:\(0 rows\)$|nothing to\b|nothing was\b|no changes\b"
    r"|no (?!issues|problems|errors|broken)\S{1,40}(?: \S{1,40})? (?:to apply|to do|found)\b"
    r"|ran 0 tests\b|(?:already |everything )?up[ -]to[ -]date\b(?!\.$)|up to date, audited\b|dry[ -]run\b)",
    re.I,
)
"""There was nothing to do."""
