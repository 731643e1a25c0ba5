"""--spec ngram: drafts copied from the request's own prompt, tool results and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer_core.api import Option, Refusal, SpecContext, SpeculativeBackend, hookimpl, integer

if TYPE_CHECKING:
    from .source import NgramSource

NINFER_API = 1
SHARED_DRAFTS = 15  # the most drafts a row may have while others decode beside it


@hookimpl
def ninfer_speculative_backends() -> list[SpeculativeBackend]:
    return [
        SpeculativeBackend(
            name="ngram",
            summary="copies what followed the same tokens earlier in the request; no extra weights",
            role="copy",
            open=open_source,
            options=(
                Option(
                    flag="--ngram-draft-tokens",
                    metavar="N",
                    parse=integer(0, 63),
                    default=SHARED_DRAFTS,
                    help=f"tokens a copy proposes at most, 0 to 63 (0: no copies); more than {SHARED_DRAFTS} needs "
                    "--max-concurrency 1",
                ),
                Option(
                    flag="--ngram-min-match",
                    metavar="N",
                    parse=integer(4, 64),
                    default=12,
                    help="tokens that must repeat before a copy is proposed, 4 to 64",
                ),
            ),
        )
    ]


def open_source(context: SpecContext) -> NgramSource:
    """Refusal for a draft window that several lanes cannot have."""
    drafts, min_match = context.options["ngram_draft_tokens"], context.options["ngram_min_match"]
    if drafts > SHARED_DRAFTS and context.max_concurrency > 1:
        raise Refusal(
            f"--ngram-draft-tokens {drafts} needs --max-concurrency 1 (it is {context.max_concurrency}); "
            f"up to {SHARED_DRAFTS} work with any"
        )
    from .source import NgramSource

    return NgramSource(max_drafts=drafts, min_match=min_match, boundaries=context.control_token_ids)
