"""Rules for tool output: what is clear is judged, what a file may contain is not."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from instar.judges import tool_patterns, tool_sentences, tool_shapes
from instar.judges.calibration import Case, as_item
from instar.judges.tools import ToolLink, read_result
from instar.records import JudgeItem, NextKind, NextState, Verdict

FAILURES = [
    "exit code 1",
    "Exit code: 127",
    "some output\nprocess exited with code 2",
    "exit status -9",
    "return code = 3",
    "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    x\nNameError: name 'x'",
    "ValueError: not a number",
    "requests.exceptions.ConnectionError: refused",
    '{"error": "no such table"}',
    '{"error": {"message": "bad key", "code": 401}}',
    '{"errors": ["a"], "data": null}',
    '{"status": "failed"}',
    '{"status": 500}',
    '{"success": false, "id": 3}',
    '{"isError": true, "content": []}',
    '{"stdout": "", "exit_code": 1}',
    "== 3 failed, 9 passed in 1.20s ==",
    "1 failed in 0.10s",
    "== 1 error in 0.40s ==",
    "FAILED (failures=2)",
    "Tests:       1 failed, 4 passed, 5 total",
    "--- FAIL: TestAdd (0.00s)",
    "test result: FAILED. 1 passed; 2 failed; 0 ignored",
    "error[E0382]: borrow of moved value: `x`",
    "error: could not compile `app`",
    "Found 3 errors in 1 file (checked 8 source files)",
    "npm ERR! missing script: build",
    "npm error code E404",
    "fatal: not a git repository",
    "error: pathspec 'nope' did not match any file(s) known to git",
    "CONFLICT (content): Merge conflict in b.py",
    "ls: cannot access 'nowhere': No such file or directory",
    "cat: /etc/shadow: Permission denied",
    "zsh: command not found: foo",
    "sh: 1: foo: command not found",
    "'foo' is not recognized as an internal or external command,",
    "curl: (7) Failed to connect to localhost port 1 after 0 ms",
    "a.c:3:9: error: 'y' undeclared",
    "/usr/bin/ld: a.o: undefined reference to `f'",
    "make: *** [Makefile:4: all] Error 2",
    "Segmentation fault (core dumped)",
    "HTTP/1.1 404 Not Found",
    "HTTP 500",
    "HTTP Error 403: Forbidden",
    "Status code: 502",
    "404 Not Found",
    "404: Not Found",
    "Your request was denied.",
    "Error: the file could not be read",
    "Permission denied",
    "Request timed out",
    "File not found",
    "오류: 파일이 없습니다",
]
SUCCESSES = [
    "exit code 0",
    "Process finished with exit code 0",
    "made 3 files\nExited with code 0",
    '{"status": "success", "id": 9}',
    '{"ok": true}',
    '{"status": 201}',
    '{"isError": false, "content": [{"type": "text"}]}',
    '{"returncode": 0, "stderr": "warning: old"}',
    "== 12 passed, 1 warning in 0.33s ==",
    "7 passed in 2.10s",
    "Ran 4 tests in 0.002s\n\nOK",
    "Tests:       5 passed, 5 total",
    "ok  \texample.com/pkg\t0.02s",
    "test result: ok. 8 passed; 0 failed; 0 ignored",
    "All checks passed!",
    "Success: no issues found in 8 source files",
    "BUILD SUCCESSFUL in 4s",
    "Successfully installed numpy-2.1.0",
    "added 5 packages, and audited 6 packages in 1s",
    "[main 1a2b3c4] Say why\n 1 file changed, 2 insertions(+)",
    "Already up to date.",
    "Switched to a new branch 'topic'",
    "HTTP/2 204",
    "Status code: 200",
    "The file /tmp/a.txt has been created",
    "File written successfully",
    "OK",
    "done.",
    "a.py\nb.py\nsub/",
    "total 4\n-rw-r--r-- 1 me me 12 Jan  1 09:00 a.py",
    "✓ built in 1.1s",
    "저장되었습니다.",
]
UNCLEAR = [
    "",
    "   \n ",
    "There were no errors in the last quarter, the report says.",
    "Permission to build was denied to the city.",
    "The function raised ValueError in the past; it is fixed now.",
    "# Troubleshooting\nIf you see an error, restart.\nIt failed once.\nNow it is well.",
    '{"temperature": 21}',
    "[1, 2, 3]",
    "{not json",
    "0 results",
    "nothing to commit, working tree clean",
    "hello world",
    "error: one thing went wrong\nSuccessfully installed another",
    '{"type": "error_report", "code": 7}',
    "Fix error: handle a failed login",
    "The service is now unavailable.",
    "Deleted 0 items",
    "Failed: 0\nPassed: 3",
    "{'a': 'C:\\dir'}",
    "[" * 50_000,
]


@pytest.mark.parametrize("text", FAILURES)
def test_clear_failures(text: str) -> None:
    assert read_result(text) == -1


@pytest.mark.parametrize("text", SUCCESSES)
def test_clear_successes(text: str) -> None:
    assert read_result(text) == 1


@pytest.mark.parametrize("text", UNCLEAR)
def test_what_is_not_clear_is_left_open(text: str) -> None:
    assert read_result(text) is None


def test_a_traceback_in_the_middle_of_a_file_is_not_the_tools_own() -> None:
    page = "A line of the log.\n" * 40
    assert read_result(page + "Traceback (most recent call last):\nKeyError: 'a'\n" + page) is None


def test_the_exit_code_outweighs_what_the_output_says() -> None:
    assert read_result("Traceback (most recent call last):\nKeyError: 'a'\nexit code 0") == 1
    assert read_result("12 passed in 0.2s\nexit code 1") == -1


def test_only_head_and_tail_of_a_huge_output_are_read() -> None:
    filler = "x" * 120 + "\n"
    assert read_result(filler * 200_000 + "exit code 3") == -1
    assert read_result("fatal: bad object\n" + filler * 200_000) == -1
    assert read_result("a" * 5_000_000) is None
    assert read_result('{"error": "' + "a" * 5_000_000) is None


@pytest.mark.parametrize("text", ["\x00\x00", "\ud800 exit code 1", "\x00exit code 1\x00", "﻿OK"])
def test_odd_characters_do_no_harm(text: str) -> None:
    assert read_result(text) in {None, -1, 1}


def step(*texts: str) -> Verdict | None:
    turn = as_item(Case("I'll call the tools.", "tool", "", 0)).turn
    states = [NextState(turn.id, NextKind.TOOL_RESULT, text, 0.0) for text in texts]
    return ToolLink().judge(JudgeItem(turn, states, lease=""))


def test_one_failure_among_several_results_is_a_failure() -> None:
    verdict = step("exit code 0", "hello", "exit code 1")
    assert verdict is not None
    assert (verdict.score, verdict.votes, verdict.hint) == (-1, (1, -1), None)


def test_only_clear_successes_of_every_call_are_a_success() -> None:
    verdict = step("exit code 0", "12 passed in 0.1s")
    assert verdict is not None
    assert (verdict.score, verdict.votes) == (1, (1, 1))
    assert step("exit code 0", "hello") is None


def test_a_user_who_quotes_a_traceback_is_not_a_tool() -> None:
    assert ToolLink().judge(as_item(Case("def f(): ...", "user", "exit code 1", 0))) is None


OUTPUTS = [
    json.loads(line) for line in (Path(__file__).parent / "data/tool_outputs.jsonl").open(encoding="utf-8")
]


def test_the_outputs_of_common_programs_are_judged_as_labelled() -> None:
    votes = [(case, vote) for case in OUTPUTS if (vote := read_result(case["text"])) is not None]
    wrong = [(case["tool"], vote) for case, vote in votes if vote != case["label"]]
    assert len(wrong) <= 0.02 * len(votes), wrong
    for label, share in ((-1, 0.94), (1, 0.84)):
        right = sum(vote == label == case["label"] for case, vote in votes)
        assert right >= share * sum(case["label"] == label for case in OUTPUTS)


def test_no_output_of_a_common_program_is_judged_the_other_way_round() -> None:
    assert not [case["tool"] for case in OUTPUTS if read_result(case["text"]) == -case["label"] != 0]


def test_a_failure_counts_where_it_is_the_last_word() -> None:
    assert read_result("Successfully built a\nERROR: No matching distribution found for b") == -1
    assert read_result("ERROR: a and b disagree\nSuccessfully installed a") is None
    assert read_result("  1 failed\n  9 passed (4.1s)") == -1


def test_words_in_what_was_asked_for_are_not_the_tools_own() -> None:
    assert read_result("diff --git a/x b/x\n-fatal: bad\n+error: worse") == 1
    assert read_result("commit " + "a" * 40 + "\nDate: now\n\n    error: no such file") == 1
    assert read_result("src/a.py:12:raise ValueError\nsrc/b.py:7:error: failed") == 1
    assert read_result("a.py:7: error: bad type") == -1


def test_a_program_that_waits_has_not_succeeded() -> None:
    assert read_result("Setting up jq (1.7) ...\nRestart services? [Y/n]") is None
    assert read_result('{"status": "running", "id": 3, "started": true}') is None


def test_fields_are_read_through_a_protocols_layers() -> None:
    assert read_result('{"jsonrpc": "2.0", "id": 1, "result": {"isError": true, "content": []}}') == -1
    assert read_result("{'success': False, 'id': 3}") == -1
    assert read_result('{"ok": true, "results": []}') is None
    assert read_result('[{"id": 1, "status": "failed"}, {"id": 2, "status": "ok"}]') == 1
    assert read_result('{"a": ' * 200 + "1" + "}" * 200) in {None, 1}


NASTY = [
    "a",
    "a ",
    " ",
    "- ",
    "A  ",
    "a/",
    "a: ",
    "1 ok, ",
    "error ",
    "x failed ",
    "'a' -> ",
    "no ",
    "\t",
    "{",
    "| ",
]


@pytest.mark.parametrize("piece", NASTY)
def test_long_lines_cost_no_more_than_short_ones(piece: str) -> None:
    line = piece * (1_000_000 // len(piece))
    pages = (piece * (400 // len(piece)) + "\n") * 200
    begun = time.process_time()
    for text in (line, pages, "{" + line, line + "\nexit code 1"):
        read_result(text)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize("piece", NASTY)
def test_no_pattern_runs_away(piece: str) -> None:
    named = [*vars(tool_shapes).values(), *vars(tool_sentences).values()]
    patterns = [value for value in named if isinstance(value, re.Pattern)]
    patterns += [*tool_patterns.FAILURE_SIGNS, *tool_patterns.SUCCESS_SIGNS, *tool_shapes.CONTENT_FORMS]
    patterns += [pattern for pattern, _ in tool_patterns.SUMMARIES]
    begun = time.process_time()
    for pattern in patterns:
        pattern.search((piece * 200)[:200] + "!")
    assert time.process_time() - begun < 0.2
