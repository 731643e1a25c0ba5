"""llama.cpp's own HTTP routes: raw-prompt completion, the tokenizer, the rendered template."""

from ninfer_core.api import Frontend, FrontendContext, ProtocolFrontend, hookimpl

NINFER_API = 1


@hookimpl
def ninfer_protocol_frontends() -> list[ProtocolFrontend]:
    return [ProtocolFrontend(name="llamacpp", summary="llama.cpp completion and tokenizer", open=open_frontend)]


def open_frontend(context: FrontendContext) -> Frontend:
    from .frontend import LlamaCpp

    return LlamaCpp(context).frontend()
