"""The signs by which programs say that something worked or failed, line by line.

Lines are cut to 200 characters, and repetition is bounded wherever a pattern is not anchored. A sign has to be the
program's own form (`fatal: …`, `3 failed`), never a mere word that a file could hold.
"""

from __future__ import annotations

import re

from instar.judges.tool_sentences import DONE, NOT_A_SUBJECT

Pattern = re.Pattern[str]
_I = re.IGNORECASE


def _all(*patterns: str, flags: int = 0) -> list[Pattern]:
    return [re.compile(pattern, flags) for pattern in patterns]


# --- Test runs and builds --------------------------------------------------------------------------------------------

_COUNTS = (
    r"^\W{0,40}(?:Tests?|Test (?:Suites|Files)|Suites)?:?\s{0,12}"
    r"(?:test result: \w+\. )?(?:\d+%? (?:tests )?\w+\W{1,3}){0,5}"
)
_FAILED_SUMMARY = _all(
    _COUNTS + r"[1-9]\d* (?:tests? )?(?:failed|failing|failures?)\b(?! to\b)",
    r"\b[1-9]\d* errors?\b(?=.* in [\d.]+ ?m?s)",
    r"^FAILED \((?:failures|errors)=\d+",
    r"^test result: FAILED",
    r"^FAIL(?:ED|URES?)?\b(?:[:\s!]|$)|^\S{1,60}: FAIL\b",
    r"^--- FAIL: ",
    r"\bBUILD FAIL(?:ED|URE)\b|^Build FAILED\b",
    r"^Found [1-9]\d* errors?\b(?!.*\b0 remaining)",
    r"\b[1-9]\d* (?:problems?|errors?) \([1-9]\d* errors?",
    r"\bcould not compile\b|^Failed to compile\b",
    r"^make(?:\[\d+\])?: \*\*\* ",
    r"^error Command failed\b",
    r"\bcollected 0 items$|^no tests ran in ",
    r"^(?:\[ERROR\] )?Tests run: \d+, Failures: (?:[1-9]|0, Errors: [1-9])",
    r"\b(?:failed|failures|unreachable)[=:]\s{0,8}[1-9]\d*\b",
    r"^[1-9]\d* (?:errors?|warnings? and [1-9]\d* errors?)(?: generated)?\.?$",
    r"\.{3,}\s?(?:Failed|FAILED)$",
    r"\b[1-9]\d* files? (?:would be reformatted|failed to)|^Code style issues found|\] Code style issues found",
    r"\bhunks? FAILED\b|^Hunk #\d+ FAILED\b",
)
_PASSED_SUMMARY = _all(
    r"^100% tests passed\b|\b[1-9]\d* passed\b(?=.*(?: in [\d.]+ ?m?s|, \d+ total|=+$|$| \(\d))",
    r"^[1-9]\d* passing\b",
    r"^test result: ok\. [1-9]|^test result: ok\.$",
    r"^OK(?: \(.{0,60}\))?$",
    r"^(?:ok|PASS)\s+\S+\s+(?:[\d.]+s|\(cached\))",
    r"^PASS$",
    r"\bBUILD SUCCESS(?:FUL)?\b",
    r"^All checks passed!?$",
    r"^Success: no issues found\b",
    r"\bFound 0 errors\b|^Found [1-9]\d* errors? \(.*\b0 remaining",
    r"\bcompiled (?:successfully|with \d+ warnings?)\b",
    r"^Build succeeded\b",
    r"^Passed! ",
    r"\b[1-9]\d* (?:tests|examples|assertions|specs)?,? ?0 failures\b",
    r"^(?:\[INFO\] )?Tests run: [1-9]\d*, Failures: 0, Errors: 0",
    r"\(0 errors, \d+ warnings?\)",
    r"^Finished .{1,80} in [\d.]+m?s",
)

SUMMARIES: list[tuple[Pattern, int]] = [
    *((pattern, -1) for pattern in _FAILED_SUMMARY),
    *((pattern, 1) for pattern in _PASSED_SUMMARY),
]
"""Pattern and vote; on one line a failure is looked for first ("2 failed, 10 passed")."""

# --- Failure ---------------------------------------------------------------------------------------------------------

