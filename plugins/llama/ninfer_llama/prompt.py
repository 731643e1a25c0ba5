"""How these models are prompted: tokenizer, template, stops and sampling defaults, from the checkpoint's files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ninfer_core.api import ArtifactError, Checkpoint, Preset, PromptFormat, Tokenizer

from .config import read

if TYPE_CHECKING:
    from ninfer_core.api.text import TextFiles

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>")
"""Tokens that end a turn or a document wherever they exist, whatever a checkpoint lists as its end token."""

# Llama 3's published chat settings; the numbers in a checkpoint's generation_config are not taken over
PRESET = Preset(temperature=0.6, top_p=0.9)
# a model this narrow puts a seventh of its weight on a right first token: sampling it mostly draws wrong ones
SMALL_PRESET = Preset(temperature=0.0)
SMALL_HIDDEN_SIZE = 1024


class PostProcessor(msgspec.Struct):
    """The part of a tokenizer.json post-processor that may put a token in front."""

    type: str = ""
    single: list[dict[str, Any]] = []
    processors: list[PostProcessor] = []

    def first_token(self) -> str | None:
        """The spelling put before a single text, or None."""
        if self.type == "TemplateProcessing" and self.single:
            special = self.single[0].get("SpecialToken")
            return special.get("id") if isinstance(special, dict) else None
        return next((token for inner in self.processors if (token := inner.first_token())), None)


class TokenizerFile(msgspec.Struct):
    post_processor: PostProcessor | None = None


def prompt_format(checkpoint: Checkpoint) -> PromptFormat:
    """The checkpoint's prompt format; ArtifactError when it has no tokenizer or a resource does not parse."""
    from ninfer_core.api.text import HFTokenizer, TextFiles

    files = TextFiles(checkpoint)
    tokenizer = HFTokenizer(files.tokenizer, files.tokenizer_config)
    spellings = files.special_tokens
    return PromptFormat(
        tokenizer=tokenizer,
        template=files.template,
        template_globals=spellings,
        stop_ids=stop_ids(checkpoint, files.listed_ends, tokenizer, spellings.get("eos_token")),
        bos_id=bos_id(checkpoint, tokenizer, files),
        preset=SMALL_PRESET if read(checkpoint.config).hidden_size < SMALL_HIDDEN_SIZE else PRESET,
    )


def stop_ids(
    checkpoint: Checkpoint, listed: Sequence[Any], tokenizer: Tokenizer, eos_token: str | None
) -> frozenset[int]:
    """End tokens of the generation config, the model config and the tokenizer, and the turn ends it knows."""
    ids = {*read(checkpoint.config).eos_token_ids, *listed}
    ids |= {tokenizer.control_tokens.get(spelling) for spelling in (*TURN_ENDS, eos_token or "")}
    return frozenset(token for token in ids if type(token) is int and 0 <= token < tokenizer.size)


def bos_id(checkpoint: Checkpoint, tokenizer: Tokenizer, files: TextFiles) -> int | None:
    """The token before a raw prompt: as ``add_bos_token`` says, and where it is silent as the post-processor does."""
    try:
        processor = msgspec.json.decode(files.tokenizer, type=TokenizerFile).post_processor
    except msgspec.MsgspecError as error:
        raise ArtifactError(f"{checkpoint.path}: tokenizer.json: {error}") from None
    wanted = files.json("tokenizer_config.json").get("add_bos_token")
    first = processor.first_token() if processor else None
    if wanted is False or (wanted is None and first is None):
        return None
    spelling = files.special_tokens.get("bos_token") or first
    found = tokenizer.control_tokens.get(spelling or "", read(checkpoint.config).bos_token_id)
    return found if found is not None and found < tokenizer.size else None
