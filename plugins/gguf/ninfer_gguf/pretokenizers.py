"""What ``tokenizer.ggml.pre`` names: how a byte-level BPE model cuts text into words before merging.

A GGUF file carries only the name; the patterns are facts of the models' own tokenizers. Patterns apply one after
another, each to the pieces the previous ones left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
ANY_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
LINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = rf"{CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)"
PUNCTUATION = r"[\p{P}\$\+<=>\^~\|]+"

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED_1 = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+"
CASED_2 = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


def words(numbers: str, letters: str = r"\p{L}", not_symbols: str = r"\s\p{L}\p{N}") -> str:
    """The pattern of cl100k and its many relatives; ``numbers`` says how digits group."""
    return rf"{ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{numbers}| ?[^{not_symbols}]+[\r\n]*|{LINES_AND_SPACES}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreTokenizer:
    patterns: tuple[str, ...]
    adds_bos: bool = False  # where the file does not say
    ignores_merges: bool = False  # a word that is a token is that token


def named(pre: PreTokenizer, *names: str) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names, pre)


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **named(PreTokenizer(patterns=(PUNCTUATION, GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")), "default"),
    **named(
        PreTokenizer(patterns=(GPT2,)), "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"
    ),
    **named(
        PreTokenizer(patterns=(r"\p{N}", GPT2)),
        *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    ),
    **named(
        PreTokenizer(patterns=(words(r"\p{N}{1,3}"),), adds_bos=True, ignores_merges=True),
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    **named(PreTokenizer(patterns=(words(r"\p{N}{1,3}"),)), "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    **named(PreTokenizer(patterns=(words(r"\p{N}"),)), "qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "grok-2"),
    **named(PreTokenizer(patterns=(words(r"\p{N}", r"\p{L}\p{M}", r"\s\p{L}\p{M}\p{N}"),)), "qwen35"),
    **named(
        PreTokenizer(
            patterns=(rf"{CASED_1}|{CASED_2}|\p{{N}}|{SYMBOLS}|{LINES_AND_SPACES}",), adds_bos=True, ignores_merges=True
        ),
        "tekken",
    ),
    **named(
        PreTokenizer(
            patterns=(rf"{CASED_1}{ANY_CASE}?|{CASED_2}{ANY_CASE}?|\p{{N}}{{1,3}}|{SYMBOLS}|{LINES_AND_SPACES}",)
        ),
        *("gpt-4o", "llama4"),
    ),
    **named(
        PreTokenizer(patterns=(r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")),
        "falcon",
    ),
    **named(
        PreTokenizer(
            patterns=(
                r"\p{N}{1,3}",
                r"[一-龥぀-ゟ゠-ヿ]+",
                r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{LINES_AND_SPACES}",
            )
        ),
        *("deepseek-v3", "hunyuan-dense"),
    ),
}
