"""What must be refused, and nothing but that: bodies, fields, headers, paths. `malformed.py` makes requests of it.

In raw requests `{post}` and `{get}` are the first lines of a good request, with its key.
"""

from __future__ import annotations

from typing import Any

from tests.kit.malformed_dialects import (
    COMPLETION_FIELDS,
    COUNT_FIELDS,
    MESSAGES_FIELDS,
    RESPONSES_FIELDS,
)

HI = [{"role": "user", "content": "hi"}]

VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "instar", "messages": HI},
    "/v1/completions": {"model": "instar", "prompt": "hi"},
    "/v1/responses": {"model": "instar", "input": "hi"},
    "/v1/messages": {"model": "instar", "max_tokens": 8, "messages": HI},
    "/v1/messages/count_tokens": {"model": "instar", "messages": HI},
    "/v1/feedback": {"turn": "turn_" + "0" * 24, "score": 1},
    "/v1/versions/rollback": {"to": "base"},
}
"""One body for each route that takes one."""

CHAT = "/v1/chat/completions"
DEEP = 100_000


# ── bodies that are no JSON object, for every route that takes a body ───────────────────────────────────
BODIES: dict[str, bytes] = {
    "an open brace": b"{",
    "a closing brace": b"}",
    "an array": b"[]",
    "null": b"null",
    "true": b"true",
    "a number": b"3",
    "a string": b'"text"',
    "spaces": b" \t\r\n ",
    "a form": b"model=instar&messages=hi",
    "XML": b"<?xml version='1.0'?><a/>",
    "bytes that are no UTF-8": b"\xff\xfe\x00",
    "bad UTF-8 in a string": b'{"model": "\xc3\x28", "turn": "\xc3\x28", "to": "\xc3\x28"}',
    "an overlong UTF-8 slash": b'{"model": "\xc0\xaf", "turn": "\xc0\xaf", "to": "\xc0\xaf"}',
    "a surrogate as UTF-8": b'{"model": "\xed\xa0\x80", "turn": "\xed\xa0\x80", "to": "\xed\xa0\x80"}',
    "UTF-16": '{"model": "instar"}'.encode("utf-16"),
    "UTF-32": '{"model": "instar"}'.encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf{}x",
    "a lone high surrogate": b'{"model": "\\ud800", "turn": "\\ud800", "to": "\\ud800"}',
    "a lone low surrogate": b'{"model": "\\udc00", "turn": "\\udc00", "to": "\\udc00"}',
    "swapped surrogates": b'{"model": "\\udc00\\ud800", "turn": "\\udc00\\ud800", "to": "\\udc00\\ud800"}',
    "a NUL byte": b"\x00",
    "a NUL byte in a string": b'{"model": "a\x00b", "turn": "a\x00b", "to": "a\x00b"}',
    "a line end in a string": b'{"model": "a\nb", "turn": "a\nb", "to": "a\nb"}',
    "NaN alone": b"NaN",
    "arrays, 100,000 deep": b"[" * DEEP + b"]" * DEEP,
    "objects, 100,000 deep": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "never closed": b"[" * DEEP,
    "a comma at the end": b'{"any": 1,}',
    "single quotes": b"{'any': 1}",
    "a comment": b'{"any": 1} // one',
    "two objects": b"{} {}",
    "a plus sign": b'{"any": +1}',
    "a hexadecimal number": b'{"any": 0x10}',
    "a leading zero": b'{"any": 01}',
    "no value": b'{"any": }',
    "no name": b"{: 1}",
    "a bare name": b"{any: 1}",
    "a bad escape": b'{"any": "\\x41"}',
    "half an escape": b'{"any": "\\u00"}',
    "an open string": b'{"any": "',
}