# What a program says of its own trouble after its name: `mv: cannot move …`, `ping: x: Name or service not known`.
_TROUBLE = (
    r"cannot\b|can['’]t\b|couldn['’]t\b|could ?n[o']t\b|unable to\b|failed\b|failure\b|no such\b|not found\b|invalid\b"
    r"|illegal\b|unknown\b|unrecogni[sz]ed\b|unsupported\b|unexpected\b|unterminated\b|undefined\b|undeclared\b"
    r"|denied\b|refused\b|timed out\b|not (?:a|in|known|permitted|allowed|empty|supported|recoverable|installed)\b"
    r"|is (?:required|not)\b|does not exist\b|already exists\b|missing\b|no (?:module|rule|space)\b"
    r"|bad\b|fatal\b|errors?:|syntax error\b|returned status [1-9]"
    r"|file exists\b|is a directory\b|must (?:be|have|specify)\b"
)
# The names of errno in the languages that a shell is often set to.
_ERRNO = (
    r"No such (?:file or directory|process|device)|Permission denied|Operation not permitted|Is a directory"
    r"|Not a directory|Directory not empty|No space left on device|File exists|Connection refused"
    r"|Connection (?:timed out|reset by peer)|Network is unreachable|No route to host|Broken pipe"
    r"|Device or resource busy|Read-only file system|Name or service not known|Text file busy"
    r"|Temporary failure in name resolution|Exec format error|Address already in use"
    r"|Datei oder Verzeichnis nicht gefunden|Keine Berechtigung|Verbindungsaufbau abgelehnt"
    r"|Aucun fichier ou dossier de ce (?:type|nom)|Permission non accordée|Connexion refusée"
    r"|No existe el (?:archivo|fichero) o el directorio|Permiso denegado"
    r"|그런 파일이나 디렉터리가 없습니다|허가 거부"
    r"|そのようなファイルやディレクトリはありません|許可がありません|没有那个文件或目录|权限不够"
)

