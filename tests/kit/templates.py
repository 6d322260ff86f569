"""Chat templates as those that models come with, one per format of calls."""

from __future__ import annotations

# Written anew after those that Qwen 2.5 and 3, Qwen3-Coder, Llama 3.2 and Mistral Nemo come with, and as particular as
# they are: which roles they know and which they leave out or refuse, where tools and the system message stand, how
# values are written. Only the marks around messages are the tiny tokenizer's.
_CHATML_LOOP = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\nTHINK{{ m.content }}CALLS<|im_end|>\n"
    "{% elif m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nOPEN{% endif %}"
)
_TOOLS = (
    "{% set first = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% if tools %}<|im_start|>system\n{{ first }}{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "HOW<|im_end|>\n{% elif first %}<|im_start|>system\n{{ first }}<|im_end|>\n{% endif %}"
)
_HERMES_CALLS = (
    "{% for c in m.tool_calls or [] %}{% if m.content or not loop.first %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
_XML_CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for key, value in c.function.arguments | items %}<parameter={{ key }}>\n"
    "{{ value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}"
    "\n</parameter>\n{% endfor %}"
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
    "{% set ns = namespace(system='', tools=tools) %}"
    "{% if messages[0].role == 'system' %}"
    "{% set ns.system = messages[0].content | trim %}{% set messages = messages[1:] %}{% endif %}"
    "<|im_start|>system\n{% if tools %}Environment: ipython\n{% endif %}{{ ns.system }}<|im_end|>\n"
    "{% if tools %}{% if not messages %}{{ raise_exception('no first user message') }}{% endif %}"
    '<|im_start|>user\nAnswer with {"name": function name, "parameters": dictionary}.\n'
    "{% for t in tools %}{{ t | tojson(indent=4) }}\n{% endfor %}{{ messages[0].content | trim }}<|im_end|>\n"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}"
    "{% if 'tool_calls' in m %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}"
    '<|im_start|>assistant\n{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|im_end|>\n'
    "{% elif m.role == 'tool' or m.role == 'ipython' %}<|im_start|>ipython\n{{ m.content | tojson }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <|python_tag|> #}"
)
MISTRAL = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set messages = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% set ns = namespace(n=0) %}"
    "{% for m in messages %}{% if m.role != 'tool' and not m.tool_calls %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}"
    "{% if tools and m == asked[-1] %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{% if loop.last and system %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS]["
    "{% for c in m.tool_calls %}{% if not c.id is defined or c.id | length != 9 %}"
    "{{ raise_exception('ids have 9 characters') }}{% endif %}"
    '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]<|im_end|>"
    "{% elif m.role == 'assistant' %}{{ m.content }}<|im_end|>"
    "{% elif m.role == 'tool' %}"
    "{% if not m.tool_call_id is defined or m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids have 9 characters') }}{% endif %}"
    '[TOOL_RESULTS]{"content": {{ m.content | string }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}"
    "{% endfor %}"
)
ALL = {
    "hermes": HERMES,
    "thinking": THINKING,
    "qwen3_coder": QWEN3_CODER,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
}
