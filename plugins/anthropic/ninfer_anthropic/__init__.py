"""Anthropic's HTTP routes: Messages and its token count."""

from ninfer_core.api import Frontend, FrontendContext, Option, ProtocolFrontend, hookimpl

NINFER_API = 1

OPTIONS = (
    Option(
        flag="--strip-volatile-system",
        default=False,
        help="leave out the x-anthropic-billing-header line that some clients put first into 'system' of a Messages "
        "request: it changes with every request, so no prompt would begin like the one before it",
        hidden_in=("run", "bench"),
    ),
)


@hookimpl
def ninfer_protocol_frontends() -> list[ProtocolFrontend]:
    return [ProtocolFrontend(name="anthropic", summary="Anthropic Messages", open=open_frontend, options=OPTIONS)]


def open_frontend(context: FrontendContext) -> Frontend:
    from .frontend import Anthropic

    return Anthropic(context).frontend()