FAILURE_SIGNS: list[Pattern] = [
    *_all(
        r"^Traceback \(most recent call last\):",
        r"^(?:E {3})?(?:[A-Za-z_]\w{0,60}(?:\.|::|\\)){0,6}[A-Z]\w{0,60}(?:Error|Exception)"
        r"(?: \[\w{1,40}\])?(?::| while |$)",
        r"^Exception in thread |^[╭┌]─+ ?(?:Error|Traceback)\b",
        r"\((?:\w{1,40}::){0,4}[A-Z]\w{0,40}(?:Error|Exception)\)$",  # Ruby closes with the class
        r"^npm (?:ERR!|error)",
        r"^(?:fatal|error|panic|abort|e|E|ERROR|FATAL): ",
        r"^error(?:\[E\d+\])?: ",
        r"^\[?(?:ERROR|FATAL|CRITICAL)\]?[: ]",
        r"^error [A-Z]",
        r"^CONFLICT \(",
        r"^! \[(?:remote )?rejected\]",
        r"^curl: \(\d+\) ",
        # A diagnostic of a compiler or linter: `a.c:3:9: error: …`, `a.py:1:1: F401 …`, `a.ts(4,7): error …`
        r"^\S{1,200}:\d+:\d+:? (?!warning\b|note\b|info\b|hint\b|help\b|style\b)(?:- )?\S",
        r"^\S{1,200}(?::\d+|\(\d+(?:,\d+)?\)) ?: (?:fatal )?error\b",
        r"\bundefined reference to\b",
        r"\bld returned \d+ exit status",
        r"^Segmentation fault\b|\(core dumped\)$",
        r"^Killed$|^(?:Execution halted|Aborting|Aborted)\b",
        r"^(?:Unhandled|Uncaught) ",
        r"^thread '.{1,80}' panicked at ",
        r"\bFAILED[.!]?$",
        r"^\W{0,3}ERR_[A-Z_]{3,60}\b|^E[A-Z]{4,20}: |^-[A-Z]{3,20} \S",
        r"^[×✗✘✖❌] ?[A-Za-z]|^Oh no!",
        r"^➤ YN\d+: · Failed\b",
        r"^(?:<title>|<h1>|<center><h1>|<head><title>)[45]\d\d\b",
        r"^<(?:\w{1,30}[_:-])?(?:[Ee]rror|[Ff]ault|[Ee]xception)>",
        NOT_A_SUBJECT + r"[a-z0-9_./~][A-Za-z0-9_./~+-]{1,80}: .{0,160}?\b(?i:" + _TROUBLE + ")",
    ),
    *_all(
        # `Error: …`, `Parse error near line 3: …`, `ERROR 1064 (42000): …`, `psql: error: …`, `│ Error: …`
        NOT_A_SUBJECT + r"(?:\W{1,3}|[\w./-]{1,60}: )?(?:[\w-]{1,20} ){0,1}(?:error|fatal error)"
        r"(?:\s?[\[(].{1,60}[\])]| -?\d+(?: \(\w+\))?| (?:in|at|near|from|during|response|\w{1,20}ing) .{1,80}?)?"
        r"\s?:(?:\s{1,4}\S|$)",
        r"^\(error\) ",
        r"^ERROR in \S",
        r"^(?:error|failed|failure|exception|refused|denied|rejected|conflict)\s?[:!] ?(?!0\b|none\b|null\b)\S",
        r"\bfatal error occurred\b",
        r"^(?:an? )?(?:\w{1,20} )?error (?:occurred|while|executing|reading|running|calling)\b",
        r"^(?:failed|unable) to \w|^(?:could not|couldn['’]t|cannot|can['’]t) \w",
        r"\bcommand not found(?:$|: )",
        r"\bis not recognized as an internal or external command",
        r"[:\]] (?:" + _ERRNO + r")(?:$|[.,:;)]| ?[(\[])",
        r"^(?:permission|access) denied\b",
        r"^no such (?:file|directory|tool|command|table|column)\b|^no module named \S",
        r"^(?:file|path|directory|tool|command|module|resource) (?:.{1,120} )?(?:not found|does not exist)\b",
        r"^\W{0,2}HTTP(?:/\d(?:\.\d)?)?(?: error| status)?[: ]+[45]\d\d\b",
        r"^(?:status|status[ _]code|http status|response code)\s?[:=]\s?[45]\d\d\b",
        r"\b(?:response\.\.\.|returned error:|status code:?) [45]\d\d\b",
        r"^[45]\d\d (?:bad request|unauthorized|forbidden|not found|method not allowed|conflict|gone"
        r"|too many requests|internal server error|bad gateway|service unavailable|gateway time-?out)\b",
        r"^(?:internal server error|bad gateway|service unavailable|gateway time-?out|forbidden|unauthorized)\.?$",
        r"^\S{1,60} \| (?:FAILED|UNREACHABLE)!",
        r"^(?:the )?(?:request|operation|command|connection|tool call) "
        r"(?:has )?(?:timed out|failed(?! to\b)|was denied)",
        r"^(?:timed out|timeout)(?: after| waiting|:|$)",
        r"^(?:invalid|unknown|unsupported|unrecognized) (?:\w{1,20} )?[\"'‘“`]",
        r"^(?:invalid|missing|unknown) (?:argument|arguments|parameter|parameters|option|tool|api key|input)\b",
        # A status that is not zero, told in passing: `did not complete successfully: exit code: 1`
        r"\b(?:exited|exiting|returned|failed|successfully:).{0,30}\b(?:code|status)\b\W{0,3}[1-9]\d{0,4}\b",
        r"\(exit (?:code|status):? [1-9]\d{0,4}\)",
        r"\b(?:compilation|build|version solving) (?:aborted|failed|terminated)[.!]?$",
        r"\b100% packet loss\b",
        r"^(?:오류|에러|실패)\s?[::!]|(?:실패했습니다|찾을 수 없습니다|권한이 없습니다)\.?$",
        r"^(?:Fehler|Erreur|エラー|错误|錯誤)\s?[::]|(?:失败|失敗しました)[。.]?$",
        flags=_I,
    ),
]

# --- Success ---------------------------------------------------------------------------------------------------------

