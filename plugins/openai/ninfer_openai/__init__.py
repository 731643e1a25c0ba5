"""OpenAI's HTTP routes: Chat Completions and the model list."""

from ninfer_core.api import Frontend, FrontendContext, Option, ProtocolFrontend, hookimpl

NINFER_API = 1

OPTIONS = (
    Option(
        flag="--assistant-prefill",
        default=False,
        help="continue a Chat Completions request's trailing assistant message in place",
        hidden_in=("run", "bench"),
    ),
    Option(
        flag="--usage-chunk-choice",
        default=False,
        help="give the streamed usage chunk a choice without content, for clients that reject an empty list",
        hidden_in=("run", "bench"),
    ),
)


@hookimpl
def ninfer_protocol_frontends() -> list[ProtocolFrontend]:
    return [ProtocolFrontend(name="openai", summary="OpenAI Chat Completions", open=open_frontend, options=OPTIONS)]


def open_frontend(context: FrontendContext) -> Frontend:
    from .frontend import OpenAI

    return OpenAI(context).frontend()
