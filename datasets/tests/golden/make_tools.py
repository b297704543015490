"""Writes tools.json: what transformers renders for conversations that call tools.

With a folder of *.jinja.gz files as argument the renderings of these templates are in it too, as lengths in bytes and
FNV-1a hashes. Each conversation is there as transformers gets it; the tests read it as a row of a data set.

Made with transformers 5.23.0 and jinja2 3.1.6:  python make_tools.py FOLDER
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
    # A block for each call, behind the text of the turn; results are turns of the user.
    "blocks": """{%- if tools %}{{- '<|im_start|>system\\nTools:' }}{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<result>' + message.content + '</result><|im_end|>\\n' }}
    {%- elif message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<call>' }}{{- {'name': call.name, 'arguments': call.arguments} | tojson }}{{- '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
    # Calls are rendered only where the content is null, and their arguments as text.
    "null_content": """{{ tools | tojson if tools }}{% for message in messages %}{% if message['role'] == 'assistant' and message['content'] is none %}{% for call in message['tool_calls'] %}{{ '<|im_start|>call ' + call['type'] + ' ' + call['function']['name'] + ' ' + call['function']['arguments'] }}{% endfor %}{{ '<|im_end|>' }}{% else %}{{ '<|im_start|>' + message['role'] + ' ' + message['content'] + '<|im_end|>' }}{% endif %}{% endfor %}""",
    # The fields that a message has, and what links a result to its call.
    "fields": """{% for message in messages %}{{ message.role }}{{ ' calls' if 'tool_calls' in message }}{{ ' undefined' if message.name is undefined }}{{ ' ' ~ message.get('name', '-') }}{{ ' ' ~ message.get('tool_call_id', '-') }}{{ ' ' + message.content | string }}{% for call in message.tool_calls or [] %}{{ ' ' ~ (call.id or 'no id') ~ ' ' ~ call.function.arguments }}{% endfor %}
{% endfor %}{{ tools | tojson(indent=1) if tools }}""",
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "enum": [1, 2]}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}},
]


def call(arguments, ident="abcdef123", name="weather"):
    return {"type": "function", "id": ident, "function": {"name": name, "arguments": arguments}}


def result(content, ident="abcdef123", name="weather"):
    return {"role": "tool", "content": content, "name": name, "tool_call_id": ident}


QUESTION = {"role": "user", "content": "How is Oslo?"}
ANSWER = {"role": "assistant", "content": "It is 12 C there."}
OSLO = {"days": 2, "city": "Oslo"}
CONVERSATIONS = {
    "object": [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call(OSLO)]}, result("12 C"), ANSWER],
    "text": [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call('{"city":  "Oslo"}')]}, result("12 C"), ANSWER],
    "said": [QUESTION, {"role": "assistant", "content": "Let me see.", "tool_calls": [call(OSLO)]}, result("12 C"), ANSWER],
    "two": [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call(OSLO), call({}, "abcdef124", "now")]},
        result('{"c": 12}'),
        result("noon", "abcdef124", "now"),
        ANSWER,
    ],
    "prompt": [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call(OSLO)]}, result("12 C")],
}


def render(template, messages, tools, prompt):
    try:
        rendered, _ = render_jinja_template(
            conversations=[messages], tools=tools, chat_template=template, add_generation_prompt=prompt, **SPECIAL
        )
    except (jinja2.exceptions.TemplateError, TypeError) as error:
        return {"error": str(error)}
    return {"text": rendered[0]}


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


files = sorted(Path(sys.argv[1]).glob("*.jinja.gz"))
public = {file.name: gzip.open(file, "rt").read() for file in files}
content = {
    "made_with": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}",
    "special": SPECIAL,
    "tools": TOOLS,
    "conversations": CONVERSATIONS,
    "templates": TEMPLATES,
    "cases": list(cases(TEMPLATES)),
    "public": [hashed(row) for row in cases(public)],
}
(HERE / "tools.json").write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
