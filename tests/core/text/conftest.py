"""Small tokenizers and templates of the kinds the text room serves."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
import msgspec
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from ninfer_core.api import PromptFormat, ReasoningSyntax
from ninfer_core.text.tag_calls import TagToolSyntax
from ninfer_core.text.tokenizer import HFTokenizer

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests of this folder can share `tool_answers`

# a busy machine must not fail a property for being slow
hypothesis.settings.register_profile("text", deadline=None)
hypothesis.settings.load_profile("text")

CORPUS = [
    "the cat sat on the mat",
    "import os\n\nprint('hello')\n",
    "naïve café 東京 🙂",
    "<|im_start|> im_end think </think>",
] * 20
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>"]
VISIBLE = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

QWEN_TEMPLATE = """\
{%- macro body(content) %}{{ content }}{% endmacro %}
{%- if messages[0].role == 'nobody' %}{{ raise_exception('Unexpected role.') }}{% endif %}
{%- set effort = reasoning_effort | default('medium') %}
{%- if effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('bad effort ' ~ effort) }}{% endif %}
{%- for tool in tools or [] %}{{ tool | tojson + '\n' }}{% endfor %}
{%- for message in messages %}
{%- set content = body(message.content) | trim %}
{%- if message.role in ('system', 'user', 'tool') %}
{{- '<|im_start|>' + message.role + '\\n' }}
{{- '<tool_response>\\n' + content + '\\n</tool_response>' if message.role == 'tool' else content }}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set thought = '' %}
{%- if message.reasoning_content is string %}
{%- set thought = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n<think>\\n' + thought | trim + '\\n</think>\\n\\n' + content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if note is defined %}{{ 'note: ' + note + '\\n' }}{% endif %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- set off = enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n\\n' if off else '<think>\\n' }}
{%- endif %}
"""

CHATML_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level_json() -> bytes:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([tokenizers.AddedToken(word, special=False, normalized=False) for word in VISIBLE])
    return tokenizer.to_str().encode()


def sentencepiece_json(*, scheme: str | None = "first") -> bytes:
    """A Llama-like document: ``<s>`` and ``</s>`` in the vocabulary, byte fallback, ``▁`` for spaces."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        *"▁abcdehilnost<>/_.",
        "▁h",
        "▁he",
        "ll",
        "▁hell",
    ]
    merges = [["▁", "h"], ["▁h", "e"], ["l", "l"], ["▁he", "ll"]]
    document = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": word, "special": True, "normalized": False}
            for i, word in enumerate(words[:3])
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "ignore_merges": False,
            "vocab": {word: i for i, word in enumerate(words)}, "merges": merges,
        },
    }  # fmt: skip
    return msgspec.json.encode(document)


@pytest.fixture(scope="session")
def byte_level() -> HFTokenizer:
    return HFTokenizer(byte_level_json())


@pytest.fixture(scope="session")
def byte_level_document() -> bytes:
    return byte_level_json()


@pytest.fixture(scope="session")
def sentencepiece() -> HFTokenizer:
    return HFTokenizer(sentencepiece_json())


@pytest.fixture(scope="session")
def sentencepiece_document() -> bytes:
    return sentencepiece_json()


@pytest.fixture(scope="session")
def qwen(byte_level: HFTokenizer) -> PromptFormat:
    return PromptFormat(
        tokenizer=byte_level,
        template=QWEN_TEMPLATE,
        stop_ids=frozenset({byte_level.control_tokens["<|im_end|>"]}),
        reasoning=ReasoningSyntax(open="<think>", close="</think>"),
        thinks_by_default=True,
        thinking_variable="enable_thinking",
        tools=TagToolSyntax(),
    )


@pytest.fixture(scope="session")
def chatml(byte_level: HFTokenizer) -> PromptFormat:
    return PromptFormat(tokenizer=byte_level, template=CHATML_TEMPLATE)
