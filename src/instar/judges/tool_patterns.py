"""The signs by which programs say that something worked or failed, line by line.

Lines are cut to 300 characters and every pattern is linear in them. A sign has to be the program's own form
(`fatal: …`, `3 failed`), never a mere word that a file could hold.
"""

from __future__ import annotations

import re

_I = re.IGNORECASE


def _all(*patterns: str, flags: int = 0) -> list[re.Pattern[str]]:
    return [re.compile(pattern, flags) for pattern in patterns]


_FAILED_SUMMARY = _all(
    r"\b[1-9]\d* (?:tests? )?(?:failed|failing|failures?)\b",
    r"\b[1-9]\d* errors?\b(?=.* in [\d.]+ ?s)",
    r"^FAILED \((?:failures|errors)=\d+",
    r"^test result: FAILED",
    r"^FAIL(?:ED)?\b(?:[:\s]|$)",
    r"^--- FAIL: ",
    r"^BUILD FAILED",
    r"^Found [1-9]\d* errors?\b",
    r"\b[1-9]\d* (?:problems?|errors?) \([1-9]\d* errors?",
    r"\bcould not compile\b",
    r"^make: \*\*\* ",
    r"^error Command failed\b",
    r"\bcollected 0 items$|^no tests ran in ",
)
_PASSED_SUMMARY = _all(
    r"\b[1-9]\d* passed\b(?=.*(?: in [\d.]+ ?m?s|, \d+ total|=+$|$))",
    r"^[1-9]\d* passing\b",
    r"^test result: ok\.",
    r"^OK(?: \(.{0,60}\))?$",
    r"^(?:ok|PASS)\s+\S+\s+[\d.]+s$",
    r"^PASS$",
    r"^BUILD SUCCESS(?:FUL)?\b",
    r"^All checks passed!?$",
    r"^Success: no issues found\b",
    r"^Found 0 errors\b",
    r"\bcompiled successfully\b",
    r"^Build succeeded\b",
)

SUMMARIES: list[tuple[re.Pattern[str], int]] = [
    *((pattern, -1) for pattern in _FAILED_SUMMARY),
    *((pattern, 1) for pattern in _PASSED_SUMMARY),
]
"""Pattern and vote; on one line a failure is looked for first ("2 failed, 10 passed")."""

FAILURE_SIGNS: list[re.Pattern[str]] = [
    *_all(
        r"^Traceback \(most recent call last\):",
        r"^(?:[A-Za-z_]\w{0,60}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception)(?:: |$)",
        r"^npm (?:ERR!|error)",
        r"^(?:fatal|error|panic|abort|e|ERROR|FATAL): ",
        r"^error(?:\[E\d+\])?: ",
        r"^\[?(?:ERROR|FATAL|CRITICAL)\]?[: ]",
        r"^CONFLICT \(",
        r"^! \[(?:remote )?rejected\]",
        r"^curl: \(\d+\) ",
        r"^\S{1,200}:\d+(?::\d+)?: (?:fatal )?error: ",
        r"\bundefined reference to\b",
        r"\bld returned \d+ exit status",
        r"^Segmentation fault\b",
        r"^Killed$",
        r"^(?:Unhandled|Uncaught) ",
        r"^thread '.{1,80}' panicked at ",
    ),
    *_all(
        r"^(?:error|failed|failure|exception)\s?[:!] ?\S",
        r"^(?:an? )?(?:unexpected )?error (?:occurred|while|in|executing|reading|running|calling)\b",
        r"^(?:failed|unable|could not|cannot|can't) to? ?\w+",
        r"\bcommand not found(?:$|: )",
        r"\bis not recognized as an internal or external command",
        r": (?:No such file or directory|Permission denied|Operation not permitted|Is a directory"
        r"|Not a directory|No space left on device|File exists|Connection refused|Connection timed out"
        r"|Device or resource busy|Read-only file system)\b",
        r"^(?:permission|access) denied\b",
        r"^no such (?:file|directory|tool|command|table|column)\b",
        r"^(?:file|path|directory|tool|command|module|resource) (?:.{1,120} )?(?:not found|does not exist)\.?$",
        r"^\W{0,2}HTTP(?:/\d(?:\.\d)?)?(?: error| status)?[: ]+[45]\d\d\b",
        r"^(?:status|status[ _]code|http status|response code)\s?[:=]\s?[45]\d\d\b",
        r"^[45]\d\d (?:bad request|unauthorized|forbidden|not found|method not allowed|conflict|gone"
        r"|too many requests|internal server error|bad gateway|service unavailable|gateway time-?out)\b",
        r"^(?:the )?(?:request|operation|command|connection|tool call) (?:has )?(?:timed out|failed|was denied)",
        r"^(?:timed out|timeout)(?: after| waiting|:|$)",
        r"^(?:invalid|missing|unknown) (?:argument|arguments|parameter|parameters|option|tool|api key|input)\b",
        r"^(?:오류|에러|실패)\s?[:!]|(?:실패했습니다|찾을 수 없습니다|권한이 없습니다)\.?$",
        r"^(?:Fehler|Erreur|エラー)\s?[::]",
        flags=_I,
    ),
]

SUCCESS_SIGNS: list[re.Pattern[str]] = [
    *_all(
        r"^\[\S{1,100} (?:\(root-commit\) )?[0-9a-f]{7,40}\] ",
        r"^\s?\d+ files? changed\b",
        r"^Already up to date\.$",
        r"^Switched to (?:a new )?branch ",
        r"^Your branch is up to date with ",
        r"^Cloning into .{1,200}done\.$",
        r"^HTTP(?:/\d(?:\.\d)?)? 2\d\d\b",
    ),
    *_all(
        r"^successfully \w+",
        r"\b(?:was |were |been )?(?:created|written|updated|saved|installed|deleted|removed|sent|uploaded"
        r"|completed|applied|built|deployed) successfully\b",
        r"^the file .{1,200} has been (?:created|updated|edited|written|saved)",
        r"^(?:wrote|written|saved|created|updated) (?:\d+ (?:bytes|lines|characters|files?)|file\b|/)",
        r"^added \d+ packages?\b",
        r"^up to date, audited \d+ packages?\b",
        r"^found 0 vulnerabilities$",
        r"^(?:status|status[ _]code|http status|response code)\s?[:=]\s?2\d\d\b",
        r"^(?:200 ok|201 created|204 no content)$",
        r"^(?:ok|done|success|succeeded|passed|completed|finished)[.!]?$",
        r"^(?:success|succeeded)\s?[:!]",
        r"^[✓✔✅] ",
        r"^(?:성공|완료)(?:했습니다|되었습니다)?[.!:]?$|(?:저장|전송|설치|생성|완료)(?:되었습니다|했습니다)\.?$",
        flags=_I,
    ),
]

LISTING_LINE = re.compile(
    r"^(?:total \d+"
    r"|[-dlbcps][-rwxsStT]{9}[.+@]? .{1,260}"
    r"|(?:\.{0,2}/)?[\w.@+~-]{1,80}(?:/[\w.@+~-]{1,80}){0,20}(?:\.\w{1,8}|/))$"
)
"""A line of a directory listing: a long-format entry, or a name with a suffix or a closing slash."""
