"""Stops, the token in front, and the template come from the checkpoint's own files."""

from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from ninfer_core.api import ArtifactError, Preset
from ninfer_llama.prompt import prompt_format

CONFIG = {
    "hidden_size": 8,
    "vocab_size": 300,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 8,
    "rope_theta": 1e4,
    "attention_bias": False,
    "mlp_bias": False,
}
FRONT = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
BYTES = processors.ByteLevel(trim_offsets=True)


class Files:
    """A checkpoint of resources only."""

    path, architecture, name = "model", "LlamaForCausalLM", None

    def __init__(self, resources: dict[str, bytes | None], **config: Any):
        self.config = {**CONFIG, **config}
        self.resources = resources

    def resource(self, role: str) -> bytes | None:
        return self.resources.get(role)


def tokenizer_json(*control: str, post_processor: Any = None) -> bytes:
    """Bytes 0..255 and then the control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(control))
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer.to_str().encode()


def read(*control: str, post_processor: Any = None, template: bytes | None = None, config: Any = None, **files: Any):
    resources = {f"{name}.json": msgspec.json.encode(value) for name, value in files.items()}
    resources |= {"tokenizer.json": tokenizer_json(*control, post_processor=post_processor)}
    resources |= {"chat_template.jinja": template} if template is not None else {}
    return prompt_format(Files(resources, **(config or {})))


def test_every_listed_end_token_and_every_known_turn_end_stops():
    found = read(
        "<s>",
        "<|im_end|>",
        "<|eot_id|>",
        "[DONE]",
        config={"eos_token_id": [10, 11]},
        generation_config={"eos_token_id": 12},
        tokenizer_config={"eos_token": {"content": "[DONE]"}},
    )
    assert found.stop_ids == {10, 11, 12, 257, 258, 259}


def test_end_tokens_without_a_spelling_are_no_stops():
    found = read("<s>", config={"eos_token_id": 299}, generation_config={"eos_token_id": [5, None, True, 1000]})
    assert found.stop_ids == {5}


BOS = {
    "asked-for": ({"add_bos_token": True, "bos_token": "<s>"}, None, 256),
    "asked-for-by-object": ({"add_bos_token": True, "bos_token": {"content": "<s>"}}, None, 256),
    "asked-for-by-id": ({"add_bos_token": True}, None, 7),
    "declined": ({"add_bos_token": False, "bos_token": "<s>"}, FRONT, None),
    "by-the-post-processor": ({}, FRONT, 256),
    "by-a-nested-post-processor": ({}, processors.Sequence([BYTES, FRONT]), 256),
    "nobody-asks": ({"bos_token": "<s>"}, BYTES, None),
}


@pytest.mark.parametrize(("settings", "post_processor", "expected"), BOS.values(), ids=BOS)
def test_a_raw_prompt_begins_as_the_tokenizer_says(settings, post_processor, expected):
    found = read("<s>", post_processor=post_processor, tokenizer_config=settings, config={"bos_token_id": 7})
    assert found.bos_id == expected


def test_the_template_sees_the_special_tokens_and_the_preset_is_ours():
    found = read(
        "<s>",
        template="{{ bos_token }}é".encode(),
        tokenizer_config={"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": None},
        generation_config={"temperature": 0.11, "top_k": 3},
    )
    assert found.template == "{{ bos_token }}é"
    assert found.template_globals == {"bos_token": "<s>", "eos_token": "</s>"}
    assert found.preset == Preset(temperature=0.0)
    assert read("<s>", config={"hidden_size": 2048}).preset == Preset(temperature=0.6, top_p=0.9)
    assert read("<s>").template is None


BROKEN = {
    "no-tokenizer": ({"tokenizer.json": None}, 'model: text: missing resource "tokenizer.json"'),
    "template": ({"chat_template.jinja": b"ab\xff"}, "model: chat_template.jinja is not UTF-8 at byte 2"),
    "generation": ({"generation_config.json": b"[1]"}, "model: generation_config.json: Expected `object`, got `array`"),
    "truncated": ({"tokenizer_config.json": b'{"a":'}, "tokenizer_config.json: "),
}


@pytest.mark.parametrize(("resources", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_resource_is_refused_by_name(resources, message):
    with pytest.raises(ArtifactError) as refusal:
        prompt_format(Files({"tokenizer.json": tokenizer_json("<s>")} | resources))
    assert message in str(refusal.value)