SUCCESS_SIGNS: list[Pattern] = [
    *_all(
        r"^\[\S{1,100} (?:\(root-commit\) )?[0-9a-f]{7,40}\] ",
        r"^\s?\d+ files? changed\b",
        r"^Already up to date\.$",
        r"^Switched to (?:a new )?branch ",
        r"^Your branch is up to date with ",
        r"^Cloning into .{1,200}done\.$",
        r"^Resolving deltas: 100% .{1,40}done\.$",
        r"^[+ ]? ?[0-9a-f]{7,40}\.{2,3}[0-9a-f]{7,40}\s+\S+\s+-> |^\* \[new (?:branch|tag)\]",
        r"^HTTP(?:/\d(?:\.\d)?)? 2\d\d\b",
        r"^On branch \S+$",
        r"^(?:CREATE|ALTER|DROP|GRANT|TRUNCATE|COMMENT)(?: [A-Z]+){1,2}$|^COMMIT$",
        r"^(?:INSERT 0|UPDATE|DELETE|COPY|SELECT|MERGE) [1-9]\d*$|^Query OK, ",
        r"^\([1-9]\d* rows?\)$|^[1-9]\d* rows? in set\b",
        r"^\d+\) \"|^\(integer\) [1-9]",
        r"^(?:upload|download|copy|move|delete): \S",
        r"^(?:inflating|extracting|adding): \S",
        r"^[0-9a-f]{64}$|\b100% of |\bsaved \[\d+|\bmuxing overhead: |\bLsize= ",
        r"\s100%\s+[\d.]+\s?[KMG]?i?B\b",
        r"^total size is [\d.,KMG]+ +speedup is ",
        r"^\d+ packets transmitted, [1-9]\d* (?:packets )?received",
        r"^Setting up \S+ \(",
        r"^\[100%\] Built target ",
        r"^#\d+ DONE |^Status: Downloaded newer image",
        r"^(?:'.{1,200}'|\S{1,200}) -> '.{1,200}'$",
        r"^\{? ?acknowledged: true\b|^🍺 ",
        r" : ok=\d+ .*\bunreachable=0 +failed=0\b",
    ),
    *_all(
        r"^successfully \w+|\bsuccessfully (?:" + DONE + r")\b",
        r"(?:ed|built|sent|set|written) successfully\b",
        r"^the file .{1,200} has been (?:" + DONE + r")",
        r"\bhave been (?:written|saved) to:? \S",
        r"^(?:wrote|written|saved|created|updated|overwrote) "
        r"(?:[\d,]+ (?:bytes|lines|characters|files?|rows?)|file\b|/)",
        r"^added \d+ packages?\b",
        r"^found 0 vulnerabilities$|^[1-9]\d* files? (?:re)?formatted\b(?!.*\bfailed)",
        r"^found [1-9]\d* (?:files?|results?|items?|match(?:es)?)(?:$|[:.]| (?:in|for|across) )",
        r"^(?:status|status[ _]code|http status|response code)\s?[:=]\s?2\d\d\b",
        r"^(?:200 ok|201 created|204 no content)$",
        r"^(?:ok|pong|done|success|succeeded|passed|completed|finished)[.!]?$",
        r"^(?:success|succeeded|ok|done)\s?[.:!](?: |$)|^success \S|^\S{1,60} (?:\| )?SUCCESS\b|\bsucceeded[.!]?$",
        r"^.{1,160}: (?:done|ok)(?: \(.{1,80}\))?[.!]?$",
        r"^(?:\w{1,20} ){0,2}complete[.!]?(?:$| Resources:)|^all done!",
        # `Done in 4.1s`, `Installed 3 packages in 12ms`
        r"^\W{0,3}(?:done|finished|completed?|compiled|built|installed|uninstalled|bundled|generated|deployed)"
        r"\b.{0,80}\bin [\d.]+ ?(?:ms|s|sec|seconds|m)\b",
        r"· Done\b",
        r"^[✓✔✅] (?!.*(?:\.\.\.|…)$)",
        r"\.\.\. ?ok$",
        r"^all .{1,60}\b(?:pass(?:ed)?|succeeded|use .{1,40} style)\b",
        r"(?:\bno (?:issues|problems|errors|broken \w{1,20})|^0 errors, 0 warnings(?:, 0 \w{1,20})?)"
        r"(?: found| detected)?(?: \(.{0,30}\))?[.!]?$",
        r"\b(?:syntax is ok|test is successful|is valid)\.?$",
        r"^(?:성공|완료)(?:했습니다|되었습니다)?[.!:]?$|(?:저장|전송|설치|생성|완료|삭제|추가)(?:되었습니다|했습니다)(?:[.:!]|$)",
        r"\b(?:gespeichert|erstellt|gelöscht|gesendet|enregistré|créé|envoyé|supprimé|guardado|creado|enviado)e?s?[.!]?$",
        r"(?:保存|送信|作成|削除|完了)しました[。.]?|(?:保存|创建|删除|发送|更新)成功",
        flags=_I,
    ),
]
