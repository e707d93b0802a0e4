"""Chat templates with the habits of well-known families, reduced to what matters here, and chats that use them."""

from marft.models.chat import Chat
from marft.models.tiny import PRINTABLE, build_tokenizer
from marft.tools.base import ToolSpec

ADD = ToolSpec(
    "add",
    "Adds two numbers.",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
)
CHARACTERS = PRINTABLE + "…"

# Any role as it is; a system message of its own when none is given; nothing about tools
SMOLLM2 = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|start|>system\nBe helpful.<|end|>\n{% endif %}"
    "<|start|>{{ m.role + '\n' + m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

# Tools in the system message; calls between marks; results in a row share one user turn
_QWEN_OPENING = (
    "{%- if tools %}<|start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}Use:\n"
    "{%- for t in tools %}\n{{ t | tojson }}{% endfor %}<|end|>\n"
    "{%- elif messages[0].role == 'system' %}<|start|>system\n{{ messages[0].content }}<|end|>\n{% endif %}"
)
_QWEN_RESULT = (
    "{% elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|>\n{% endif %}"
)
_QWEN_CALLS = (
    "{% for c in m.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|end|>\n"
)
QWEN = (
    _QWEN_OPENING + "{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n"
    "{% elif m.role == 'assistant' %}<|start|>assistant{% if m.content %}\n{{ m.content }}{% endif %}"
    + _QWEN_CALLS + _QWEN_RESULT + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)  # fmt: skip

# As QWEN, but the thoughts of all replies but the last are dropped, and the last always has a place for some
QWEN_THINKING = (
    _QWEN_OPENING + "{% for m in messages %}"
    "{% if m.role == 'user' %}<|start|>user\n{{ m.content }}<|end|>\n"
    "{% elif m.role == 'assistant' %}{% set said = m.content.split('</think>')[-1].lstrip('\n') %}"
    "<|start|>assistant\n{% if loop.last %}<think>\n\n</think>\n\n{% endif %}{{ said }}"
    "{% if not m.tool_calls %}<|end|>\n{% else %}" + _QWEN_CALLS + "{% endif %}" + _QWEN_RESULT +
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)  # fmt: skip

# Tools in the first user message; a bare JSON object is a call; contents are trimmed
LLAMA = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
    "<|start|>system\nCutting knowledge.\n{{ system }}<|end|>"
    "{% if tools %}{% if not rest %}{{ raise_exception('no first user message') }}{% endif %}"
    '<|start|>user\nRespond in the form {"name": name, "parameters": values}.\n'
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}{{ rest[0].content | trim }}<|end|>{% set rest = rest[1:] %}"
    "{% endif %}{% for m in rest %}"
    "{% if m.role not in ('tool', 'ipython') and not m.tool_calls %}"
    "<|start|>{{ m.role }}\n{{ m.content | trim }}<|end|>"
    "{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    '<|start|>assistant\n{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|end|>'
    "{% else %}<|start|>ipython\n{{ m.content | tojson }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

# Turns must alternate (calls and results are not counted); a result must follow a call; ids have nine characters
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{% set count = namespace(n=0) %}"
    "{% for m in rest %}{% if m.role in ('user', 'assistant') and not m.tool_calls %}"
    "{% if (m.role == 'user') != (count.n % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set count.n = count.n + 1 %}{% endif %}{% endfor %}"
    "{% for m in rest %}{% if m.role == 'user' %}"
    "{% if tools and loop.first %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{% if system and loop.first %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]<|end|>"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }}<|end|>"
    "{% else %}{% if not loop.previtem or not (loop.previtem.tool_calls or loop.previtem.role == 'tool') %}"
    "{{ raise_exception('a result without a call') }}{% endif %}"
    '[TOOL_RESULTS]{"content": {{ m.content | tojson }}}[/TOOL_RESULTS]{% endif %}{% endfor %}'
)

# No system role, strict alternation, another name for the assistant, contents trimmed, nothing about tools
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "<|start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>model\n{% endif %}"
)

# Thoughts are opened for the reply to come and dropped from those before
R1 = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}[User]{{ m.content }}"
    "{% else %}[Assistant]{{ m.content.split('</think>')[-1] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[Assistant]<think>\n{% endif %}"
)

ALL = {
    "smollm2": SMOLLM2, "qwen": QWEN, "qwen-thinking": QWEN_THINKING, "llama": LLAMA, "mistral": MISTRAL,
    "gemma": GEMMA, "r1": R1,
}  # fmt: skip


def chat_of(template: str) -> Chat:
    """A chat of single characters with this template."""
    tokenizer = build_tokenizer(CHARACTERS, template)
    return Chat(tokenizer, (tokenizer.eos_token_id,))
