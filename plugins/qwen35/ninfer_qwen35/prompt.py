"""How these models are prompted: tokenizer, template, thinking, tool calls, stops and presets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ninfer_core.api import ArtifactError, Checkpoint, Preset, PromptFormat, ReasoningSyntax, Tokenizer

from .config import Qwen35Config, read
from .maintained import maintained

TURN_ENDS = ("<|im_end|>", "<|endoftext|>")
EARLY_CLOSE = (
    "\n\n Considering the limited time by the user, I have to give the solution based on the thinking directly now."
    "\n</think>\n\n"
)
SMALL_HIDDEN_SIZE = 2560  # the published sizes below it answer without thinking unless asked to

ANSWERING = Preset(temperature=0.7, top_p=0.80, presence_penalty=1.5)
THINKING = Preset(temperature=1.0, top_p=0.95, presence_penalty=1.5)
POST_THINKING_TEMPERATURE = 0.2


def prompt_format(checkpoint: Checkpoint) -> PromptFormat:
    """The checkpoint's prompt format; ArtifactError when it has no tokenizer or a resource does not parse."""
    from ninfer_core.api.text import HFTokenizer, TagToolSyntax, TextFiles

    files = TextFiles(checkpoint)
    tokenizer = HFTokenizer(files.tokenizer, files.tokenizer_config)
    config = read(checkpoint.config)
    if tokenizer.size > config.vocab_size:
        text = f"the tokenizer has {tokenizer.size} tokens, but vocab_size is {config.vocab_size}"
        raise ArtifactError(f"{checkpoint.path}: {text}")
    template = files.template
    thinking = thinking_preset(config, template)
    return PromptFormat(
        tokenizer=tokenizer,
        template=None if template is None else maintained(template),
        template_globals=files.special_tokens,
        stop_ids=stop_ids(checkpoint.path, files.listed_ends, tokenizer),
        reasoning=ReasoningSyntax(open="<think>", close="</think>"),
        tools=TagToolSyntax(),
        thinks_by_default=config.is_moe or config.hidden_size >= SMALL_HIDDEN_SIZE,
        thinking_variable="enable_thinking",
        early_close=EARLY_CLOSE,
        preset=ANSWERING,
        thinking_preset=thinking,
        post_thinking_preset=replace(thinking, temperature=POST_THINKING_TEMPERATURE),
    )


def stop_ids(path: str, listed: Sequence[Any], tokenizer: Tokenizer) -> frozenset[int]:
    """The end tokens the generation config lists; without any, those that end a turn and a document.

    The model config's own end token is the document's alone, and a chat would run past the end of its turn.
    """
    for token in listed:
        if type(token) is not int or not 0 <= token < tokenizer.size:
            text = f"eos_token_id {token!r} is no token; ids go from 0 to {tokenizer.size - 1}"
            raise ArtifactError(f"{path}: generation_config.json: {text}")
    known = tokenizer.control_tokens
    return frozenset(listed or (known[spelling] for spelling in TURN_ENDS if spelling in known))


def thinking_preset(config: Qwen35Config, template: str | None) -> Preset:
    """The dense models from 3.6 on think without a presence penalty; their templates can keep past reasoning, those of
    3.5 cannot."""
    is_newer = template is not None and "preserve_thinking" in template
    return replace(THINKING, presence_penalty=0.0) if is_newer and not config.is_moe else THINKING
