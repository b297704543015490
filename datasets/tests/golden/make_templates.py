"""Writes templates.json: what transformers renders for templates and conversations of our own.

With a folder of *.jinja.gz files as argument it also writes public_templates.json, which holds only the length in bytes
and the FNV-1a hash of each rendering.

Made with transformers 5.23.0 and jinja2 3.1.6:  python make_templates.py [FOLDER]
"""

import gzip
import json
import sys
from pathlib import Path

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "date_string": "26 Jul 2024"}

TEMPLATES = {
    "inst": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate, beginning with the user') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "headers": """{{- bos_token }}
{#- every turn has a header -#}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
""",
    "chatml_tools": """{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- 'Tools:' }}
    {%- for tool in tools %}
        {{- '\n' ~ loop.index ~ ' ' }}
        {{- tool | tojson }}
        {{- '\n' }}{{ tool.function.parameters | tojson(indent=2) }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.last_user < 0 and message.role == 'user' and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.last_user = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- continue %}
    {%- endif %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last_user %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""",
    "instruct": """{%- set loop_messages = messages[1:] if messages[0]["role"] == "system" else messages %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and messages[0]["role"] == "system" %}
            {{- "[INST]" + messages[0]["content"] + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token }}
    {%- else %}
        {{- raise_exception("only user and assistant turns, after one optional system turn") }}
    {%- endif %}
{%- endfor %}
""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
""",
    "marked": """{{ bos_token }}{% for message in messages %}
    {% if message['role'] == 'assistant' %}
{{ '<|assistant|>\n' }}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}

    {% else %}
{{ '<|' + message['role'] + '|>\n' + message['content'] + '\n' }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}""",
    "marked_trimmed": """{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        Assistant:
        {%- generation -%}
            {{ ' ' + message.content }}
            {{- eos_token }}
        {%- endgeneration %}

    {%- else -%}
        {{ message.role | capitalize }}: {{ message.content | trim }}
    {%- endif -%}
    {{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%} Assistant: {%- endif -%}
""",
    "marked_lines": """{% for message in messages %}
  {% if message.role == 'assistant' %}
  <a>
    {% generation %}
    {{ message.content }}
    {% endgeneration %}
  </a>
  {% else %}
  <q>{{ message.content }}</q>
  {% endif %}
{% endfor %}
""",
    "values": """{% set d = {'a': 1, 'b': [true, none, 'x', 1.5]} %}{{ d }} {{ true }} {{ none }} {{ missing }}{{ d | tojson }}|{{ d | tojson(indent=4) }}|{{ d | tojson(separators=(',', ':')) }}|{{ '<&\\'"é中' | tojson }}|{{ 'é中😀' | tojson(ensure_ascii=true) }}|{{ [] | tojson(indent=2) }}|{{ {'z': 1, 'y': 2} | tojson(sort_keys=true) }}
{% for key, value in d.items() %}{{ key }}={{ value | string }};{% endfor %}
{{ messages[-1].content.upper() }} {{ messages[0].get('name', 'nobody') }} {{ messages[0]['content'].replace('e', '3') }} {{ ','.join(['a', 'b']) }} {{ 'x y  z'.split() | length }} {{ 'a-b-c'.split('-')[1] }} {{ '  pad'.lstrip() }}{{ 'xxhixx'.strip('x') }} {{ 'abc'[::-1] }} {{ messages | map(attribute='role') | join('/') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 3 }} {{ 'b' in 'abc' }} {{ (1, 2) | length }} {{ messages | length > 2 and messages[1].role != 'user' }}
{%- macro twice(text) %}{{ text }}{{ text }}{% endmacro %} {{ twice('ab') }} {{ strftime_now('%%') }}{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}""",
}

CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "Hi!"}],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " What is 2 + 2? "},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "再问:三加五?"},
        {"role": "assistant", "content": "八。\n<b>8</b> & 'done'"},
    ],
    "thinking": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "<tool>7</tool>"},
        {"role": "assistant", "content": "<think>ok</think>c"},
        {"role": "user", "content": "d"},
    ],
    "wrong_order": [{"role": "assistant", "content": "first"}, {"role": "user", "content": "second"}],
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather in \u00fcber-all <places> & more",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def render(template, messages, tools, prompt):
    try:
        rendered, spans = render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=template,
            return_assistant_tokens_mask="generation" in template,
            continue_final_message=False,
            add_generation_prompt=prompt,
            **SPECIAL,
        )
    except (jinja2.exceptions.TemplateError, TypeError) as error:
        return {"error": str(error)}
    text = rendered[0]
    row = {"text": text}
    if spans and spans[0]:
        row["spans"] = [[len(text[:a].encode()), len(text[:b].encode())] for a, b in spans[0]]
    return row


def cases(templates):
    for name, template in templates.items():
        for conversation, messages in CONVERSATIONS.items():
            for tools in (None, TOOLS):
                for prompt in (False, True):
                    row = {"template": name, "conversation": conversation, "tools": tools is not None, "prompt": prompt}
                    yield row | render(template, messages, tools, prompt)


def fnv(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def hashed(row):
    if "text" in row:
        row["bytes"] = len(row["text"].encode())
        row["fnv"] = fnv(row.pop("text"))
    return row


def write(name, content):
    content = {"made_with": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}"} | content
    (HERE / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")


inputs = {"special": SPECIAL, "tools": TOOLS, "conversations": CONVERSATIONS}
write("templates.json", inputs | {"templates": TEMPLATES, "cases": list(cases(TEMPLATES))})
if len(sys.argv) > 1:
    files = sorted(Path(sys.argv[1]).glob("*.jinja.gz"))
    public = {file.name: gzip.open(file, "rt").read() for file in files}
    write("public_templates.json", inputs | {"cases": [hashed(row) for row in cases(public)]})
