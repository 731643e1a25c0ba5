"""OpenAI's HTTP routes: Chat Completions, Completions, Responses and the model list."""

from ninfer_core.api import Frontend, FrontendContext, Option, ProtocolFrontend, hookimpl, integer

NINFER_API = 1

NOT_HERE = ("run", "bench")
OPTIONS = (
    Option(
        flag="--assistant-prefill",
        default=False,
        help="continue a Chat Completions request's trailing assistant message in place",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--usage-chunk-choice",
        default=False,
        help="give the streamed usage chunk a choice without content, for clients that reject an empty list",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--lenient-image-detail",
        default=False,
        help="read an image detail other than auto, low or high as auto instead of refusing the request",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--lenient-assistant-history",
        default=False,
        help="let text and reasoning after the calls of a Responses turn join that turn instead of refusing them",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--response-store-max-records",
        metavar="N",
        parse=integer(1),
        default=1024,
        help="Responses kept for retrieval and continuation",
        hidden_in=NOT_HERE,
    ),
    Option(
        flag="--response-store-max-mib",
        metavar="N",
        parse=integer(1),
        default=256,
        help="MiB of Responses, Items and conversations kept",
        hidden_in=NOT_HERE,
    ),
)


@hookimpl
def ninfer_protocol_frontends() -> list[ProtocolFrontend]:
    summary = "OpenAI Chat Completions, Completions and Responses"
    return [ProtocolFrontend(name="openai", summary=summary, open=open_frontend, options=OPTIONS)]


def open_frontend(context: FrontendContext) -> Frontend:
    from .frontend import OpenAI

    return OpenAI(context).frontend()
