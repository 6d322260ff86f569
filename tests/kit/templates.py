"""Chat templates in the manner of those that models come with, one per format of calls."""

from __future__ import annotations

_CHATML_LOOP = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\nTHINK{{ m.content }}CALLS<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nOPEN{% endif %}"
)
_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "HOW<|im_end|>\n{% endif %}"
)
_HERMES_CALLS = (
    "{% for c in m.tool_calls or [] %}{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
_XML_CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for key, value in c.function.arguments | items %}<parameter={{ key }}>\n{{ value }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}"
)
# thinking is kept since the last thing that a person said, and dropped before
_THINK = (
    "{% if m.reasoning_content and loop.index0 > (messages | map(attribute='role') | list | join(' ') + ' ')"
    ".rsplit('user ', 1)[0].split() | length %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
)


def _chatml(how: str, calls: str, think: str = "", opened: str = "") -> str:
    loop = _CHATML_LOOP.replace("THINK", think).replace("CALLS", calls).replace("OPEN", opened)
    return _TOOLS.replace("HOW", how) + loop


HERMES = _chatml("Within <tool_call></tool_call>.", _HERMES_CALLS)
THINKING = _chatml("Within <tool_call></tool_call>.", _HERMES_CALLS, _THINK)
OPENED = _chatml("", "", "", "<think>\n") + "{# </think> #}"
QWEN3_CODER = _chatml("<function=name> <parameter=key>", _XML_CALLS)
LLAMA3 = (
    "{% if tools %}<|im_start|>system\nEnvironment: ipython. Answer with <|python_tag|>, name and parameters.\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}"
    '<|im_start|>assistant\n{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|im_end|>\n'
    "{% else %}<|im_start|>{{ 'ipython' if m.role == 'tool' else m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% set ns = namespace(calls=0) %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}{% set ns.calls = m.tool_calls | length %}[TOOL_CALLS] ["
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]<|im_end|>"
    "{% elif m.role == 'tool' %}{% if not ns.calls %}{{ raise_exception('no call had this result') }}{% endif %}"
    '[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %}{{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}"
)
