"""Writes encode.json: ids and assistant masks from transformers, with the tokenizer of stories260k (MIT).

Made with transformers 5.23.0:  python make_encode.py FOLDER_OF_STORIES260K
"""

import json
import sys
from pathlib import Path

import transformers

tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
TEXTS = [
    "", " ", "Once upon a time", "  two  spaces ", "Lily's mom said, \"Hi!\"\n\n", "12345 + 6 = 12351", "中文和English混排。",
    "é😀 naïve", "\tTab\r\n", "<s>begins", "ends</s>", "<s>both</s>", "a<unk>b", "ﬀ ligature", "x" * 40,
]
TEMPLATE = """{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}{{ 'Assistant:' }}{% generation %}{{ ' ' + message.content + eos_token }}{% endgeneration %}{{ '\n' }}{% else %}{{ message.role | capitalize + ': ' + message.content + '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
CONVERSATIONS = [
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello you"}],
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "What is this?"},
        {"role": "assistant", "content": "It is a big red ball.\nOK"},
        {"role": "user", "content": "再来 😀"},
        {"role": "assistant", "content": "好的。é"},
    ],
]


def conversation(messages):
    out = tokenizer.apply_chat_template(
        messages, chat_template=TEMPLATE, return_dict=True, return_assistant_tokens_mask=True
    )
    prompt = tokenizer.apply_chat_template(
        messages[:-1], chat_template=TEMPLATE, add_generation_prompt=True, return_dict=True
    )
    return {
        "messages": messages,
        "ids": out["input_ids"],
        "mask": out["assistant_masks"],
        "prompt_ids": prompt["input_ids"],
    }


def text(text):
    plain = tokenizer.encode(text, add_special_tokens=False)
    return {
        "text": text,
        "plain": plain,
        "special": tokenizer.encode(text),
        "decoded": tokenizer.decode(plain),
        "decoded_skip": tokenizer.decode(plain, skip_special_tokens=True),
    }


golden = {
    "made_with": f"transformers {transformers.__version__}, tokenizers {__import__('tokenizers').__version__}",
    "texts": [text(one) for one in TEXTS],
    "template": TEMPLATE,
    "conversations": [conversation(one) for one in CONVERSATIONS],
}
path = Path(__file__).parent / "encode.json"
path.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")
