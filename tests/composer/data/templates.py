"""Chat templates modelled on well-known ones in this project's own words, and a tokenizer for them."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""It adds strings, so that a message without content is an error."""

MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

QWEN = """
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\n' }}{% endif %}Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- set state = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set state.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}<|im_start|>user
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' %}
{%- set text = m.content if m.content is string else '' %}
{%- set thought = '' %}
{%- if m.reasoning_content is string %}{% set thought = m.reasoning_content %}
{%- elif '</think>' in text %}
{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- set text = text.split('</think>')[-1].lstrip('\n') %}
{%- endif %}<|im_start|>assistant
{% if loop.index0 > state.last and (loop.last or thought) %}<think>
{{ thought.strip('\n') }}
</think>

{{ text.lstrip('\n') }}{% else %}{{ text }}{% endif %}
{%- for call in m.tool_calls or [] %}
{%- set called = call.function or call %}
<tool_call>
{"name": "{{ called.name }}", "arguments": {{ called.arguments if called.arguments is string else called.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
"""Reasoning is written after the last question only."""

LLAMA = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|start|>system<|end|>\n\nToday: ' + (date_string if date_string is defined else strftime_now('%d %b %Y')) + '\n' }}
{%- if tools is defined and tools is not none %}
{%- for tool in tools %}{{ tool | tojson(indent=2) }}{{ '\n' }}{% endfor %}{% endif %}
{{- system + '<|eot|>' }}
{%- for m in messages %}
{%- if 'tool_calls' in m %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}
{%- set called = m.tool_calls[0].function %}
{{- '<|start|>assistant<|end|>\n\n' + called.name + '(' + (called.arguments | tojson) + ')<|eot|>' }}
{%- elif m.role == 'tool' %}
{{- '<|start|>ipython<|end|>\n\n' }}{{ (m.content if m.content is string else m.content | tojson) + '<|eot|>' }}
{%- else %}{{ '<|start|>' + m['role'] + '<|end|>\n\n' + m['content'] | trim + '<|eot|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"""

MISTRAL = """
{{- bos_token }}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages if m.role != 'system' %}
{%- if m.role == 'user' %}
{%- if tools and m == users[-1] %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}
{{- '[INST] ' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}
{%- else %}{{ raise_exception('only user and assistant') }}{% endif %}
{%- endfor %}"""
"""Tools are written before the last question only."""

GEMMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

DEEPSEEK = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}{{ '<User>' + m.content }}
{%- else %}{{ '<Assistant>' + m.content.split('</think>')[-1] + eos_token }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<Assistant><think>\n' }}{% endif %}"""
"""The prompt begins a thought, which no turn of a conversation has."""

TEMPLATES = {
    "chatml": CHATML,
    "marked": MARKED,
    "qwen": QWEN,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "deepseek": DEEPSEEK,
}
SIGNS = (
    *("<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<start_of_turn>", "<end_of_turn>", "<User>", "<Assistant>"),
    *("[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]"),
)


def tokenizer_with(template: str) -> PreTrainedTokenizerBase:
    """Return a lossless byte tokenizer with the control tokens of all templates, and one of these templates. A few tokens are
    several letters, or a space and a letter.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("r", "e"), ("Ġ", "a"), ("a", "s"), ("w", "as")]
    vocabulary = {token: number for number, token in enumerate([*letters, *("".join(pair) for pair in merges)])}
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>", eos_token="<eos>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(SIGNS)})
    tokenizer.chat_template = TEMPLATES.get(template, template)
    return tokenizer