SPOILS: dict[str, bytes] = {
    "NaN": b'"any": NaN',
    "Infinity": b'"any": Infinity',
    "minus Infinity": b'"any": [-Infinity]',
    "a number beyond all bounds": b'"any": 1e999',
    "a number below all bounds": b'"any": {"b": [-1e999]}',
    "an array, 100,000 deep": b'"any": ' + b"[" * DEEP + b"]" * DEEP,
    "an object, 100,000 deep": b'"any": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a number of 100,000 digits": b'"any": ' + b"9" * 100_000,
    "a name twice": b'"any": 1, "any": 2',
    "a name twice within": b'"any": [{"b": 1, "b": 2}]',
    "a name twice, once escaped": b'"any": 1, "\\u0061ny": 2',
    "a name of a surrogate": b'"\\ud800": 1',
    "a surrogate within": b'"any": ["\\udfff"]',
    "bad UTF-8 within": b'"any": "\xff"',
    "a NUL byte within": b'"any": "\x00"',
}
"""Put into a body that is valid but for these."""

# ── wrong values of single fields; JSON text, since some of them are no Python values ───────────────────
OF_TYPE: dict[str, str] = {
    "string": '"text"',
    "integer": "7",
    "number": "7.5",
    "boolean": "true",
    "array": '[["x"]]',
    "object": '{"x": ["y"]}',
}
"""A value of each type; a field is given those that its schema does not allow."""

CHAT_FIELDS: dict[str, list[str]] = {
    "model": ['""', '"gpt-4"', '"instar@"', '"instar@v"', '"INSTAR"', '"a\\u0000b"', '"' + "x" * 201 + '"'],
    "messages": [
        "[]",
        "[[]]",
        "[null]",
        "[{}]",
        '[{"role": "user"}]',
        '[{"content": "hi"}]',
        '[{"role": "user", "content": null}]',
        '[{"role": "user", "content": 3}]',
        '[{"role": "user", "content": {}}]',
        '[{"role": "user", "content": [3]}]',
        '[{"role": "user", "content": ["hi"]}]',
        '[{"role": "user", "content": [{}]}]',
        '[{"role": "user", "content": [{"type": "text"}]}]',
        '[{"role": "user", "content": [{"type": "text", "text": 3}]}]',
        '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]}]',
        '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]',
        '[{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}]',
        '[{"role": "user", "content": [{"type": "file", "file": {"file_id": "../../etc/passwd"}}]}]',
        '[{"role": "wizard", "content": "hi"}]',
        '[{"role": "", "content": "hi"}]',
        '[{"role": null, "content": "hi"}]',
        '[{"role": ["user"], "content": "hi"}]',
        '[{"role": "USER", "content": "hi"}]',
        '[{"role": "tool", "tool_call_id": "x"}]',
        '[{"role": "user", "content": "hi", "name": NaN}]',
        "[" + ",".join(['{"role": "user", "content": "a"}'] * 10_001) + "]",
        '[{"role": "user", "content": "' + "long " * 1_000 + '"}]',
        '[{"role": "user", "content": "' + "x" * 2_000_000 + '"}]',
        '[{"role": "user", "content": [' + ",".join(['{"type": "text", "text": "a"}'] * 1_001) + "]}]",
    ],
    "temperature": ["-0.1", "2.1", "1e308", "1e999", "-1e999", '"warm"', '"1"'],
    "top_p": ["-1", "1.01", "1e999", '"1"'],
    "max_tokens": ["0", "-1", "1000001", "1.5", "1e3", "9" * 30, "9" * 5000, '"8"'],
    "max_completion_tokens": ["0", "-1", "1000001", "1.5", "9" * 30, '"8"'],
    "stop": ["3", "[3]", "[null]", '["a", "b", "c", "d", "e"]', '"' + "s" * 501 + '"', '["' + "s" * 501 + '"]'],
    "seed": ["1.5", "9223372036854775808", "-9223372036854775809", "9" * 400, '"1"'],
    "n": ["0", "-1", "9", "10000", "1.5", "9" * 30, '"2"'],
    "stream": ['"yes"', "1", '"true"'],
    "stream_options": ["3", "[]", '{"include_usage": "yes"}', '{"include_usage": 1}'],
    "logprobs": ["3", '"true"'],
    "top_logprobs": ["-1", "21", "5", "1.5"],
    "tools": ["{}", "[3]", "[null]", "[{}]", '[{"x": "' + "y" * 600_000 + '"}]', '[{"type": "web_search"}]',
              '[{"type": "function"}]', '[{"type": "function", "function": {}}]',
              '[{"type": "function", "function": {"name": "a b"}}]',
              '[{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]'],
    "tool_choice": ['"required"', '"sometimes"', "3", "[]", "{}", '{"type": "function"}',
                    '{"type": "function", "function": {"name": "nobody"}}'],
    "parallel_tool_calls": ['"no"', "1"],
    "response_format": ["3", '{"type": 3}', '{"type": "poem"}', '{"type": "json_schema"}',
                        '{"type": "text", "json_schema": {"name": "x", "schema": {}}}',
                        '{"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wat"}}}',
                        '{"type": "json_schema", "json_schema": {"schema": {}}}'],
    "functions": ['[{"name": "f"}]', '[{}]', "3", "{}"],
    "function_call": ['{"name": "f"}', '"f"', "3"],
    "frequency_penalty": ["1.5", '"high"', "1e999"],
    "presence_penalty": ["-1.5", '"high"'],
    "logit_bias": ['{"1": 100}', '{"1": "x"}', "[]"],
    "metadata": ["3", "[]", '"x"', "{" + ",".join(f'"{i}": 1' for i in range(65)) + "}"],
    "prompt_cache_key": ["3", "[]", "{}"],
    "session_id": ["3", "[]", "{}"],
}  # fmt: skip

FEEDBACK_FIELDS: dict[str, list[str]] = {
    "turn": ['""', '"turn_nobody"', '"../../etc/passwd"', '"a\\u0000b"', '"' + "x" * 101 + '"', "null"],
    "score": ["2", "-2", "0.5", "9" * 30, "1.0"],
    "comment": ['"' + "x" * 20_001 + '"'],
    "correction": ['"' + "x" * 100_001 + '"'],
    "note": ['"a name that is not known"'],
}
ROLLBACK_FIELDS: dict[str, list[str]] = {
    "to": ['""', '"v9"', '"../v1"', '"v1/../../etc"', '"' + "x" * 101 + '"'],
    "reason": ['""', '"' + "x" * 1_001 + '"'],
    "why": ['"a name that is not known"'],
}
FIELDS = {
    CHAT: CHAT_FIELDS,
    "/v1/completions": COMPLETION_FIELDS,
    "/v1/responses": RESPONSES_FIELDS,
    "/v1/messages": MESSAGES_FIELDS,
    "/v1/messages/count_tokens": COUNT_FIELDS,
    "/v1/feedback": FEEDBACK_FIELDS,
    "/v1/versions/rollback": ROLLBACK_FIELDS,
}

# ── headers ─────────────────────────────────────────────────────────────────────────────────────────────
WRONG_TYPES = [
    "text/plain",
    "text/html",
    "application/xml",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/octet-stream",
    "application/jsonl",
    "application",
    "/",
    "",
    "application/json; charset=utf-16",
    "application/json; charset=latin-1",
    "application/json; profile=x; charset=utf-16",
    "application/json; charset=utf-8; charset=utf-16",
]
ENCODINGS = ["gzip", "br", "deflate", "identity, gzip", "nothing"]

RAW: dict[str, bytes] = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method that is none": b"BREW /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "a lower-case method": b"get /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "no path": b"GET  HTTP/1.1\r\nhost: x\r\n\r\n",
    "a space in the path": b"GET /v1/mod els HTTP/1.1\r\nhost: x\r\n\r\n",
    "a version that is none": b"GET /v1/models HTTP/9.9\r\nhost: x\r\n\r\n",
    "bytes in the path": b"GET /v1/\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
    "a host as path": b"GET http://elsewhere HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tunnel": b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    "an asterisk": b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    "a header without a colon": b"GET /v1/models HTTP/1.1\r\nhost\r\n\r\n",
    "a header name with a space": b"GET /v1/models HTTP/1.1\r\nho st: x\r\n\r\n",
    "a NUL in a header": b"{get}x-session-id: a\x00b\r\n\r\n",
    "a bare line feed in a header": b"{get}x-session-id: a\rb: c\r\n\r\n",
    "a continued header": b"{get} folded\r\n\r\n",
    "a header of 100,000 bytes": b"{get}x: " + b"y" * 100_000 + b"\r\n\r\n",
    "5,000 headers": b"{get}" + b"x-a: 0123456789\r\n" * 5_000 + b"\r\n",
    "a path of 100,000 bytes": b"GET /" + b"y" * 100_000 + b" HTTP/1.1\r\n{key}\r\n",
    "a header without an end": b"GET /v1/models HTTP/1.1\r\nx: " + b"y" * 300_000,
    "a negative length": b"{post}content-length: -1\r\n\r\n",
    "a length in words": b"{post}content-length: ten\r\n\r\n",
    "a length beyond 64 bits": b"{post}content-length: " + b"9" * 30 + b"\r\n\r\n",
    "a length of 9 EB": b"{post}content-length: 9223372036854775807\r\n\r\n",
    "two lengths": b"{post}content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a length and chunks": b"{post}content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown transfer": b"{post}transfer-encoding: gzip\r\n\r\n",
    "a chunk of no number": b"{post}transfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
    "a chunk too large": b"{post}transfer-encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    "a chunk with an endless extension": b"{post}transfer-encoding: chunked\r\n\r\n1;x=" + b"y" * 300_000,
    "endless trailers": b"{post}transfer-encoding: chunked\r\n\r\n0\r\n" + b"x-a: 0123456789\r\n" * 20_000,
    "no body": b"{post}content-length: 0\r\n\r\n",
    "a web socket": b"{post}connection: upgrade\r\nupgrade: websocket\r\ncontent-length: 0\r\n\r\n",
}  # fmt: skip

TOO_LARGE_HEADS = (
    "a header of 100,000 bytes",
    "5,000 headers",
    "a path of 100,000 bytes",
    "a header without an end",
)
"""Those of `RAW` that are good but for their size, so that nothing but 431 shows that it was looked at."""

KEYS = [
    "",
    "Bearer",
    "Basic c2s6c2s=",
    "sk-test",
    "Bearer sk-tesT",
    "Bearer sk-test sk-test",
    "Bearer " + "x" * 10_000,
]

# ── paths ───────────────────────────────────────────────────────────────────────────────────────────────
TRAVERSALS = [
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..%252f..%252fetc%252fpasswd",
    "..%5c..%5cwindows%5cwin.ini",
    "..%c0%af..%c0%afetc%c0%afpasswd",
    "%2fetc%2fpasswd",
    "....%2f%2f....%2f%2fetc%2fpasswd",
    "..;%2f..;%2fetc%2fpasswd",
    "v1%2f..%2f..%2finstar.db",
    "v1%00.json",
    "v1%0d%0aset-cookie:%20a=b",
    "%00",
    ".",
    "..",
    "...",
    "~",
    "~root",
    "file:%2f%2f%2fetc%2fpasswd",
    "http:%2f%2f127.0.0.1:1%2f",
    "%7b%7bversion%7d%7d",
    "$%7bjndi:ldap:%2f%2fx%7d",
    "v1%20%7c%20id",
    "v1;id",
    "%60id%60",
    "v-1",
    "v1e9",
    "v%d9%a1",
    "base%2f..",
    "BASE",
    "con",
    "v" + "9" * 3_000,
]
"""Names that lead elsewhere, as they stand in a path."""

UNKNOWN_PATHS = ["/", "/v1", "/v1/", "/v1/nothing", "/v2/chat/completions", "/v1/models/", "//v1/models", "/v1//models",
                 "/V1/MODELS", "/v1/chat/completions/", "/v1/turns/turn_1", "/docs", "/redoc", "/metrics", "/.env",
                 "/v1/models/../status", "/%2e%2e/etc/passwd", "/etc/passwd"]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "MKCOL"]

QUERIES = ["limit=", "limit=0", "limit=-1", "limit=1001", "limit=ten", "limit=1.5", "limit=1e3", "limit=%00",
           "limit=%D9%A1", "limit=" + "9" * 5_000, "before=", "before=1", "before=%00", "before=../../etc/passwd",
           "before=turn_" + "G" * 24, "before=" + "x" * 5_000]  # fmt: skip
